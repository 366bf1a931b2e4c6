"""Every kind of query on the demo data: Spark and the local engine publish the same rows, however the stream is cut."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from dpsql.local.record_reader import RowReader
from dpsql.local.spark_types import STRING
from tests.frozen import frozen, line
from tests.matrix import same_rows
from tests.matrix.same_rows import FEW_ROWS, OTHER_RUN_ID, QUERIES, SECRET, SPARK_ONLY, Stream
from tests.sweeps import some

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_PER_BATCH = 4
READ_ALIKE = {
    "late and many",
    "for ever",
    "rounds",
    "sliding",
    "sliding for ever",
    "sliding public groups",
    "no key, sliding for ever",
}
READ_ALIKE |= {
    "not counted",
    "a table of listed keys",
    "quantiles, carried",
    "a table of rows",
    "a table without a key",
    "a table of two values",
    "a mean",
}
"""Another query has their FROM, and columns of theirs."""
LOCAL = [name for name in QUERIES if name not in SPARK_ONLY]
MANY_CUTS = (50, (16, 2))
MANY_CUTS_OF = ("three columns",)


@pytest.fixture(scope="module")
def wiki() -> Stream:
    return same_rows.wiki()


@pytest.mark.parametrize("name", LOCAL)
def test_rows_are_frozen(wiki: Stream, tmp_path: Path, name: str) -> None:
    query = wiki.query(name, tmp_path / "data")
    rows = same_rows.local_rows(query, wiki, 1, (1, 1))
    assert rows.num_rows >= FEW_ROWS
    assert line(query, rows) == frozen()[f"matrix/{name}"], "frozen: see tests/frozen.py"
    assert len(set(rows["trigger"].to_pylist())) >= 5


@pytest.mark.parametrize("name", some(LOCAL, 4, *MANY_CUTS_OF))
def test_cuts_and_buckets_change_nothing(wiki: Stream, tmp_path: Path, name: str) -> None:
    query = wiki.query(name, tmp_path / "data")
    rows = same_rows.local_rows(query, wiki, 1, (1, 1))
    # The many cuts take longest; every query has them in tests/long/matrix, random queries in tests/property
    for parts, buckets in ((7, (2, 16)), *([MANY_CUTS] if name in MANY_CUTS_OF else [])):
        assert same_rows.same(rows, same_rows.local_rows(query, wiki, parts, buckets)), (
            parts,
            buckets,
        )
    other = same_rows.local_rows(query, wiki, 1, (1, 1), OTHER_RUN_ID)
    # Two counts with noise of 6 are the same by chance in 5% of the rows; those of one run in all
    assert same_rows.rows_in_common(rows, other, query) <= rows.num_rows // 8


@pytest.mark.parametrize("name", [name for name in QUERIES if name not in READ_ALIKE])
def test_spark_reads_the_same_records(
    spark: SparkSession, wiki: Stream, tmp_path: Path, name: str
) -> None:
    """FROM, keys and arguments, the only part that the engines do not share. `tests/long/matrix` runs every query whole on both."""
    query = wiki.query(name, tmp_path / "data")
    same_rows.write([wiki.records], tmp_path / "data")
    reader = RowReader(query.plan, query.sources, SECRET.salt(same_rows.RUN_ID), {})
    there = same_rows.spark_records(
        spark, query, [tmp_path / "data"], SECRET.salt(same_rows.RUN_ID)
    )
    if name in SPARK_ONLY:
        assert same_rows.refused_locally(query, wiki, SPARK_ONLY[name])
        rows = there.append_column("drop", pa.array(np.zeros(there.num_rows, np.int8)))
        made = same_rows.released(query, wiki, reader, [rows], key_types=(STRING,))
        assert line(query, made) == frozen()[f"matrix/{name}"], "frozen: see tests/frozen.py"
    else:
        assert there.num_rows > 10_000
        assert same_rows.same_records(reader.frame(wiki.records), there)


def test_a_static_join_is_the_same_when_run_whole(
    spark: SparkSession, wiki: Stream, tmp_path: Path
) -> None:
    """Other kinds of query are run whole where their other tests are: tests/streaming (windows, tables, change feeds), tests/mechanisms."""
    query = wiki.query("static join", tmp_path / "data", FILES_PER_BATCH)
    there = same_rows.spark_rows(spark, query, wiki, 2 * FILES_PER_BATCH, (2, 3), tmp_path / "lake")
    assert same_rows.same(same_rows.local_rows(query, wiki, 1, (1, 1)), there)


@pytest.mark.parametrize("name", ["three columns", "a table"])
def test_borders_of_eras_lose_no_rows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Micro-batches with rows on both sides of a border of 64 windows or triggers, figures among them; `tests/long/matrix` has every mechanism."""
    stream = same_rows.wiki("10 minutes", "10 minutes")
    query = stream.query(name, tmp_path / "data", FILES_PER_BATCH)
    there = same_rows.spark_rows(
        spark, query, stream, 2 * FILES_PER_BATCH, (2, 3), tmp_path / "lake"
    )
    assert len(set(there["trigger_time"].to_pylist())) >= 130
    assert same_rows.same(same_rows.local_rows(query, stream, 1, (1, 1)), there)
