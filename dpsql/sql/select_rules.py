"""Rules on the select list, GROUP BY and `public_groups`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from sqlglot import exp

from dpsql.description import END, MEASURED, RANK_STDERR, SMOOTHED, START, STDERR
from dpsql.errors import Edit, Problem
from dpsql.sql.allowed import FUNCTIONS
from dpsql.sql.draft import Draft
from dpsql.sql.edits import insertion, known_word, removal, replacement
from dpsql.sql.event_rules import event
from dpsql.sql.items import (
    RESERVED_NAMES,
    Item,
    Kind,
    call_name,
    free_name,
    names_window,
    proposed_alias,
)
from dpsql.sql.relations import canonical, read_scopes, value_type, write
from dpsql.sql.text import Span, keyword, problem
from dpsql.sql.values import is_column, suggest

# Rules on the select list and GROUP BY.

_ONE_SET = "name every key; or, for a table without windows, write one of them alone, like GROUP BY CUBE(url, status)"
_SPECIAL = (exp.Literal, exp.Tuple, exp.Cube, exp.Rollup, exp.GroupingSets)
ENDINGS = {
    STDERR: "standard error",
    RANK_STDERR: "standard error of the ranks",
    SMOOTHED: "smoothed value",
    MEASURED: "number of measured panes",
}
"""Endings of the columns that aggregates have beside them, in one mechanism or another; no mechanism's keys are called so, for readers know them by name."""
LONGEST_NAME = 128
WHOLE_TYPES = (exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT)
TEXT_TYPES = (exp.DType.TEXT, exp.DType.CHAR, exp.DType.VARCHAR)
TIME_TYPES = (
    exp.DType.TIMESTAMP,
    exp.DType.TIMESTAMPTZ,
    exp.DType.TIMESTAMPLTZ,
    exp.DType.TIMESTAMPNTZ,
)
_OTHER_TYPES = (exp.DType.BOOLEAN, exp.DType.BINARY, exp.DType.DATE, exp.DType.DECIMAL)
KEY_TYPES = frozenset((*WHOLE_TYPES, *TEXT_TYPES, *TIME_TYPES, *_OTHER_TYPES))


def stars(draft: Draft) -> Iterator[Problem]:
    """Reject `*` in the select list."""
    for item in draft.items:
        if item.kind is Kind.STAR:
            yield problem(
                item.span,
                "`*` is not accepted in the select list",
                "name every key and every aggregate",
            )


def _free_alias(draft: Draft, root: exp.Expr) -> str:
    columns = {column.name.lower() for column in root.find_all(exp.Column)}
    columns |= set(draft.scope.names())
    alias = proposed_alias(root)
    taken = {item.name for item in draft.items} | RESERVED_NAMES | columns
    return free_name(f"{alias}_key" if alias in columns else alias, taken)


def window_aliases(draft: Draft) -> Iterator[Problem]:
    """Reject an alias of the window, as in `window.start AS day`: the output has its own names for
    it."""
    for item in draft.items:
        if item.kind is Kind.WINDOW and item.alias is not None:
            yield problem(
                item.span,
                "The window cannot have another name",
                f"write window, window.start or window.end without alias: the output columns are {START} and {END}",
                replacement(item.span, draft.text_of(item.root)),
            )


def legal_names(draft: Draft) -> Iterator[Problem]:
    """Reject names with anything but letters, digits and underscores."""
    for item in output_items(draft):
        name = item.name or ""
        if not name.isidentifier() or len(name) > LONGEST_NAME:
            yield problem(
                item.alias_span,
                f"The output name `{name[:LONGEST_NAME]}` must be letters, digits and underscores",
                "choose another alias",
            )


def output_items(draft: Draft) -> list[Item]:
    """Return the items that become columns of a table."""
    return [item for item in draft.items if item.name and item.kind in (Kind.KEY, Kind.AGGREGATE)]


def reserved_names(draft: Draft) -> Iterator[Problem]:
    """Reject names that the histogram's own columns have."""
    column_owners = {
        f"{item.name}_{end}": (item.name, statistic)
        for item in draft.items
        if item.kind is Kind.AGGREGATE
        for end, statistic in ENDINGS.items()
    }
    for item in output_items(draft):
        if item.name in RESERVED_NAMES:
            yield problem(
                item.alias_span,
                f"The histogram has a column `{item.name}` of its own",
                "choose another alias",
            )
        elif item.name in column_owners:
            alias, statistic = column_owners[item.name]
            yield problem(
                item.alias_span,
                f"`{item.name}` is the column of the {statistic} of `{alias}`",
                "choose another alias",
            )


