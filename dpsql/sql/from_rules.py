"""Rules on FROM: its sources, sub-queries, and the columns beside those of the records."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dpsql.errors import Edit, Problem
from dpsql.sources.change_feed import BESIDE, NOT_OF_RECORDS, may_be_beside
from dpsql.sql import allowed
from dpsql.sql.allowed import FAMILIES
from dpsql.sql.draft import Draft
from dpsql.sql.edits import known_word, replacement
from dpsql.sql.googlesql import exploded, listed_groups
from dpsql.sql.items import Kind, call_name
from dpsql.sql.relations import Scope, from_items, renames_columns, star_of, sub_select
from dpsql.sql.text import Span, keyword, problem
from dpsql.sql.values import bare, suggest

# Rules on FROM: which sources and sub-queries it may have. What its expressions may be is in
# `rows`.

DECORATIONS = {
    "sample": (
        "TABLESAMPLE is not accepted: it takes other records each time",
        "filter with pmod(xxhash64(column), 100) < 10",
    ),
    "pivots": ("PIVOT and UNPIVOT are not accepted", "group by the column instead"),
    "version": ("A source cannot be read AS OF a version or time", "name the source alone"),
}


EXPLODES = frozenset({"explode"}).union(
    *(family.functions for family in FAMILIES if family.name == "generators")
)
"""explode itself, and its kin, which have a refusal of their own."""


def from_missing(draft: Draft) -> Iterator[Problem]:
    """Reject a query without FROM."""
    for scope in draft.scopes:
        if scope.select.args.get("from_") is None:
            span = draft.clause_span if scope.outer else draft.span(scope.select)
            yield problem(span, "FROM is missing", f"add FROM {_some_stream(draft)}")


def _some_stream(draft: Draft) -> str:
    return next(
        (name for name, source in draft.sources.items() if not source.static),
        "a source of sources.yaml",
    )


def _each_item(draft: Draft) -> Iterator[exp.Expr]:
    return (node for scope in draft.scopes for node in from_items(scope.select))


def from_kinds(draft: Draft) -> Iterator[Problem]:
    """Reject items of FROM other than sources and sub-queries."""
    for node in _each_item(draft):
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            continue
        if isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
            yield problem(
                draft.span(node),
                "Sources in parentheses are not accepted",
                "write them one after another, without parentheses",
            )
        elif isinstance(node, exp.Unnest):
            yield problem(
                draft.span(node),
                "UNNEST is not accepted",
                "write LATERAL VIEW explode(column) t AS name after the source",
                *exploded(draft, node),
            )
        elif sub_select(node) is None and not _set_operation(node):
            yield problem(
                draft.span(node),
                "This cannot stand in FROM",
                "name a source, or write a sub-query (SELECT ... FROM source)",
            )


def _set_operation(node: exp.Expr) -> bool:
    while isinstance(node, (exp.Subquery, exp.Paren)):
        node = node.this
    return isinstance(node, exp.SetOperation)


def from_set_operations(draft: Draft) -> Iterator[Problem]:
    """Reject UNION, INTERSECT and EXCEPT in FROM."""
    for node in _each_item(draft):
        if _set_operation(node):
            yield problem(
                draft.span(node),
                "Set operations are not accepted in FROM",
                "read one source; filter and compute in its sub-query",
            )


def qualified_sources(draft: Draft) -> Iterator[Problem]:
    """Reject paths and qualified names like `db.table` in FROM."""
    of_frame = any(source.of_frame for source in draft.sources.values())
    declared = "" if of_frame else "declare it in sources.yaml and "
    for node in _each_item(draft):
        if isinstance(node, exp.Table) and node.args.get("db") is not None:
            yield problem(
                draft.span(node),
                "A source is named by one word",
                f"{declared}write FROM {_some_stream(draft)}",
                *_last_part(draft, node),
            )


def _last_part(draft: Draft, table: exp.Table) -> Iterator[Edit]:
    """Yield the edit that names a source by the last part of `project.dataset.table`."""
    if table.name.lower() in draft.sources:
        start = draft.span(table.args.get("catalog") or table.args["db"])[0]
        yield replacement((start, draft.span(table.this)[1]), table.name)


def known_sources(draft: Draft) -> Iterator[Problem]:
    """Reject names that sources.yaml does not have."""
    for node in _each_item(draft):
        if (
            not isinstance(node, exp.Table)
            or not isinstance(node.this, exp.Identifier)
            or node.args.get("db") is not None
        ):
            continue
        if node.name.lower() not in draft.sources:
            names = ", ".join(sorted(draft.sources)) or "none: sources.yaml is empty"
            known_text = f"the sources are {names}"
            if any(source.of_frame for source in draft.sources.values()):
                known_text = (
                    f"there is {names}; write tables={{{node.name!r}: ...}} in dpsql.session(...)"
                )
            yield problem(
                draft.span(node.this),
                f"Unknown source `{node.name}`",
                suggest(node.name, draft.sources, known_text),
                *known_word(draft.span(node.this), node.name, draft.sources),
            )


def decorations(draft: Draft) -> Iterator[Problem]:
    """Reject decorated sources: TABLESAMPLE, PIVOT, VERSION AS OF, ..."""
    for node in (inner for item in _each_item(draft) for inner in _layers(item)):
        for name, value in node.args.items():
            if name in DECORATIONS and value:
                yield problem(draft.span(node), *DECORATIONS[name])
            elif value and name not in allowed.ACCEPTED_TABLE_PARTS:
                yield problem(
                    draft.span(node),
                    "Only a name and an alias are accepted here",
                    "name the source alone",
                )


def _layers(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield a source; or a sub-query and the sub-queries that are nothing but parentheses around
    it."""
    while isinstance(node, exp.Subquery):
        yield node
        node = node.this
    if isinstance(node, exp.Table):
        yield node


