"""From a draft without problems to the ParsedQuery."""

from __future__ import annotations

from typing import Any

from dpsql.parsed_query import Aggregate, ContributionPeriod, Key, ParsedQuery, PrivacyLevel, WindowSpec
from dpsql.sql.aggregates import Call, read_bounds
from dpsql.sql.draft import Draft
from dpsql.sql.group_rules import public_groups_sql
from dpsql.sql.items import Kind
from dpsql.sql.normal import quoted, write, write_from
from dpsql.sql.values import bare


def build(draft: Draft, mechanism: str, asked: Any) -> ParsedQuery[Any]:
    """The value of an accepted query: defaults filled in, everything in its canonical spelling.

    Args:
        draft: without problems.
        mechanism: whose query it is.
        asked: what that has read.
    """
    if draft.stream is None or (draft.window_times is None) != draft.windowless:
        raise AssertionError("a rule let a query without stream or window pass")
    value = draft.value
    event = value("privacy_level") is PrivacyLevel.EVENT
    statics = {relation.source.name for scope in draft.scopes for relation in scope.relations if relation.source and relation.source.static}
    listed = value("public_groups")
    if listed is not None:
        statics.add(listed.args["from_"].this.name.lower())
    return ParsedQuery(
        mechanism=mechanism,
        epsilon=value("epsilon"),
        delta=value("delta"),
        privacy_unit=() if event else draft.stream.privacy_unit,
        contribution_period=ContributionPeriod.STREAM if event else value("contribution_period"),
        event_time=quoted(_event_time(draft)),
        window=_window(*draft.window_times) if draft.window_times else None,
        trigger_interval_us=value("trigger_interval"),
        allowed_lateness_us=value("allowed_lateness"),
        max_ahead_us=value("max_ahead"),
        public_groups=public_groups_sql(value("public_groups")),
        keys=tuple(Key(item.name or "", item.sql) for item in draft.keys),
        aggregates=tuple(_aggregate(call) for call in draft.calls),
        from_sql=write_from(draft.canonical),
        stream=draft.stream.name,
        static_sources=tuple(sorted(statics)),
        columns_in_order=tuple(item.name or "" for item in draft.items if item.kind in (Kind.KEY, Kind.AGGREGATE)),
        asked=asked,
    )


def _event_time(draft: Draft) -> str:
    """The column that window() names; without a window the one that the source declares."""
    if draft.windowless and draft.stream and draft.stream.event_time:
        return draft.stream.event_time
    return bare(draft.window_calls[0].expressions[0]).name.lower()


def _window(size: int, slide: int, offset: int) -> WindowSpec:
    return WindowSpec(size, slide, offset % slide)


def _aggregate(call: Call) -> Aggregate:
    if call.function is None or call.item.name is None:
        raise AssertionError("a rule let an unknown aggregate pass")
    argument = write(call.plain[0]) if call.has_argument else None
    bounds = read_bounds(call.bounds_arguments[0]) if call.bounds_arguments else None
    return Aggregate(call.item.name, call.function, argument, bounds)