def unique_names(draft: Draft) -> Iterator[Problem]:
    """Reject two output columns of one name."""
    names: set[str | None] = set()
    for item in output_items(draft):
        if item.name in names:
            yield problem(
                item.alias_span,
                f"The output has two columns `{item.name}`",
                "choose another alias for one of them",
            )
        names.add(item.name)


def shadowing_aliases(draft: Draft) -> Iterator[Problem]:
    """Reject an alias that is also a column of FROM: GROUP BY would mean the column in Spark."""
    for item in draft.keys:
        columns = {*draft.scope.names()}
        if draft.scope.is_unknown:
            columns |= {node.name.lower() for node in item.root.find_all(exp.Column)}
        if (
            item.alias is not None
            and item.name in columns
            and not (item.is_column and item.root.name.lower() == item.name)
        ):
            yield problem(
                item.alias_span,
                f"`{item.name}` is a column of FROM and the alias of something else",
                "choose another alias",
                *_other_alias(draft, item),
            )


def _other_alias(draft: Draft, key: Item) -> Iterator[Edit]:
    """Yield the edits that give a key another alias, wherever the outer query has it."""
    if draft.grouping_sets is not None:
        return  # the alias names a domain
    name = free_name(
        f"{key.name}_key", {item.name for item in draft.items} | {*draft.scope.names()}
    )
    yield replacement(key.alias_span, name)
    clauses = [draft.select.args.get(clause) for clause in ("group", "having", "order")]
    for column in (node for clause in clauses if clause for node in clause.find_all(exp.Column)):
        if column.name.lower() == key.name and len(column.parts) == 1:
            yield replacement(draft.span(column), name)


def keys_grouped(draft: Draft) -> Iterator[Problem]:
    """Reject keys of the select list that are not in GROUP BY."""
    grouped = [grouping.key for grouping in draft.groupings]
    unclear = any(
        isinstance(grouping.root, _SPECIAL) and grouping.key is None for grouping in draft.groupings
    )
    for item in draft.keys if draft.select.args.get("group") and not unclear else ():
        if not any(item is key for key in grouped) and (item.name or "") not in RESERVED_NAMES:
            yield problem(
                item.span,
                "This is neither an aggregate nor in GROUP BY",
                f"add {item.name if item.alias or item.is_column else item.sql} to GROUP BY, or leave it out",
                *_grouped_by(draft, item),
            )


def _grouped_by(draft: Draft, key: Item) -> Iterator[Edit]:
    """Yield the edit that adds a key to GROUP BY."""
    name = key.name if key.alias or key.is_column else key.sql
    is_known = all(call_name(call) in FUNCTIONS for call in key.root.find_all(exp.Anonymous))
    if draft.groupings and draft.grouping_sets is None and is_known:
        yield insertion(draft.groupings[-1].span[1], f", {name}")


def groupings_selected(draft: Draft) -> Iterator[Problem]:
    """Reject keys of GROUP BY that are not in the select list."""
    starred = any(item.kind is Kind.STAR for item in draft.items)
    for grouping in draft.groupings:
        if (
            grouping.key is None
            and grouping.span not in draft.cuts
            and not isinstance(grouping.root, _SPECIAL)
            and not grouping.is_window
            and not starred
        ):
            aggregates = [
                item
                for item in draft.items
                if item.kind is Kind.AGGREGATE and item.name == grouping.root.name.lower()
            ]
            if aggregates and isinstance(grouping.root, exp.Column):
                yield problem(
                    grouping.span,
                    f"`{grouping.root.name}` is an aggregate and cannot be grouped by",
                    "leave it out of GROUP BY",
                )
            else:
                alias = (
                    ""
                    if isinstance(grouping.root, exp.Column)
                    else f" AS {_free_alias(draft, grouping.root)}"
                )
                yield problem(
                    grouping.span,
                    "This key of GROUP BY is not in the select list",
                    f"add {grouping.sql}{alias} to the select list",
                    insertion(draft.items[0].span[0], f"{grouping.sql}{alias}, "),
                )


def groupings_twice(draft: Draft) -> Iterator[Problem]:
    """Reject a key that stands in GROUP BY twice."""
    mentions = Counter[int]()
    for grouping in draft.groupings:
        if grouping.key is not None:
            mentions[id(grouping.key)] += 1
            if mentions[id(grouping.key)] > 1:
                edit = removal(grouping.span, draft.tokens)
                message = "This key is in GROUP BY already"
                yield problem(grouping.span, message, "leave it out", edit)


