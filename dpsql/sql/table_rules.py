"""Rules on queries without a window: a table as it is at every `trigger_interval`. Mechanisms that take such queries bring them."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dpsql.errors import Problem
from dpsql.parsed_query import ContributionPeriod
from dpsql.sql.draft import Draft
from dpsql.sql.select_rules import TIME_TYPES
from dpsql.sql.spans import problem
from dpsql.times import show_duration


def start_declared(draft: Draft) -> Iterator[Problem]:
    """Triggers are counted from the declared start: the first record must not tell where to begin."""
    given = draft.given("trigger_interval")
    stream = draft.stream
    if given and stream and stream.start_us is None:
        message = f"Without a window triggers are counted from the start of the stream, and the source {stream.name} declares no start"
        yield problem(
            given.value_span,
            message,
            f"add a line like `start: 2026-01-01` to sources.{stream.name}",
        )


def event_time_passed(draft: Draft) -> Iterator[Problem]:
    """The event time is the source's, straight from it, as in a query with a window."""
    stream = draft.stream
    if stream is None or any(relation.unknown for relation in draft.scope.relations):
        return
    tables = list(draft.select.args["from_"].find_all(exp.Table))
    span = draft.span(tables[0]) if tables else draft.clause_span
    if stream.event_time is None:
        yield problem(
            span,
            f"The source {stream.name} declares no event time",
            f"add event_time under sources.{stream.name} in sources.yaml",
        )
        return
    found = draft.scope.find(exp.column(stream.event_time))
    if [field.origin for field in found] != [(stream.name, stream.event_time)]:
        message = f"The event time may not be computed or renamed: FROM does not pass `{stream.event_time}` on as {stream.name} has it"
        yield problem(
            span,
            message,
            f"select {stream.event_time} itself in the sub-query, under its own name and once",
        )
    elif found[0].type is not None and found[0].type.this not in TIME_TYPES:
        message = f"The event time `{stream.event_time}` is {found[0].type.sql(dialect='spark')}, not TIMESTAMP"
        yield problem(span, message, "declare it as TIMESTAMP in sources.yaml")


def keys_grouped(draft: Draft) -> Iterator[Problem]:
    """Keys without any GROUP BY."""
    for item in draft.keys if draft.select.args.get("group") is None else ():
        yield problem(
            item.span,
            "This is neither an aggregate nor in GROUP BY",
            f"add GROUP BY {item.name or item.sql}, or leave it out",
        )


def stream_period(draft: Draft) -> Iterator[Problem]:
    """There is no window that an allowance could renew with."""
    given = draft.given("contribution_period")
    if given and draft.value("contribution_period") == ContributionPeriod.WINDOW:
        message = "The query has no window that a contribution period could be as long as"
        yield problem(
            given.value_span, message, "write contribution_period = STREAM, or leave it out"
        )


def nothing_late(draft: Draft) -> Iterator[Problem]:
    """A table never closes."""
    given = draft.given("allowed_lateness")
    lateness = draft.value("allowed_lateness")
    if given and lateness:
        message = f"Without a window nothing is late: allowed_lateness = {show_duration(lateness)} has no meaning"
        yield problem(
            given.name_span, message, "leave it out: a late record counts from the next trigger on"
        )


RULES = (start_declared, event_time_passed, keys_grouped, stream_period, nothing_late)
