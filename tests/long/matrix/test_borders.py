"""Every mechanism over two borders of 64 windows or triggers, in few micro-batches: both engines publish the same rows, and `verify` makes them again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dpsql
from dpsql.sources.config import Sources
from dpsql.sources.domains import Domain
from tests.matrix import same_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 8
FILES_PER_BATCH = 4
QUERIES = (
    "a mean",
    "late and many",
    "public groups",
    "sliding",
    "rows",
    "quantiles, carried",
    "a table",
    "a table of rows",
)
HEAD = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 9e-6, privacy_unit_column = user_id, max_rows_contributed = 16, "
OTHERS = {
    "marginals": "trigger_interval = '10 minutes', max_triggers = 160) hour, COUNT(*) AS n, SUM(value, contribution_bounds_per_row => (0, 500)) AS total "
    "FROM (SELECT user_id, ts, value, hour(ts) AS hour FROM records) GROUP BY CUBE(hour)",
    "a sketch": "trigger_interval = '10 minutes') APPROX_TOP_COUNT(key, 20) AS top FROM records GROUP BY window(ts, '10 minutes')",
}


@pytest.fixture(scope="module")
def stream() -> same_rows.Stream:
    return same_rows.wiki("10 minute", "10 minute")


@pytest.mark.parametrize("name", QUERIES)
def test_borders_of_eras_lose_no_rows(
    spark: SparkSession, stream: same_rows.Stream, tmp_path: Path, name: str
) -> None:
    query = stream.query(name, tmp_path / "data", FILES_PER_BATCH)
    rows = same_rows.on_both_engines(spark, query, stream, FILES, tmp_path / "lake")
    assert len(set(rows["trigger_time"].to_pylist())) >= 130 or "sliding" in name


@pytest.mark.parametrize("name", OTHERS)
def test_borders_lose_no_rows_of_cells(
    spark: SparkSession, stream: same_rows.Stream, tmp_path: Path, name: str
) -> None:
    domains = (("hour", Domain(tuple(map(str, range(24))), True, whole=True)),)
    source = stream.source("records", tmp_path / "data", FILES_PER_BATCH, domains=domains)
    query = dpsql.compile(HEAD + OTHERS[name], Sources((source,)))
    rows = same_rows.on_both_engines(spark, query, stream, FILES, tmp_path / "lake")
    assert len(set(rows["trigger_time"].to_pylist())) >= 130
