"""The table of a page beside what was published: places, shares, changes, drawings, other windows; and nothing where there is nothing to say."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from dpsql.description import PROPERTY, Measure, Noise
from dpsql.parsed_query import AggregateFunction
from dpsql.published.frames import published_of
from dpsql.view import charts
from dpsql.view.page import page
from dpsql.view.standing import Standing
from dpsql.view.table import Table, table, window_before
from dpsql.view.trend import HEIGHT, trend
from tests.described import described

DAYS = pd.to_datetime(["2024-03-01", "2024-03-02", "2024-03-03"], utc=True)
SUMS = Measure("n", AggregateFunction.COUNT, True, None, 1.0)
AVERAGES = Measure("n", AggregateFunction.AVG, False, (0.0, 10.0), None)


def published(values: dict[int, dict[str, float]], stderr: float = 5.0, measure: Measure = SUMS) -> pd.DataFrame:
    """Windows of a day, two triggers each; the first trigger has half of every value."""
    rows = []
    for day, keys in values.items():
        for trigger in (1, 2):
            for key, value in keys.items():
                when = DAYS[day] + pd.Timedelta(hours=12 * trigger)
                rows.append((DAYS[day], DAYS[day] + pd.Timedelta(days=1), trigger, when, key, value * trigger / 2, stderr))
    return said(pd.DataFrame(rows, columns=["window_start", "window_end", "trigger", "trigger_time", "page", "n", "n_stderr"]), measure)


def said(rows: pd.DataFrame, measure: Measure = SUMS) -> pd.DataFrame:
    rows.attrs[PROPERTY] = dataclasses.replace(described(rows.columns), measures=(measure,), noise=Noise("BLT", 2)).text()
    return rows


def made(rows: pd.DataFrame, day: int, most: int = 9) -> Table:
    window = rows[rows["window_start"] == DAYS[day]]
    return table(window, window_before(rows, window), 2, most)


ROWS = published({0: {"a": 500, "b": 300, "c": 310}, 1: {"a": 800, "b": 305, "c": 100, "d": 2}})


def test_places_shares_and_changes() -> None:
    found = made(ROWS, 1)
    assert [(row.keys[0], row.place) for row in found.rows] == [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]
    a, b, c, d = (row.cells[0] for row in found.rows)
    assert a.text == "800.0 ± 9.8" and not a.small and d.small
    assert a.beside == ("66.3% of all published", "▲ 300 ± 14")
    assert b.beside == ("25.3% of all published",)  # five more are no change
    assert c.beside[1] == "▼ 210 ± 14" and len(d.beside) == 1
    assert found.has_changes and found.has_trends and found.stands_out and found.by == "n"
    before = made(ROWS, 0)
    assert [row.place for row in before.rows] == ["1", "2–3", "2–3"]  # 310 and 300 share them
    assert not before.has_changes


def test_only_so_many_rows_and_places_among_all() -> None:
    found = made(ROWS, 1, most=2)
    assert (len(found.rows), found.all_rows) == (2, 4)


def test_an_average_has_no_share_no_place_and_stays_within_its_bounds() -> None:
    rows = published({0: {"a": 9.0, "b": 12.0}}, stderr=2.0, measure=AVERAGES)
    found = made(rows, 0)
    assert found.by is None and found.order.startswith("the smallest error first")
    for row in found.rows:
        assert row.place == "" and row.cells[0].beside == ()
        for shape in (row.cells[0].interval, row.cells[0].trend):
            ups = [float(y) for _, y in re.findall(r"([\d.]+),([\d.]+)", shape)]
            assert all(0 <= y <= HEIGHT for y in ups) and "circle" in shape
    bounded, free = (trend(np.array([1, 2]), np.array([9.0, 12.0]), np.array([2.0, 2.0]), 2, within) for within in ((0.0, 10.0), None))
    assert bounded != free


def standing(rows: pd.DataFrame) -> Standing:
    values = {each.name: None for each in dataclasses.fields(Standing)}
    now = datetime(2024, 3, 4, tzinfo=UTC)
    known = {
        "name": "pages",
        "triggers": 2,
        "trigger_time": now,
        "written": now,
        "now": now,
        "ended": True,
        "published": published_of(rows),
    }
    return Standing(**(values | known))


def test_other_windows_can_be_picked_and_a_window_of_noise_says_so() -> None:
    rows = pd.concat([ROWS, published({2: {"a": 3, "b": -4}})])
    text = page(standing(rows), rows[rows["window_start"] == DAYS[2]], every=rows)
    assert "Nothing in this window is larger than its own noise" in text
    assert re.findall(r'<option value="([^"]+)"', text) == [f"2024-03-0{day}T00:00:00" for day in (3, 2, 1)]
    assert text.count('<section class="panel"') == 3 and text.count('data-window="2024-03-02T00:00:00" hidden') == 1
    assert "n: a is first, 800.0 ± 9.8" in text  # of the window before
    assert "▼ 797" in text


def test_no_arrows_are_explained_where_there_are_none() -> None:
    rows = ROWS[ROWS["window_start"] == DAYS[0]]
    assert "▲" not in page(standing(rows), rows)
    assert "▲ ▼: change since the window before" in page(standing(ROWS), ROWS[ROWS["window_start"] == DAYS[1]], every=ROWS)


@pytest.mark.parametrize(("days", "labels"), [(1, "%H:%M"), (30, "%d %b"), (900, "%b %Y")])
def test_a_chart_tells_years_apart_and_scales_each_panel(days: int, labels: str) -> None:
    starts = pd.date_range("2022-01-01", periods=8, freq=pd.Timedelta(days=days) / 8, tz="UTC")
    rows = pd.DataFrame(
        [(s, s + pd.Timedelta(days=days) / 8, 1, s, key, size, 1.0) for s in starts for key, size in (("big", 9000.0), ("small", 90.0))],
        columns=["window_start", "window_end", "trigger", "trigger_time", "page", "n", "n_stderr"],
    )
    figure = charts.over_windows(said(rows), "n")
    big, small = figure.axes[:2]
    assert big.get_ylim()[1] > 9000 and small.get_ylim()[1] < 200
    assert big.xaxis.get_major_formatter().fmt == labels  # type: ignore[attr-defined]


@pytest.mark.parametrize("key", ["/users/{id}", "{}", "}", "{0.__class__}"])
def test_a_key_is_no_format(key: str) -> None:
    rows = published({0: {key: 900, "b": 20}})
    assert f"n: {key} is first, 900.0 ± 9.8".replace("'", "&#39;") in page(standing(rows), rows).replace("\u00a0", " ")


def test_rows_of_several_tables_have_no_common_places_and_shares() -> None:
    rows = published({0: {"a": 600, "b": 400, "all": 1000}})
    found = made(said(rows.assign(grouping_id=np.where(rows["page"] == "all", 1, 0))), 0)
    assert found.by is None and not any(row.place or row.cells[0].beside for row in found.rows)


def test_places_of_those_shown_alone_are_found() -> None:
    rows = published({0: {f"k{i}": 10_000 - i for i in range(3_000)}})
    assert [row.place for row in made(rows, 0, most=3).rows] == [row.place for row in made(rows, 0, most=3_000).rows][:3]
