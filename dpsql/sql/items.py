"""The select list and GROUP BY: keys, aggregate calls, windows, grouping sets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from sqlglot import exp
from sqlglot.tokens import Token

from dpsql.description import DUE, END, NOTE, START
from dpsql.parsed_query import PAIRED, AggregateFunction
from dpsql.sql.allowed import AGGREGATES
from dpsql.sql.relations import needs_quotes, star_of, write
from dpsql.sql.text import Span, keyword, node_span
from dpsql.sql.values import bare, is_column

# The select list and GROUP BY: which items are keys, aggregates, the window.

SPREAD_NAMES: Mapping[str, AggregateFunction] = {
    **dict.fromkeys(("stddev", "std", "stddev_samp"), AggregateFunction.STDDEV_SAMP),
    **dict.fromkeys(("variance", "var_samp"), AggregateFunction.VAR_SAMP),
    "stddev_pop": AggregateFunction.STDDEV_POP,
    "var_pop": AggregateFunction.VAR_POP,
}
"""Without an ending it is the sample's, in Spark and in GoogleSQL."""

OUR_AGGREGATES = frozenset(
    {
        *("COUNT", "SUM", "AVG", "APPROX_QUANTILES", "PERCENTILE_CONT", *PAIRED),
        *map(str.upper, SPREAD_NAMES),
    }
)
"""Aggregates of a group's records; `SKETCHES` are the others."""
RESERVED_NAMES = frozenset({"window", START, END, "trigger", DUE, NOTE})
"""Every released table, or every reader of it, has these columns of its own."""

WINDOW_CALLS = frozenset({"window", "session_window", "window_time", "tumble", "hop", "cumulate"})


class Kind(Enum):
    """The kind of an item of the select list."""

    KEY = "key"
    AGGREGATE = "aggregate"
    COMPUTED = "an expression over aggregates"
    WINDOW = "the window's name"
    WINDOW_CALL = "a call of window()"
    STAR = "a star"


@dataclass(frozen=True)
class Item:
    """One item of the select list.

    Args:
        root: the item without alias and parentheses; `canonical` is the same in the canonical tree.
        alias: the alias as written, None without one.
        name: the output name, lower case; None where there is none.
    """

    kind: Kind
    root: exp.Expr
    canonical: exp.Expr
    alias: str | None
    name: str | None
    span: Span
    alias_span: Span

    @property
    def sql(self) -> str:
        """The expression in canonical Spark SQL."""
        return write(self.canonical)

    @property
    def is_column(self) -> bool:
        """Whether it is a bare column."""
        return isinstance(self.root, exp.Column)


@dataclass(frozen=True)
class Grouping:
    """One item of GROUP BY and the key it names (None when it names none)."""

    root: exp.Expr
    sql: str
    span: Span
    key: Item | None

    @property
    def is_window(self) -> bool:
        """Whether it is a window, by a call or by its name."""
        return call_name(self.root) in WINDOW_CALLS or names_window(self.root)


def call_name(node: exp.Expr) -> str | None:
    """Return the lower-case name of a plain function call, None for anything else."""
    return node.name.lower() if isinstance(node, exp.Anonymous) else None


def read_items(
    select: exp.Select, canonical: exp.Select, tokens: Sequence[Token]
) -> tuple[Item, ...]:
    """Return the items of the select list, in order."""
    return tuple(
        _item(*pair, tokens) for pair in zip(select.expressions, canonical.expressions, strict=True)
    )


def named_items(items: Sequence[Item], columns: Collection[str]) -> tuple[Item, ...]:
    """Give aggregates and computed keys without an alias a name that no other item and no column of FROM has."""
    used_names = {item.name for item in items} | {*columns} | RESERVED_NAMES
    items_with_names = []
    for item in items:
        if item.name is None and item.kind in (Kind.KEY, Kind.AGGREGATE):
            name = free_name(proposed_alias(item.root), used_names)
            used_names.add(name)
            item = replace(item, name=name)
        items_with_names.append(item)
    return tuple(items_with_names)


def free_name(name: str, used_names: Collection[str | None]) -> str:
    """Return a name, with the first number that makes it free: `count`, `count_2`."""
    numbered = (f"{name}_{number}" for number in range(2, len(used_names) + 3))
    return next(each for each in (name, *numbered) if each not in used_names)


def _item(node: exp.Expr, canonical: exp.Expr, tokens: Sequence[Token]) -> Item:
    root = bare(node.unalias())
    alias_node = node.args.get("alias") if isinstance(node, exp.Alias) else None
    alias = alias_node.name if alias_node is not None else None
    name = (
        alias
        if alias is not None
        else (root.name if isinstance(root, (exp.Column, exp.Dot)) else None)
    )
    span = node_span(node, tokens)
    alias_span = node_span(alias_node, tokens) if alias_node is not None else span
    return Item(
        _kind(root),
        root,
        bare(canonical.unalias()),
        alias,
        name.lower() if name else None,
        span,
        alias_span,
    )


