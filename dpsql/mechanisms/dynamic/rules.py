"""What a query over a table without windows may not say, besides what no query may."""

from __future__ import annotations

from collections.abc import Iterator

from dpsql.errors import Problem
from dpsql.mechanisms.histogram import rules as bounded
from dpsql.parsed_query import AggregateFunction, CounterName, GroupSelection, Release
from dpsql.sql import aggregate_rules, clause_rules, feed_rules, table_rules
from dpsql.sql.draft import Draft
from dpsql.sql.spans import problem


def counter_with_an_end(draft: Draft) -> Iterator[Problem]:
    """SQRT and HONAKER know their last trigger, and SQRT keeps a number per step."""
    given, chosen, last = draft.given("counter"), draft.value("counter"), draft.value("max_triggers")
    if not given or chosen not in (CounterName.SQRT, CounterName.HONAKER):
        return
    if not draft.given("max_triggers"):
        message = f"{chosen} has a last trigger, and this query has none"
        yield problem(given.value_span, message, "add max_triggers = 365, or leave counter out")
    elif chosen is CounterName.SQRT and last and last > bounded.SQRT_LIMIT:
        message = f"SQRT keeps every step, here {last:,}; at most {bounded.SQRT_LIMIT:,} are accepted"
        yield problem(given.value_span, message, "use BLT, the default: it is about as accurate and keeps a few numbers")


def hidden_without_keys(draft: Draft) -> Iterator[Problem]:
    """Only a key that was selected can be hidden."""
    given, public = draft.given("hide_below"), draft.value("group_selection_strategy") == GroupSelection.PUBLIC_GROUPS
    if given and (public or draft.keyless):
        where = "with PUBLIC_GROUPS" if public else "in a query without a key"
        yield problem(given.name_span, f"hide_below has no meaning {where}: no key is selected", "leave it out")


def interval_tree(draft: Draft) -> Iterator[Problem]:
    """The baseline is what the paper has: counts and sums of listed keys, rows that end, no last trigger."""
    given = draft.given("release")
    if given and draft.value("release") is Release.RESELECT:
        yield problem(given.value_span, "release = RESELECT is for queries that protect users, with a window", "leave it out")
    if not given or draft.value("release") is not Release.INTERVAL_TREE:
        return
    public = draft.value("group_selection_strategy") == GroupSelection.PUBLIC_GROUPS
    if draft.stream and draft.stream.change_feed is None:
        message = f"INTERVAL_TREE is for tables whose rows end, and those of {draft.stream.name} do not"
        yield problem(given.value_span, message, "leave release out")
    elif not public and not draft.keyless:
        hint = "write group_selection_strategy = PUBLIC_GROUPS with public_groups, or leave release out"
        yield problem(given.value_span, "INTERVAL_TREE does not select keys", hint)
    for name in ("counter", "max_triggers"):
        if other := draft.given(name):
            message = f"{name} has no meaning with INTERVAL_TREE: its counters have no last trigger"
            yield problem(other.name_span, message, f"leave {name} out, or release")
    for call in draft.calls:
        if call.function and call.function not in (AggregateFunction.COUNT_ROWS, AggregateFunction.COUNT, AggregateFunction.SUM):
            yield problem(given.value_span, f"INTERVAL_TREE has COUNT and SUM, and no {call.function}", "leave release out")


RULES = (
    *table_rules.RULES,
    *feed_rules.RULES,
    bounded.required_options,
    bounded.of_units,
    bounded.delta_above_zero,
    clause_rules.rows_per_group_above_rows,
    clause_rules.groups_above_rows,
    bounded.selection_without_keys,
    counter_with_an_end,
    hidden_without_keys,
    interval_tree,
    aggregate_rules.spreads_of_windows,
)
