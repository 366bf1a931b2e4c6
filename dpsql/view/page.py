"""The page of a histogram: one HTML text with its style, its script and its pictures inside; it asks for nothing from anywhere.

Keys are what people sent: the template escapes every text, pictures are images (nothing in them can run), and the page's own policy allows
its one script and no other. `Markup` and
`Drawing`, which are not escaped, are this package's own style and script, and drawings made of numbers alone.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from dpsql.description import DUE, END, START, Measure, Published
from dpsql.parsed_query import Reading
from dpsql.published.public_rows import PublicRows
from dpsql.text import number
from dpsql.times import duration
from dpsql.view import charts
from dpsql.view.standing import Standing
from dpsql.view.table import (
    WindowTable,
    finished,
    grouped_by,
    levels,
    measures,
    table,
    window_before,
)
from dpsql.view.words import TIME, heads, left_out, of_lists, printable

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 200
MOST_WINDOWS = 12
ROWS_ELSEWHERE = 50
"""Windows that can be picked besides the one that is shown first, and how many keys each has: a page stays small."""

SHOWN_OF_LIST = (
    "the largest that stand out of the noise; a missing one is not zero, and can be asked for"
)
CHART_WINDOWS = 120


@dataclass(frozen=True)
class Card:
    """One figure above the charts; `share` of a bar below it."""

    head: str
    value: str
    detail: str
    warn: bool = False
    share: float | None = None


@dataclass(frozen=True)
class Picture:
    """A chart as an image, for wide and for narrow screens, and what is said below it."""

    source: str
    narrow: str
    caption: str


@dataclass(frozen=True)
class Section:
    """An aggregate and its charts."""

    head: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Panel:
    """One window's table, with what is said of it; `start` names it in the picker."""

    start: str
    title: str
    headline: str
    table: WindowTable


def page(
    standing: Standing,
    rows: pd.DataFrame,
    refresh_seconds: int | None = None,
    most_rows: int = MOST_ROWS,
    all_rows: pd.DataFrame | None = None,
    passed: str = "",
    listed: bool = False,
    reading: Reading | None = None,
) -> str:
    """Return the page of a histogram; one window is shown first, others can be picked.

    Args:
        standing: of the run.
        rows: of the window that is shown first, of all its triggers so far.
        refresh_seconds: how often a browser loads the page anew; None: never.
        most_rows: rows of its table, the largest keys first.
        all_rows: the rows of all windows, of which the newest can be picked; `rows` unless given.
        passed: what is said of newer finished windows that are not shown first.
        reading: as for `dpsql.view.reading.as_read`.
        listed: the rows are the values that a sketch lists (`dpsql.view.plain_table.as_histogram`).

    Returns:
        A whole HTML document.
    """
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True
    ).from_string(_asset("page.html"))
    window = PublicRows.of_frame(rows)
    history = window if all_rows is None else PublicRows.of_frame(all_rows)
    panels = _all_panels(standing, window, history, most_rows, reading)
    sets = window.description.sets
    chart_rows = (
        (levels(window)[0],) * 2 if sets else (window, history)
    )  # cells of several levels have no common scale
    return template.render(
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=Markup(_asset("page.css")),
        script=Markup(script),
        refresh_seconds=refresh_seconds,
        standing=standing,
        lead=_lead(standing, window, passed, listed),
        listed=listed,
        cards=_cards(standing, window, listed),
        said=of_lists(standing.published) if listed else left_out(standing.published),
        sections=[
            section
            for measure in measures(window)
            if (section := _section(measure, *chart_rows)).pictures
        ],
        panels=panels,
        picked=panels if sets else sorted(panels, key=lambda panel: panel.start, reverse=True),
        picker="Grouped by" if sets else "Window",
    )


def _all_panels(
    standing: Standing,
    rows: PublicRows,
    all_rows: PublicRows,
    most_rows: int,
    reading: Reading | None,
) -> list[Panel]:
    """Return the panel of the window that is shown first, then those of other windows, the newest first; or those of the levels of a CUBE."""
    if rows.description.sets:
        return [_panel(standing, level, all_rows, most_rows, reading) for level in levels(rows)]
    panels = [_panel(standing, rows, all_rows, most_rows, reading)]
    if all_rows.description.windows:
        starts = all_rows.frame[START]
        other_starts = starts[starts != rows.frame[START].iloc[0]].unique()
        newest = sorted(other_starts, reverse=True)[:MOST_WINDOWS]
        few = min(most_rows, ROWS_ELSEWHERE)
        panels += [
            _panel(standing, all_rows.where(starts == start), all_rows, few, reading)
            for start in newest
        ]
    return panels