def _kind(root: exp.Expr) -> Kind:
    if star_of(root):
        return Kind.STAR
    if names_window(root):
        return Kind.WINDOW
    if call_name(_unwrap(root)) in WINDOW_CALLS:
        return Kind.WINDOW_CALL
    if call_name(_unwrap(root)) in AGGREGATES:
        return Kind.AGGREGATE
    calls = [
        call
        for call in root.find_all(exp.Anonymous)
        if call.find_ancestor(exp.Select) is root.find_ancestor(exp.Select)
    ]
    return Kind.COMPUTED if any(call_name(call) in AGGREGATES for call in calls) else Kind.KEY


def _unwrap(root: exp.Expr) -> exp.Expr:
    """Return the call inside OVER, FILTER, IGNORE NULLS and field access."""
    while isinstance(root, (exp.Window, exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.Dot)):
        root = root.this
    return root


def names_window(root: exp.Expr) -> bool:
    """Tell whether an expression is `window`, `window.start` or `window.end`."""
    if not is_column(root):
        return False
    parts = [part.name.lower() for part in root.parts]
    return parts == ["window"] or (
        len(parts) == 2 and parts[0] == "window" and parts[1] in ("start", "end")
    )


def read_groupings(
    select: exp.Select, canonical: exp.Select, items: Sequence[Item], tokens: Sequence[Token]
) -> tuple[Grouping, ...]:
    """Return the items of GROUP BY, each with the key it names."""
    group = select.args.get("group")
    canonical_group = canonical.args.get("group")
    if group is None or canonical_group is None:
        return ()
    if group.args.get("all"):
        span = _span_of_word(tokens, "ALL")
        keys = (item for item in items if item.kind is Kind.KEY)
        return tuple(Grouping(item.root, item.sql, span, item) for item in keys)
    pairs = zip(group.expressions, canonical_group.expressions, strict=True)
    return tuple(read_grouping(bare(node), bare(twin), items, tokens) for node, twin in pairs)


def read_grouping(
    root: exp.Expr, twin: exp.Expr, items: Sequence[Item], tokens: Sequence[Token]
) -> Grouping:
    """Return one of them; `twin` is the same in the canonical tree."""
    sql = write(twin)
    keys = [item for item in items if item.kind is Kind.KEY]
    by_name = [
        item
        for item in keys
        if isinstance(root, exp.Column) and len(root.parts) == 1 and item.name == root.name.lower()
    ]
    by_sql = [item for item in keys if item.sql == sql]
    by_place = [item for item in keys if item is _at_position(root, items)]
    key = next(iter(by_name + by_sql + by_place), None)
    return Grouping(root, sql, node_span(root, tokens), key)


def _at_position(root: exp.Expr, items: Sequence[Item]) -> Item | None:
    """Return the item that a number in GROUP BY stands for."""
    is_number = isinstance(root, exp.Literal) and not root.is_string and root.name.isdecimal()
    position = int(root.name) if is_number else 0
    return items[position - 1] if 0 < position <= len(items) else None


def proposed_alias(root: exp.Expr) -> str:
    """Return a name for an expression without one: `count`, `sum_seconds`, `lower_url`."""
    words = [word for node in root.walk() if (word := _word(node))]
    name = "_".join(words[:2]) or "value"
    return name if not needs_quotes(name) else f"{name}_value"


def _word(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Anonymous) or is_column(node):
        word = node.name.lower()
        return word if word.isidentifier() else None
    return None


# `GROUP BY CUBE(...)`, `ROLLUP(...)`, `GROUPING SETS (...)`: which sets of keys are written.

WORDS: dict[type[object], str] = {
    exp.Cube: "CUBE",
    exp.Rollup: "ROLLUP",
    exp.GroupingSets: "GROUPING SETS",
}
LISTS = (exp.Tuple, exp.Cube, exp.Rollup, exp.GroupingSets)
"""Entries that are no keys."""
SUFFIXES = ("cube", "rollup", "grouping_sets", "totals")


@dataclass(frozen=True)
class GroupingSets:
    """One of the three words with its lists.

    Args:
        word: which.
        span: where it stands.
        lists: of CUBE and ROLLUP their one list, of GROUPING SETS each of its sets.
    """

    word: str
    span: Span
    lists: tuple[tuple[Grouping, ...], ...]

    @property
    def entries(self) -> tuple[Grouping, ...]:
        """All entries of all lists."""
        return tuple(entry for each in self.lists for entry in each)

    def sets(self) -> tuple[tuple[Grouping, ...], ...]:
        """Return the sets that ROLLUP and GROUPING SETS mean; of CUBE the list of all keys."""
        if self.word != "ROLLUP":
            return self.lists
        (keys,) = self.lists
        return tuple(keys[:size] for size in range(len(keys), -1, -1))


