"""Rules on queries that protect one row: privacy_level = EVENT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpsql.errors import Problem
from dpsql.parsed_query import AggregateFunction, PrivacyLevel
from dpsql.sql.draft import Draft
from dpsql.sql.from_rules import EXPLODES
from dpsql.sql.items import call_name
from dpsql.sql.options import BOUNDS, MAX_GROUPS_CONTRIBUTED, only_group
from dpsql.sql.text import problem
from dpsql.sql.values import bare

OF_UNITS = (
    "privacy_unit_column",
    "max_rows_contributed",
    "max_rows_per_group",
    "max_groups_contributed",
    "contribution_period",
    "min_privacy_units_per_group",
)
"""Options that speak of units."""


def event(draft: Draft) -> bool:
    """Tell whether one row is protected."""
    return draft.value("privacy_level") is PrivacyLevel.EVENT


def bounds_of(draft: Draft) -> dict[str, Any]:
    """Return C, c and G; one row is one of each."""
    bounds = {option.name: 1 if event(draft) else draft.value(option.name) for option in BOUNDS}
    if only_group(draft):
        bounds[MAX_GROUPS_CONTRIBUTED.name] = MAX_GROUPS_CONTRIBUTED.default(draft)
    return bounds


def units_of_events(draft: Draft) -> Iterator[Problem]:
    """Reject options about units where one row is protected."""
    for entry in map(draft.entry, OF_UNITS) if event(draft) else ():
        if entry:
            message = "privacy_level EVENT protects one row, whoever it belongs to"
            yield problem(
                entry.name_span, message, f"remove {entry.name}, or use privacy_level = USER"
            )


def keys_of_events(draft: Draft) -> Iterator[Problem]:
    """Reject keys that units would have to prove where one row is protected."""
    if (
        event(draft)
        and not draft.keyless
        and not draft.listed
        and draft.keys
        and draft.grouping_sets is None
    ):
        yield problem(
            draft.option_span("privacy_level"),
            "Unknown keys are found by the users that have them, and an event has none",
            "list them: public_groups = (SELECT page FROM pages)",
        )


def counted_units_of_events(draft: Draft) -> Iterator[Problem]:
    """Reject COUNT(DISTINCT unit) where one row is protected."""
    for call in draft.calls if event(draft) else ():
        if call.function is AggregateFunction.COUNT_DISTINCT_UNIT:
            yield problem(
                call.item.span,
                "An event has no user",
                "write COUNT(*), or use privacy_level = USER",
            )


def rows_of_events(draft: Draft) -> Iterator[Problem]:
    """Reject a FROM that can make several rows of one event."""
    message = "{} makes several rows of one event; EVENT protects one"
    hint = "{}, or use privacy_level = USER"
    for scope in draft.scopes if event(draft) else ():
        exploding = list(scope.laterals)
        if not scope.outer:
            exploding += [
                node
                for node in scope.select.expressions
                if call_name(bare(node.unalias())) in EXPLODES
            ]
        for node in exploding:
            yield problem(
                draft.span(node),
                message.format("explode"),
                hint.format("aggregate the array with a function of it"),
            )
        for join in scope.joins:
            if join.kind not in ("SEMI", "ANTI"):
                subject = "A join that may find several rows"
                yield problem(
                    draft.span(join),
                    message.format(subject),
                    hint.format("use LEFT SEMI JOIN or LEFT ANTI JOIN"),
                )


def cap_of_level(draft: Draft) -> Iterator[Problem]:
    """Reject a query whose source has a cap of the other privacy level alone."""
    stream = draft.stream
    if event(draft) and stream is not None and stream.cap is not None and stream.event_cap is None:
        delta = "0" if draft.value("delta") == 0 else "1e-6"
        message = f"The cap of source {stream.name} protects users, this query protects events"
        hint = f"add `{{privacy_level: EVENT, epsilon: 1, delta: {delta}}}` to the list at {stream.place('cap')}"
        yield problem(draft.option_span("privacy_level"), message, hint)


RULES = (units_of_events, keys_of_events, rows_of_events, counted_units_of_events, cap_of_level)
