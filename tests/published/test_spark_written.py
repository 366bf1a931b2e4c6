"""Readers of a published table beside kinds of query, where Spark wrote the table: other code makes its columns and files than the local engine's."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F
from pyspark.sql import types as T

from dpsql.lake.marks import described_mark
from dpsql.lake.runs import Lake
from dpsql.published import words
from dpsql.published.public_rows import read_histogram
from dpsql.published.reader_frames import write_parquet
from dpsql.streaming import published_table
from dpsql.streaming.released import ReleasedRows
from dpsql.streaming.sketch_tables import SketchTables
from dpsql.udfs.task_files import ReleasedFiles
from tests.published.test_files import KINDS as FILES
from tests.published.test_files import SIZES
from tests.published.test_readers import (
    frozen_rows,
    query_and_rows,
    test_a_copy_of_the_table_in_an_empty_place_says_what_it_is,
    test_an_answer_has_every_column,
    test_compare_has_every_column_or_says_which_it_has_not,
    test_show_has_every_column,
    test_the_newest_rows_have_every_column,
    test_the_page_has_every_column_or_says_which_it_has_not,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from dpsql.compiled import Query

__all__ = [
    "test_a_copy_of_the_table_in_an_empty_place_says_what_it_is",
    "test_an_answer_has_every_column",
    "test_compare_has_every_column_or_says_which_it_has_not",
    "test_show_has_every_column",
    "test_the_newest_rows_have_every_column",
    "test_the_page_has_every_column_or_says_which_it_has_not",
]
KINDS = ("average_beside_others", "marginals_cube")
"""Others are in `tests/long`."""
SEVERAL_TRIGGERS = "min_units"
"""A query whose windows are released several times."""


def test_spark_reads_files_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Catches: a file of `try --output` whose types Spark does not know."""
    for kind in FILES:
        query, every = query_and_rows(kind)
        for rows in (every.slice(0, size) for size in SIZES):
            path = tmp_path / f"{kind}-{len(rows)}.parquet"
            write_parquet(rows, query.published, path)
            read = pq.read_table(path).to_pylist()
            assert spark.read.parquet(str(path)).toArrow().to_pylist() == read, kind


def spark_wrote(spark: SparkSession, name: str, folder: Path) -> tuple[Query, Path]:
    """A golden query, and a lake that has its public table alone: made by jobs of Spark, even where the driver would write so few rows."""
    query, rows = query_and_rows(name)
    file = ReleasedFiles(str(folder / "released"), len(query.parsed.output_keys)).write(
        frozen_rows(query, name), 0
    )
    kind = SketchTables if query.shape.sketch else published_table.PublishedTable
    keys = (T.StringType(),) * len(query.parsed.keys)
    lake = Lake(folder / "lake")
    table = kind(
        lake.histogram("q"),
        "run/mark",
        query.parsed,
        query.shape,
        keys,
        query.published,
        described_mark("run"),
    )
    table.create()
    made = ReleasedRows(spark, folder / "released", (file,))
    pairs = made.table().select(["window", "trigger"]).to_pylist()
    due = Counter((pair["window"], pair["trigger"]) for pair in pairs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published_table, "DRIVER_ROWS", 0)
        table.publish(made, max(map(table.trigger_time, due)), due, has_all=True)
    assert read_histogram(lake, "q").to_pylist() == rows.to_pylist()
    return query, folder


def test_spark_shows_what_columns_are_and_reads_a_window_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Catches: comments that go with Spark's own append; a line of the description that Spark does not read."""
    query, folder = spark_wrote(spark, SEVERAL_TRIGGERS, tmp_path)
    path = str(Lake(folder / "lake").histogram("q"))
    described = spark.sql(f"DESCRIBE TABLE delta.`{path}`").collect()
    assert {row.col_name: row.comment for row in described} == dict(words.columns(query.published))
    told = words.table_description(query.published)
    assert DeltaTable(path).metadata().description == told
    parts = re.search(r"WHERE (trigger = \d+) .*?(QUALIFY .*?\(.*?\).*?\))", told)
    assert parts is not None
    rows = spark.read.format("delta").load(path)
    rows.createOrReplaceTempView("published")
    newest = rows.groupBy("window_start").agg(F.max("trigger").alias("trigger"))
    expected = rows.join(newest, ["window_start", "trigger"]).select(*rows.columns)
    found = spark.sql(f"SELECT * FROM published {parts[2]}")
    assert found.exceptAll(expected).isEmpty() and expected.exceptAll(found).isEmpty()
    assert spark.sql(f"SELECT * FROM published WHERE {parts[1]}").count() <= expected.count()


@pytest.fixture(scope="module", params=KINDS)
def made(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Query, Path]:
    """As `tests.published.test_readers` has them."""
    return spark_wrote(spark, request.param, tmp_path_factory.mktemp("reader"))
