"""Figures of what the limits leave out, on Spark: a table of their own, which is recomputed, told once, and silent about windows without rows."""

from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import dpsql
from dpsql.description import LEFT_OUT_ENDING, PROPERTY, parse_description
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import neighbour
from dpsql.local.verification import verify_run
from dpsql.published import words
from dpsql.published.public_rows import all_rows
from tests.streaming.conftest import DAY, START, BrokenOff, break_off, run_file

PEOPLE = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, max_groups_contributed = 2, trigger_interval = INTERVAL 12 HOURS)
  page, COUNT(DISTINCT user_id) AS people
FROM visits
GROUP BY window(ts, '1 day'), page
"""
HOURLY = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, max_groups_contributed = 2, trigger_interval = INTERVAL 1 HOUR)
  page AS channel, COUNT(DISTINCT user_id) AS editors
FROM visits
GROUP BY window(ts, '1 day'), channel
"""
ONCE = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, max_groups_contributed = 2)
  page, COUNT(DISTINCT user_id) AS people
FROM visits WHERE seconds > 1e6 GROUP BY page
"""
UNITS = {"max_users": 1_000, "max_keys": 1_000}


def figures_of(one: Any) -> list[dict[str, Any]]:
    table = neighbour(one.lake.histogram("demo"), LEFT_OUT_ENDING)
    return read_rows(table).sort_by("trigger_time").to_pylist()


def is_recomputed(one: Any) -> bool:
    return verify_run(one.lake, "demo", one.run_id, one.query, one.secret).identical


def test_each_window_with_rows_has_its_figures_once(
    case: Any, write: Any, visits: Any, monkeypatch: Any
) -> None:
    """Catches: a row for a window of which nothing is shown, figures that are told again after a crash between the two tables, or summed by bucket."""
    table = pa.concat_tables([visits(days=2), visits(users=2, days=1, first_day=2)])
    write(table, parts=3)
    one = case(PEOPLE, **UNITS)
    run_file(one)
    with monkeypatch.context() as patch, pytest.raises(BrokenOff):
        patch.setattr("dpsql.streaming.published_table.PublishedTable.publish", break_off)
        one.go(START + DAY, buckets=(3, 2))
    one.go(START + DAY, buckets=(3, 2))
    one.go(buckets=(3, 2))
    told = figures_of(one)
    days = [datetime.fromtimestamp((START + day * DAY) / 1e6).day for day in (0, 1)]
    assert [row["window_start"].day for row in told] == days
    for row in told:
        assert row["trigger"] == 2
        for name, exact in (("units", 120), ("pairs", 240), ("pairs_left_out", 120)):
            assert abs(row[name] - exact) < 5 * row[f"{name}_stderr"]
    assert is_recomputed(one)
    assert len(all_rows(one.lake, "demo").left_out) == 2


def test_a_release_of_nothing_has_figures(case: Any, write: Any, visits: Any) -> None:
    """Catches: figures that are there only where somebody was."""
    write(visits(days=1), parts=1)
    one = case(ONCE, **UNITS)
    run_file(one)
    one.go(None, buckets=(2, 2))
    (row,) = figures_of(one)
    assert abs(row["units"]) < 5 * row["units_stderr"]
    assert is_recomputed(one)


def by_both(one: Any, path: str, select: str) -> list[Any]:
    """What DuckDB and Spark answer to a query about a Delta table, which it calls t."""
    t = duckdb.read_parquet(DeltaTable(path).file_uris())
    one.spark.read.format("delta").load(path).createOrReplaceTempView("t")
    by_duckdb = duckdb.sql(select).to_arrow_table().to_pylist()
    assert t.columns == one.spark.table("t").columns
    return [by_duckdb, one.spark.sql(select).toArrow().to_pylist()]


def test_other_engines_add_up_and_describe_the_tables(case: Any, write: Any, visits: Any) -> None:
    """Catches: a filter that does not give one row per window and key; figures that only dpsql reads; a column without a comment."""
    write(visits(days=2), parts=2)
    one = case(HOURLY, **UNITS)
    run_file(one)
    one.go()
    newest = dpsql.latest(str(one.lake.root), "demo")
    assert newest["window_start"].nunique() == 2
    public = one.lake.histogram("demo")
    paths = [str(public), str(neighbour(public, LEFT_OUT_ENDING))]
    total = [{"editors": int(newest["editors"].sum())}]
    filtered = "SELECT CAST(sum(editors) AS BIGINT) AS editors FROM t WHERE trigger = 24"
    assert by_both(one, paths[0], filtered) == [total, total]
    figures = [{"units": row["units"], "pairs": row["pairs"]} for row in figures_of(one)]
    ordered = "SELECT units, pairs FROM t ORDER BY window_start"
    assert len(figures) == 2 and by_both(one, paths[1], ordered) == [figures, figures]
    for path in paths:
        published = parse_description(DeltaTable(path).metadata().configuration[PROPERTY])
        assert published is not None
        rows = one.spark.sql(f"DESCRIBE TABLE delta.`{path}`").collect()
        comments = {row.col_name: row.comment for row in rows}
        assert comments == dict(words.columns(published)) and all(comments.values())