def keys_selected_twice(draft: Draft) -> Iterator[Problem]:
    """Reject the same column as two keys."""
    seen: set[str] = set()
    for item in draft.keys:
        if item.sql in seen and item.name is not None:
            yield problem(item.span, "This key is in the select list already", "leave it out")
        seen.add(item.sql)


def grouped_by_position(draft: Draft) -> Iterator[Problem]:
    """Reject numbers and texts in GROUP BY that stand for no key, as `GROUP BY 7`."""
    for grouping in draft.groupings:
        if isinstance(grouping.root, exp.Literal) and grouping.key is None:
            yield problem(
                grouping.span, "No key of the select list has this position", "name the key"
            )


def grouped_by_window_name(draft: Draft) -> Iterator[Problem]:
    """GROUP BY window without the call."""
    for grouping in draft.groupings:
        if names_window(grouping.root):
            yield problem(
                grouping.span,
                "GROUP BY needs the window's definition",
                f"write window({draft.time_column}, '1 day')",
            )


def grouping_sets(draft: Draft) -> Iterator[Problem]:
    """Reject DISTINCT, ROLLUP, CUBE, GROUPING SETS and tuples in GROUP BY."""
    group = draft.select.args.get("group")
    if group is None:
        return
    if group.args.get("all") is False:
        span = next(
            (token.start, token.end + 1)
            for token in draft.tokens
            if token.text.upper() == "DISTINCT" and token.start > _group_start(draft)
        )
        hint = "name the window and every key, or ALL"
        yield problem(span, "GROUP BY DISTINCT is not accepted", hint, replacement(span, ""))
    for grouping in draft.groupings:
        if isinstance(grouping.root, (exp.Cube, exp.Rollup, exp.GroupingSets)):
            if draft.windowless and draft.grouping_sets and not draft.sketches:
                continue  # a mechanism's own
            yield problem(
                grouping.span, "ROLLUP, CUBE and GROUPING SETS are not accepted", _ONE_SET
            )
        elif isinstance(grouping.root, exp.Tuple):
            keys = ", ".join(draft.text_of(key) for key in grouping.root.expressions)
            hint = "name the keys one by one"
            message = "Keys in parentheses are not accepted"
            yield problem(grouping.span, message, hint, replacement(grouping.span, keys))
    if any(group.args.get(name) for name in ("cube", "rollup", "grouping_sets", "totals")):
        yield problem(
            _suffix_span(draft), "ROLLUP, CUBE and GROUPING SETS are not accepted", _ONE_SET
        )


def _group_start(draft: Draft) -> int:
    return max(token.start for token in draft.tokens if keyword(token) == "GROUP BY")


def _suffix_span(draft: Draft) -> Span:
    words = ("ROLLUP", "CUBE", "GROUPING SETS", "TOTALS")
    start = _group_start(draft)
    keywords = [token for token in draft.tokens if token.start > start and keyword(token) in words]
    return (keywords[-1].start, keywords[-1].end + 1) if keywords else draft.clause_span


def key_types(draft: Draft) -> Iterator[Problem]:
    """Reject types that a key cannot have."""
    for item in draft.keys:
        for found in type_problems(draft, "A key", item.root, item.span, item.sql):
            yield replace(found, edits=tuple(_cast_key(draft, item, found.hint)))


def _cast_key(draft: Draft, key: Item, hint: str) -> Iterator[Edit]:
    """Yield the edits that make a key of another type, under a name of its own."""
    kind = "DECIMAL(18, 6)" if "DECIMAL" in hint else "STRING"
    names = {item.name for item in draft.items} | {*draft.scope.names()}
    name = key.alias or free_name(f"{key.name}_key", names)
    text = draft.text_of(key.root)
    yield replacement(key.span, f"CAST({text} AS {kind}) AS {name}", f"`{name}` is a {kind}")
    for grouping in draft.groupings:
        if grouping.key is key and grouping.span != key.span:
            yield replacement(grouping.span, name)


def type_problems(
    draft: Draft, subject: str, node: exp.Expr, span: Span, sql: str
) -> Iterator[Problem]:
    """Yield what is wrong with a value that is to be encoded, if its type is known and has no
    encoding."""
    kind = value_type(draft.scope, node)
    if kind is None:
        return
    type_name = kind.sql(dialect="spark")
    if kind.this not in KEY_TYPES:
        yield problem(
            span, f"{subject} cannot be {type_name}", f"cast it, for example CAST({sql} AS STRING)"
        )
    elif _scale_of(kind) > 6:
        message = f"{subject} cannot be {type_name}: at most 6 decimal places are accepted"
        yield problem(span, message, f"cast it: CAST({sql} AS DECIMAL(18, 6))")


