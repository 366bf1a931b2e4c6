"""From a draft without problems to the ParsedQuery."""

from __future__ import annotations

from dpsql.parsed_query import Aggregate, Key, ParsedQuery, WindowSpec
from dpsql.sql.aggregates import Call, read_bounds
from dpsql.sql.draft import Draft
from dpsql.sql.group_rules import public_groups_sql
from dpsql.sql.items import Kind
from dpsql.sql.normal import quoted, write, write_from
from dpsql.sql.values import bare


def build(draft: Draft) -> ParsedQuery:
    """The value of an accepted query: defaults filled in, everything in its canonical spelling."""
    if draft.stream is None or draft.window_times is None:
        raise AssertionError("a rule let a query without stream or window pass")
    value = draft.value
    statics = {relation.source.name for scope in draft.scopes for relation in scope.relations if relation.source and relation.source.static}
    listed = value("public_groups")
    if listed is not None:
        statics.add(listed.args["from_"].this.name.lower())
    return ParsedQuery(
        epsilon=value("epsilon"),
        delta=value("delta"),
        privacy_unit=draft.stream.privacy_unit,
        max_rows_contributed=value("max_rows_contributed"),
        max_rows_per_group=value("max_rows_per_group"),
        max_groups_contributed=value("max_groups_contributed"),
        contribution_period=value("contribution_period"),
        window=_window(draft, *draft.window_times),
        trigger_interval_us=value("trigger_interval"),
        allowed_lateness_us=value("allowed_lateness"),
        max_ahead_us=value("max_ahead"),
        min_privacy_units_per_group=value("min_privacy_units_per_group"),
        group_selection_strategy=value("group_selection_strategy"),
        public_groups=public_groups_sql(value("public_groups")),
        group_selection_share=value("group_selection_share"),
        release=value("release"),
        counter=value("counter"),
        selection_weight_decay=value("selection_weight_decay"),
        keys=tuple(Key(item.name or "", item.sql) for item in draft.keys),
        aggregates=tuple(_aggregate(call) for call in draft.calls),
        from_sql=write_from(draft.canonical),
        stream=draft.stream.name,
        static_sources=tuple(sorted(statics)),
        columns_in_order=tuple(item.name or "" for item in draft.items if item.kind in (Kind.KEY, Kind.AGGREGATE)),
    )


def _window(draft: Draft, size: int, slide: int, offset: int) -> WindowSpec:
    column = bare(draft.window_calls[0].expressions[0])
    return WindowSpec(quoted(column.name.lower()), size, slide, offset % slide)


def _aggregate(call: Call) -> Aggregate:
    if call.function is None or call.item.name is None:
        raise AssertionError("a rule let an unknown aggregate pass")
    argument = write(call.plain[0]) if call.has_argument else None
    bounds = read_bounds(call.bounds_arguments[0]) if call.bounds_arguments else None
    return Aggregate(call.item.name, call.function, argument, bounds)
