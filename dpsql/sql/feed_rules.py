"""Rules on queries that read a change feed: the current contents of a table, at every `trigger_interval`."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dpsql.errors import Problem
from dpsql.sources.change_feed import BESIDE
from dpsql.sql.clause_rules import missing_options
from dpsql.sql.draft import Draft
from dpsql.sql.options import TRIGGER_INTERVAL
from dpsql.sql.spans import problem


def window_over_changes(draft: Draft) -> Iterator[Problem]:
    """A rule of every query: a table with current contents is not cut by time."""
    if draft.stream and draft.stream.change_feed:
        for call in draft.window_calls[:1]:
            message = f"{draft.stream.name} is a table with current contents and has no windows"
            yield problem(
                draft.span(call), message, "leave window(...) out, and write trigger_interval"
            )


def interval_given(draft: Draft) -> Iterator[Problem]:
    """When to release."""
    if draft.stream and draft.stream.change_feed:
        yield from missing_options(draft, (TRIGGER_INTERVAL,))


def change_passed(draft: Draft) -> Iterator[Problem]:
    """FROM passes on what an image is and of which row."""
    stream = draft.stream
    if (
        stream is None
        or stream.change_feed is None
        or any(relation.unknown for relation in draft.scope.relations)
    ):
        return
    tables = list(draft.select.args["from_"].find_all(exp.Table))
    span = draft.span(tables[0]) if tables else draft.clause_span
    wanted = [name for name in (*BESIDE, *stream.primary_key) if name != stream.event_time]
    missing = [
        name
        for name in wanted
        if [field.origin for field in draft.scope.find(exp.column(name))] != [(stream.name, name)]
    ]
    if missing:
        message = f"FROM does not pass {', '.join(f'`{name}`' for name in missing)} on as {stream.name} has it: what changes, and in which row"
        yield problem(
            span,
            message,
            f"select {', '.join((*BESIDE, *stream.primary_key))} themselves in the sub-query, each once, or *",
        )


def one_row_each(draft: Draft) -> Iterator[Problem]:
    """An image stays one row: rows that FROM makes of it have no name of their own."""
    if draft.stream and draft.stream.change_feed and draft.stream.primary_key:
        for scope in draft.scopes:
            for node in (
                *(scope.select.args.get("joins") or ()),
                *(scope.select.args.get("laterals") or ()),
            ):
                message = "FROM may make several rows of one row of the table, and these would have one primary key"
                yield problem(
                    draft.span(node),
                    message,
                    f"leave primary_key of {draft.stream.name} out: rows are then told apart by their values",
                )


def spells_of_changes(draft: Draft) -> Iterator[Problem]:
    """Where rows do not end, presence does not either; and no unit is present more often than it has rows."""
    given = draft.given("max_spells_contributed")
    value = draft.value("max_spells_contributed")
    rows = draft.value("max_rows_contributed")
    if given and draft.stream and draft.stream.change_feed is None:
        message = f"max_spells_contributed has no meaning: rows of {draft.stream.name} do not end"
        yield problem(
            given.name_span, message, "leave it out, or declare change_feed in sources.yaml"
        )
    elif given and value and rows and value > rows:
        message = f"max_spells_contributed is {value}, but a user has at most max_rows_contributed = {rows} row versions"
        yield problem(
            given.value_span,
            message,
            f"write max_spells_contributed = {rows} or less, or leave it out (the default is {rows})",
        )


RULES = (interval_given, change_passed, one_row_each, spells_of_changes)
