"""Numbers as people read them, in sentences and tables: durations, amounts, shares."""

from __future__ import annotations

import math

UNITS = (
    ("day", 86_400_000_000),
    ("hour", 3_600_000_000),
    ("minute", 60_000_000),
    ("second", 1_000_000),
    ("millisecond", 1_000),
    ("microsecond", 1),
)


def duration(us: int) -> str:
    """Microseconds in words: `90 minutes`, `1 day`.

    >>> duration(5_400_000_000)
    '90 minutes'
    """
    for name, size in UNITS:
        if us and us % size == 0:
            return f"{us // size} {name}{'' if us == size else 's'}"
    return "0 seconds"


def number(value: float) -> str:
    """Three significant digits, with thousands separators where they help."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}" if abs(value) < 1e9 and digits < 7 else f"{value:.3g}"


def percent(share: float) -> str:
    """Three significant digits and never 0% of something: `70%`, `99.9%`, `0.025%`."""
    return f"{100 * share:.3g}%"