def read_sets(
    select: exp.Select, canonical: exp.Select, items: Sequence[Item], tokens: Sequence[Token]
) -> GroupingSets | None:
    """Return the sets where they are all of GROUP BY; None where there are none, or something beside them."""
    group = select.args.get("group")
    canonical_group = canonical.args.get("group")
    if (
        group is None
        or canonical_group is None
        or len(group.expressions) != 1
        or any(group.args.get(name) for name in SUFFIXES)
    ):
        return None
    root = bare(group.expressions[0])
    twin = bare(canonical_group.expressions[0])
    word = WORDS.get(type(root))
    if word is None:
        return None
    parts = [
        (bare(one), bare(other))
        for one, other in zip(root.expressions, twin.expressions, strict=True)
    ]
    lists = [_keys(*pair) for pair in parts] if word == "GROUPING SETS" else [parts]
    sets = tuple(tuple(read_grouping(*pair, items, tokens) for pair in pairs) for pairs in lists)
    return GroupingSets(word, node_span(root, tokens, _span_of_word(tokens, word)), sets)


def _keys(node: exp.Expr, twin: exp.Expr) -> list[tuple[exp.Expr, exp.Expr]]:
    """Return the entries of `(a, b)`, `(a)`, `()`, or `a`."""
    if not isinstance(node, exp.Tuple):
        return [(node, twin)]
    return [
        (bare(one), bare(other))
        for one, other in zip(node.expressions, twin.expressions, strict=True)
    ]


def _span_of_word(tokens: Sequence[Token], word: str) -> Span:
    """Return where the word stands; for a list without anything in it."""
    found = [token for token in tokens if keyword(token) == word]
    return (found[-1].start, found[-1].end + 1) if found else (0, 1)


# Expressions that cut the event time into hours or days, as people write them instead of
# window(), and the window that means the same.

_WINDOWS: Mapping[str, str] = {
    "second": "'1 second'",
    "minute": "'1 minute'",
    "hour": "'1 hour'",
    "day": "'1 day'",
    "dd": "'1 day'",
    "week": "'7 days', '7 days', '4 days'",
    "month": "'30 days'",
    "mon": "'30 days'",
    "mm": "'30 days'",
    "quarter": "'91 days'",
    "year": "'365 days'",
    "yyyy": "'365 days'",
    "yy": "'365 days'",
}
"""By the unit's word. Weeks begin on Monday, four days after the day from which windows are counted."""


def window_of_cut(node: exp.Expr, event_time: str) -> str | None:
    """Return the window() for `date_trunc('hour', ts)`, `trunc(ts, 'week')`, `to_date(ts)`, `date(ts)`, `CAST(ts AS DATE)`; None for all else."""
    if isinstance(node, (exp.Cast, exp.TryCast)) and node.to.this == exp.DType.DATE:
        return _window(node.this, "day", event_time)
    name = call_name(node)
    arguments = list(node.expressions) if isinstance(node, exp.Anonymous) else []
    if name in ("date", "to_date") and len(arguments) == 1:
        return _window(arguments[0], "day", event_time)
    if name in ("date_trunc", "trunc", "timestamp_trunc", "date_bin") and len(arguments) == 2:
        unit, column = arguments if name in ("date_trunc", "date_bin") else reversed(arguments)
        return _window(column, unit.name.lower(), event_time)
    return None


def _window(column: exp.Expr, unit: str, event_time: str) -> str | None:
    column = bare(column)
    ours = isinstance(column, exp.Column) and column.name.lower() == event_time
    return f"window({event_time}, {_WINDOWS[unit]})" if ours and unit in _WINDOWS else None


def time_function(node: exp.Expr, event_time: str) -> str:
    """Return the name of the function that makes a key of the event time, as in `hour(ts)`; empty for all else.

    A date that is cast to a text is `date`, a time from `date_trunc('hour', ts)` is `text of hour`.
    """
    if isinstance(node, exp.Cast) and node.to.this in exp.DataType.TEXT_TYPES:
        return _text_of_cut(bare(node.this), event_time)
    arguments = node.expressions if isinstance(node, exp.Anonymous) else ()
    is_cut = len(arguments) == 1 and is_named(bare(arguments[0]), event_time)
    name = call_name(node) or ""
    return name if is_cut and name not in ("date", "to_date") else ""


def _text_of_cut(time: exp.Expr, event_time: str) -> str:
    if window_of_cut(time, event_time) is None:
        return ""
    name = call_name(time)
    if isinstance(time, exp.Cast) or name in ("date", "to_date"):
        return "date"
    if name not in ("date_trunc", "timestamp_trunc"):
        return ""
    unit = time.expressions[0 if name == "date_trunc" else 1]
    return f"text of {unit.name.lower()}"


def is_named(node: exp.Expr, name: str) -> bool:
    """Tell whether a node is the plain column of a name."""
    return isinstance(node, exp.Column) and node.name.lower() == name