def alias_columns(draft: Draft) -> Iterator[Problem]:
    """Reject `AS t(a, b)`, which renames columns."""
    for node in _each_item(draft):
        if isinstance(node, (exp.Table, exp.Subquery)) and renames_columns(node):
            yield problem(
                draft.span(node.args["alias"]),
                "Column names after a table alias are not accepted",
                "rename columns in a sub-query: (SELECT a AS b FROM source)",
            )


def one_stream(draft: Draft) -> Iterator[Problem]:
    """Reject a query of no stream, or of several."""
    mentions = [
        (scope, relation.source)
        for scope in draft.scopes
        for relation in scope.relations
        if relation.source
    ]
    streams = [source for _, source in mentions if not source.static]
    if mentions and not streams and not any(scope.is_unknown for scope in draft.scopes):
        yield problem(
            _source_span(draft, mentions[0][1].name, 0),
            f"{mentions[0][1].name} is a static table, and a query reads one stream",
            f"write FROM {_some_stream(draft)}",
        )
    for place, source in enumerate(streams[1:], start=1):
        earlier = sum(other.name == source.name for other in streams[:place])
        yield problem(
            _source_span(draft, source.name, earlier),
            "A query reads one stream, and this is a second one",
            "join static tables only",
        )


def _source_span(draft: Draft, name: str, index: int) -> Span:
    tables = [
        node
        for node in _each_item(draft)
        if isinstance(node, exp.Table) and node.name.lower() == name
    ]
    return draft.span(sorted(tables, key=draft.span)[index].this)


def joins_row_by_row(join: exp.Join) -> bool:
    """Tell whether every row of the result comes from one row on the left."""
    return (
        join.side not in ("RIGHT", "FULL")
        and not join.method
        and join.kind in ("", "INNER", "OUTER", "CROSS", "SEMI", "ANTI")
    )


