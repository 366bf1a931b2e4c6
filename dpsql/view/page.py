"""The page of a histogram: one HTML text with its style, its script and its pictures inside; it asks for nothing from anywhere.

Keys are what people sent: the template escapes every text, pictures are images (nothing in them can run), and the page's own policy allows
its one script and no other. `Markup`, which is not escaped, is this package's own style and script, and drawings made of numbers alone.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from dpsql.frames import aggregates_of, has_windows, keys_of
from dpsql.text import number
from dpsql.times import duration
from dpsql.view import charts
from dpsql.view.bounds import heads, left_out
from dpsql.view.formatting import absent, measured, printable, said_beside
from dpsql.view.reading import as_read
from dpsql.view.standing import Standing
from dpsql.view.trend import trend

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 200
TIME = "%Y-%m-%d %H:%M"


@dataclass(frozen=True)
class Card:
    """One figure above the charts; `share` of a bar below it."""

    head: str
    value: str
    what: str
    warn: bool = False
    share: float | None = None


@dataclass(frozen=True)
class Picture:
    """A chart as an image."""

    alt: str
    source: str


@dataclass(frozen=True)
class Section:
    """An aggregate and its charts."""

    head: str
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Cell:
    """A released value, what is said beside it, and its way there; `small`: below its own error."""

    text: str
    small: bool
    beside: tuple[str, ...]
    trend: Markup


@dataclass(frozen=True)
class Row:
    """A key's line."""

    keys: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """The largest keys, of `all_rows`; `heads`: aggregates, and what the bounds cap in each."""

    names: tuple[str, ...]
    heads: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    all_rows: int


def page(standing: Standing, rows: pd.DataFrame, refresh_seconds: int | None = None, most_rows: int = MOST_ROWS) -> str:
    """The page of one window.

    Args:
        standing: of the run.
        rows: the window's rows, of all its triggers so far.
        refresh_seconds: how often a browser loads the page anew; None: never.
        most_rows: rows of the table, the largest keys first.

    Returns:
        A whole HTML document.
    """
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(_asset("page.html"))
    return template.render(
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        style=Markup(_asset("page.css")),
        script=Markup(script),
        refresh_seconds=refresh_seconds,
        standing=standing,
        lead=_lead(standing, rows),
        cards=_cards(standing, rows),
        said=left_out(standing.plan),
        sections=[_section(alias, rows, heads(standing.plan).get(alias, "")) for alias in aggregates_of(rows)],
        table=_table(standing, rows, most_rows),
    )


