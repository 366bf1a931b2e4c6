"""Option values: from the written words to a Python value, or a Misread that says what would be accepted."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeGuard

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from dpsql.parsed_query import ContributionPeriod
from dpsql.sql.text import Span, token_span
from dpsql.times import UNITS_US

# Durations in SQL: `'15 minutes'`, `INTERVAL 15 MINUTES`, `INTERVAL '15' MINUTE`.

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
    """Return microseconds of the written duration.

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


def divisor_near(dividend: int, part: int) -> int:
    """Return a divisor of `dividend` that is not above `part`: the largest of those that people say (20 minutes, 6 hours), or the largest of all."""
    familiar_divisors = [
        count * unit
        for unit in UNITS_US.values()
        for count in _SAID
        if count * unit <= part and dividend % (count * unit) == 0
    ]
    if familiar_divisors and max(familiar_divisors) * 4 >= part:
        return max(familiar_divisors)
    for count in range(max(1, -(-dividend // part)), 10_001):
        if dividend % count == 0:
            return dividend // count
    return dividend


# Readers of option values: from the written words to a Python value, or a Misread that says what
# would be accepted.

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_SIGNED = (TokenType.NUMBER, TokenType.DASH, TokenType.PLUS, TokenType.DOT)


@dataclass(frozen=True)
class Given:
    """One option as written; `value` are the tokens after the operator."""

    name: str
    name_token: Token
    operator: Token
    value: tuple[Token, ...]
    node: exp.Expr

    @property
    def name_span(self) -> Span:
        """Where the name stands."""
        return token_span(self.name_token)

    @property
    def value_span(self) -> Span:
        """Where the value stands."""
        return token_span(*self.value)

    @property
    def span(self) -> Span:
        """Where all of it stands."""
        return self.name_span[0], self.value_span[1]

    @property
    def is_null(self) -> bool:
        """Whether the value is the word NULL."""
        return [word.text.upper() for word in self.words] == ["NULL"]

    @property
    def words(self) -> Sequence[Token]:
        """The value's tokens without redundant parentheses around all of them."""
        words = self.value
        while (
            len(words) > 2
            and words[0].token_type == TokenType.L_PAREN
            and words[-1].token_type == TokenType.R_PAREN
        ):
            words = words[1:-1]
        return words


def bare(node: exp.Expr) -> exp.Expr:
    """Remove redundant parentheses around an expression."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def read_number(entry: Given, example: str) -> float:
    """Return a number literal."""
    text = "".join(word.text for word in entry.words)
    if any(word.token_type not in _SIGNED for word in entry.words) or not NUMBER.fullmatch(text):
        raise Misread(
            f"The value of {entry.name} is not a number literal",
            f"write the number itself, for example {example}",
        )
    return float(text)


def read_whole(entry: Given, example: str) -> int:
    """Return a whole number, written with digits only."""
    value = read_number(entry, example)
    text = "".join(word.text for word in entry.words)
    if not re.fullmatch(r"[+-]?\d{1,30}", text):
        if math.isfinite(value) and value == int(value):
            raise Misread(
                f"The value of {entry.name} is not written as a whole number",
                f"write {entry.name} = {int(value)}",
            )
        raise Misread(
            f"The value of {entry.name} is not a whole number", f"write a whole number: {example}"
        )
    return int(text)


def read_duration_option(entry: Given, example: str) -> int:
    """Return a duration in microseconds."""
    return read_duration(entry.words)


def read_word(entry: Given, values: type[StrEnum], foreign: dict[str, str]) -> StrEnum:
    """Return one of the values of an enum, as a bare word or a string, in any case."""
    text = entry.words[0].text.upper() if len(entry.words) == 1 else ""
    if text in {value.value for value in values}:
        return values(text)
    if text in foreign:
        raise Misread(
            f"{text} is not a value of {entry.name}", f"write {entry.name} = {foreign[text]}"
        )
    accepted_words = [value.value for value in values]
    listed = " or ".join(filter(None, (", ".join(accepted_words[:-1]), accepted_words[-1])))
    hint = suggest(text, accepted_words, f"write {listed}")
    raise Misread(f"The value of {entry.name} must be {listed}", hint)


def read_period(entry: Given) -> ContributionPeriod | int:
    """Return WINDOW or STREAM, or a duration in microseconds."""
    words = [ContributionPeriod.WINDOW, ContributionPeriod.STREAM]
    text = entry.words[0].text.upper() if len(entry.words) == 1 else ""
    if text in words:
        return ContributionPeriod(text)
    if any(character.isdigit() for word in entry.words for character in word.text):
        return read_duration(entry.words)
    raise Misread(
        f"The value of {entry.name} must be WINDOW, STREAM or a duration",
        suggest(text, words, "write STREAM, WINDOW or '30 days'"),
    )


def read_columns(entry: Given, example: str) -> tuple[exp.Column, ...]:
    """Return a column, or a tuple of columns."""
    node = bare(entry.node)
    parts = [bare(part) for part in node.expressions] if isinstance(node, exp.Tuple) else [node]
    columns = tuple(filter(is_column, parts))
    if not columns or len(columns) < len(parts):
        raise Misread(
            f"The value of {entry.name} must be a column or a tuple of columns",
            f"write the column's name: {example}",
        )
    return columns


def read_query(entry: Given, example: str) -> exp.Select:
    """Return a SELECT in parentheses."""
    node = entry.node
    while isinstance(node, (exp.Paren, exp.Subquery)):
        node = node.this
    if not isinstance(node, exp.Select):
        raise Misread(
            f"The value of {entry.name} must be a query in parentheses", f"write {example}"
        )
    return node


def is_column(node: object) -> TypeGuard[exp.Column]:
    """Tell whether an expression is a column by its name: not a star."""
    return isinstance(node, exp.Column) and isinstance(node.this, exp.Identifier)


def suggest(word: str, candidates: Iterable[str], otherwise: str) -> str:
    """Return the hint for an unknown word; `otherwise` where no known one is like it."""
    guess = nearest(word, candidates)
    return f"did you mean {guess}?" if guess else otherwise


def nearest(word: str, candidates: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known word that is most like `word`, ignoring case."""
    spelled = {name.lower(): name for name in candidates}
    matches = difflib.get_close_matches(word.lower(), list(spelled), n=1, cutoff=likeness)
    return spelled[matches[0]] if matches else None
