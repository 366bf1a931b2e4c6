"""What a query of the histogram may not say, besides what no query may: bounds, key selection, triggers of a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dpsql.errors import Problem
from dpsql.parsed_query import PrivacyLevel
from dpsql.sql import clause_rules, options, window_rules
from dpsql.sql.draft import Draft
from dpsql.sql.options import HORIZON_LIMIT
from dpsql.sql.spans import problem
from dpsql.times import show_duration

REQUIRED = (options.EPSILON, options.DELTA, options.PRIVACY_UNIT_COLUMN, options.MAX_ROWS_CONTRIBUTED)
SELECTION_OPTIONS: Mapping[str, Callable[[Any], bool]] = {
    "min_privacy_units_per_group": lambda value: value is not None and value > 1,
    "carry_windows": lambda value: value is not None and value > 1,
}
"""Options of key selection, and which of their values ask for it."""


def required_options(draft: Draft) -> Iterator[Problem]:
    """Options without a default."""
    yield from clause_rules.missing_options(draft, REQUIRED)


def of_units(draft: Draft) -> Iterator[Problem]:
    """Units are protected here, by noise of counters that go on from trigger to trigger."""
    level = draft.given("privacy_level")
    if level and draft.value("privacy_level") is PrivacyLevel.EVENT:
        hint = "declare the row's key as privacy_unit of the source, and write privacy_level = USER"
        yield problem(level.value_span, "privacy_level EVENT is for sliding windows of listed keys", hint)


def delta_above_zero(draft: Draft) -> Iterator[Problem]:
    """Gaussian noise keeps no promise with delta = 0."""
    given = draft.given("delta")
    if given and draft.value("delta") == 0:
        yield problem(given.value_span, "delta must be above 0", "write a small positive number, for example delta = 1e-9")


def selection_without_keys(draft: Draft) -> Iterator[Problem]:
    """Options of key selection where no key is selected."""
    if not draft.listed and not draft.keyless:
        return
    where, hint = "with public_groups", "leave it out: it belongs to keys that are selected"
    if not draft.listed:
        where, hint = "in a query without a key", "leave it out: it belongs to a query with keys"
    for name, asks in SELECTION_OPTIONS.items():
        given = draft.given(name)
        if given and asks(draft.value(name)):
            yield problem(given.name_span, f"{name} has no meaning {where}: no key is selected", hint)


def carried_over(draft: Draft) -> Iterator[Problem]:
    """Windows prove a key together where they are disjoint and a key that is known stays so."""
    given = draft.given("carry_windows")
    if not given or (draft.value("carry_windows") or 1) == 1:
        return
    if draft.paper:
        yield problem(given.name_span, "The paper's rounds start every key anew", "leave mechanism out, or carry_windows")
    if draft.window_times and draft.window_times[1] < draft.window_times[0]:
        yield problem(given.name_span, "Windows that overlap carry nothing over", "leave out the slide, or write carry_windows = 1")


def horizon_limit(draft: Draft) -> Iterator[Problem]:
    """At most 10,000 triggers per window."""
    given = draft.given("trigger_interval") or draft.given("allowed_lateness")
    if not draft.horizon or draft.horizon <= HORIZON_LIMIT or not given or not draft.window_times:
        return
    size, slide, _ = draft.window_times
    span = size + draft.value("allowed_lateness")
    message = f"A window would have {draft.horizon:,} triggers; at most {HORIZON_LIMIT:,} are accepted"
    fitting = [
        slide // count for count in range(1, HORIZON_LIMIT + 1) if slide % count == 0 and -(-span // (slide // count)) <= HORIZON_LIMIT
    ]
    fitting = [interval for interval in fitting if interval % 1_000_000 == 0] or fitting
    hint = f"write trigger_interval = '{show_duration(min(fitting))}' or longer" if fitting else "write a shorter allowed_lateness"
    yield problem(given.value_span, message, hint)


RULES = (
    window_rules.window_missing,
    required_options,
    of_units,
    delta_above_zero,
    clause_rules.rows_per_group_above_rows,
    clause_rules.groups_above_rows,
    selection_without_keys,
    carried_over,
    horizon_limit,
)
