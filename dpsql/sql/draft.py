"""Draft: everything that can be read off one statement without judging it. Rules judge; `build` makes the ParsedQuery."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlglot import exp
from sqlglot.tokens import Token

from dpsql.parsed_query import Basis
from dpsql.sources.config import Source
from dpsql.sql.aggregates import Call, read_call
from dpsql.sql.dialect import DpClause
from dpsql.sql.items import (
    Grouping,
    GroupingSets,
    Item,
    Kind,
    call_name,
    named_items,
    read_groupings,
    read_items,
    read_sets,
    window_of_cut,
)
from dpsql.sql.relations import Scope, canonical, read_scopes
from dpsql.sql.text import Span, node_span, token_span
from dpsql.sql.values import Given, Misread, bare, read_duration


@dataclass(frozen=True)
class Check:
    """A condition on one value."""

    name: str
    holds: Callable[[Any], bool]
    message: str
    hint: str


@dataclass(frozen=True)
class Option:
    """One option: `reader` makes a value of the written words, every check must hold for it; `default` makes one of the draft without it.

    `description` and `usually` are for the reference: what it says, and its default in words.
    """

    name: str
    reader: Callable[[Given], Any]
    example: str
    description: str
    usually: str
    checks: tuple[Check, ...] = ()
    default: Callable[[Draft], Any] = lambda draft: None


def read_option(option: Option, entry: Given) -> tuple[Any, tuple[str, str] | None]:
    """Return the value, and (message, hint) of what is wrong with it."""
    try:
        value = option.reader(entry)
    except Misread as misread:
        return None, (misread.message, misread.hint)
    for check in option.checks:
        if not check.holds(value):
            return value, (check.message, check.hint)
    return value, None


@dataclass(frozen=True)
class Site:
    """An expression that must be row-local, with what it can see."""

    node: exp.Expr
    scope: Scope


@dataclass(frozen=True, eq=False)
class Draft:
    """One statement, cut into parts."""

    text: str
    tokens: tuple[Token, ...]
    select: exp.Select
    clause: DpClause
    sources: Mapping[str, Source]
    options: tuple[Option, ...]

    def span(self, node: exp.Expr) -> Span:
        """Return where a node stands; a node without any position stands for the clause."""
        return node_span(node, self.tokens, self.clause_span)

    def text_of(self, node: exp.Expr) -> str:
        """Return a node as it is written."""
        return self.text[slice(*self.span(node))]

    @property
    def clause_span(self) -> Span:
        """The words WITH DIFFERENTIAL_PRIVACY [OPTIONS]."""
        return token_span(*self.clause.meta["tokens"])

    def words(self, node: exp.Expr) -> Sequence[Token]:
        """Return the tokens of a node."""
        start, end = self.span(node)
        return [token for token in self.tokens if start <= token.start < end]

    @cached_property
    def canonical(self) -> exp.Select:
        """The canonical tree; its lists run parallel to those of `select`."""
        return canonical(self.select)

    @cached_property
    def entries(self) -> tuple[Given, ...]:
        """The options as written."""
        return tuple(
            Given(
                node.name.lower(),
                node.meta["name"],
                node.meta["operator"],
                node.meta["value"],
                node.expression,
            )
            for node in self.clause.expressions
        )

    def entry(self, name: str) -> Given | None:
        """Return the first option of that name."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def option_span(self, name: str) -> Span:
        """Return where an option stands; one that is not written stands for the clause."""
        entry = self.entry(name)
        return self.clause_span if entry is None else entry.span

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """Values of the options that are right by themselves."""
        options = {option.name: option for option in self.options}
        values: dict[str, Any] = {}
        for entry in self.entries:
            if entry.name in options and entry.name not in values:
                value, wrong = read_option(options[entry.name], entry)
                if wrong is None:
                    values[entry.name] = value
        return values

    def value(self, name: str) -> Any:
        """Return an option's value, or its default; None when it is missing or wrong."""
        if name in self.values:
            return self.values[name]
        option = next((option for option in self.options if option.name == name), None)
        return None if self.entry(name) or option is None else option.default(self)

    @property
    def listed(self) -> bool:
        """Whether the query lists its groups; else they are selected, or there is one."""
        return self.entry("public_groups") is not None

    @property
    def paper(self) -> bool:
        """Whether the query asks for the mechanism that its paper printed."""
        return self.value("mechanism") is Basis.PAPER

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """The query's scope and those of the sub-queries in FROM."""
        return read_scopes(self.select, self.sources)

    @property
    def scope(self) -> Scope:
        """The scope of the outer query."""
        return self.scopes[0]

    @cached_property
    def streams(self) -> tuple[Source, ...]:
        """The streaming sources in FROM, in order, once per mention."""
        sources = [
            relation.source
            for scope in self.scopes
            for relation in scope.relations
            if relation.source
        ]
        return tuple(source for source in sources if not source.static)

    @property
    def stream(self) -> Source | None:
        """The stream, when there is exactly one."""
        return self.streams[0] if len(self.streams) == 1 else None

    @property
    def time_column(self) -> str:
        """The event time as hints call it: the source's own, where it declares one."""
        return self.stream.event_time if self.stream and self.stream.event_time else "event_time"

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """The items of the select list."""
        items = read_items(self.select, self.canonical, self.tokens)
        return named_items(items, self.scope.names())

    @cached_property
    def keys(self) -> tuple[Item, ...]:
        """The items that are keys."""
        return tuple(item for item in self.items if item.kind is Kind.KEY)

    @cached_property
    def keyless(self) -> bool:
        """Whether the query groups by its window alone, or, without one, by nothing."""
        listed = any(item.kind in (Kind.KEY, Kind.STAR, Kind.COMPUTED) for item in self.items)
        if self.windowless:
            return not listed and not self.groupings
        return not listed and len(self.window_calls) == 1 and len(self.groupings) == 1

    @cached_property
    def windowless(self) -> bool:
        """Whether the query has no window anywhere: it asks for a table as it is at every `trigger_interval`, or once."""
        listed = any(item.kind in (Kind.WINDOW, Kind.WINDOW_CALL) for item in self.items)
        grouped = any(grouping.is_window for grouping in self.groupings)
        return not listed and not grouped

    @property
    def once(self) -> bool:
        """Whether the query asks for one release of all records: no window, no `trigger_interval`, and rows stay."""
        changes = self.stream is not None and self.stream.change_feed is not None
        return self.windowless and not changes and self.entry("trigger_interval") is None

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The aggregate calls of the select list."""
        return tuple(
            call for item in self.items if item.kind is Kind.AGGREGATE and (call := read_call(item))
        )

    @property
    def sketches(self) -> tuple[Call, ...]:
        """The calls that are about the values of an expression, without GROUP BY."""
        return tuple(call for call in self.calls if call.of_values)

    @cached_property
    def groupings(self) -> tuple[Grouping, ...]:
        """The items of GROUP BY."""
        return read_groupings(self.select, self.canonical, self.items, self.tokens)

    @cached_property
    def grouping_sets(self) -> GroupingSets | None:
        """CUBE, ROLLUP or GROUPING SETS where that is all of GROUP BY."""
        return read_sets(self.select, self.canonical, self.items, self.tokens)

    @property
    def cuts(self) -> Mapping[Span, str]:
        """Items of GROUP BY that cut the event time where a window does not, but should."""
        has_window = any(grouping.is_window for grouping in self.groupings)
        return {} if self.windowless or has_window else self.time_cuts

    @cached_property
    def time_cuts(self) -> Mapping[Span, str]:
        """Items of GROUP BY that cut the event time: their places, and the window that means the same."""
        windows = {
            g.span: window_of_cut(g.key.root if g.key else g.root, self.time_column)
            for g in self.groupings
        }
        return {span: window for span, window in windows.items() if window is not None}

    @cached_property
    def window_calls(self) -> tuple[exp.Anonymous, ...]:
        """The calls of window() in GROUP BY."""
        roots = [grouping.root for grouping in self.groupings]
        return tuple(
            root
            for root in roots
            if isinstance(root, exp.Anonymous) and call_name(root) == "window"
        )

    @cached_property
    def window_times(self) -> tuple[int, int, int] | None:
        """(size, slide, offset) in microseconds, None when any of them cannot be read or is impossible."""
        if len(self.window_calls) != 1:
            return None
        arguments = self.window_calls[0].expressions[1:4]
        try:
            times = [read_duration(self.words(bare(node))) for node in arguments]
        except Misread:
            return None
        size = times[0] if times else 0
        slide = times[1] if len(times) > 1 else size
        offset = times[2] if len(times) > 2 else 0
        return (size, slide, offset) if 0 < slide <= size else None

    @cached_property
    def horizon(self) -> int | None:
        """Triggers per window, T."""
        interval = self.value("trigger_interval")
        lateness = self.value("allowed_lateness")
        if not self.window_times or not interval or lateness is None:
            return None
        return -(-(self.window_times[0] + lateness) // interval)

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Every expression that must be row-local: FROM, WHERE, keys, arguments of aggregates."""
        sites = [Site(item.root, self.scope) for item in self.keys]
        sites += [Site(argument, self.scope) for call in self.calls for argument in call.row_local]
        if (
            self.stream is not None and self.stream.event_time is None
        ):  # else a rule of its own looks at it
            sites += [
                Site(bare(call.expressions[0]), self.scope)
                for call in self.window_calls[:1]
                if call.expressions
            ]
        listed = self.values.get("public_groups")
        if listed is not None and listed.args.get("where"):
            sites.append(Site(listed.args["where"].this, read_scopes(listed, self.sources)[0]))
        return (*sites, *(Site(node, scope) for scope in self.scopes for node in _row_local(scope)))


def _row_local(scope: Scope) -> Iterator[exp.Expr]:
    if not scope.outer:
        yield from (bare(projection.unalias()) for projection in scope.select.expressions)
    if where := scope.select.args.get("where"):
        yield where.this
    for join in scope.joins:
        if condition := join.args.get("on"):
            yield condition
    for lateral in scope.laterals:
        yield lateral.this