def _lead(standing: Standing, rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    state = {"running": "live", "stopped": "stopped", "published": "released from stored input"}.get(standing.state or "", "")
    grows = "" if standing.ended else f"; unfinished, so far up to {standing.trigger_time:{TIME}}"
    window = f"The whole table at {standing.trigger_time:{TIME}} UTC"
    if has_windows(rows):
        window = f"Window {first['window_start']:{TIME}} to {first['window_end']:{TIME}} UTC{grows}"
    return f"A private histogram. {window}{f'; {state}' if state else ''}."


def _cards(standing: Standing, rows: pd.DataFrame) -> list[Card]:
    horizon = _last(standing)
    of = f" of {horizon:,}" if horizon else ""
    keys = int((rows["trigger"] == standing.triggers).sum())
    return [
        Card(
            "Trigger",
            f"{standing.triggers:,}{of}",
            f"{standing.trigger_time:{TIME}} UTC",
            share=standing.triggers / horizon if horizon else None,
        ),
        _lag(standing),
        Card("Keys shown", f"{keys:,}", "with enough people; a missing key is not zero")
        if keys_of(rows)
        else Card("Keys", "none", f"one row per {'window' if has_windows(rows) else 'trigger'}"),
        *_promise(standing),
    ]


def _last(standing: Standing) -> int | None:
    """The number of a window's last trigger, or a table's; None where there is none."""
    if not standing.plan:
        return None
    query = standing.plan["query"]
    last = query["max_triggers"] if "max_triggers" in query else standing.plan.get("horizon", 1)
    return int(last) if last else None


def _lag(standing: Standing) -> Card:
    written = f"newest trigger written {standing.written:{TIME}} UTC"
    if standing.replayed:
        return Card("Lag", "none", f"stored input; {written}")
    overdue = standing.overdue
    interval = timedelta(microseconds=int(standing.plan["query"]["trigger_interval_us"])) if standing.plan else None
    if overdue is not None and interval is not None and overdue > interval:
        return Card("Lag", f"{_length(overdue)} overdue", f"the next trigger has not come; {written}", warn=True)
    next_one = f"; next {standing.trigger_time + interval:{TIME}}" if overdue is not None and interval is not None else ""
    return Card("Lag", _length(max(standing.late, timedelta(0))), f"{written}{next_one}")


def _promise(standing: Standing) -> Iterator[Card]:
    if standing.plan is not None:
        plan, query = standing.plan, standing.plan["query"]
        span = "for ever" if query["contribution_period"] == "STREAM" else f"per {duration(int(query['window']['size_us']))}"
        yield Card(
            "Promise",
            f"epsilon {plan['epsilon']:g}",
            f"{span}, delta {plan['delta']:g}; unit: {', '.join(query['privacy_unit']) or 'one row, not one person'}",
        )
    if standing.budget is None:
        return
    week = next((total for total in standing.budget.totals if total.days == 7), None)
    if week is not None:
        runs = f"{len(standing.budget.lines)} run{'' if len(standing.budget.lines) == 1 else 's'} of ledger {standing.budget.ledger}"
        yield Card("All runs, in 7 days", f"epsilon {number(week.epsilon) if np.isfinite(week.epsilon) else 'unlimited'}", runs)
    cap = standing.budget.cap
    if cap is not None:
        left = f"a run like the newest may have epsilon {number(cap.left_epsilon)}" if cap.left_epsilon else "nothing left"
        yield Card(
            "Budget spent", f"{cap.spent_share:.0%}", f"of epsilon {cap.epsilon:g} per {cap.days:g} days; {left}", share=cap.spent_share
        )


def _section(alias: str, rows: pd.DataFrame, cap: str) -> Section:
    measure = f"{alias} ({cap})" if cap else alias
    until = f"{rows['trigger_time'].max():{TIME}}"
    drawn = (
        charts.bars(rows, alias, unit=measure, title=f"{alias}, up to {until}"),
        charts.growth(rows, alias, unit=measure, title=f"{alias}, trigger by trigger"),
    )
    return Section(printable(alias), tuple(_picture(chart, alias) for chart in drawn))


def _picture(chart: charts.Chart, alias: str) -> Picture:
    out = io.BytesIO()
    chart.savefig(out, format="svg", metadata={"Date": None})
    what = f"{alias}: {' '.join(chart.get_supxlabel().split())}"
    return Picture(what, f"data:image/svg+xml;base64,{base64.b64encode(out.getvalue()).decode()}")


def _table(standing: Standing, rows: pd.DataFrame, most_rows: int) -> Table:
    names, aliases = keys_of(rows), aggregates_of(rows)
    last = rows[rows["trigger"] == standing.triggers].sort_values([*aliases[:1]], ascending=False, kind="stable")
    last = as_read(last, standing.plan)
    horizon = _last(standing) or standing.triggers
    key = rows.groupby(names, dropna=False, sort=False).ngroup() if names else rows["trigger"] * 0
    paths = {number: path for number, path in rows.sort_values("trigger").groupby(key)}
    shown = last.head(most_rows)
    lines = [
        _row(row, paths[number], names, aliases, horizon) for row, number in zip(shown.to_dict("records"), key[shown.index], strict=True)
    ]
    caps = heads(standing.plan)
    named = tuple((printable(alias), caps.get(alias, "")) for alias in aliases)
    return Table(tuple(map(printable, names)), named, tuple(lines), len(last))


def _row(row: dict[Any, Any], path: pd.DataFrame, names: list[str], aliases: list[str], horizon: int) -> Row:
    triggers = path["trigger"].to_numpy(np.int64)
    cells = []
    for alias in aliases:
        text, small = measured(row[alias], row[f"{alias}_stderr"])
        values, errors = (path[column].to_numpy(np.float64, na_value=np.nan) for column in (alias, f"{alias}_stderr"))
        said = tuple(f"{ending} {value}" for ending, value in said_beside(row, alias).items())
        cells.append(Cell(text, small, said, trend(triggers, values, errors, horizon)))
    return Row(tuple("NULL" if absent(row[name]) else printable(row[name]) for name in names), tuple(cells))


def _length(span: timedelta) -> str:
    seconds = span.total_seconds()
    for name, size in (("day", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}{'s' if name == 'day' else ''}"
    return f"{seconds:.0f} s"


def _asset(name: str) -> str:
    return files("dpsql.view").joinpath(name).read_text(encoding="utf-8")