ONCE = "All records, released once"


def _panel(
    standing: Standing,
    window: PublicRows,
    all_rows: PublicRows,
    most_rows: int,
    reading: Reading | None,
) -> Panel:
    ended = bool(finished(window, all_rows.frame[DUE].max()).all())
    horizon = (
        _last(standing) if standing.published.windows else None
    )  # a table has grown for as long as it has
    window_table = table(
        window, window_before(all_rows, window) if ended else None, horizon, most_rows, reading
    )
    if not window.description.windows:
        names = ", ".join(window_table.names) or "nothing: all records"
        title = ONCE if window.description.once else "The whole table"
        return Panel(
            names,
            names if window.description.sets else title,
            _headline(window_table),
            window_table,
        )
    first = window.frame.iloc[0]
    title = f"{first[START]:{TIME}} to {first[END]:{TIME}} UTC"
    return Panel(
        f"{first[START]:%Y-%m-%dT%H:%M:%S}",
        title if ended else f"{title}, unfinished",
        _headline(window_table),
        window_table,
    )


def _headline(window_table: WindowTable) -> str:
    """Return what the first line of a table says, in words; nothing where its place is not known."""
    if not window_table.rows or not window_table.heads:
        return ""
    if not window_table.stands_out:
        return "Nothing here is larger than its own noise"
    first = window_table.rows[0]
    if not window_table.names:
        return f"{window_table.heads[0][0]}: {first.cells[0].text}"
    if not window_table.ranked_by or not window_table.first:
        return ""
    column, (alias, cap) = next(
        (i, head)
        for i, head in enumerate(window_table.heads)
        if head[0] == printable(window_table.ranked_by)
    )
    head_text = f"{alias} ({cap})" if cap else alias
    if window_table.all_tied:
        return f"{head_text}: no key can be told apart from another"
    words = (
        "is first" if window_table.first.place == "1" else "is largest, but others may be larger"
    )
    return f"{head_text}: {', '.join(window_table.first.keys)} {words}, {window_table.first.cells[column].text}"


def _lead(standing: Standing, rows: PublicRows, passed: str, listed: bool) -> str:
    first = rows.frame.iloc[0]
    state = {
        "running": "live",
        "stopped": "stopped",
        "published": "released from stored input",
    }.get(standing.state or "", "")
    grows = "" if standing.ended else f"; unfinished, so far up to {standing.trigger_time:{TIME}}"
    window = f"The whole table at {standing.trigger_time:{TIME}} UTC"
    window = ONCE if rows.description.once else window
    if rows.description.windows:
        window = f"Window {first[START]:{TIME}} to {first[END]:{TIME}} UTC{grows}"
    subject = "The largest values, private" if listed else "A private histogram"
    return f"{subject}. {window}{f'; {state}' if state else ''}. {passed}".rstrip()


def _cards(standing: Standing, rows: PublicRows, listed: bool) -> list[Card]:
    horizon = _last(standing)
    horizon_text = f" of {horizon:,}" if horizon else ""
    keys = int((rows.frame["trigger"] == standing.triggers).sum())
    cards = [_keys_card(rows.description, keys, listed), *_promise_cards(standing)]
    if rows.description.once:
        return [*cards, Card("Released", "once", f"written {standing.commit_time:{TIME}} UTC")]
    trigger_card = Card(
        "Trigger",
        f"{standing.triggers:,}{horizon_text}",
        f"{standing.trigger_time:{TIME}} UTC",
        share=standing.triggers / horizon if horizon else None,
    )
    return [*cards, trigger_card, _lag_card(standing)]


def _keys_card(published: Published, keys: int, listed: bool) -> Card:
    if not published.keys:
        period = f" per {'window' if published.windows else 'trigger'}"
        return Card("Keys", "none", f"one row{'' if published.once else period}")
    if published.sets:
        return Card("Cells shown", f"{keys:,}", "all there are, records or not")
    chosen = (
        "with enough people; a missing key is not zero"
        if published.selects
        else "all that are listed, records or not"
    )
    return Card("Keys shown", f"{keys:,}", SHOWN_OF_LIST if listed else chosen)


def _last(standing: Standing) -> int | None:
    """Return the number of a window's last trigger, or a table's; None where there is none."""
    windows = standing.published.windows
    noise = standing.published.noise
    return windows.triggers if windows else noise.horizon if noise else None


