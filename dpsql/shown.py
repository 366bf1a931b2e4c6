"""How values are written for people: on a terminal, in charts and on the page of `dpsql view`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

Z95 = 1.959963984540054
TIMES = ("window_start", "window_end", "trigger", "trigger_time")
"""Columns of every histogram before its keys."""


def aggregates_of(columns: Iterable[Hashable]) -> list[str]:
    """The columns of a histogram that have a stderr; a frame is its columns' names."""
    names = [str(column) for column in columns]
    return [name for name in names if f"{name}_stderr" in names]


def keys_of(columns: Iterable[Hashable]) -> list[str]:
    """The columns that name a row besides its window and trigger."""
    names = [str(column) for column in columns]
    aggregates = aggregates_of(names)
    taken = {*TIMES, *aggregates, *(f"{name}_stderr" for name in aggregates)}
    return [name for name in names if name not in taken]


def printable(value: Any) -> str:
    """A key as text: control characters are shown, not obeyed."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))


def absent(value: Any) -> bool:
    """NULL, NaN or NaT; the last two differ from themselves."""
    return value is None or bool(value != value)


def measured(value: Any, stderr: float) -> tuple[str, bool]:
    """`1,203 ± 76`, with as many digits as the error deserves, and whether the value is smaller than that 95% error."""
    if absent(value):
        return "NULL", True
    error = Z95 * stderr
    digits = 0 if isinstance(value, int) else max(0, min(6, 2 - len(str(int(max(error, 1.0))))))
    return f"{value:,.{digits}f} ± {error:,.{digits}f}", abs(value) < error
