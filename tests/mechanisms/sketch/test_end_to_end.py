"""Sketches on both engines: the same lists and cells, which `verify` makes again."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import Lake, cells_path
from dpsql.sources.config import Sources
from tests.matrix import same_rows
from tests.matrix.same_rows import Stream

LISTED = "public_groups = (SELECT key FROM listed)"
TEXTS = {
    "events, listed": f"(epsilon = 2, delta = 1e-6, privacy_level = EVENT, sketch_width = 256, {LISTED}, trigger_interval = '4 hours') "
    "APPROX_TOP_COUNT(key, 5) AS top, COUNT_SKETCH(key) AS all",
    "units, listed": f"(epsilon = 4, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 8, max_rows_per_group = 4, {LISTED}, "
    "sketch_width = 256, trigger_interval = '4 hours') APPROX_TOP_SUM(key, value, 5, contribution_bounds_per_group => (-5, 60)) AS top",
    "units, unknown": "(epsilon = 4, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 8, max_rows_per_group = 2, "
    "sketch_width = 256, trigger_interval = '4 hours') APPROX_TOP_COUNT(key, 5) AS top",
}


def compiled(name: str, stream: Stream, folder: Path) -> dpsql.Query:
    """One of TEXTS on a stream."""
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS {TEXTS[name]} FROM wiki GROUP BY window(ts, '1 day')"
    return dpsql.compile(
        text, Sources((stream.source("wiki", folder / "data"), *stream.static(folder)))
    )


@pytest.mark.parametrize("name", TEXTS)
def test_both_engines_publish_the_same_rows_and_verify_makes_them_again(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    stream = same_rows.wiki("1 day", "4 hours", 3)
    query = compiled(name, stream, tmp_path)
    here = same_rows.on_both_engines(spark, query, stream, 3, tmp_path / "lake")
    assert max(map(len, here.column("top").to_pylist())) >= 2
    cells = read_rows(cells_path(Lake(tmp_path / "lake").histogram("q")))
    unknown = (
        name == "units, unknown"
    )  # then a window's cells come with its last trigger, and not before
    assert cells.num_rows == (
        here.num_rows // 6 * 9 if unknown else here.num_rows * len(query.plan.cells) * 9
    )
    assert set(cells["trigger"].to_pylist()) == ({6} if unknown else set(range(1, 7)))
