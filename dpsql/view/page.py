"""The page of a histogram: one HTML text with its style, its script and its pictures inside; it asks for nothing from anywhere.

Keys are what people sent: the template escapes every text, and the page's own policy allows its one script and no other. `Markup` and `Drawing`,
which are not escaped, are this package's own style and script, drawings made of numbers alone, and a format whose arguments are escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from importlib.resources import files
from numbers import Integral
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from dpsql.description import DUE, END, START, Published
from dpsql.parsed_query import Reading
from dpsql.published.public_rows import PublicRows
from dpsql.published.words import appears, deeds
from dpsql.text import number, plural
from dpsql.view.csv_text import csv_text
from dpsql.view.drawings import Drawing, columns
from dpsql.view.left_out import estimates
from dpsql.view.plain_table import explanation
from dpsql.view.series import Series, growth, over_windows
from dpsql.view.standing import Standing
from dpsql.view.table import (
    MOST_IN_ORDER,
    WindowTable,
    finished,
    known_numbers,
    levels,
    table,
    window_before,
)
from dpsql.view.words import TIME, left_out, of_lists, scale_texts

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 200
MOST_WINDOWS = 12
ROWS_ELSEWHERE = 50
"""Windows that can be picked besides the one that is shown first, and how many keys each has: a page stays small."""

DRAWN_ROWS = 15
WIDE_LETTERS = 130
NARROW_LETTERS = 34
"""Letters below a picture, on wide and on narrow screens."""

STATES = {"running": "live", "stopped": "stopped", "published": "released from stored input"}
ONE_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Card:
    """A fact about the whole table; `share` of a bar below it."""

    head: str
    value: str
    detail: str
    warn: bool = False
    share: float | None = None


@dataclass(frozen=True)
class Slot:
    """A place for one column of a picture, which a value that is missing leaves empty; `screens` that have room for its label."""

    label: str
    text: str
    drawing: Drawing
    screens: str


@dataclass(frozen=True)
class Columns:
    """The columns of a picture, with the numbers at both ends of their scale."""

    slots: tuple[Slot, ...]
    low: str
    high: str


@dataclass(frozen=True)
class Panel:
    """One window's pictures and table; `start` names it in the picker, `choice` is what the picker says."""

    start: str
    choice: str
    title: str
    headline: str
    estimates: tuple[str, ...]
    table: WindowTable
    columns: Columns | None
    series: tuple[Series, ...]
    csv: str
    csv_is_marked: bool


@dataclass(frozen=True)
class _Contents:
    """Facts that all panels of a page share."""

    standing: Standing
    all_rows: PublicRows
    reading: Reading | None
    listed: bool


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
    contents = _Contents(standing, history, reading, listed)
    panels = _all_panels(contents, window, most_rows)
    sets = window.description.sets
    return template.render(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=Markup(_asset("page.css")),
        script=Markup(script),
        refresh_seconds=refresh_seconds,
        standing=standing,
        lead=_lead(standing, passed, listed),
        listed=listed,
        cards=_cards(standing, listed, panels[0].estimates),
        explanation=explanation(standing.published),
        windows=[] if sets else _series_of(history, over_windows),
        panels=panels,
        picked=panels if sets else sorted(panels, key=lambda panel: panel.start, reverse=True),
        picker="Grouped by" if sets else "Window",
        drawn_rows=DRAWN_ROWS,
    )


def _all_panels(contents: _Contents, rows: PublicRows, most_rows: int) -> list[Panel]:
    """Return the panel of the window that is shown first, then those of other windows, the newest first; or those of the levels of a CUBE."""
    if rows.description.sets:
        return [_panel(contents, level, most_rows) for level in levels(rows)]
    panels = [_panel(contents, rows, most_rows)]
    all_rows = contents.all_rows
    if all_rows.description.windows:
        starts = all_rows.frame[START]
        other_starts = starts[starts != rows.frame[START].iloc[0]].unique()
        newest = sorted(other_starts, reverse=True)[:MOST_WINDOWS]
        few = min(most_rows, ROWS_ELSEWHERE)
        panels += [_panel(contents, all_rows.where(starts == start), few) for start in newest]
    return panels


