"""Figures of what the limits leave out, on Spark: a table of their own, which is recomputed, told once, and silent about windows without rows."""

from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from dpsql.description import LEFT_OUT_ENDING
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import neighbour
from dpsql.local.verification import verify_run
from dpsql.published.public_rows import all_rows
from tests.streaming.conftest import DAY, START, BrokenOff, break_off, run_file

PEOPLE = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, max_groups_contributed = 2, trigger_interval = INTERVAL 12 HOURS)
  page, COUNT(DISTINCT user_id) AS people
FROM visits
GROUP BY window(ts, '1 day'), page
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