def join_kinds(draft: Draft) -> Iterator[Problem]:
    """Reject joins other than inner, left, cross, semi and anti with static tables: others make
    rows without a record."""
    for scope in draft.scopes:
        for join in scope.joins:
            if not joins_row_by_row(join):
                words = " ".join(word for word in (join.method, join.side, join.kind) if word)
                yield problem(
                    draft.span(join),
                    f"{words} JOIN is not accepted",
                    "use JOIN or LEFT JOIN with a static table on the right",
                    *listed_groups(draft, join),
                )


def joined_tables(draft: Draft) -> Iterator[Problem]:
    """Reject joins with anything but a static source by name; the stream stands first."""
    for scope in draft.scopes:
        for join in scope.joins:
            source = (
                draft.sources.get(join.this.name.lower())
                if isinstance(join.this, exp.Table)
                else None
            )
            is_reported_elsewhere = isinstance(join.this, exp.Table) and (
                source is None or source.static or len(draft.streams) > 1
            )
            if is_reported_elsewhere or isinstance(join.this, exp.Unnest):
                continue  # these have rules of their own
            hint = "write FROM stream JOIN static_table ON ..., with the static table named alone"
            yield problem(draft.span(join), "Only static sources can be joined to the stream", hint)


def lateral_kinds(draft: Draft) -> Iterator[Problem]:
    """Reject LATERAL VIEW of anything but explode."""
    for scope in draft.scopes:
        for lateral in scope.laterals:
            name = call_name(lateral.this)
            if name not in EXPLODES or not lateral.args.get("view"):
                yield problem(
                    draft.span(lateral),
                    "Only LATERAL VIEW explode(...) is accepted here",
                    "write LATERAL VIEW explode(column) t AS name",
                )


def refused_clauses(draft: Draft) -> Iterator[Problem]:
    """Reject clauses like DISTINCT, HAVING, ORDER BY and LIMIT."""
    for scope in draft.scopes:
        place = allowed.OUTER if scope.outer else allowed.INNER
        for name, value in scope.select.args.items():
            if not value or (
                name in allowed.ACCEPTED_CLAUSES and (scope.outer or name not in ("group", "hint"))
            ):
                continue
            if scope.outer and name in allowed.READING:
                continue
            clause = next(
                (c for c in allowed.REFUSED_CLAUSES if c.argument == name and place in c.places),
                None,
            )
            span = _clause_span(draft, scope, value, clause.words if clause else ())
            if clause:
                edits = [replacement(span, "")] if clause.changes_nothing else []
                yield problem(span, clause.message, clause.hint, *edits)
            else:
                yield problem(span, "This clause of SELECT is not accepted", "delete it")


def _clause_span(draft: Draft, scope: Scope, value: object, words: tuple[str, ...]) -> Span:
    """Return the span from the clause's word to the end of what belongs to it."""
    nodes = [
        node
        for node in (value if isinstance(value, list) else [value])
        if isinstance(node, exp.Expr)
    ]
    spans = [
        draft.span(node) for node in nodes if any("start" in part.meta for part in node.walk())
    ]
    limit = draft.span(scope.select) if not scope.outer else (0, len(draft.text))
    starts = [
        token
        for token in draft.tokens
        if limit[0] - 200 <= token.start < limit[1] + 200 and keyword(token) in words
    ]
    openings = [token for token in starts if not spans or token.start <= spans[0][0]]
    if not openings:
        return spans[0] if spans else limit
    word = openings[-1] if spans else openings[0]
    return word.start, max([word.end + 1, *(end for _, end in spans)])


def sub_query_columns(draft: Draft) -> Iterator[Problem]:
    """Reject a sub-query with two columns of one name."""
    for scope in draft.scopes:
        names: set[str] = set()
        for projection in () if scope.outer else scope.select.expressions:
            name = "" if star_of(projection) else projection.alias_or_name.lower()
            if name and name in names:
                yield problem(
                    draft.span(projection),
                    f"The sub-query has two columns `{name}`",
                    "give one of them another name",
                )
            names.add(name)


