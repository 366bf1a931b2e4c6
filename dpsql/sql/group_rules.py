"""Rules on `public_groups = (SELECT key, ... FROM static_table [WHERE ...])`."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dpsql.errors import Problem
from dpsql.parsed_query import PrivacyLevel
from dpsql.sql.draft import Draft
from dpsql.sql.normal import canonical, write
from dpsql.sql.relations import read_scopes
from dpsql.sql.spans import problem
from dpsql.sql.values import nearest

_PARTS = frozenset({"expressions", "from_", "where", "distinct"})
_TABLE_PARTS = frozenset({"this", "alias"})


def _extra(node: exp.Expr, accepted: frozenset[str]) -> list[str]:
    return [name for name, value in node.args.items() if value and name not in accepted]


def public_groups_query(draft: Draft) -> Iterator[Problem]:
    """Plain columns of one static source, as many as the query has keys."""
    query = draft.values.get("public_groups")
    if query is None:
        return
    wanted = len(draft.sketches[0].counted) if draft.sketches else len(draft.keys)
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
        guess = nearest(table.name, draft.sources)
        yield problem(
            draft.span(table),
            f"Unknown source `{table.name}`",
            f"did you mean {guess}?" if guess else hint,
        )
    elif not source.static:
        yield problem(
            draft.span(table),
            f"The source {source.name} is a stream: public groups come from a static source",
            f"declare static: true for a public table, and {hint}",
        )
    elif any(
        not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier)
        for node in query.expressions
    ):
        yield problem(
            span, "The list of public groups must be plain columns of one static source", hint
        )
    elif len(query.expressions) != wanted:
        message = f"The list of public groups has columns: {len(query.expressions)}, the query has keys: {wanted}"
        yield problem(span, message, "select one column per key, in the order of the select list")
    else:
        scope = read_scopes(query, draft.sources)[0]
        for node in query.find_all(exp.Column):
            if not scope.find(node):
                yield problem(
                    draft.span(node),
                    f"The source {source.name} has no column `{node.name}`",
                    f"the columns are {', '.join(scope.names())}",
                )


def unit_as_key(draft: Draft) -> Iterator[Problem]:
    """Grouping by the privacy unit: every group would be one person."""
    stream = draft.stream
    if (
        stream is None
        or not stream.privacy_unit
        or draft.listed
        or draft.value("privacy_level") is PrivacyLevel.EVENT
    ):
        return
    plain = {
        item.root.name.lower(): item for item in draft.keys if isinstance(item.root, exp.Column)
    }
    named = [plain[column] for column in stream.privacy_unit if column in plain]
    if len(named) == len(stream.privacy_unit) and not any(
        relation.unknown for relation in draft.scope.relations
    ):
        message = (
            "A group of one privacy unit is one person, and what one person did is never published"
        )
        yield problem(
            named[0].span, message, "leave the privacy unit out of the select list and of GROUP BY"
        )


def start_declared(draft: Draft) -> Iterator[Problem]:
    """Without key selection every window from the stream's declared start on is released: the first record must not tell where to begin."""
    given = draft.given("public_groups")
    if (
        not draft.stream
        or draft.stream.start_us is not None
        or not (given or draft.keyless)
        or draft.windowless
    ):
        return  # without a window the start is needed always: `table_rules`
    hint = f"add a line like `start: 2026-01-01` to sources.{draft.stream.name}"
    if given:
        message = f"With public_groups every window from the start of the stream on is released, and the source {draft.stream.name} declares no start"
        yield problem(given.name_span, message, hint)
    else:
        message = (
            f"A query without a key releases every window from the start of the stream on, "
            f"and the source {draft.stream.name} declares no start"
        )
        yield problem(draft.span(draft.window_calls[0]), message, hint)


def public_groups_sql(query: exp.Select | None) -> str | None:
    """The canonical text of the list."""
    return write(canonical(query)) if query is not None else None
