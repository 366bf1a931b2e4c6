"""The table of a page beside what was published: places, changes, drawings, other windows; and nothing where there is nothing to say."""

from __future__ import annotations

import dataclasses
import html
import itertools
import re
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from dpsql.description import PROPERTY, Measure, NoiseKind
from dpsql.parsed_query import AggregateFunction
from dpsql.published.public_rows import PublicRows
from dpsql.published.words import TOO_FEW
from dpsql.text import Z95
from dpsql.view import charts
from dpsql.view.cells import NONE
from dpsql.view.drawings import intervals
from dpsql.view.page import page
from dpsql.view.standing import Standing
from dpsql.view.table import WindowTable, table, window_before
from tests.described import described

DAYS = pd.to_datetime(["2024-03-01", "2024-03-02", "2024-03-03"], utc=True)
SUMS = Measure("n", AggregateFunction.COUNT, True, None, 1.0)
AVERAGES = Measure("n", AggregateFunction.AVG, False, (0.0, 10.0), None)


def published(
    values: dict[int, dict[str, float]], stderr: float = 5.0, measure: Measure = SUMS
) -> pd.DataFrame:
    """Windows of a day, two triggers each; the first trigger has half of every value."""
    rows = []
    for day, keys in values.items():
        for trigger in (1, 2):
            for key, value in keys.items():
                when = DAYS[day] + pd.Timedelta(hours=12 * trigger)
                rows.append(
                    (
                        DAYS[day],
                        DAYS[day] + pd.Timedelta(days=1),
                        trigger,
                        when,
                        key,
                        value * trigger / 2,
                        stderr,
                    )
                )
    return said(
        pd.DataFrame(
            rows,
            columns=[
                "window_start",
                "window_end",
                "trigger",
                "trigger_time",
                "page",
                "n",
                "n_stderr",
            ],
        ),
        measure,
    )


def said(rows: pd.DataFrame, measure: Measure = SUMS, **reading: Any) -> pd.DataFrame:
    rows = rows.copy()
    told = dataclasses.replace(
        described(rows.columns), measures=(measure,), noise=NoiseKind("BLT", 2)
    )
    rows.attrs[PROPERTY] = dataclasses.replace(
        told, reading=dataclasses.replace(told.reading, **reading)
    ).text()
    return rows


def made(rows: pd.DataFrame, day: int, most: int = 9) -> WindowTable:
    history = PublicRows.of_frame(rows)
    window = history.where(rows["window_start"] == DAYS[day])
    return table(window, window_before(history, window), 2, most)


ROWS = published({0: {"a": 500, "b": 300, "c": 310}, 1: {"a": 800, "b": 305, "c": 100, "d": 2}})


def test_places_and_changes() -> None:
    found = made(ROWS, 1)
    assert [(row.keys[0], row.place) for row in found.rows] == [
        ("a", "1"),
        ("b", "2"),
        ("c", "3"),
        ("d", "4"),
    ]
    a, b, c, d = (row.cells[0] for row in found.rows)
    assert a.text == "800.0 ± 9.8" and not a.small and d.small
    assert a.remarks == ("▲ 300 ± 14",) and c.remarks == ("▼ 210 ± 14",)
    assert not b.remarks and not d.remarks  # five more are no change
    assert found.has_changes and found.has_trends and found.stands_out and found.ranked_by == "n"
    before = made(ROWS, 0)
    assert [row.place for row in before.rows] == ["1", "2–3", "2–3"]  # 310 and 300 share them
    assert not before.has_changes


def test_only_so_many_rows_and_places_among_all() -> None:
    found = made(ROWS, 1, most=2)
    assert (len(found.rows), found.all_rows) == (2, 4)


