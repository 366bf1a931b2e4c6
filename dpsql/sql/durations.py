"""Durations in SQL: `'15 minutes'`, `INTERVAL 15 MINUTES`, `INTERVAL '15' MINUTE`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot.tokens import Token, TokenType

from dpsql.times import UNITS_US

CALENDAR_UNITS = frozenset({"month", "quarter", "year"})
LONGEST_US = 36_525 * UNITS_US["day"]
FORMS = "'15 minutes', INTERVAL 15 MINUTES or INTERVAL '15' MINUTE"

_SAID = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 20, 24, 30, 45)
_PAIR = re.compile(r"\s*([+-]?)\s*(\d{1,18})\s+([a-z]+)\s*")


class Misread(ValueError):
    """A written value that is not of the kind asked for; `message` and `hint` as in Problem."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def read_duration(words: Sequence[Token]) -> int:
    """Microseconds of the written duration.

    Raises:
        Misread: it is no duration, has calendar units (their length varies), fractions or unknown units.
    """
    kinds = [word.token_type for word in words]
    if kinds != [TokenType.STRING] and TokenType.INTERVAL not in kinds[:2]:
        raise Misread("A duration is expected here", f"write {FORMS}")
    text = " ".join(word.text for word in words).lower()
    text = re.sub(r"^(\s*-)?\s*interval\b", lambda match: match.group(1) or "", text)
    total = 0
    end = 0
    if not text.strip():
        raise Misread("This duration is empty", f"write {FORMS}")
    while end < len(text):
        match = _PAIR.match(text, end)
        if not match:
            raise Misread(
                "This duration cannot be read: whole numbers and units are expected",
                f"write {FORMS}",
            )
        total += int(match.group(1) + match.group(2)) * _unit(match.group(3))
        end = match.end()
    return total


def _unit(word: str) -> int:
    singular = word.removesuffix("s")
    if singular in UNITS_US:
        return UNITS_US[singular]
    if singular in CALENDAR_UNITS:
        raise Misread(
            f"Durations in {singular}s are not accepted: their length varies",
            "write it in days or weeks, for example '30 days'",
        )
    raise Misread(
        f"Unknown unit of time: {word}",
        "units are microseconds, milliseconds, seconds, minutes, hours, days, weeks",
    )


def divisor_near(whole: int, part: int) -> int:
    """A divisor of `whole` that is not above `part`: the largest of those that people say (20 minutes, 6 hours), or the largest of all."""
    said = [
        count * unit
        for unit in UNITS_US.values()
        for count in _SAID
        if count * unit <= part and whole % (count * unit) == 0
    ]
    if said and max(said) * 4 >= part:
        return max(said)
    for count in range(max(1, -(-whole // part)), 10_001):
        if whole % count == 0:
            return whole // count
    return whole
