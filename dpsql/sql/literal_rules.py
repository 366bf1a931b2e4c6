"""Literals that Spark would stumble over at some record: group numbers, time formats, time zones, patterns without end, huge lengths."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator

from sqlglot import exp

from dpsql.errors import Problem
from dpsql.sql.clock_words import reads_the_clock
from dpsql.sql.draft import Draft
from dpsql.sql.items import call_name
from dpsql.sql.patterns import TOO_SLOW, refusal
from dpsql.sql.row_local_rules import calls, is_literal, nodes
from dpsql.sql.spans import problem
from dpsql.sql.values import bare

_PRINTS = frozenset("GyDMLdQqEFahKkHmsSVzOXx")
_READS = frozenset("GyDMLdahKkHmsSVzOXx")
_FORMATS = {"date_format": _PRINTS, "from_unixtime": _PRINTS} | dict.fromkeys(
    ("to_date", "to_timestamp", "try_to_timestamp", "to_unix_timestamp", "unix_timestamp"), _READS
)
"""Functions whose second argument is a time format, and the letters that it may have."""

_ZONED = frozenset({"from_utc_timestamp", "to_utc_timestamp"})
_OFFSET = re.compile(r"[+-](0\d|1[0-7]):[0-5]\d")

_SEARCHES = frozenset({"regexp_extract", "regexp_like", "regexp_replace", "split"})
"""Functions whose second argument is a regular expression."""

_ONCE = r"write [ab]* instead of (a|b)*, a+ instead of (a+)+, \d+[.]\d+[.] instead of (\d+[.]){2}; or use contains, startswith, endswith or LIKE"
_FEWER = "write [^,]*, instead of .*, or begin with ^, or write several conditions with AND"
"""What to write in the place of a pattern that may take too long."""

_LENGTHS = {"repeat": (1, 1_000), "space": (0, 10_000), "lpad": (1, 10_000), "rpad": (1, 10_000)}
"""Functions that make a text as long as an argument says: which one (from 0), and how much it may be."""

_MOST_TEXT = 10_000
_TEXTS = {"replace": 2, "regexp_replace": 2}
"""Functions that write a text of the query many times: which of their arguments."""

_DIGITS = dict.fromkeys(("round", "bround", "ceil", "ceiling", "floor"), (1, 400))
"""Functions that write out as many digits as an argument says, before or after the point."""


def endless_patterns(draft: Draft) -> Iterator[Problem]:
    """Patterns for which the text of one record could take for ever."""
    for node in nodes(draft):
        pattern = node.expression if isinstance(node, exp.RegexpLike) else None
        if (
            isinstance(node, exp.Anonymous)
            and call_name(node) in _SEARCHES
            and len(node.expressions) > 1
        ):
            pattern = node.expressions[1]
        like = isinstance(node, (exp.Like, exp.ILike))
        pattern = node.expression if like else pattern
        found = refusal(bare(pattern).name, like) if pattern is not None else None
        if pattern is not None and found is not None:
            yield problem(draft.span(pattern), found, _FEWER if found == TOO_SLOW else _ONCE)


def huge_lengths(draft: Draft) -> Iterator[Problem]:
    """Texts made long enough to use up the memory: a job that ends would tell of the record."""
    for call in calls(draft):
        name = call_name(call) or ""
        place, most = (_LENGTHS | _DIGITS).get(name, (len(call.expressions), 0))
        if place < len(call.expressions) and _number(call.expressions[place]) > most:
            message = f"`{name}` makes texts that are too long: a key has at most 4096 bytes"
            if name in _DIGITS:
                message = f"`{name}` would write out more digits than any number has"
            yield problem(
                draft.span(call.expressions[place]), message, f"write a number up to {most}"
            )
        place = _TEXTS.get(name, len(call.expressions))
        if place < len(call.expressions) and len(bare(call.expressions[place]).name) > _MOST_TEXT:
            message = f"The replacement in `{name}` is too long: a key has at most 4096 bytes"
            yield problem(
                draft.span(call.expressions[place]),
                message,
                f"write at most {_MOST_TEXT:,} characters",
            )


def _number(node: exp.Expr) -> float:
    """The value of a literal; 0 for what is no number."""
    try:
        return float(bare(node).name)
    except ValueError:
        return 0.0


def time_formats(draft: Draft) -> Iterator[Problem]:
    """Letters that Spark's time formats do not have."""
    for call in calls(draft):
        letters = _FORMATS.get(call_name(call) or "")
        written = _second(call)
        if letters is None or written is None:
            continue
        wrong = [
            char
            for char in re.sub(r"'[^']*'", "", written)
            if char.isalpha() and char not in letters
        ]
        if wrong:
            message = f"`{call_name(call)}` does not know the letter {wrong[0]} in a time format"
            yield problem(
                draft.span(call.expressions[1]),
                message,
                "write a format like 'yyyy-MM-dd HH:mm:ss'; put other text into ''",
            )