def star_rewrites(draft: Draft) -> Iterator[Problem]:
    """Reject `* REPLACE`, `* RENAME`, and `t.*` of an unknown table."""
    for scope in draft.scopes:
        for projection in () if scope.outer else scope.select.expressions:
            star = star_of(projection)
            if star and any(star.args.get(name) for name in ("replace", "rename", "ilike")):
                yield problem(
                    draft.span(projection),
                    "Only `*` and `* EXCEPT (...)` are accepted",
                    "name the columns one by one",
                )
            table = projection.text("table").lower() if star and projection is not star else ""
            if table and table not in [relation.name for relation in scope.relations]:
                yield problem(
                    draft.span(projection), f"FROM has no table `{table}`", "write * alone"
                )


# Rules on columns beside those of the records: FROM passes on what a change feed has, and
# nothing else reads any.

Use = tuple[exp.Expr, str, str]
"""What reads columns, what that makes of them, and what to write instead."""

_FILTER = ("be filtered by", "filter by columns of the row")
_JOIN = ("be joined by", "join by columns of the row")


def feed_in_from_only(draft: Draft) -> Iterator[Problem]:
    """Reject the feed's columns outside of FROM: others' rows decide them, and an end has other
    ones than its begin."""
    if not any(stream.change_feed for stream in draft.streams):
        return
    for node, use, hint in _uses(draft):
        for column in node.find_all(exp.Identifier):
            if (name := column.name.lower()) in BESIDE:
                yield problem(
                    draft.span(column),
                    f"`{name}` is the feed's, not the row's: it cannot {use}",
                    hint,
                )


def _uses(draft: Draft) -> Iterator[Use]:  # noqa: C901
    """Yield everything that reads columns, but projections of sub-queries that pass one on under
    its name."""
    for item in draft.items:
        if item.kind is Kind.KEY:
            yield item.root, "be a key", "group by columns of the row"
        elif item.kind is Kind.AGGREGATE:
            yield item.root, "be aggregated", "aggregate columns of the row"
    for scope in draft.scopes:
        select = scope.select
        for projection in () if scope.outer else select.expressions:
            value = bare(projection.unalias())
            if isinstance(value, exp.Column) and projection.alias.lower() not in (
                "",
                value.name.lower(),
            ):
                yield value, "have another name", "leave AS away"
            elif not isinstance(value, (exp.Column, exp.Star)):
                yield value, "be computed with", "select it alone, under its own name"
        if where := select.args.get("where"):
            yield where.this, *_FILTER
        for join in scope.joins:
            for node in (join.args.get("on"), *(join.args.get("using") or ())):
                if node is not None:
                    yield node, *_JOIN
        for lateral in scope.laterals:
            yield lateral.this, "make rows", "explode a column of the row"


def of_records_alone(draft: Draft) -> Iterator[Problem]:
    """Reject columns that engines add to the records, by their names or where no schema tells them
    apart."""
    passed = BESIDE if any(stream.change_feed for stream in draft.streams) else ()
    columns = [
        (site.scope, column) for site in draft.sites for column in site.node.find_all(exp.Column)
    ]
    for scope in draft.scopes:
        columns += [
            (scope, exp.column(name))
            for join in scope.joins
            for name in join.args.get("using") or ()
        ]
    for scope, column in columns:
        name, source = scope.column_and_source(column)
        if name not in passed and may_be_beside(name, source is None):
            yield problem(draft.span(column), *_message_and_hint(name, source))


def _message_and_hint(name: str, source: str | None) -> tuple[str, str]:
    if name in NOT_OF_RECORDS:
        message = f"`{name}` depends on the records of others or on how they are stored, not on the record"
        return message, "leave it out, or put the value into the records under another name"
    return (
        f"`{name}` may be no column of the records: source {source} declares no schema",
        f"add schema under sources.{source} in sources.yaml",
    )


RULES = (of_records_alone, feed_in_from_only)
