"""What the dialect has and this release does not run yet. Everything here is parsed and checked like the rest;
removing an entry from NOT_YET makes it accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from sqlglot import exp

from dpsql.errors import Problem
from dpsql.query import AggregateFunction, CounterName, GroupSelection, ReleaseRule
from dpsql.sql.draft import Draft
from dpsql.sql.from_rules import joins_row_by_row
from dpsql.sql.items import Kind, call_name
from dpsql.sql.rows import EXPLODE
from dpsql.sql.spans import Span, problem


@dataclass(frozen=True)
class NotYet:
    """One construct: what it is called, what to use instead, and where a query has it."""

    name: str
    instead: str
    places: Callable[[Draft], Iterator[Span]]


def _option(name: str, value: StrEnum) -> Callable[[Draft], Iterator[Span]]:
    def places(draft: Draft) -> Iterator[Span]:
        given = draft.given(name)
        if given and draft.value(name) == value:
            yield given.value_span

    return places


def _averages(draft: Draft) -> Iterator[Span]:
    return (call.item.span for call in draft.calls if call.function is AggregateFunction.AVG)


def _sliding(draft: Draft) -> Iterator[Span]:
    if draft.window_times and draft.window_times[0] != draft.window_times[1]:
        yield draft.span(draft.window_calls[0].expressions[2])


def _keyless(draft: Draft) -> Iterator[Span]:
    listed = any(item.kind in (Kind.KEY, Kind.STAR, Kind.COMPUTED) for item in draft.items)
    if not listed and draft.window_calls and len(draft.groupings) == 1:
        yield draft.span(draft.window_calls[0])


def _joins(draft: Draft) -> Iterator[Span]:
    for scope in draft.scopes:
        for join in scope.select.args.get("joins") or ():
            source = draft.sources.get(join.this.name.lower())
            if source is not None and source.static and joins_row_by_row(join):
                yield draft.span(join)


def _explodes(draft: Draft) -> Iterator[Span]:
    for scope in draft.scopes:
        laterals = scope.select.args.get("laterals") or ()
        yield from (draft.span(lateral) for lateral in laterals if call_name(lateral.this) == EXPLODE)
    for site in draft.sites:
        if call_name(site.node) == EXPLODE and not isinstance(site.node.parent, exp.Lateral):
            yield draft.span(site.node)


NOT_YET: tuple[NotYet, ...] = (
    NotYet("release = RESELECT", "leave it out: EVERY_TRIGGER is the default", _option("release", ReleaseRule.RESELECT)),
    NotYet("counter = SQRT", "leave it out: BLT is the default", _option("counter", CounterName.SQRT)),
    NotYet("counter = HONAKER", "leave it out: BLT is the default", _option("counter", CounterName.HONAKER)),
    NotYet("AVG", "select SUM(x, contribution_bounds_per_row => (lo, hi)) and COUNT(x), and divide when reading", _averages),
    NotYet(
        "group_selection_strategy = PUBLIC_GROUPS",
        "leave it out: THRESHOLD is the default and finds the keys by itself",
        _option("group_selection_strategy", GroupSelection.PUBLIC_GROUPS),
    ),
    NotYet("A sliding window", "leave the slide out, or write it as long as the size", _sliding),
    NotYet("A query without a key", "group by the window and one column", _keyless),
    NotYet("A join with a static table", "filter and compute with the stream's own columns", _joins),
    NotYet("explode", "write one record per element into the source", _explodes),
)


def not_available_yet(draft: Draft) -> Iterator[Problem]:
    """Everything in the query that this release does not run."""
    for entry in NOT_YET:
        for place in entry.places(draft):
            yield problem(place, f"{entry.name} is not available yet", entry.instead)