def test_an_average_has_no_place_and_its_whole_whisker() -> None:
    """Catches: whiskers that end at the bounds; a picture, a size or words of a number where the error is half the bounds."""
    rows = published({0: {"a": 9.0, "b": 8.0, "c": 5.0}}, stderr=2.0, measure=AVERAGES)
    rows.loc[rows["page"] == "c", "n_stderr"] = 5 / Z95
    found = made(rows, 0)
    assert found.ranked_by is None and found.order.startswith("the smallest error first")
    *told, silent = (row.cells[0] for row in found.rows)
    assert (silent.text, silent.size, silent.small, silent.interval) == (TOO_FEW, NONE, True, "")
    for row, cell in zip(found.rows, told, strict=False):
        assert row.place == cell.place == "" and cell.remarks == ()
        assert "circle" in cell.interval and 'class="dots"' in cell.trend
    (whole,) = intervals(np.array([8.0]), np.array([2.0]), (0.0, 10.0))
    assert 'x2="98.0%"' in whole, "8 + 3.9 is beyond the bound, and the end of the scale"
    (far,) = intervals(np.array([8.0]), np.array([2.0 / Z95]), (0.0, 20.0))
    assert 'x1="30.8%" x2="50.0%"' in far


def seen(text: str) -> str:
    """The text of a page, without its tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", text)).replace("\u00a0", " ")


def standing(rows: pd.DataFrame) -> Standing:
    values = {each.name: None for each in dataclasses.fields(Standing)}
    now = datetime(2024, 3, 4, tzinfo=UTC)
    known = {
        "name": "pages",
        "triggers": 2,
        "trigger_time": now,
        "commit_time": now,
        "moment": now,
        "ended": True,
        "published": PublicRows.of_frame(rows).description,
    }
    return Standing(**(values | known))


def test_other_windows_can_be_picked_and_a_window_of_noise_says_so() -> None:
    rows = pd.concat([ROWS, published({2: {"a": 3, "b": -4}})])
    text = page(standing(rows), rows[rows["window_start"] == DAYS[2]], all_rows=rows)
    assert "Nothing here is larger than its own noise" in text
    assert re.findall(r'<option value="([^"]+)"', text) == [
        f"2024-03-0{day}T00:00:00" for day in (3, 2, 1)
    ]
    assert (
        text.count('<section class="panel"') == 2 * 3
        and text.count('data-window="2024-03-02T00:00:00" hidden') == 2
    )
    assert "n: a is first, 800.0 ± 9.8" in seen(text)  # of the window before
    assert "▼ 797" in text
    titles = re.findall(r"<h1>(.*)</h1>", text)
    assert titles == [f"N per page, {day} March 2024" for day in (3, 2, 1)]


def test_no_arrows_are_explained_where_there_are_none() -> None:
    rows = ROWS[ROWS["window_start"] == DAYS[0]]
    assert "▲" not in page(standing(rows), rows)
    assert "▲ ▼: change since the window before" in page(
        standing(ROWS), ROWS[ROWS["window_start"] == DAYS[1]], all_rows=ROWS
    )


def test_keys_that_did_not_change_have_no_arrows() -> None:
    """Catches: an arrow at one key in twenty where nothing has changed; a share of numbers that the limits bound."""
    random = np.random.default_rng(3)
    arrows = 0
    true = {f"k{i}": float(value) for i, value in enumerate(30_000 / np.arange(1, 101))}
    for stderr in (10.0, 400.0) * 5:
        noisy = {
            day: {key: float(value + random.normal(0, stderr)) for key, value in true.items()}
            for day in (0, 1)
        }
        found = made(published(noisy, stderr), 1, most=100)
        arrows += found.has_changes
        remarks = [remark for row in found.rows for remark in row.cells[0].remarks]
        assert all(remark[0] in "▲▼" for remark in remarks)
    assert arrows <= 2


def test_a_headline_is_true_of_the_keys_it_speaks_of() -> None:
    """Catches: a largest key where none can be told apart; the first line of the query's own order called the largest."""
    together = published({0: {f"k{i}": 200.0 + i for i in range(11)}}, stderr=60.0)
    text = seen(page(standing(together), together))
    assert (
        "n: no key can be told apart from another" in text
        and "is largest" not in text
        and made(together, 0).all_tied
    )
    some = published({0: {"a": 300.0, "b": 290.0, "c": 1.0}})
    headline = "n: a is largest, but others may be larger, 300.0 ± 9.8"
    assert headline in seen(page(standing(some), some))
    ordered = said(some, order=("page DESC",))
    found = made(ordered, 0)
    assert [(row.keys[0], row.place) for row in found.rows] == [
        ("c", "3"),
        ("b", "1–2"),
        ("a", "1–2"),
    ] and found.ranked_by == "n"
    assert headline in seen(page(standing(ordered), ordered))
    hidden = said(some, order=("n",), limit=2)  # the largest key is not shown
    assert [row.keys[0] for row in made(hidden, 0).rows] == [
        "c",
        "b",
    ] and 'class="headline"' not in page(standing(hidden), hidden)


