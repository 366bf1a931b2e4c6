"""The options of a query over a table without windows, how they are read, and what it may not say."""

from __future__ import annotations

from collections.abc import Iterator

from dpsql.errors import Problem
from dpsql.mechanisms.dynamic.plan import ChangeChoices, TableChoices, TreeChoices
from dpsql.parsed_query import AggregateFunction
from dpsql.sources.change_feed import ENDED_ROWS_KEPT_US, Feed
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
        "S, of a change feed: how often one unit is counted as coming to a key",
        "C",
        MOST_ROWS,
        lambda draft: draft.value("max_rows_contributed"),
    ),
)


def read_choices(draft: Draft) -> TableChoices:
    """Return what an accepted query asks, every default filled in."""
    own_options = (options.MIN_PRIVACY_UNITS_PER_GROUP, options.MAX_TRIGGERS)
    settings = bounds_of(draft) | {option.name: draft.value(option.name) for option in own_options}
    stream = draft.stream
    if stream is None or stream.change_feed is None:
        return TableChoices(**settings)
    spells = draft.value("max_spells_contributed")
    kind = TreeChoices if draft.paper else ChangeChoices
    kept_us = stream.ended_rows_kept_us
    feed = Feed(
        stream.change_feed, stream.primary_key, ENDED_ROWS_KEPT_US if kept_us is None else kept_us
    )
    period = draft.value("contribution_period")
    return kind(
        **settings,
        max_spells_contributed=spells,
        feed=feed,
        period_us=period if isinstance(period, int) else None,
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
            "The paper's promise is for ever",
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


def rows_that_end(draft: Draft) -> Iterator[Problem]:
    """Reject privacy of one event where rows end: a row that is changed or deleted is more than one
    event."""
    if event_rules.event(draft) and draft.stream and draft.stream.change_feed:
        hint = "declare the row's key as privacy_unit of the source, and write privacy_level = USER"
        yield problem(
            draft.option_span("privacy_level"),
            f"privacy_level EVENT protects a row that stays, and rows of {draft.stream.name} end",
            hint,
        )


def pairs_that_end(draft: Draft) -> Iterator[Problem]:
    """Reject aggregates of two values where rows end."""
    for call in draft.calls if draft.stream and draft.stream.change_feed else ():
        if call.of_pairs:
            message = f"{call.name.upper()} is not yet of tables whose rows end"
            hint = "write AVG, VAR_POP or APPROX_QUANTILES of each value"
            yield problem(call.item.span, message, hint)


RULES = (
    *time_rules.TABLE_RULES,
    *time_rules.FEED_RULES,
    clause_rules.required_options,
    *event_rules.RULES,
    rows_that_end,
    clause_rules.delta_above_zero,
    clause_rules.rows_per_group_above_rows,
    clause_rules.groups_above_rows,
    clause_rules.selection_without_keys,
    of_the_paper,
    pairs_that_end,
)
