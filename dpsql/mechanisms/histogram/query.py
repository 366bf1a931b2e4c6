"""The options of a query of the histogram, how they are read, and what it may not say."""

from __future__ import annotations

from collections.abc import Iterator

from dpsql.errors import Problem
from dpsql.mechanisms.histogram.plan import HistogramChoices, ReleaseRule
from dpsql.parsed_query import CounterName
from dpsql.sql import clause_rules, event_rules, options, time_rules
from dpsql.sql.draft import Draft, Option
from dpsql.sql.event_rules import bounds_of
from dpsql.sql.options import HORIZON_LIMIT, whole_option
from dpsql.sql.text import problem
from dpsql.times import show_duration

# The options that a query of the histogram may write.

MOST_WINDOWS = 64
CARRY_WINDOWS = whole_option(
    "carry_windows = 28",
    "of windows that do not overlap: how many, the present one included, may prove a key together; a key once proven is shown in later windows "
    "from their first trigger on, until they no longer support it",
    "1: each window by itself",
    MOST_WINDOWS,
    lambda draft: 1,
)

OPTIONS: tuple[Option, ...] = (*options.USUAL, options.MIN_PRIVACY_UNITS_PER_GROUP, CARRY_WINDOWS)


def read_choices(draft: Draft) -> HistogramChoices:
    """Return what an accepted query asks, every default filled in."""
    own_options = (options.MIN_PRIVACY_UNITS_PER_GROUP, CARRY_WINDOWS)
    return HistogramChoices(
        **bounds_of(draft),
        **{option.name: draft.value(option.name) for option in own_options},
        release=ReleaseRule.RESELECT
        if draft.paper and not draft.listed and not draft.keyless
        else ReleaseRule.EVERY_TRIGGER,
        counter=CounterName.HONAKER if draft.paper else CounterName.BLT,
    )


# What a query of the histogram may not say, besides what no query may: bounds, key selection,
# triggers of a window.


def carried_over(draft: Draft) -> Iterator[Problem]:
    """Reject carried evidence unless windows are disjoint and a key that is known stays so."""
    entry = draft.entry("carry_windows")
    if not entry or (draft.value("carry_windows") or 1) == 1:
        return
    if draft.paper:
        yield problem(
            entry.name_span,
            "The paper's rounds start every key again",
            "leave mechanism out, or carry_windows",
        )
    if draft.window_times and draft.window_times[1] < draft.window_times[0]:
        yield problem(
            entry.name_span,
            "Windows that overlap carry nothing over",
            "leave out the slide, or write carry_windows = 1",
        )


def horizon_limit(draft: Draft) -> Iterator[Problem]:
    """Reject more than 10,000 triggers per window."""
    entry = draft.entry("trigger_interval") or draft.entry("allowed_lateness")
    if not draft.horizon or draft.horizon <= HORIZON_LIMIT or not entry or not draft.window_times:
        return
    size, slide, _ = draft.window_times
    span = size + draft.value("allowed_lateness")
    message = (
        f"A window would have {draft.horizon:,} triggers; at most {HORIZON_LIMIT:,} are accepted"
    )
    fitting = [
        slide // count
        for count in range(1, HORIZON_LIMIT + 1)
        if slide % count == 0 and -(-span // (slide // count)) <= HORIZON_LIMIT
    ]
    fitting = [interval for interval in fitting if interval % 1_000_000 == 0] or fitting
    hint = (
        f"write trigger_interval = '{show_duration(min(fitting))}' or longer"
        if fitting
        else "write a shorter allowed_lateness"
    )
    yield problem(entry.value_span, message, hint)


RULES = (
    time_rules.window_missing,
    *time_rules.WINDOWLESS_RULES,
    clause_rules.required_options,
    *event_rules.RULES,
    clause_rules.delta_above_zero,
    clause_rules.rows_per_group_above_rows,
    clause_rules.groups_above_rows,
    clause_rules.selection_without_keys,
    carried_over,
    horizon_limit,
)