def cube() -> pd.DataFrame:
    """Two channels by two hours at two triggers, and all sums of them."""
    columns = ["trigger", "trigger_time", "channel", "hour", "grouping_id", "n", "n_stderr"]
    cells = [(c, h, 0, 10.0 * i + j) for i, c in enumerate("xy") for j, h in enumerate(("1", "2"))]
    cells += [
        ("x", None, 1, 10.0),
        ("y", None, 1, 21.0),
        (None, "1", 2, 10.0),
        (None, "2", 2, 12.0),
        (None, None, 3, 22.0),
    ]
    rows = pd.DataFrame(
        [(t, DAYS[t - 1], c, h, g, n * t, 1.0) for t in (1, 2) for c, h, g, n in cells],
        columns=columns,
    )
    rows.attrs[PROPERTY] = dataclasses.replace(described(columns), measures=(SUMS,)).text()
    return rows


def test_each_level_of_a_cube_has_a_list_of_its_own() -> None:
    rows = cube()
    text = html.unescape(page(standing(rows), rows))
    assert re.findall(r'<option value="([^"]+)"', text) == [
        "channel",
        "hour",
        "channel, hour",
        "nothing: all records",
    ]
    panels = [panel for panel in text.split('<section class="panel"') if "<tbody>" in panel]
    found = [
        [
            tuple(re.findall(r'<td class="key"><bdi>([^<]*)<', row))
            for row in panel.split("<tr ")[1:]
        ]
        for panel in panels
    ]
    assert found == [
        [("y",), ("x",)],
        [("2",), ("1",)],
        [("y", "2"), ("y", "1"), ("x", "2"), ("x", "1")],
        [()],
    ]
    shown = [re.findall(r'data-size="([^"]*)"', panel) for panel in panels]
    assert shown == [["42.0", "20.0"], ["24.0", "20.0"], ["22.0", "20.0", "2.0", "0.0"], ["44.0"]]
    table_text = text.split("<details>")[0].replace("data:text/csv", "")
    assert ">grouping_id<" not in table_text
    lines = [re.findall(r'<p class="key"><bdi>([^<]*)<', panel) for panel in panels]
    assert lines == [["y", "x"], ["2", "1"], ["y, 2", "y, 1", "x, 2", "x, 1"], []]


