"""Options of the clause, as data: how each is read, what it may be, its default, and what other systems call it.

Those here are words of every mechanism or of several; each mechanism names the options that its queries may write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp

from dpsql.parsed_query import ONE_WINDOW, Basis, ContributionPeriod, PrivacyLevel
from dpsql.sources.policy import NO_POLICY, Policy
from dpsql.sql.aggregates import REPORTED
from dpsql.sql.draft import Check, Draft, Option
from dpsql.sql.values import (
    LONGEST_US,
    read_columns,
    read_duration_option,
    read_number,
    read_period,
    read_query,
    read_whole,
    read_word,
)

MOST_ROWS = 1_000_000
HORIZON_LIMIT = 10_000
EXAMPLE_CLAUSE = "WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1)"


Default = Callable[[Draft], Any]


def _no_default(draft: Draft) -> Any:
    return None


def number_option(
    example: str,
    description: str,
    *checks: Check,
    usually: str = "required",
    default: Default = _no_default,
) -> Option:
    """Return a number, which has to be written where nothing else says it."""
    return Option(
        _name(example),
        lambda entry: read_number(entry, example),
        example,
        description,
        usually,
        checks,
        default,
    )


def _name(example: str) -> str:
    return example.split(" = ", maxsplit=1)[0]


def whole_option(
    example: str,
    description: str,
    usually: str,
    largest: int,
    default: Default = _no_default,
    *checks: Check,
) -> Option:
    """Return a whole number from 1."""
    name = _name(example)
    least_check = Check(
        "least", lambda value: value >= 1, f"{name} must be at least 1", f"write {example}"
    )
    most_check = Check(
        "most",
        lambda value: value <= largest,
        f"{name} must be at most {largest:,}",
        f"write a number up to {largest}",
    )
    return Option(
        name,
        lambda entry: read_whole(entry, example),
        example,
        description,
        usually,
        (least_check, most_check, *checks),
        default,
    )


def duration_option(
    example: str, description: str, usually: str, zero: bool, default: Default = _no_default
) -> Option:
    """Return a duration; `zero` says whether it may be none."""
    name = _name(example)
    if zero:
        least_check = Check(
            "least", lambda us: us >= 0, f"{name} must not be negative", f"write {example}"
        )
    else:
        least_check = Check(
            "least", lambda us: us > 0, f"{name} must be longer than zero", f"write {example}"
        )
    most_check = Check(
        "most",
        lambda us: us <= LONGEST_US,
        f"{name} must be at most 36525 days",
        "write a shorter duration",
    )
    return Option(
        name,
        lambda entry: read_duration_option(entry, example),
        example,
        description,
        usually,
        (least_check, most_check),
        default,
    )


def word_option(
    example: str,
    description: str,
    usually: str,
    values: type,
    foreign: Mapping[str, str] | None = None,
    default: Default = _no_default,
) -> Option:
    """Return one of some words."""
    return Option(
        _name(example),
        lambda entry: read_word(entry, values, dict(foreign or {})),
        example,
        description,
        usually,
        (),
        default,
    )


_EPSILON = (
    Check(
        "least",
        lambda e: e > 0,
        "epsilon must be above 0",
        "write a number above 0 and at most 20, for example epsilon = 1",
    ),
    Check(
        "most",
        lambda e: e <= 20,
        "epsilon must be at most 20: above it nothing is protected",
        "write a number up to 20, for example epsilon = 1",
    ),
)
_DELTA = (
    Check(
        "least",
        lambda d: d >= 0,
        "delta must not be negative",
        "write a small positive number, for example delta = 1e-9",
    ),
    Check(
        "most",
        lambda d: d < 1e-5,
        "delta must be below 1e-5",
        "write a number well below one over the number of users, for example delta = 1e-9",
    ),
)


GROUPS = 8
ROWS_PER_GROUP = 2
ROWS_WITHOUT_KEY = 64
"""G, c, and c of a query without a key, where they are not written: measured on streams of others (docs/accuracy.md), never on the data at hand."""

MOST_DELTA = 1e-6
LARGEST_DELTA = 9e-6
"""Where colliding ids would need more, the plan says which of the source's bounds is too large."""

