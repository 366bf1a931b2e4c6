"""Expressions that cut the event time into hours or days, as people write them instead of window(), and the window that means the same."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from dpsql.sql.items import call_name
from dpsql.sql.values import bare

_WINDOWS: Mapping[str, str] = {
    "second": "'1 second'",
    "minute": "'1 minute'",
    "hour": "'1 hour'",
    "day": "'1 day'",
    "dd": "'1 day'",
    "week": "'7 days', '7 days', '4 days'",
    "month": "'30 days'",
    "mon": "'30 days'",
    "mm": "'30 days'",
    "quarter": "'91 days'",
    "year": "'365 days'",
    "yyyy": "'365 days'",
    "yy": "'365 days'",
}
"""By the unit's word. Weeks begin on Monday, four days after the day from which windows are counted."""


def window_of_cut(node: exp.Expr, event_time: str) -> str | None:
    """The window() for `date_trunc('hour', ts)`, `trunc(ts, 'week')`, `to_date(ts)`, `date(ts)`, `CAST(ts AS DATE)`; None for all else."""
    if isinstance(node, (exp.Cast, exp.TryCast)) and node.to.this == exp.DType.DATE:
        return _window(node.this, "day", event_time)
    name = call_name(node)
    arguments = list(node.expressions) if isinstance(node, exp.Anonymous) else []
    if name in ("date", "to_date") and len(arguments) == 1:
        return _window(arguments[0], "day", event_time)
    if name in ("date_trunc", "trunc", "timestamp_trunc", "date_bin") and len(arguments) == 2:
        unit, column = arguments if name in ("date_trunc", "date_bin") else reversed(arguments)
        return _window(column, unit.name.lower(), event_time)
    return None


def _window(column: exp.Expr, unit: str, event_time: str) -> str | None:
    column = bare(column)
    ours = isinstance(column, exp.Column) and column.name.lower() == event_time
    return f"window({event_time}, {_WINDOWS[unit]})" if ours and unit in _WINDOWS else None