def _lag_card(standing: Standing) -> Card:
    commit_text = f"newest trigger written {standing.commit_time:{TIME}} UTC"
    if standing.replayed:
        return Card("Input", "stored", f"stored input, so nothing is late; {commit_text}")
    overdue = standing.overdue
    if overdue is not None and overdue > standing.interval:
        return Card(
            "Lag",
            f"{_length(overdue)} overdue",
            f"the next trigger has not come; {commit_text}",
            warn=True,
        )
    next_one = (
        f"; next {standing.trigger_time + standing.interval:{TIME}}" if overdue is not None else ""
    )
    return Card("Lag", _length(max(standing.late, timedelta(0))), f"{commit_text}{next_one}")


def _promise_cards(standing: Standing) -> Iterator[Card]:
    windows = standing.published.windows
    promises = standing.published.protects
    for run_number, run in enumerate(promises, 1):
        span = "once" if standing.published.once else "for ever"
        span = f"per {duration(windows.size_us)}" if windows and run.period == "WINDOW" else span
        yield Card(
            "Promise" if len(promises) == 1 else f"Promise of run {run_number} of {len(promises)}",
            f"epsilon {run.epsilon:g}",
            f"{span}, delta {run.delta:g}; unit: {', '.join(run.units) or 'one row, not one person'}",
        )
    budget = standing.budget
    if budget is None:
        return
    week = next((total for total in budget.totals if total.days == 7), None)
    if week is not None:
        runs = f"{len(budget.lines)} run{'' if len(budget.lines) == 1 else 's'} of ledger {budget.ledger}"
        runs += (
            f"; not in it: {budget.rows_only[0]} that protect rows only"
            if budget.rows_only[0]
            else ""
        )
        yield Card(
            "All runs, in any 7 days",
            f"epsilon {number(week.epsilon) if np.isfinite(week.epsilon) else 'unlimited'}",
            runs,
        )
    cap = budget.cap
    if cap is not None:
        remainder_text = (
            f"a run like the newest may have epsilon {number(cap.left_epsilon)}"
            if cap.left_epsilon
            else "nothing left"
        )
        yield Card(
            "Budget spent",
            f"{cap.spent_share:.0%}",
            f"of epsilon {cap.epsilon:g} per {cap.days:g} days; {remainder_text}",
            share=cap.spent_share,
        )


def _section(measure: Measure, rows: PublicRows, all_rows: PublicRows) -> Section:
    """Return the pictures of what has several points in time: windows, triggers of the window that is shown."""
    alias = measure.alias
    cap = heads(rows.description).get(alias)
    unit = f"{alias}\n({cap})" if cap else alias
    chart_calls = []
    if all_rows.description.windows:
        closed = all_rows.where(finished(all_rows))
        if _comes_again(closed, START):
            starts = closed.frame[START]
            newest = sorted(starts.unique())[-CHART_WINDOWS:]
            chart_calls.append(
                (charts.over_windows, closed.where(starts >= newest[0]), "window by window")
            )
    if _comes_again(rows, "trigger"):
        chart_calls.append((charts.growth, rows, "trigger by trigger"))
    return Section(
        printable(alias),
        tuple(
            _picture(draw, chart_rows.frame, alias, unit, f"{alias}, {progress}")
            for draw, chart_rows, progress in chart_calls
        ),
    )


def _comes_again(rows: PublicRows, when: str) -> bool:
    """Tell whether some key has two points in time: one alone makes no line."""
    names = grouped_by(rows)
    points = rows.frame[when].nunique()
    if names:
        points = rows.frame.groupby(names, dropna=False)[when].nunique().max()
    return bool(points > 1)


def _picture(
    draw: Callable[..., charts.Chart], rows: pd.DataFrame, alias: str, unit: str, title: str
) -> Picture:
    """Return a chart as wide as a page, and one as wide as a phone, of which each browser shows one."""
    sources = []
    caption = ""
    for narrow in (False, True):
        chart = draw(rows, alias, unit=unit, title=title, narrow=narrow)
        svg = io.BytesIO()
        caption = " ".join(chart.get_supxlabel().split())
        chart.supxlabel("")
        chart.savefig(svg, format="svg", metadata={"Date": None}, transparent=True)
        sources.append(f"data:image/svg+xml;base64,{base64.b64encode(svg.getvalue()).decode()}")
    return Picture(sources[0], sources[1], caption)


def _length(span: timedelta) -> str:
    seconds = span.total_seconds()
    for name, size in (("day", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}{'s' if name == 'day' else ''}"
    return f"{seconds:.0f} s"


def _asset(name: str) -> str:
    return files("dpsql.view").joinpath(name).read_text(encoding="utf-8")
