"""The options of a query over a table without windows, how they are read, and what it may not say."""

from __future__ import annotations

from collections.abc import Iterator

from dpsql.errors import Problem
from dpsql.mechanisms.dynamic.plan import ChangeChoices, TableChoices, TreeChoices
from dpsql.parsed_query import AggregateFunction
from dpsql.sources.change_feed import feed_of
from dpsql.sql import clause_rules, event_rules, options, time_rules
from dpsql.sql.draft import Draft, Option
from dpsql.sql.event_rules import bounds_of
from dpsql.sql.options import MOST_ROWS, whole_option
from dpsql.sql.text import problem

# The options that a query over a table without windows may write.

OPTIONS: tuple[Option, ...] = (
    *options.USUAL,
    options.MIN_PRIVACY_UNITS_PER_GROUP,
    options.MAX_TRIGGERS,
    whole_option(
        "max_spells_contributed = 4",
        "of a change feed: how often one unit is counted as coming to a key",
        "max_rows_contributed",
        MOST_ROWS,
        lambda draft: draft.value("max_rows_contributed"),
    ),
)


def read_choices(draft: Draft) -> TableChoices:
    """Return what an accepted query asks, every default filled in."""
    own_options = (options.MIN_PRIVACY_UNITS_PER_GROUP, options.MAX_TRIGGERS)
    settings = bounds_of(draft) | {option.name: draft.value(option.name) for option in own_options}
    feed = feed_of(draft.stream)
    if feed is None:
        return TableChoices(**settings)
    kind = TreeChoices if draft.paper else ChangeChoices
    return kind(
        **settings,
        max_spells_contributed=draft.value("max_spells_contributed"),
        feed=feed,
        period_us=time_rules.period_of(draft),
    )


# What a query over a table without windows may not say, besides what no query may.


def of_the_paper(draft: Draft) -> Iterator[Problem]:
    """Reject what the paper does not have: it has counts and sums of listed keys, rows that end, no
    last trigger."""
    entry = draft.entry("mechanism")
    if not entry or not draft.paper:
        return
    if draft.stream and draft.stream.change_feed is None:
        message = f"The paper is on tables whose rows end, and those of {draft.stream.name} do not"
        yield problem(entry.name_span, message, "leave mechanism out")
    elif not draft.listed and not draft.keyless:
        yield problem(
            entry.name_span,
            "The paper does not select keys",
            "list them with public_groups, or leave mechanism out",
        )
    period = draft.entry("contribution_period")
    if period and isinstance(draft.value(period.name), int):
        yield problem(
            period.name_span,
            "The paper's promise has no period",
            "leave contribution_period out, or mechanism",
        )
    if last := draft.entry("max_triggers"):
        yield problem(
            last.name_span,
            "The paper's counters have no last trigger",
            "leave max_triggers out, or mechanism",
        )
    for call in draft.calls:
        if call.function and call.function not in (
            AggregateFunction.COUNT_ROWS,
            AggregateFunction.COUNT,
            AggregateFunction.SUM,
        ):
            yield problem(
                call.item.span,
                f"The paper has COUNT and SUM, and no {call.function}",
                "leave mechanism out",
            )


RULES = (
    *time_rules.TABLE_RULES,
    *time_rules.FEED_RULES,
    clause_rules.required_options,
    *event_rules.RULES,
    clause_rules.delta_above_zero,
    clause_rules.rows_per_group_above_rows,
    clause_rules.groups_above_rows,
    clause_rules.selection_without_keys,
    of_the_paper,
)