def times_by_the_clock(draft: Draft) -> Iterator[Problem]:
    """`DATE 'today'` is another date tomorrow, and `TIMESTAMP '12:00'` is at today's noon."""
    for node in nodes(draft):
        text = bare(node.this) if isinstance(node, (exp.Cast, exp.TryCast)) else None
        if isinstance(text, (exp.Literal, exp.RawString)) and reads_the_clock(
            text.name, _time_type(node)
        ):
            yield problem(
                draft.span(node),
                "Spark reads this time by the wall clock",
                "write the whole date, like '2026-01-31 12:00:00'",
            )


def _time_type(cast: exp.Expr) -> str:
    """The type that a text is cast to, in Spark's words."""
    kind = cast.args["to"].this
    return {
        exp.DType.TIMESTAMPNTZ: "timestamp_ntz",
        exp.DType.TIMESTAMPLTZ: "timestamp",
        exp.DType.TIMESTAMPTZ: "timestamp",
    }.get(kind, str(getattr(kind, "value", kind)).lower())


def time_zones(draft: Draft) -> Iterator[Problem]:
    """Names that are no time zone."""
    for call in calls(draft):
        zone = _second(call) if call_name(call) in _ZONED else None
        if (
            zone is not None
            and not _OFFSET.fullmatch(zone)
            and zone not in zoneinfo.available_timezones()
        ):
            yield problem(
                draft.span(call.expressions[1]),
                "Unknown time zone",
                "write a name like 'Europe/Berlin' or an offset like '+01:00'",
            )


def _second(call: exp.Anonymous) -> str | None:
    if len(call.expressions) < 2:
        return None
    node = bare(call.expressions[1])
    return node.name if isinstance(node, exp.Literal) else None


def pattern_groups(draft: Draft) -> Iterator[Problem]:
    """A group number that the pattern does not have fails at the first record that matches."""
    for call in calls(draft):
        wanted = _wanted_group(call)
        if wanted is not None and wanted > _groups(bare(call.expressions[1]).name):
            message = f"The pattern of `{call_name(call)}` has no group {wanted}: the first record that matches would end the job"
            yield problem(
                draft.span(call),
                message,
                "add parentheses to the pattern, or use another group number (0 is the whole match)",
            )


def _wanted_group(call: exp.Anonymous) -> int | None:
    arguments = [bare(argument) for argument in call.expressions]
    if not all(is_literal(argument) for argument in arguments[1:3]):
        return None
    if call_name(call) == "regexp_extract" and len(arguments) in (2, 3):
        return (
            1
            if len(arguments) == 2
            else int(arguments[2].name)
            if arguments[2].name.isdigit()
            else None
        )
    if call_name(call) == "regexp_replace" and len(arguments) == 3:
        return max(
            (int(number) for number in re.findall(r"\$(\d)", arguments[2].name)), default=None
        )
    return None


def _groups(pattern: str) -> int:
    plain = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "", pattern)
    return len(re.findall(r"\((?!\?)|\(\?<[A-Za-z]", plain))