def _panel(contents: _Contents, window: PublicRows, most_rows: int) -> Panel:
    all_rows = contents.all_rows
    published = window.description
    ended = bool(finished(window, all_rows.frame[DUE].max()).all())
    # A table has grown for as long as it has
    horizon = _last(contents.standing) if published.windows else None
    earlier_window = window_before(all_rows, window) if ended else None
    window_table = table(window, earlier_window, horizon, most_rows, contents.reading)
    when = _when(contents.standing, window)
    choice = when if ended else f"{when}, unfinished"
    start = ""
    if published.windows:
        start = f"{window.frame[START].iloc[0]:%Y-%m-%dT%H:%M:%S}"
    if published.sets:
        choice = ", ".join(window_table.names) or "nothing: all records"
        start = choice
    series = _series_of(window, growth)
    if published.sets:
        series += _series_of(window, over_windows)
    csv, is_marked = csv_text(window_table.shown_rows)
    return Panel(
        start=start,
        choice=choice,
        title=f"{_subject(window_table, contents.listed)}, {when}",
        headline=_headline(window_table),
        estimates=estimates(window),
        table=window_table,
        columns=_columns(window_table),
        series=tuple(series),
        csv=f"data:text/csv;charset=utf-8,{quote(csv)}",
        csv_is_marked=is_marked,
    )


def _series_of(rows: PublicRows, draw: Any) -> list[Series]:
    """Return the lines of each aggregate of which there are some."""
    drawn = [draw(rows, alias) for alias in rows.description.amounts]
    return [series for series in drawn if series]


def _subject(window_table: WindowTable, listed: bool) -> str:
    """Return `Editors, edits per channel`; lists are of their values."""
    numbers = ", ".join(dict.fromkeys(head.name for head in window_table.heads))
    keys = ", ".join(window_table.names)
    text = f"{numbers} per {keys}" if keys and not listed else numbers
    return (text[:1].upper() + text[1:]).replace("_", " ")


def _when(standing: Standing, window: PublicRows) -> str:
    """Return `12 September 2015`, or which hours of it."""
    if window.description.once:
        return "all records"
    if not window.description.windows:
        return f"all records up to {_day(standing.trigger_time)} {standing.trigger_time:%H:%M}"
    first = window.frame.iloc[0]
    start = first[START].to_pydatetime()
    end = first[END].to_pydatetime()
    last = end - timedelta(microseconds=1)
    if start.time() == end.time() and start.hour == start.minute == 0:
        return _day(start) if end - start == ONE_DAY else f"{_day(start)} to {_day(last)}"
    if start.date() == last.date():
        return f"{_day(start)}, {start:%H:%M} to {end:%H:%M}"
    return f"{_day(start)} {start:%H:%M} to {_day(end)} {end:%H:%M}"


def _day(moment: datetime) -> str:
    return f"{moment.day} {moment:%B %Y}"


def _headline(window_table: WindowTable) -> str:
    """Return what the first line of a table says, in words; nothing where its place is not known."""
    if not window_table.rows or not window_table.heads:
        return ""
    if not window_table.stands_out:
        return "Nothing here is larger than its own noise"
    first = window_table.rows[0]
    if not window_table.names:
        amounts = window_table.shown_rows.description.amounts
        cells = zip(window_table.heads, first.cells, amounts, strict=False)
        return "; ".join(f"{head.name}: {cell.text}" for head, cell, _ in cells)
    if not window_table.ranked_by or not window_table.first:
        return ""
    head = window_table.heads[window_table.main_column]
    head_text = f"{head.name} ({head.detail})" if head.detail else head.name
    if window_table.all_tied:
        return f"{head_text}: no key can be told apart from another"
    words = "is largest, but others may be larger"
    if window_table.first.place == "1":
        words = f"is first{head.among}"
    keys = ", ".join(window_table.first.keys)
    if window_table.ordered_key:
        keys = f"{window_table.names[0]} {keys}"
    value = window_table.first.cells[window_table.main_column].text
    # A key in another direction keeps to itself
    return Markup("{}: <bdi>{}</bdi> {}, {}").format(head_text, keys, words, value)