def test_quantiles_stand_beside_numbers_and_alone() -> None:
    for columns in (["n", "n_stderr"], []):
        rows = published({0: {"a": 300.0, "b": 20.0}})
        rows = rows[[*rows.columns[:5], *columns]].assign(
            sizes=[[0.0, 12.5, 60.0]] * len(rows), sizes_rank_stderr=0.01
        )
        rows.attrs[PROPERTY] = described(rows.columns).text()
        found = made(rows, 0)
        heads = [(head.name, head.detail) for head in found.heads]
        assert heads == [("n", "")] * (len(columns) // 2) + [("sizes", "50%"), ("sizes", "ranks")]
        for row in found.rows:
            assert [cell.text for cell in row.cells[-2:]] == ["12.5", "± 2%"]
        assert "larger than its own noise" not in page(standing(rows), rows)


def beyond(axis: Any) -> list[Text]:
    """Labels that matplotlib keeps of ticks beyond the ends of an axis, and does not draw."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]


def overlaps(figure: charts.Chart) -> list[str]:
    """Texts of a chart that run into each other or out of the picture."""
    FigureCanvasAgg(figure).draw()
    unseen = [
        label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in beyond(axis)
    ]
    found = [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in unseen
    ]
    boxes = [(text.get_text(), text.get_window_extent()) for text in found]
    width, height = figure.canvas.get_width_height()
    cut = [
        text
        for text, box in boxes
        if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1
    ]
    return cut + [
        f"{one} / {other}"
        for (one, a), (other, b) in itertools.combinations(boxes, 2)
        if a.overlaps(b)
    ]


@pytest.mark.parametrize("keys", [1, 2, 6])
@pytest.mark.parametrize("days", [0.1, 1, 30, 900])
def test_no_text_of_a_chart_runs_into_another_or_out_of_it(days: float, keys: int) -> None:
    starts = pd.date_range("2022-01-01", periods=8, freq=pd.Timedelta(days=days) / 8, tz="UTC")
    columns = ["window_start", "window_end", "trigger", "trigger_time", "page", "n", "n_stderr"]
    lines = [
        (
            s,
            s + pd.Timedelta(days=days) / 8,
            1,
            s,
            f"#{i}.wikipedia.of.some.length",
            9e6 / 10**i,
            900.0,
        )
        for s in starts
        for i in range(keys)
    ]
    lines += [(starts[-1], starts[-1], 1, starts[-1], "only once", 5e6, 900.0)]
    rows = said(pd.DataFrame(lines, columns=columns))
    for figure in (
        charts.over_windows(rows, "n", keys=keys, unit="n\n(0 to 250, at most 4 each)"),
        charts.bars(rows, "n"),
    ):
        assert overlaps(figure) == []
    titles = [axes.get_title(loc="left") for axes in charts.over_windows(rows, "n", keys=keys).axes]
    assert len([title for title in titles if title]) == keys and "only once" not in titles, (
        "a panel with one dot"
    )
    assert all(axes.get_ylabel() for axes in charts.over_windows(rows, "n", keys=keys).axes[:1])


def test_a_band_of_an_average_is_whole_and_one_point_makes_no_picture() -> None:
    rows = published({0: {"a": 9.0}, 1: {"a": 9.5}}, stderr=2.0, measure=AVERAGES)
    (band,) = charts.over_windows(rows, "n").axes[0].collections
    ups = band.get_paths()[0].vertices[:, 1]  # type: ignore[index]
    assert ups.max() == pytest.approx(9.5 + 2 * Z95)
    once = rows[rows["trigger"] == 2]
    series = '<svg class="series"'
    assert series in page(standing(rows), rows)
    assert series not in page(standing(once), once[once["window_start"] == DAYS[0]])


@pytest.mark.parametrize(
    ("days", "labels"), [(1, "01 Jan 00:00"), (30, "01 Jan"), (900, "Jan 2022")]
)
def test_a_chart_tells_years_apart_and_scales_each_panel(days: int, labels: str) -> None:
    starts = pd.date_range("2022-01-01", periods=8, freq=pd.Timedelta(days=days) / 8, tz="UTC")
    rows = pd.DataFrame(
        [
            (s, s + pd.Timedelta(days=days) / 8, 1, s, key, size, 1.0)
            for s in starts
            for key, size in (("big", 9000.0), ("small", 90.0))
        ],
        columns=["window_start", "window_end", "trigger", "trigger_time", "page", "n", "n_stderr"],
    )
    figure = charts.over_windows(said(rows), "n")
    big, small = figure.axes[:2]
    assert big.get_ylim()[1] > 9000 and small.get_ylim()[1] < 200
    assert small.get_xticklabels()[0].get_text() == labels


@pytest.mark.parametrize("key", ["/users/{id}", "{}", "}", "{0.__class__}"])
def test_a_key_is_no_format(key: str) -> None:
    rows = published({0: {key: 900, "b": 20}})
    assert f"n: {key} is first, 900.0 ± 9.8" in seen(page(standing(rows), rows))


def test_rows_of_several_tables_have_no_common_places() -> None:
    rows = published({0: {"a": 600, "b": 400, "all": 1000}})
    found = made(said(rows.assign(grouping_id=np.where(rows["page"] == "all", 1, 0))), 0)
    assert found.ranked_by is None and not any(
        row.place or row.cells[0].remarks for row in found.rows
    )


def test_places_of_those_shown_alone_are_found() -> None:
    rows = published({0: {f"k{i}": 10_000 - i for i in range(3_000)}})
    assert [row.place for row in made(rows, 0, most=3).rows] == [
        row.place for row in made(rows, 0, most=3_000).rows
    ][:3]