SPARE = 11
"""The least multiple of the charge for colliding ids that a default delta is: the charge may be a tenth of it."""


def policy_of(draft: Draft) -> Policy:
    """Return the policy of the stream that a query reads."""
    return NO_POLICY if draft.stream is None else draft.stream.policy


def default_delta(draft: Draft) -> float | None:
    """Return the policy's; without one 1e-6, or 1 / (100 max_users) where that is less, but never so little that colliding ids cost a tenth of it."""
    source = draft.stream
    if source is None:
        return None
    if source.policy.delta_per_query is not None:
        return source.policy.delta_per_query
    size, slide, _ = draft.window_times or (1, 1, 0)
    groups = int(
        min(_most_of(draft, "max_rows_contributed"), _most_of(draft, "max_groups_contributed"))
    )
    places = groups * (2 * -(-size // slide) - 1)
    needed_delta = SPARE * source.collisions(2 * source.max_users, places)
    if draft.sketches:
        needed_delta = 10 * SPARE * source.collisions(source.max_users, 0)
    usual = min(MOST_DELTA, 0.01 / source.max_users)
    return max(usual, min(_rounded_up(needed_delta), LARGEST_DELTA))


def _most_of(draft: Draft, name: str) -> float:
    return draft.value(name) or MOST_ROWS


def _rounded_up(number: float) -> float:
    """Round up to one digit."""
    digits = math.floor(math.log10(number))
    return float(f"{math.ceil(number / 10.0**digits)}e{digits}")


def _ends(draft: Draft) -> bool:
    """Tell whether rows end and make room for others: then how many count is for the query to say."""
    return draft.stream is not None and draft.stream.change_feed is not None


def _one_group(draft: Draft) -> bool:
    return draft.keyless and not draft.sketches


def _counts_no_rows(draft: Draft) -> bool:
    """Tell whether each aggregate counts units, or holds what a unit adds to a group: rows need no bound then."""
    is_elsewhere = draft.paper or draft.sketches or draft.grouping_sets is not None
    is_stream = draft.value("contribution_period") is ContributionPeriod.STREAM
    if is_elsewhere or (draft.keyless and is_stream and not draft.windowless):
        return False
    return bool(draft.calls) and all(call.per_group or call.distinct for call in draft.calls)


def _rows(draft: Draft) -> float | None:
    """Return C where it is not written: no more rows than G c can count."""
    rows = None if _ends(draft) else draft.value("max_rows_per_group")
    if rows is None or rows == math.inf or _one_group(draft):
        return rows
    groups = draft.value("max_groups_contributed")
    return rows * groups if groups and rows * groups <= MOST_ROWS else None


def _rows_per_group(draft: Draft) -> float | None:
    if draft.entry("max_rows_contributed") or _ends(draft):
        return draft.value("max_rows_contributed")
    if _counts_no_rows(draft):
        return math.inf
    if _one_group(draft):
        return ROWS_WITHOUT_KEY
    are_units = draft.calls and all(call.distinct for call in draft.calls)
    if draft.paper or are_units:
        return 1
    return policy_of(draft).max_rows_per_group or ROWS_PER_GROUP


def _groups(draft: Draft) -> float | None:
    is_written = draft.entry("max_rows_contributed") or _ends(draft)
    if not is_written and not _one_group(draft):
        return policy_of(draft).max_groups_contributed or GROUPS
    if draft.keyless and draft.windowless:
        return 1
    rows = draft.value("max_rows_contributed")
    if draft.keyless and draft.value("contribution_period") == ContributionPeriod.WINDOW:
        # The one key needs one place; records of one period of a sliding window lie in up to 2r - 1 windows, so there two.
        sliding = bool(draft.window_times and draft.window_times[0] > draft.window_times[1])
        return min(rows, 2) if rows and sliding else 1
    return rows


def _interval(draft: Draft) -> int | None:
    if draft.once:
        return ONE_WINDOW.size_us
    return draft.window_times[1] if draft.window_times else None


def only_group(draft: Draft) -> bool:
    """Tell whether max_groups_contributed has no meaning: there is one group, and the rows of a unit in it are bounded."""
    is_stream = draft.value("contribution_period") is ContributionPeriod.STREAM
    return (
        _one_group(draft)
        and not draft.entry("max_rows_contributed")
        and (draft.windowless or not is_stream)
    )


EPSILON = number_option(
    "epsilon = 1",
    "budget of one privacy unit and contribution period, for the whole query",
    *_EPSILON,
    usually="that of the source's policy; else required",
    default=lambda draft: policy_of(draft).max_epsilon_per_query,
)
DELTA = Option(
    "delta",
    lambda entry: read_number(entry, "delta = 1e-9"),
    "delta = 1e-9",
    "the same; 0 in windows of listed keys, which then have noise of their own in every slide",
    "that of the source's policy; else 1e-6, or 1 / (100 max_users) where that is less",
    _DELTA,
    default_delta,
)
PRIVACY_LEVEL = word_option(
    "privacy_level = EVENT",
    "`USER`: all that one unit does in a period is protected. `EVENT`: one row, whoever it belongs to; options on units are then left out",
    "`USER`",
    PrivacyLevel,
    {"ROW": "EVENT", "RECORD": "EVENT", "UNIT": "USER"},
    default=lambda draft: policy_of(draft).protects,
)
PRIVACY_UNIT_COLUMN = Option(
    "privacy_unit_column",
    lambda entry: read_columns(entry, "privacy_unit_column = user_id"),
    "privacy_unit_column = user_id",
    "the column (or tuple of columns) that the source declares",
    "as the source declares it",
    default=lambda draft: (
        tuple(map(exp.column, draft.stream.privacy_unit)) if draft.stream else None
    ),
)
MAX_ROWS_CONTRIBUTED = whole_option(
    "max_rows_contributed = N",
    "how many records of one unit count, per contribution period",
    "the product of the next two; none where each aggregate is COUNT(DISTINCT unit) or has bounds per group; of a change feed required",
    MOST_ROWS,
    _rows,
)
MAX_ROWS_PER_GROUP = whole_option(
    "max_rows_per_group = N",
    "how many of these with one key",
    f"{ROWS_PER_GROUP}; without a key {ROWS_WITHOUT_KEY}; max_rows_contributed where that is written",
    MOST_ROWS,
    _rows_per_group,
)
MAX_GROUPS_CONTRIBUTED = whole_option(
    "max_groups_contributed = N",
    "how many different keys of one unit count",
    f"{GROUPS}; max_rows_contributed where that is written; without a key 1 (sliding: 2), in windows with `STREAM` max_rows_contributed",
    MOST_ROWS,
    _groups,
)
CONTRIBUTION_PERIOD = Option(
    "contribution_period",
    read_period,
    "contribution_period = STREAM",
    "`WINDOW`: allowance and promise are per window (sliding: per period as long as one); `STREAM`: the whole stream; of a change feed also a duration, as "
    "in `'30 days'`: for all rows that a unit begins within it",
    "`WINDOW`; without a window `STREAM`",
    default=lambda draft: (
        ContributionPeriod.STREAM if draft.windowless else ContributionPeriod.WINDOW
    ),
)
TRIGGER_INTERVAL = duration_option(
    "trigger_interval = '15 minutes'",
    "time between releases; the window's slide is a multiple of it",
    "the slide; without one, the window; without a window, all records are released once",
    zero=False,
    default=_interval,
)
ALLOWED_LATENESS = duration_option(
    "allowed_lateness = '1 hour'",
    "how long after its end a window takes late records; adds triggers",
    "0",
    zero=True,
    default=lambda draft: 0,
)
PUBLIC_GROUPS = Option(
    "public_groups",
    lambda entry: read_query(entry, "public_groups = (SELECT page FROM pages)"),
    "public_groups = (SELECT page FROM pages)",
    "keys are those of a static source, one column per key, in every window from the source's `start` on",
    "none: the query finds keys",
)
MECHANISM = word_option(
    "mechanism = PAPER",
    "the paper's mechanism of this kind of query, as printed, to compare; it is less accurate",
    "ours",
    Basis,
)
MAX_TRIGGERS = whole_option(
    "max_triggers = 365",
    "number of the last trigger; a quarter less noise, and nothing after it",
    "none: for ever",
    HORIZON_LIMIT,
)
MIN_PRIVACY_UNITS_PER_GROUP = whole_option(
    "min_privacy_units_per_group = 10",
    "a key with fewer units never appears (sliding: a unit counts once per period, and up to two periods count, so a key needs almost twice as many)",
    "1",
    MOST_ROWS,
    lambda draft: 1,
)

BOUNDS = (MAX_ROWS_CONTRIBUTED, MAX_ROWS_PER_GROUP, MAX_GROUPS_CONTRIBUTED)
"""Bounds on the rows and keys of one unit."""

USUAL = (
    EPSILON,
    DELTA,
    PRIVACY_LEVEL,
    PRIVACY_UNIT_COLUMN,
    *BOUNDS,
    CONTRIBUTION_PERIOD,
    TRIGGER_INTERVAL,
    ALLOWED_LATENESS,
    PUBLIC_GROUPS,
    MECHANISM,
)
"""What queries of most mechanisms may write."""

RENAMED_OPTIONS: Mapping[str, str] = {
    "max_groups": "max_groups_contributed",
    "kappa": "max_groups_contributed",
    "max_partitions_contributed": "max_groups_contributed",
    "max_contributions_per_partition": "max_rows_per_group",
    "max_contributions": "max_rows_contributed",
    "privacy_unit": "privacy_unit_column",
    "privacy_id": "privacy_unit_column",
    "anonymization_userid_column": "privacy_unit_column",
}
"""Spellings of GoogleSQL and its relatives, with ours."""

NEEDLESS_OPTIONS: Mapping[str, str] = {
    "group_selection_epsilon": "key selection has its share of the one budget",
    "report_format": REPORTED,
    "contribution_bounding_strategy": "a user's first records by event time are kept",
    "counter": "the query decides, and mechanism = PAPER is the paper's",
    "release": "every trigger is released, and mechanism = PAPER is the paper's",
    "grouping": "every pane is measured, and mechanism = PAPER is the paper's",
    "monitor_share": "every pane is measured, and mechanism = PAPER is the paper's",
    "sketch": "cells have signs, and mechanism = PAPER is the paper's",
    "smoothing": "a smoothed column exists where it costs nothing",
    "group_selection_share": "the share was measured, and min_privacy_units_per_group says how many a key needs at least",
    "hide_below": "a key that has appeared is hidden while its weight is below half of its threshold",
    "sketch_depth": "sketches have 9 rows, and sketch_width says how many cells each has",
    "refresh_cycle": "every cell is released at every trigger; a smaller sketch_width or a longer trigger_interval makes fewer",
}
"""Options of other systems, and why they need not be chosen here."""

FOREIGN_OPTIONS: Mapping[str, str] = {
    "contribution_bounds_per_group": "write it inside the aggregate: SUM(x, contribution_bounds_per_group => (LOW, HIGH))",
    "contribution_bounds_per_row": "write it inside the aggregate: SUM(x, contribution_bounds_per_row => (LOW, HIGH))",
    "watermark": "write allowed_lateness = '1 hour'",
    "threshold": "write min_privacy_units_per_group for exact users; the noisy threshold is computed from the budget",
    "k_threshold": "write min_privacy_units_per_group for exact users; the noisy threshold is computed from the budget",
    "selection_weight_decay": "write max_groups_contributed = N: fewer keys of each unit, each counting more",
    "keys_per_unit": "write max_groups_contributed = N: fewer keys of each unit, each counting more",
    "publish_above": "write HAVING: all rows are published, and it chooses what readers show",
    "max_ahead": "write max_ahead: 5 minutes at the source",
    "max_grouping_keys": "GROUPING SETS say which tables are wanted",
}
"""Options of other systems that have no one word here, and what to write."""

STRATEGY = "group_selection_strategy"
"""GoogleSQL's word for what `public_groups` says already: read where it says the same (`clause_rules.strategy_holds`)."""
