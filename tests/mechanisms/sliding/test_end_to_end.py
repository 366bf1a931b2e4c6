"""Sliding windows for ever on both engines: the same rows, which `verify` makes again; the ledger says what is protected."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.lake.runs import Lake
from dpsql.parsed_query import PrivacyLevel
from dpsql.privacy.origin import Origin
from dpsql.sources.config import Sources
from tests.matrix import same_rows
from tests.matrix.same_rows import Stream

LISTED = "public_groups = (SELECT key FROM listed)"
USER = "privacy_unit_column = user_id, max_rows_contributed = 8, max_groups_contributed = 3, max_rows_per_group = 4"
TEXTS = {
    "the example": f"(epsilon = 0.1, delta = 0, privacy_level = EVENT, {LISTED}) key AS channel, COUNT(*) AS edits",
    "events, without a key": "(epsilon = 2, delta = 1e-6, privacy_level = EVENT) COUNT(*) AS edits, "
    "AVG(value, contribution_bounds_per_row => (0, 100)) AS mean",
    "units": f"(epsilon = 4, delta = 0, {USER}, {LISTED}) key AS channel, COUNT(value) AS known",
    "sums of units": f"(epsilon = 4, delta = 0, {USER}, {LISTED}) key AS channel, COUNT(*) AS edits, "
    "SUM(value, contribution_bounds_per_row => (-3.3, 99.3)) AS total",
}
"""Name -> options and columns; `tests/long/mechanisms` runs all."""
FILES = 5


def compiled(name: str, stream: Stream, folder: Path) -> dpsql.Query:
    """One of TEXTS on a stream whose source names no unit, where the query needs none."""
    unit = ("user_id",) if name.endswith("units") else ()
    keys = "" if name == "events, without a key" else ", channel"
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS {TEXTS[name]} FROM wiki GROUP BY window(ts, '2 hours', '20 minutes'){keys}"
    return dpsql.compile(
        text,
        Sources(
            (stream.source("wiki", folder / "data", privacy_unit=unit), *stream.static(folder))
        ),
    )


@pytest.mark.parametrize("name", ["the example", "sums of units"])
def test_both_engines_publish_the_same_rows_and_verify_makes_them_again(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    both(spark, tmp_path, name)


def both(spark: SparkSession, folder: Path, name: str) -> None:
    stream = same_rows.wiki("2 hours", "20 minutes", 3)
    here = same_rows.on_both_engines(
        spark, compiled(name, stream, folder), stream, FILES, folder / "lake"
    )
    assert here.num_rows >= 30
    assert set(
        pq.read_schema(next(Lake(folder / "lake").histogram("q").glob("*.parquet"))).names
    ) == set(here.column_names)


def test_the_ledger_line_says_what_is_protected(tmp_path: Path) -> None:
    line = compiled("the example", same_rows.wiki(), tmp_path).line("0" * 32, "run", Origin())
    assert line.cost.protects is PrivacyLevel.EVENT
    assert (line.unit, line.cost.mu2, line.cost.failure, line.declared_delta) == ((), 0.0, 0.0, 0.0)
    assert line.cost.epsilon == pytest.approx(0.1, rel=1e-9)
    assert line.cost.epsilon <= 0.1
