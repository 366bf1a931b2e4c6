"""Named queries (`WITH recent AS (SELECT ...) SELECT ... FROM recent`): each becomes the sub-query of FROM that it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from dpsql.errors import Problem
from dpsql.sql.spans import problem
from dpsql.sql.syntax import Script


def unreadable_names(script: Script) -> Iterator[Problem]:
    """RECURSIVE, column names after the name, one name twice, and names that FROM never mentions."""
    written = script.tree.args.get("with_")
    if written is None:
        return
    if written.args.get("recursive"):
        yield problem(
            _place(written.expressions[0]), "Recursive queries are not accepted", "delete RECURSIVE"
        )
        return
    seen: set[str] = set()
    for query in written.expressions:
        name = query.alias.lower()
        if query.args["alias"].columns:
            yield problem(
                _place(query),
                "Column names after the name of a query are not accepted",
                f"write WITH {name} AS (SELECT a AS b ...)",
            )
        elif name in seen:
            yield problem(
                _place(query), f"WITH has two queries `{name}`", "give one of them another name"
            )
        elif not any(_mentions(table, name) for table in script.tree.find_all(exp.Table)):
            yield problem(
                _place(query),
                f"FROM does not read the query `{name}` of WITH",
                f"write FROM {name}, or delete it",
            )
        seen.add(name)


def written_out(select: exp.Select) -> exp.Select:
    """The query with its named queries in FROM, where they are read; the one given is not changed.

    A name means the named query before it means a source, but not inside of the query that has the name: as in Spark.
    """
    if select.args.get("with_") is None:
        return select
    select = select.copy()
    known: dict[str, exp.Expr] = {}
    for query in select.args["with_"].expressions:
        _replace(query.this, known)
        known[query.alias.lower()] = query.this
    select.set("with_", None)
    _replace(select, known)
    return select


def _replace(node: exp.Expr, known: Mapping[str, exp.Expr]) -> None:
    for table in list(node.find_all(exp.Table)):
        name = table.name.lower()
        if name in known and _mentions(table, name):
            rest = {
                part: value
                for part, value in table.args.items()
                if value and part not in ("this", "alias")
            }
            alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(name))
            table.replace(exp.Subquery(this=known[name].copy(), alias=alias, **rest))


def _mentions(table: exp.Table, name: str) -> bool:
    return (
        isinstance(table.this, exp.Identifier)
        and table.name.lower() == name
        and table.args.get("db") is None
    )


def _place(query: exp.Expr) -> tuple[int, int]:
    meta = query.args["alias"].this.meta
    return meta["start"], meta["end"] + 1
