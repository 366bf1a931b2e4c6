"""Literals that Spark would stumble over at the first record: group numbers, time formats, time zones."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator

from sqlglot import exp

from dpsql.errors import Problem
from dpsql.sql.draft import Draft
from dpsql.sql.items import call_name
from dpsql.sql.rows import calls, is_literal
from dpsql.sql.spans import problem
from dpsql.sql.values import bare

_PRINTS, _READS = frozenset("GyDMLdQqEFahKkHmsSVzOXx"), frozenset("GyDMLdahKkHmsSVzOXx")
_FORMATS = {"date_format": _PRINTS, "from_unixtime": _PRINTS} | dict.fromkeys(
    ("to_date", "to_timestamp", "try_to_timestamp", "to_unix_timestamp", "unix_timestamp"), _READS
)
"""Functions whose second argument is a time format, and the letters that it may have."""

_ZONED = frozenset({"from_utc_timestamp", "to_utc_timestamp"})
_OFFSET = re.compile(r"[+-](0\d|1[0-7]):[0-5]\d")


def time_formats(draft: Draft) -> Iterator[Problem]:
    """Letters that Spark's time formats do not have."""
    for site in draft.sites:
        for call in calls(site):
            letters, written = _FORMATS.get(call_name(call) or ""), _second(call)
            if letters is None or written is None:
                continue
            wrong = [char for char in re.sub(r"'[^']*'", "", written) if char.isalpha() and char not in letters]
            if wrong:
                message = f"`{call_name(call)}` does not know the letter {wrong[0]} in a time format"
                yield problem(draft.span(call.expressions[1]), message, "write a format like 'yyyy-MM-dd HH:mm:ss'; put other text into ''")


def time_zones(draft: Draft) -> Iterator[Problem]:
    """Names that are no time zone."""
    for site in draft.sites:
        for call in calls(site):
            zone = _second(call) if call_name(call) in _ZONED else None
            if zone is not None and not _OFFSET.fullmatch(zone) and zone not in zoneinfo.available_timezones():
                yield problem(
                    draft.span(call.expressions[1]), "Unknown time zone", "write a name like 'Europe/Berlin' or an offset like '+01:00'"
                )


def _second(call: exp.Anonymous) -> str | None:
    if len(call.expressions) < 2:
        return None
    node = bare(call.expressions[1])
    return node.name if isinstance(node, exp.Literal) else None


def pattern_groups(draft: Draft) -> Iterator[Problem]:
    """A group number that the pattern does not have fails at the first record that matches."""
    for site in draft.sites:
        for call in calls(site):
            wanted = _wanted_group(call)
            if wanted is not None and wanted > _groups(bare(call.expressions[1]).name):
                message = f"The pattern of `{call_name(call)}` has no group {wanted}: the first record that matches would end the job"
                yield problem(
                    draft.span(call), message, "add parentheses to the pattern, or use another group number (0 is the whole match)"
                )


def _wanted_group(call: exp.Anonymous) -> int | None:
    arguments = [bare(argument) for argument in call.expressions]
    if not all(is_literal(argument) for argument in arguments[1:3]):
        return None
    if call_name(call) == "regexp_extract" and len(arguments) in (2, 3):
        return 1 if len(arguments) == 2 else int(arguments[2].name) if arguments[2].name.isdigit() else None
    if call_name(call) == "regexp_replace" and len(arguments) == 3:
        return max((int(number) for number in re.findall(r"\$(\d)", arguments[2].name)), default=None)
    return None


def _groups(pattern: str) -> int:
    plain = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "", pattern)
    return len(re.findall(r"\((?!\?)|\(\?<[A-Za-z]", plain))
