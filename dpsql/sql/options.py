"""Options of the clause, as data: how each is read, what it may be, its default, and what other systems call it.

Those here are words of every mechanism or of several; each mechanism names the options that its queries may write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dpsql.parsed_query import ContributionPeriod, CounterName, GroupSelection, PrivacyLevel, Release
from dpsql.sql.draft import Check, Draft, Option
from dpsql.sql.durations import LONGEST_US
from dpsql.sql.values import read_columns, read_duration_option, read_number, read_query, read_whole, read_word

MOST_ROWS = 1_000_000
HORIZON_LIMIT = 10_000
EXAMPLE_CLAUSE = "WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)"


Default = Callable[[Draft], Any]


def _none(draft: Draft) -> Any:
    return None


def number_option(name: str, example: str, *checks: Check, default: Default = _none) -> Option:
    """A number."""
    return Option(name, lambda given: read_number(given, example), example, checks, default)


def whole_option(name: str, example: str, most: int, default: Default = _none) -> Option:
    """A whole number from 1."""
    least_check = Check("least", lambda value: value >= 1, f"{name} must be at least 1", f"write {example}")
    most_check = Check("most", lambda value: value <= most, f"{name} must be at most {most:,}", f"write a number up to {most}")
    return Option(name, lambda given: read_whole(given, example), example, (least_check, most_check), default)


def duration_option(name: str, example: str, zero: bool, default: Default = _none) -> Option:
    """A duration; `zero` says whether it may be none."""
    if zero:
        least = Check("least", lambda us: us >= 0, f"{name} must not be negative", f"write {example}")
    else:
        least = Check("least", lambda us: us > 0, f"{name} must be longer than zero", f"write {example}")
    most = Check("most", lambda us: us <= LONGEST_US, f"{name} must be at most 36525 days", "write a shorter duration")
    return Option(name, lambda given: read_duration_option(given, example), example, (least, most), default)


def word_option(name: str, example: str, values: type, foreign: Mapping[str, str] | None = None, default: Default = _none) -> Option:
    """One of some words."""
    return Option(name, lambda given: read_word(given, values, dict(foreign or {})), example, (), default)


_EPSILON = (
    Check("least", lambda e: e > 0, "epsilon must be above 0", "write a number above 0 and at most 20, for example epsilon = 1"),
    Check(
        "most",
        lambda e: e <= 20,
        "epsilon must be at most 20: above it nothing is protected",
        "write a number up to 20, for example epsilon = 1",
    ),
)
_DELTA = (
    Check("least", lambda d: d >= 0, "delta must not be negative", "write a small positive number, for example delta = 1e-9"),
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


def _rows(draft: Draft) -> Any:
    return draft.value("max_rows_contributed")


def _groups(draft: Draft) -> Any:
    if draft.keyless and draft.windowless:
        return 1
    if draft.keyless and draft.value("contribution_period") == ContributionPeriod.WINDOW:
        # The one key needs one place; records of one period of a sliding window lie in up to 2r - 1 windows, so there two.
        rows, sliding = draft.value("max_rows_contributed"), bool(draft.window_times and draft.window_times[0] > draft.window_times[1])
        return min(rows, 2) if rows and sliding else 1
    return draft.value("max_rows_contributed")


EPSILON = number_option("epsilon", "epsilon = 1", *_EPSILON)
DELTA = number_option("delta", "delta = 1e-9", *_DELTA)
PRIVACY_UNIT_COLUMN = Option(
    "privacy_unit_column", lambda given: read_columns(given, "privacy_unit_column = user_id"), "privacy_unit_column = user_id"
)
MAX_ROWS_CONTRIBUTED = whole_option("max_rows_contributed", "max_rows_contributed = 32", MOST_ROWS)
MAX_ROWS_PER_GROUP = whole_option("max_rows_per_group", "max_rows_per_group = 4", MOST_ROWS, _rows)
MAX_GROUPS_CONTRIBUTED = whole_option("max_groups_contributed", "max_groups_contributed = 8", MOST_ROWS, _groups)
PRIVACY_LEVEL = word_option(
    "privacy_level",
    "privacy_level = EVENT",
    PrivacyLevel,
    {"ROW": "EVENT", "RECORD": "EVENT", "UNIT": "USER"},
    default=lambda draft: PrivacyLevel.USER,
)
COUNTER = word_option("counter", "counter = BLT", CounterName, {"TREE": "HONAKER", "BINARY_TREE": "HONAKER", "LAPLACE": "PANES"})
"""Each mechanism has a default of its own."""
CONTRIBUTION_PERIOD = word_option(
    "contribution_period",
    "contribution_period = WINDOW",
    ContributionPeriod,
    default=lambda draft: ContributionPeriod.STREAM if draft.windowless else ContributionPeriod.WINDOW,
)
RELEASE = word_option("release", "release = EVERY_TRIGGER", Release, default=lambda draft: Release.EVERY_TRIGGER)
TRIGGER_INTERVAL = duration_option(
    "trigger_interval",
    "trigger_interval = '15 minutes'",
    zero=False,
    default=lambda draft: draft.window_times[1] if draft.window_times else None,
)
ALLOWED_LATENESS = duration_option("allowed_lateness", "allowed_lateness = '1 hour'", zero=True, default=lambda draft: 0)
MAX_AHEAD = duration_option("max_ahead", "max_ahead = '5 minutes'", zero=True, default=lambda draft: draft.value("trigger_interval"))
GROUP_SELECTION_STRATEGY = word_option(
    "group_selection_strategy",
    "group_selection_strategy = THRESHOLD",
    GroupSelection,
    {"LAPLACE_THRESHOLD": "THRESHOLD"},
    lambda draft: GroupSelection.THRESHOLD,
)
PUBLIC_GROUPS = Option(
    "public_groups", lambda given: read_query(given, "public_groups = (SELECT page FROM pages)"), "public_groups = (SELECT page FROM pages)"
)
MAX_TRIGGERS = whole_option("max_triggers", "max_triggers = 365", HORIZON_LIMIT)
"""Of tables without windows."""
MIN_PRIVACY_UNITS_PER_GROUP = whole_option("min_privacy_units_per_group", "min_privacy_units_per_group = 10", MOST_ROWS, lambda draft: 1)
GROUP_SELECTION_SHARE = number_option("group_selection_share", "group_selection_share = 0.5", _SHARE)
SELECTION_WEIGHT_DECAY = number_option("selection_weight_decay", "selection_weight_decay = 0.5", _DECAY, default=lambda draft: 0.5)

BOUNDS = (MAX_ROWS_CONTRIBUTED, MAX_ROWS_PER_GROUP, MAX_GROUPS_CONTRIBUTED)
"""What one unit may contribute."""

OF_EITHER_LEVEL = (
    EPSILON,
    DELTA,
    PRIVACY_LEVEL,
    PRIVACY_UNIT_COLUMN,
    *BOUNDS,
    CONTRIBUTION_PERIOD,
    TRIGGER_INTERVAL,
    ALLOWED_LATENESS,
    MAX_AHEAD,
    GROUP_SELECTION_STRATEGY,
    PUBLIC_GROUPS,
    COUNTER,
)
"""Of mechanisms that protect units or rows, as the query says."""

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