def _scale_of(kind: exp.DataType) -> int:
    """Return the decimal places of a type; 0 of what is no DECIMAL."""
    sizes = [size.name for size in kind.expressions] if kind.this == exp.DType.DECIMAL else []
    return int(sizes[1]) if len(sizes) == 2 and sizes[1].isdigit() else 0


# Rules on `public_groups = (SELECT key, ... FROM static_table [WHERE ...])`.

_PARTS = frozenset({"expressions", "from_", "where", "distinct"})
_TABLE_PARTS = frozenset({"this", "alias"})


def _extra(node: exp.Expr, accepted: frozenset[str]) -> list[str]:
    return [name for name, value in node.args.items() if value and name not in accepted]


def public_groups_query(draft: Draft) -> Iterator[Problem]:
    """Reject public groups that are not plain columns of one static source, as many as the query
    has keys."""
    query = draft.values.get("public_groups")
    if query is None:
        return
    key_count = len(draft.sketches[0].counted_values) if draft.sketches else len(draft.keys)
    span = draft.span(query)
    hint = "write public_groups = (SELECT page FROM pages)"
    table = query.args["from_"].this if query.args.get("from_") else None
    decorated = [
        *_extra(query, _PARTS),
        *(_extra(table, _TABLE_PARTS) if table is not None else ()),
    ]
    if not isinstance(table, exp.Table) or decorated:
        yield problem(
            span, "The list of public groups must be plain columns of one static source", hint
        )
        return
    source = draft.sources.get(table.name.lower())
    if source is None:
        yield problem(
            draft.span(table),
            f"Unknown source `{table.name}`",
            suggest(table.name, draft.sources, hint),
            *known_word(draft.span(table), table.name, draft.sources),
        )
    elif not source.static:
        yield problem(
            draft.span(table),
            f"The source {source.name} is a stream: public groups come from a static source",
            f"declare static: true for a public table, and {hint}",
        )
    elif not all(map(is_column, query.expressions)):
        yield problem(
            span, "The list of public groups must be plain columns of one static source", hint
        )
    elif len(query.expressions) != key_count:
        message = f"The list of public groups has columns: {len(query.expressions)}, the query has keys: {key_count}"
        yield problem(span, message, "select one column per key, in the order of the select list")
    else:
        yield from _missing_columns(draft, query, source.name)


def _missing_columns(draft: Draft, query: exp.Select, source: str) -> Iterator[Problem]:
    """Reject columns of the list that its source does not have."""
    scope = read_scopes(query, draft.sources)[0]
    for node in query.find_all(exp.Column):
        if not scope.find(node):
            yield problem(
                draft.span(node),
                f"The source {source} has no column `{node.name}`",
                f"the columns are {', '.join(scope.names())}",
            )


def unit_as_key(draft: Draft) -> Iterator[Problem]:
    """Reject grouping by the privacy unit: every group would be one person."""
    stream = draft.stream
    if stream is None or not stream.privacy_unit or draft.listed or event(draft):
        return
    key_columns = {
        item.root.name.lower(): item for item in draft.keys if isinstance(item.root, exp.Column)
    }
    unit_keys = [key_columns[column] for column in stream.privacy_unit if column in key_columns]
    if len(unit_keys) == len(stream.privacy_unit) and not draft.scope.is_unknown:
        message = (
            "A group of one privacy unit is one person, and what one person did is never published"
        )
        yield problem(
            unit_keys[0].span,
            message,
            "leave the privacy unit out of the select list and of GROUP BY",
        )


def start_declared(draft: Draft) -> Iterator[Problem]:
    """Reject a stream without a declared start where every window from the start on is released:
    the first record must not tell where to begin."""
    entry = draft.entry("public_groups")
    if (
        not draft.stream
        or draft.stream.start_us is not None
        or not (entry or draft.keyless)
        or draft.windowless
    ):
        return  # without a window the start is needed always: `table_rules`
    hint = draft.stream.declared("start", "2026-01-01")
    if entry:
        message = f"With public_groups every window from the start of the stream on is released, and the source {draft.stream.name} declares no start"
        yield problem(entry.name_span, message, hint)
    else:
        message = (
            f"A query without a key releases every window from the start of the stream on, "
            f"and the source {draft.stream.name} declares no start"
        )
        yield problem(draft.span(draft.window_calls[0]), message, hint)


def public_groups_sql(query: exp.Select | None) -> str | None:
    """Return the canonical text of the list."""
    return write(canonical(query)) if query is not None else None
