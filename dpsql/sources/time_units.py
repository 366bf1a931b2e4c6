"""Event times that a source has as numbers since 1970, or as texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PER_SECOND: Mapping[str, int] = {
    "seconds": 1,
    "milliseconds": 1_000,
    "microseconds": 1_000_000,
    "nanoseconds": 1_000_000_000,
}
TEXT = "text"
UNITS = (*PER_SECOND, TEXT)

_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double")


def has_unit(kind: str, unit: str) -> bool:
    """Tell whether a column of a type (its name in lower case) can have times of a unit."""
    return kind == "string" if unit == TEXT else kind in _NUMBERS


def time_reading(source: Any) -> tuple[str, ...]:
    """Say in `explain` how the event time of a source (`dpsql.sources.config.Source`) is read; nothing of a TIMESTAMP or a DATE."""
    if not source.event_time_unit:
        return ()
    reading = "texts" if source.event_time_unit == TEXT else f"{source.event_time_unit} since 1970"
    return (f"Event times are read from `{source.event_time}` as {reading} (UTC).",)


def no_time(column: str, kind: str) -> str:
    """Say that a column is no event time, and how it becomes one."""
    name = kind.lower()
    if not (has_unit(name, TEXT) or has_unit(name, "seconds")):
        return f"event time `{column}` has type {kind.upper()}, not TIMESTAMP or DATE"
    unit = TEXT if has_unit(name, TEXT) else "milliseconds"
    return (
        f"event time `{column}` has type {kind.upper()}, not TIMESTAMP or DATE: write `event_time: {{column: {column}, unit: {unit}}}` "
        f"at its source, or `time_unit={unit!r}` in dpsql.query; units are {', '.join(UNITS)}"
    )


def wrong_unit(column: str, kind: str, unit: str) -> str:
    """Say that the values of a column have no such unit."""
    return f"event time `{column}` has type {kind.upper()}, and `unit: {unit}` is for {'STRING' if unit == TEXT else 'whole numbers and DOUBLE'}"
