"""What a query of the histogram may not say, besides what no query may: bounds, key selection, triggers of a window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dpsql.errors import Problem
from dpsql.mechanisms.histogram.asked import ReleaseRule
from dpsql.parsed_query import CounterName, GroupSelection, PrivacyLevel, Release
from dpsql.sql import clause_rules, options, window_rules
from dpsql.sql.draft import Draft
from dpsql.sql.options import HORIZON_LIMIT
from dpsql.sql.spans import problem
from dpsql.times import show_duration

REQUIRED = (options.EPSILON, options.DELTA, options.PRIVACY_UNIT_COLUMN, options.MAX_ROWS_CONTRIBUTED)
SQRT_LIMIT = 2_000
PANED = (CounterName.PANES, CounterName.WINDOW_SQRT)
"""Counters of another mechanism."""

SELECTION_OPTIONS: Mapping[str, Callable[[Any], bool]] = {
    "group_selection_share": lambda value: value is not None,
    "min_privacy_units_per_group": lambda value: value is not None and value > 1,
    "selection_weight_decay": lambda value: value is not None,
    "keys_per_unit": lambda value: value is not None,
    "carry_windows": lambda value: value is not None and value > 1,
    "release": lambda value: value == ReleaseRule.RESELECT,
}
"""Options of key selection, and which of their values ask for it."""


def required_options(draft: Draft) -> Iterator[Problem]:
    """Options without a default."""
    yield from clause_rules.missing_options(draft, REQUIRED)


def of_units(draft: Draft) -> Iterator[Problem]:
    """Units are protected here, by noise of counters that go on from trigger to trigger."""
    level, counter = draft.given("privacy_level"), draft.given("counter")
    if level and draft.value("privacy_level") is PrivacyLevel.EVENT:
        hint = "declare the row's key as privacy_unit of the source, and write privacy_level = USER"
        yield problem(level.value_span, "privacy_level EVENT is for sliding windows of listed keys", hint)
    if counter and draft.value("counter") in PANED:
        yield problem(counter.value_span, f"counter = {draft.value('counter')} is for sliding windows of listed keys", "leave it out")


def delta_above_zero(draft: Draft) -> Iterator[Problem]:
    """Gaussian noise keeps no promise with delta = 0."""
    given = draft.given("delta")
    if given and draft.value("delta") == 0:
        yield problem(given.value_span, "delta must be above 0", "write a small positive number, for example delta = 1e-9")


def selection_without_keys(draft: Draft) -> Iterator[Problem]:
    """Options of key selection where no key is selected."""
    public = draft.value("group_selection_strategy") == GroupSelection.PUBLIC_GROUPS
    if not public and not draft.keyless:
        return
    where, hint = "with PUBLIC_GROUPS", "leave it out: it belongs to group_selection_strategy = THRESHOLD"
    if not public:
        where, hint = "in a query without a key", f"{hint} and a query with keys"
    for name, asks in SELECTION_OPTIONS.items():
        given = draft.given(name)
        if given and asks(draft.value(name)):
            what = "release = RESELECT" if name == "release" else name
            yield problem(given.name_span, f"{what} has no meaning {where}: no key is selected", hint)


def weights_twice(draft: Draft) -> Iterator[Problem]:
    """Two options that both say how much a unit's keys count."""
    given = draft.given("keys_per_unit")
    if given and draft.given("selection_weight_decay"):
        message = "keys_per_unit and selection_weight_decay both say how much a unit's keys count"
        yield problem(given.name_span, message, "write one of them")


def carried_over(draft: Draft) -> Iterator[Problem]:
    """Windows prove a key together where they are disjoint and a key that is known stays so."""
    given = draft.given("carry_windows")
    if not given or (draft.value("carry_windows") or 1) == 1:
        return
    if draft.value("release") == ReleaseRule.RESELECT:
        yield problem(given.name_span, "A round of RESELECT starts every key anew", "use release = EVERY_TRIGGER, or carry_windows = 1")
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


def horizon_of_square_root(draft: Draft) -> Iterator[Problem]:
    """At most 2,000 triggers per window with the square-root counter, whose state has a number per step."""
    given = draft.given("counter")
    if given and draft.value("counter") == CounterName.SQRT and draft.horizon and draft.horizon > SQRT_LIMIT:
        message = f"SQRT keeps every step of a window, here {draft.horizon:,}; at most {SQRT_LIMIT:,} are accepted"
        yield problem(given.value_span, message, "use BLT, the default: it is about as accurate and keeps a few numbers")


def of_tables(draft: Draft) -> Iterator[Problem]:
    """A window ends, and so do its counters."""
    given = draft.given("release")
    if given and draft.value("release") is Release.INTERVAL_TREE:
        yield problem(given.value_span, "release = INTERVAL_TREE is for tables whose rows end, without a window", "leave it out")


RULES = (
    window_rules.window_missing,
    required_options,
    of_units,
    of_tables,
    delta_above_zero,
    clause_rules.rows_per_group_above_rows,
    clause_rules.groups_above_rows,
    selection_without_keys,
    weights_twice,
    carried_over,
    horizon_limit,
    horizon_of_square_root,
)
