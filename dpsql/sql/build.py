"""From a draft without problems to the ParsedQuery."""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from dpsql.parsed_query import (
    Aggregate,
    ContributionPeriod,
    Key,
    ParsedQuery,
    PerGroup,
    PrivacyLevel,
    Quantiles,
    WindowSpec,
)
from dpsql.sql.aggregates import Call, read_bounds, read_parts
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
    statics = {
        relation.source.name
        for scope in draft.scopes
        for relation in scope.relations
        if relation.source and relation.source.static
    }
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
        max_ahead_us=value("trigger_interval")
        if draft.stream.max_ahead_us is None
        else draft.stream.max_ahead_us,
        public_groups=public_groups_sql(value("public_groups")),
        keys=_counted(draft)
        if draft.sketches
        else tuple(Key(item.name or "", item.sql) for item in draft.keys),
        aggregates=tuple(_aggregate(call) for call in draft.calls),
        from_sql=write_from(draft.canonical),
        stream=draft.stream.name,
        static_sources=tuple(sorted(statics)),
        columns_in_order=tuple(
            item.name or "" for item in draft.items if item.kind in (Kind.KEY, Kind.AGGREGATE)
        ),
        asked=asked,
    )


def _event_time(draft: Draft) -> str:
    """The column that window() names; without a window the one that the source declares."""
    if draft.windowless and draft.stream and draft.stream.event_time:
        return draft.stream.event_time
    return bare(draft.window_calls[0].expressions[0]).name.lower()


def _window(size: int, slide: int, offset: int) -> WindowSpec:
    return WindowSpec(size, slide, offset % slide)


def _counted(draft: Draft) -> tuple[Key, ...]:
    """What the sketches count, by the path that it has in the public table: no column is called so."""
    first = draft.sketches[0]
    parts = [write(part) for part in first.counted_plain]
    path = f"{first.item.name}.value"
    return (
        (Key(path, parts[0]),)
        if len(parts) == 1
        else tuple(
            Key(f"{path}.{name}", part) for name, part in zip(names_of(first), parts, strict=True)
        )
    )


def names_of(call: Call) -> tuple[str, ...]:
    """The fields of a compound value: columns by their names, others by their place."""
    columns = [part.name.lower() if isinstance(part, exp.Column) else "" for part in call.counted]
    return tuple(
        name if name and columns.count(name) == 1 else f"col{i}"
        for i, name in enumerate(columns, 1)
    )


def _aggregate(call: Call) -> Aggregate:
    if call.function is None or call.item.name is None:
        raise AssertionError("a rule let an unknown aggregate pass")
    argument = None if call.weight is None else write(call.plain[call.weight])
    bounds = read_bounds(call.bounds_arguments[0]) if call.bounds_arguments else None
    if (parts := read_parts(call)) is not None:
        return Quantiles(call.item.name, call.function, argument, bounds, parts)
    return (PerGroup if call.per_group else Aggregate)(
        call.item.name, call.function, argument, bounds
    )