def _columns(window_table: WindowTable) -> Columns | None:
    """Return the columns of keys that have an order of their own; None of other keys, and of few."""
    name = window_table.ordered_key
    alias = window_table.main_alias
    rows = window_table.shown_rows
    if name is None or alias is None or len(rows.frame) < 3:
        return None
    values, stderrs = known_numbers(rows, alias)
    drawings, (low, high) = columns(values, stderrs)
    positions = _positions([*rows.frame[name]])
    texts = [row.cells[window_table.main_column].text for row in window_table.rows]
    labels = [row.keys[0] for row in window_table.rows]
    count = positions[-1] + 1
    longest = max(map(len, labels)) + 1
    wide, narrow = (-(-count * longest // room) for room in (WIDE_LETTERS, NARROW_LETTERS))
    slots = [Slot("", "", Drawing(), "")] * count
    for place, label, text, drawing in zip(positions, labels, texts, drawings, strict=True):
        screens = "all" if place % narrow == 0 else "wide" if place % wide == 0 else ""
        slots[place] = Slot(label, text, drawing, screens)
    return Columns(tuple(slots), *scale_texts(low, high))


def _positions(keys: Sequence[Any]) -> list[int]:
    """Return the places of ascending keys: a number or day that is missing leaves a gap, if all of them have room."""
    numbers = [place for key in keys if (place := _whole_number(key)) is not None]
    if len(numbers) < len(keys) or numbers[-1] - numbers[0] >= MOST_IN_ORDER:
        return [*range(len(keys))]
    return [place - numbers[0] for place in numbers]


def _whole_number(key: Any) -> int | None:
    if isinstance(key, Integral):
        return int(key)
    return key.toordinal() if isinstance(key, date) and not isinstance(key, datetime) else None


def _lead(standing: Standing, passed: str, listed: bool) -> str:
    subject = "The largest values, private" if listed else "Private numbers"
    state = STATES.get(standing.state or "", "")
    grows = "" if standing.ended else f"unfinished, so far up to {standing.trigger_time:{TIME}}"
    parts = ", ".join(part for part in (state, grows) if part)
    return f"{subject}{f': {parts}' if parts else ''}. Times are UTC. {passed}".rstrip()


def _cards(standing: Standing, listed: bool, figures: Sequence[str]) -> list[Card]:
    """Return who is protected, what noise is, what is left out, when this was made; of a live run how far it is; and the budget. `figures`: what
    the first window says of what its limits left out."""
    published = standing.published
    noise, *limits = of_lists(published) if listed else left_out(published, figures)
    limits = [sentence for sentence in limits if sentence not in figures]  # a panel has its own
    runs = published.protects
    missing = [appears(run, published) for run in runs[-1:] if run.units_needed is not None]
    missing += ["A missing key is not zero."] if published.selects else []
    cards = [*_protection_cards(published), Card("Noise", "added to every number", noise)]
    if sentences := [*limits, *missing]:
        rare = "rare keys, and " if missing else ""
        cards.append(Card("Left out", f"{rare}records beyond limits", " ".join(sentences)))
    if standing.state == "running":
        cards += [_trigger_card(standing), _lag_card(standing)]
    else:
        state = STATES.get(standing.state or "", "")
        once = "once, over all records" if published.once else state
        cards.append(Card("Made", f"{standing.commit_time:{TIME}} UTC", once))
    return [*cards, *_budget_cards(standing)]


def _trigger_card(standing: Standing) -> Card:
    horizon = _last(standing)
    return Card(
        "Trigger",
        f"{standing.triggers:,}{f' of {horizon:,}' if horizon else ''}",
        f"{standing.trigger_time:{TIME}} UTC",
        share=standing.triggers / horizon if horizon else None,
    )


def _last(standing: Standing) -> int | None:
    """Return the number of a window's last trigger, or a table's; None where there is none."""
    windows = standing.published.windows
    noise = standing.published.noise
    return windows.triggers if windows else noise.horizon if noise else None


def _lag_card(standing: Standing) -> Card:
    commit_text = f"newest trigger written {standing.commit_time:{TIME}} UTC"
    overdue = standing.overdue
    if overdue is not None and overdue > standing.interval:
        return Card(
            "Lag",
            f"{_length(overdue)} overdue",
            f"the next trigger has not come; {commit_text}",
            warn=True,
        )
    next_one = f"; next {standing.trigger_time + standing.interval:{TIME}}"
    return Card("Lag", _length(max(standing.late, timedelta(0))), f"{commit_text}{next_one}")


def _protection_cards(published: Published) -> Iterator[Card]:
    """Yield who is protected, and by how much, of each run."""
    runs = published.protects
    for run_number, run in enumerate(runs, 1):
        several = f", run {run_number} of {len(runs)}" if len(runs) > 1 else ""
        units = ", ".join(run.units)
        yield Card(
            f"Protected{several}",
            f"each {units}" if units else "each row, not each person",
            f"{f'all that one {units} {deeds(run, published)}: ' if units else ''}epsilon {run.epsilon:g}, delta {run.delta:g}",
        )


def _budget_cards(standing: Standing) -> Iterator[Card]:
    budget = standing.budget
    if budget is None:
        return
    week = next((total for total in budget.totals if total.days == 7), None)
    if week is not None:
        runs = f"{plural(len(budget.lines), 'run')} of ledger {budget.ledger}"
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


def _length(span: timedelta) -> str:
    seconds = span.total_seconds()
    for name, size in (("day", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}{'s' if name == 'day' else ''}"
    return f"{seconds:.0f} s"


def _asset(name: str) -> str:
    return files("dpsql.view").joinpath(name).read_text(encoding="utf-8")
