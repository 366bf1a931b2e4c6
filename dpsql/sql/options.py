"""The options of the clause, as data: how each is read, what it may be, and what other systems call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpsql.parsed_query import ContributionPeriod, CounterName, GroupSelection, ReleaseRule
from dpsql.sql.durations import LONGEST_US, Misread
from dpsql.sql.values import Given, read_columns, read_duration_option, read_number, read_query, read_whole, read_word

MOST_ROWS = 1_000_000
HORIZON_LIMIT = 10_000
SQRT_LIMIT = 2_000
EXAMPLE_CLAUSE = "WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)"


@dataclass(frozen=True)
class Check:
    """A condition on one value."""

    name: str
    holds: Callable[[Any], bool]
    message: str
    hint: str


@dataclass(frozen=True)
class Option:
    """One option: `read` makes a value of the written words, every check must hold for it."""

    name: str
    read: Callable[[Given], Any]
    example: str
    checks: tuple[Check, ...] = ()
    required: bool = False


def _number(name: str, example: str, *checks: Check, required: bool = False) -> Option:
    return Option(name, lambda given: read_number(given, example), example, checks, required)


def _whole(name: str, example: str, most: int, required: bool = False) -> Option:
    least_check = Check("least", lambda value: value >= 1, f"{name} must be at least 1", f"write {example}")
    most_check = Check("most", lambda value: value <= most, f"{name} must be at most {most:,}", f"write a number up to {most}")
    return Option(name, lambda given: read_whole(given, example), example, (least_check, most_check), required)


def _duration(name: str, example: str, zero: bool) -> Option:
    if zero:
        least = Check("least", lambda us: us >= 0, f"{name} must not be negative", f"write {example}")
    else:
        least = Check("least", lambda us: us > 0, f"{name} must be longer than zero", f"write {example}")
    most = Check("most", lambda us: us <= LONGEST_US, f"{name} must be at most 36525 days", "write a shorter duration")
    return Option(name, lambda given: read_duration_option(given, example), example, (least, most))


def _word(name: str, example: str, values: type, foreign: Mapping[str, str] | None = None) -> Option:
    return Option(name, lambda given: read_word(given, values, dict(foreign or {})), example)


_EPSILON = (
    Check("least", lambda e: e > 0, "epsilon must be above 0", "write a number above 0 and at most 20, for example epsilon = 6"),
    Check(
        "most",
        lambda e: e <= 20,
        "epsilon must be at most 20: above it nothing is protected",
        "write a number up to 20, for example epsilon = 6",
    ),
)
_DELTA = (
    Check("least", lambda d: d > 0, "delta must be above 0", "write a small positive number, for example delta = 1e-9"),
    Check(
        "most",
        lambda d: d < 1e-5,
        "delta must be below 1e-5",
        "write a number well below one over the number of users, for example delta = 1e-9",
    ),
)
_SHARE = Check(
    "inside", lambda s: 0 < s < 1, "group_selection_share must be above 0 and below 1", "write group_selection_share = 0.5, or leave it out"
)
_DECAY = Check(
    "inside", lambda a: 0 <= a <= 1, "selection_weight_decay must be from 0 to 1", "write selection_weight_decay = 0.5, or leave it out"
)

OPTIONS: tuple[Option, ...] = (
    _number("epsilon", "epsilon = 6", *_EPSILON, required=True),
    _number("delta", "delta = 1e-9", *_DELTA, required=True),
    Option(
        "privacy_unit_column",
        lambda given: read_columns(given, "privacy_unit_column = user_id"),
        "privacy_unit_column = user_id",
        required=True,
    ),
    _whole("max_rows_contributed", "max_rows_contributed = 32", MOST_ROWS, required=True),
    _whole("max_rows_per_group", "max_rows_per_group = 4", MOST_ROWS),
    _whole("max_groups_contributed", "max_groups_contributed = 8", MOST_ROWS),
    _word("contribution_period", "contribution_period = WINDOW", ContributionPeriod),
    _duration("trigger_interval", "trigger_interval = '15 minutes'", zero=False),
    _duration("allowed_lateness", "allowed_lateness = '1 hour'", zero=True),
    _duration("max_ahead", "max_ahead = '5 minutes'", zero=True),
    _whole("min_privacy_units_per_group", "min_privacy_units_per_group = 10", MOST_ROWS),
    _word("group_selection_strategy", "group_selection_strategy = THRESHOLD", GroupSelection, {"LAPLACE_THRESHOLD": "THRESHOLD"}),
    Option(
        "public_groups",
        lambda given: read_query(given, "public_groups = (SELECT page FROM pages)"),
        "public_groups = (SELECT page FROM pages)",
    ),
    _number("group_selection_share", "group_selection_share = 0.5", _SHARE),
    _word("release", "release = EVERY_TRIGGER", ReleaseRule),
    _word("counter", "counter = BLT", CounterName, {"TREE": "HONAKER", "BINARY_TREE": "HONAKER"}),
    _number("selection_weight_decay", "selection_weight_decay = 0.5", _DECAY),
)

FOREIGN_OPTIONS: Mapping[str, str] = {
    "contribution_bounds_per_group": "SUM(x, contribution_bounds_per_row => (lo, hi)) with max_rows_per_group bound a group's sum",
    "contribution_bounds_per_row": "write it inside the aggregate: SUM(x, contribution_bounds_per_row => (lo, hi))",
    "group_selection_epsilon": "group_selection_share = 0.5 gives key selection a share of the one budget",
    "report_format": "leave it out: every aggregate has a column <alias>_stderr",
    "max_groups": "write max_groups_contributed",
    "kappa": "write max_groups_contributed",
    "max_partitions_contributed": "write max_groups_contributed",
    "max_contributions_per_partition": "write max_rows_per_group",
    "max_contributions": "write max_rows_contributed",
    "privacy_unit": "write privacy_unit_column",
    "privacy_id": "write privacy_unit_column",
    "anonymization_userid_column": "write privacy_unit_column",
    "threshold": "write min_privacy_units_per_group for exact users; the noisy threshold is computed from the budget",
    "k_threshold": "write min_privacy_units_per_group for exact users; the noisy threshold is computed from the budget",
    "watermark": "write allowed_lateness",
    "contribution_bounding_strategy": "leave it out: a user's first records by event time are kept",
}
"""Spellings of GoogleSQL and its relatives, and our nearest option."""


def read_option(option: Option, given: Given) -> tuple[Any, tuple[str, str] | None]:
    """The value, and (message, hint) of what is wrong with it."""
    try:
        value = option.read(given)
    except Misread as misread:
        return None, (misread.message, misread.hint)
    for check in option.checks:
        if not check.holds(value):
            return value, (check.message, check.hint)
    return value, None
