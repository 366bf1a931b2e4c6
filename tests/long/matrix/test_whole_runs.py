"""Every kind of query run whole by Spark on the demo data: the same rows as the local engine's, however the stream is cut."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import csv

from dpsql.lake.runs import Lake
from dpsql.local.verification import verify_run
from dpsql.published.public_rows import read_histogram
from dpsql.streaming.typed_rows import TypedRows
from tests.frozen import frozen, line
from tests.matrix import same_rows
from tests.matrix.same_rows import FEW_ROWS, QUERIES, SECRET, SPARK_ONLY, Stream
from tests.matrix.test_same_rows import MANY_CUTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 12
FILES_PER_BATCH = 4


@pytest.fixture(scope="module")
def wiki() -> Stream:
    return same_rows.wiki()


@pytest.mark.parametrize("name", QUERIES)
def test_spark_publishes_the_same_rows(
    spark: SparkSession, wiki: Stream, tmp_path: Path, name: str
) -> None:
    query = wiki.query(name, tmp_path / "data", FILES_PER_BATCH)
    there = same_rows.spark_rows(spark, query, wiki, FILES, (2, 3), tmp_path / "lake")
    if name in SPARK_ONLY:
        assert same_rows.refused_locally(query, wiki, SPARK_ONLY[name])
        assert there.num_rows >= FEW_ROWS
        assert line(query, there) == frozen()[f"matrix/{name}"], "frozen: see tests/frozen.py"
        if name == "explode":
            assert same_rows.same(
                there, same_rows.spark_rows(spark, query, wiki, 2, (3, 2), tmp_path / "lake of two")
            )
    else:
        for parts, buckets in ((1, (1, 1)), MANY_CUTS):
            assert same_rows.same(same_rows.local_rows(query, wiki, parts, buckets), there)


def test_public_groups_need_no_record_and_are_kept(
    spark: SparkSession, wiki: Stream, tmp_path: Path
) -> None:
    """Every listed key in every window from the declared start, at every trigger; a list that changes later changes nothing. Catches:
    groups only where records are, a first window from the data, a list that is read again."""
    query = wiki.query("public groups", tmp_path / "data")
    lake = Lake(tmp_path / "lake")
    parts = wiki.cut(FILES)
    listed = set(
        csv.read_csv(tmp_path / "listed.csv", csv.ReadOptions(column_names=["key"]))[
            "key"
        ].to_pylist()
    )
    same_rows.write([wiki.records.slice(0, 0)], tmp_path / "data")
    half = wiki.start_us + 86_400_000_000
    same_rows.start(spark, query, lake, half, (2, 3))
    quiet = read_histogram(lake, "q")
    assert set(quiet["key"].to_pylist()) == listed
    assert quiet.num_rows == len(listed) * 24  # one day has passed, and no record
    csv.write_csv(
        pa.table({"key": ["#en.wikipedia", "#late"]}),
        tmp_path / "listed.csv",
        csv.WriteOptions(include_header=False),
    )
    same_rows.write([wiki.records.slice(0, 0), *parts], tmp_path / "data")
    run = same_rows.start(spark, query, lake, wiki.until_us, (2, 3))
    rows = same_rows.ordered(read_histogram(lake, "q"), query)
    assert len(set(rows["window_start"].to_pylist())) == 5
    assert set(rows["key"].to_pylist()) == listed
    assert verify_run(lake, "q", run, query, SECRET, as_parquet=TypedRows(spark)).identical
    (tmp_path / "listed.csv").unlink()
    again = wiki.query("public groups", tmp_path / "data")
    assert same_rows.same(rows, same_rows.local_rows(again, wiki, 1, (1, 1)))
