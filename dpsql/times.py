"""Durations and instants, as people write them and read them; all in microseconds, instants since 1970 UTC."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
MAX_DURATION_US = 1 << 61
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration(text: str, least_us: int = 1) -> int:
    """Return microseconds of `7 days`, `15 minutes` or `1 day 12 hours`; at least `least_us`.

    >>> parse_duration("1 day 12 hours")
    129600000000

    Raises:
        ValueError: too short, or not a duration of whole weeks, days, hours, minutes, seconds or fractions of a second.
    """
    parts = re.findall(r"(\d+)\s*([a-z]+)", text.strip().lower())
    total = 0
    for count, unit in parts:
        total += int(count[:20]) * UNITS_US.get(unit.removesuffix("s"), 1 << 80)
    written_wholly = re.fullmatch(r"(\d+\s*[a-z]+\s*)+", text.strip().lower())
    if not written_wholly or not least_us <= total <= MAX_DURATION_US:
        raise ValueError(
            f"{text!r} is not a duration; write it like '7 days' or '12 hours' (months have no fixed length)"
        )
    return total


def duration(us: int) -> str:
    """Write a duration in words, in days at most: `90 minutes`, `7 days`.

    >>> duration(5_400_000_000)
    '90 minutes'
    """
    return (
        _in_one_unit(us, ("day", "hour", "minute", "second", "millisecond", "microsecond"))
        if us
        else "0 seconds"
    )


def show_duration(us: int) -> str:
    """Return the shortest spelling in one unit, as an option is written: `15 minutes`, `1 week`."""
    return _in_one_unit(us, reversed(UNITS_US))


def _in_one_unit(us: int, units: Iterable[str]) -> str:
    unit = next(unit for unit in units if us % UNITS_US[unit] == 0)
    count = us // UNITS_US[unit]
    return f"{count} {unit}" + ("" if count == 1 else "s")


def now_us() -> int:
    """Return the wall clock."""
    return time.time_ns() // 1000


def microseconds(text: str) -> int:
    """Return an instant like `2026-01-31` or `2026-01-31T12:00`, UTC unless it says otherwise, in microseconds since 1970.

    Raises:
        ValueError: it is none.
    """
    time = datetime.fromisoformat(text)
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(
        microseconds=1
    )


def timestamp(us: int) -> str:
    """Return an instant as people write it: `2026-01-31T12:00:00Z`."""
    try:
        return (EPOCH + timedelta(microseconds=us)).strftime("%Y-%m-%dT%H:%M:%SZ")
    except OverflowError:
        return f"{us} microseconds"
