"""The FROM part of a query, with its sub-queries and joins, as DuckDB text.

Columns of sub-queries get plain positions as names, so that two columns of one name stay apart as they do in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import sqlglot
from sqlglot import exp

from dpsql.errors import DataError, InputError
from dpsql.local.expressions import parse_expression, translate
from dpsql.local.spark_types import BOOLEAN, Columns, Typed, cast, compare, identifier, spark_only
from dpsql.sql.dialect import DpSpark

JOINS = {
    ("", ""): "JOIN",
    ("", "INNER"): "JOIN",
    ("LEFT", ""): "LEFT JOIN",
    ("LEFT", "OUTER"): "LEFT JOIN",
    ("", "CROSS"): "CROSS JOIN",
}


@dataclass(frozen=True)
class LocalTable:
    """A source as DuckDB sees it: the name of its view (or table) and its columns."""

    view: str
    columns: Columns


@dataclass(frozen=True)
class LocalRelation:
    """One item of FROM: its name in the query, and what each of its columns is in DuckDB."""

    name: str | None
    fields: tuple[tuple[str, Typed], ...]


@dataclass(frozen=True)
class LocalScope:
    """A translated FROM part: DuckDB text from the word FROM on, and what its names mean."""

    sql: str
    relations: tuple[LocalRelation, ...]
    merged: frozenset[str] = frozenset()

    def value(self, expression: str) -> Typed:
        """Return a normalised Spark expression over this FROM part."""
        return translate(parse_expression(expression), self.resolve)

    def resolve(self, column: exp.Column) -> Typed:
        """Return the column that a reference means.

        Raises:
            DataError: no relation has it, or several do.
            InputError: it reaches into a nested value.
        """
        *qualifier, name = (part.name.lower() for part in column.parts)
        candidates = [
            relation
            for relation in self.relations
            if not qualifier or relation.name == qualifier[-1]
        ]
        if len(qualifier) > 1 or (qualifier and not candidates):
            return spark_only(column.sql(dialect=DpSpark))
        matches = [
            value for relation in candidates for field, value in relation.fields if field == name
        ]
        if len(matches) > 1 and name not in self.merged:
            raise InputError(f"column `{name}` is ambiguous: name its table")
        if not matches:
            known_columns = ", ".join(
                sorted({field for relation in candidates for field, _ in relation.fields})
            )
            raise DataError(f"the input has no column `{name}`; it has {known_columns}")
        return matches[0]


def read_from(from_sql: str, tables: Mapping[str, LocalTable]) -> LocalScope:
    """Translate everything from the word FROM on.

    Args:
        from_sql: normalised Spark SQL (`ParsedQuery.from_sql`).
        tables: the sources by name.

    Raises:
        InputError: something in it runs on Spark only.
        DataError: it names columns that the input does not have.
    """
    select = sqlglot.parse_one("SELECT * " + from_sql, dialect=DpSpark)
    assert isinstance(select, exp.Select)
    return _scope(select, tables, iter(range(1 << 30)))


def _scope(
    select: exp.Select, tables: Mapping[str, LocalTable], numbers: Iterator[int]
) -> LocalScope:
    if select.args.get("laterals"):
        return spark_only("LATERAL VIEW")
    text, first = _item(select.args["from_"].this, tables, numbers)
    scope = LocalScope(f"FROM {text}", (first,))
    for join in select.args.get("joins") or ():
        scope = _joined(scope, join, tables, numbers)
    if where := select.args.get("where"):
        condition = translate(where.this, scope.resolve)
        scope = replace(scope, sql=f"{scope.sql} WHERE {cast(condition, BOOLEAN).sql}")
    return scope


def _item(
    node: exp.Expression, tables: Mapping[str, LocalTable], numbers: Iterator[int]
) -> tuple[str, LocalRelation]:
    alias = node.args.get("alias")
    if alias and alias.args.get("columns"):
        return spark_only("column names in a table alias")
    name = node.alias_or_name.lower() or None
    table_alias = f'"t{next(numbers)}"'
    if isinstance(node, exp.Table):
        table = tables.get(node.name.lower())
        if table is None:
            raise DataError(f"no input is given for `{node.name}`: add --input {node.name}=FILE")
        fields = tuple(
            (column, Typed(f"{table_alias}.{identifier(column)}", kind))
            for column, kind in table.columns
        )
        return f"{identifier(table.view)} AS {table_alias}", LocalRelation(name, fields)
    while isinstance(node, (exp.Subquery, exp.Paren)):
        node = node.this
    if not isinstance(node, exp.Select):
        return spark_only(type(node).__name__.upper())
    text, inner = _selected(node, tables, numbers)
    fields = tuple(
        (column, Typed(f"{table_alias}.c{i}", value.type))
        for i, (column, value) in enumerate(inner)
    )
    return f"({text}) AS {table_alias}", LocalRelation(name, fields)


def _selected(
    select: exp.Select, tables: Mapping[str, LocalTable], numbers: Iterator[int]
) -> tuple[str, list[tuple[str, Typed]]]:
    """Return the text of a sub-query with columns c0, c1, ..., and their names and values."""
    scope = _scope(select, tables, numbers)
    fields = [field for projection in select.expressions for field in _projected(projection, scope)]
    listed = ", ".join(f"{value.sql} AS c{i}" for i, (_, value) in enumerate(fields))
    return f"SELECT {listed} {scope.sql}", fields


def _projected(projection: exp.Expression, scope: LocalScope) -> list[tuple[str, Typed]]:
    star = projection.this if isinstance(projection, exp.Column) else projection
    if not isinstance(star, exp.Star):
        value = projection.this if isinstance(projection, exp.Alias) else projection
        return [(projection.alias_or_name.lower(), translate(value, scope.resolve))]
    if star.args.get("replace") or star.args.get("rename"):
        return spark_only("* REPLACE")
    hidden = {column.name.lower() for column in star.args.get("except_") or ()}
    table = "" if star is projection else projection.text("table").lower()
    fields = [
        field
        for relation in scope.relations
        if not table or relation.name == table
        for field in relation.fields
    ]
    if not table and scope.merged:
        first_values: dict[str, Typed] = {}
        for name, value in fields:
            first_values.setdefault(name, value)
        fields = [(n, v) for n, v in fields if n not in scope.merged or v is first_values[n]]
    return [field for field in fields if field[0] not in hidden]


def _joined(
    scope: LocalScope, join: exp.Join, tables: Mapping[str, LocalTable], numbers: Iterator[int]
) -> LocalScope:
    side = str(join.args.get("side") or "").upper()
    kind = str(join.args.get("kind") or "").upper()
    words = JOINS.get((side, kind))
    if words is None or join.args.get("method"):
        return spark_only(f"{join.args.get('method') or ''} {side} {kind} JOIN".strip())
    text, relation = _item(join.this, tables, numbers)
    joined = LocalScope(f"{scope.sql} {words} {text}", (*scope.relations, relation), scope.merged)
    if names := [column.name.lower() for column in join.args.get("using") or ()]:
        pairs = [
            (scope.resolve(exp.column(name)), LocalScope("", (relation,)).resolve(exp.column(name)))
            for name in names
        ]
        condition = " AND ".join(compare("=", left, right).sql for left, right in pairs)
        joined = replace(joined, merged=joined.merged | set(names))
    elif on_clause := join.args.get("on"):
        condition = cast(translate(on_clause, joined.resolve), BOOLEAN).sql
    elif kind == "CROSS":
        return joined
    else:
        condition = "TRUE"
    return replace(joined, sql=f"{joined.sql} ON {condition}")


def split_select(text: str) -> tuple[str, list[str]]:
    """Return a plain SELECT as (everything from FROM on, the select list)."""
    select = sqlglot.parse_one(text, read=DpSpark)
    listed = [item.sql(DpSpark) for item in select.expressions]
    star = select.copy()
    star.set("expressions", [exp.Star()])
    star.set("distinct", None)
    return star.sql(DpSpark).removeprefix("SELECT * "), listed
