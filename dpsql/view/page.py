"""The page itself: one HTML text with its style, its script and its pictures inside; it asks for nothing from anywhere.

Keys are what people sent, so every text is escaped, pictures are images (nothing in them can run), and the page's own policy allows its
one script and no other.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
from collections.abc import Iterator
from datetime import timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.frames import aggregates_of, keys_of
from dpsql.mechanisms.histogram.explain import duration, number
from dpsql.view import charts
from dpsql.view.formatting import absent, measured, printable
from dpsql.view.standing import Standing
from dpsql.view.trend import trend

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 200
TIME = "%Y-%m-%d %H:%M"


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
    style, script = _asset("page.css"), _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    refresh = f'<meta http-equiv="refresh" content="{refresh_seconds}">' if refresh_seconds else ""
    title = html.escape(standing.name)
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">{refresh}',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{style}</style></head><body>",
            f"<h1>{title}</h1>{_lead(standing, rows)}{_cards(standing, rows)}",
            *(_section(alias, rows) for alias in aggregates_of(rows)),
            _table(standing, rows, most_rows),
            _foot(standing, refresh_seconds),
            f"<script>{script}</script></body></html>\n",
        ]
    )


def _lead(standing: Standing, rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    state = {"running": "live", "stopped": "stopped", "published": "released from stored input"}.get(standing.state or "", "")
    text = f"A private histogram. Window {first['window_start']:{TIME}} to {first['window_end']:{TIME}} UTC{f'; {state}' if state else ''}."
    return f'<p class="soft">{text}</p>'


def _cards(standing: Standing, rows: pd.DataFrame) -> str:
    horizon = int(standing.plan["horizon"]) if standing.plan else None
    of = f" of {horizon:,}" if horizon else ""
    keys = int((rows["trigger"] == standing.triggers).sum())
    cards = [
        _card(
            "Trigger",
            f"{standing.triggers:,}{of}",
            f"{standing.trigger_time:{TIME}} UTC",
            share=standing.triggers / horizon if horizon else None,
        ),
        _lag(standing),
        _card("Keys shown", f"{keys:,}", "with enough people; a missing key is not zero")
        if keys_of(rows)
        else _card("Keys", "none", "one row per window"),
        *_promise(standing),
    ]
    return f'<ul class="cards">{"".join(cards)}</ul>'


def _lag(standing: Standing) -> str:
    written = f"newest trigger written {standing.written:{TIME}} UTC"
    if standing.replayed:
        return _card("Lag", "none", f"stored input; {written}")
    overdue = standing.overdue
    interval = timedelta(microseconds=int(standing.plan["query"]["trigger_interval_us"])) if standing.plan else None
    if overdue is not None and interval is not None and overdue > interval:
        return _card("Lag", f"{_length(overdue)} overdue", f"the next trigger has not come; {written}", warn=True)
    next_one = f"; next {standing.trigger_time + interval:{TIME}}" if overdue is not None and interval is not None else ""
    return _card("Lag", _length(max(standing.late, timedelta(0))), f"{written}{next_one}")


def _promise(standing: Standing) -> Iterator[str]:
    if standing.plan is not None:
        plan, query = standing.plan, standing.plan["query"]
        span = "for ever" if query["contribution_period"] == "STREAM" else f"per {duration(int(query['window']['size_us']))}"
        yield _card("Promise", f"epsilon {plan['epsilon']:g}", f"{span}, delta {plan['delta']:g}; unit: {', '.join(query['privacy_unit'])}")
    if standing.budget is None:
        return
    week = next((total for total in standing.budget.totals if total.days == 7), None)
    if week is not None:
        runs = f"{len(standing.budget.lines)} run{'' if len(standing.budget.lines) == 1 else 's'} of ledger {standing.budget.ledger}"
        yield _card("All runs, in 7 days", f"epsilon {number(week.epsilon) if np.isfinite(week.epsilon) else 'unlimited'}", runs)
    cap = standing.budget.cap
    if cap is not None:
        left = f"a run like the newest may have epsilon {number(cap.left_epsilon)}" if cap.left_epsilon else "nothing left"
        yield _card(
            "Budget spent", f"{cap.spent_share:.0%}", f"of epsilon {cap.epsilon:g} per {cap.days:g} days; {left}", share=cap.spent_share
        )


def _card(head: str, value: str, what: str, warn: bool = False, share: float | None = None) -> str:
    bar = f'<div class="bar"><i style="width:{100 * min(1.0, share):.1f}%"></i></div>' if share is not None else ""
    kind = ' class="warn"' if warn else ""
    return f'<li{kind}><span class="what">{head}</span><b>{html.escape(value)}</b><span class="what">{html.escape(what)}</span>{bar}</li>'


def _section(alias: str, rows: pd.DataFrame) -> str:
    pictures = [charts.bars(rows, alias, title=f"{alias} now"), charts.growth(rows, alias, title=f"{alias}, trigger by trigger")]
    shown = "".join(f"<figure>{_picture(chart, alias)}</figure>" for chart in pictures)
    return f'<h2>{html.escape(printable(alias))}</h2><div class="charts">{shown}</div>'


def _picture(chart: charts.Chart, alias: str) -> str:
    out = io.BytesIO()
    chart.savefig(out, format="svg", metadata={"Date": None})
    what = html.escape(f"{alias}: {' '.join(chart.get_supxlabel().split())}", quote=True)
    return f'<img alt="{what}" src="data:image/svg+xml;base64,{base64.b64encode(out.getvalue()).decode()}">'


def _table(standing: Standing, rows: pd.DataFrame, most_rows: int) -> str:
    names, aliases = keys_of(rows), aggregates_of(rows)
    last = rows[rows["trigger"] == standing.triggers].sort_values([*aliases[:1]], ascending=False, kind="stable")
    horizon = int(standing.plan["horizon"]) if standing.plan else standing.triggers
    key = rows.groupby(names, dropna=False, sort=False).ngroup() if names else rows["trigger"] * 0
    paths = {number: path for number, path in rows.sort_values("trigger").groupby(key)}
    heads = "".join(f"<th>{html.escape(printable(name))}</th>" for name in names)
    heads += "".join(f'<th class="number">{html.escape(printable(alias))}</th><th>since the window began</th>' for alias in aliases)
    shown = last.head(most_rows)
    lines = [
        _row(row, paths[number], names, aliases, horizon) for row, number in zip(shown.to_dict("records"), key[shown.index], strict=True)
    ]
    more = f" The {len(lines):,} largest of {len(last):,}." if len(last) > len(lines) else ""
    field = (
        '<p><input id="filter" type="search" placeholder="find a key" aria-label="find a key"> <span id="found" class="soft"></span></p>'
    )
    return (
        f'<h2>All keys</h2><p class="soft">Value ± 95% of the noise; grey: smaller than its own error.{more}</p>{field if names else ""}'
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def _row(row: dict[Any, Any], path: pd.DataFrame, names: list[str], aliases: list[str], horizon: int) -> str:
    texts = ["NULL" if absent(row[name]) else printable(row[name]) for name in names]
    cells = "".join(f'<td class="key">{html.escape(text)}</td>' for text in texts)
    triggers = path["trigger"].to_numpy(np.int64)
    for alias in aliases:
        text, small = measured(row[alias], row[f"{alias}_stderr"])
        values, errors = (path[column].to_numpy(np.float64, na_value=np.nan) for column in (alias, f"{alias}_stderr"))
        cells += f'<td class="number{" small" if small else ""}">{text}</td><td>{trend(triggers, values, errors, horizon)}</td>'
    return f'<tr data-key="{html.escape(" ".join(texts).lower(), quote=True)}">{cells}</tr>'


def _foot(standing: Standing, refresh_seconds: int | None) -> str:
    again = f"This page is made anew as triggers are published, and loaded anew every {refresh_seconds} s." if refresh_seconds else ""
    return (
        f"<footer>Made {standing.now:%Y-%m-%d %H:%M:%S} UTC. {again} Errors are the noise alone; what the bounds dropped is not in them. "
        "Everything on this page is public: it may be shown to anyone. Why a key is missing: <code>dpsql explain QUERY.sql --missing</code>"
        "</footer>"
    )


def _length(span: timedelta) -> str:
    seconds = span.total_seconds()
    for name, size in (("day", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}{'s' if name == 'day' else ''}"
    return f"{seconds:.0f} s"


def _asset(name: str) -> str:
    return files("dpsql.view").joinpath(name).read_text(encoding="utf-8")
