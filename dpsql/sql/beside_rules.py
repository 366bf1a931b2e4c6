"""Rules on columns beside those of the records: FROM passes on what a change feed has, and nothing else reads any."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dpsql.errors import Problem
from dpsql.sources.change_feed import BESIDE, NOT_OF_RECORDS, may_be_beside
from dpsql.sql.draft import Draft
from dpsql.sql.items import Kind
from dpsql.sql.spans import problem
from dpsql.sql.values import bare

Use = tuple[exp.Expr, str, str]
"""What reads columns, what that makes of them, and what to write instead."""

_FILTER = ("be filtered by", "filter by columns of the row")
_JOIN = ("be joined by", "join by columns of the row")


def feed_in_from_only(draft: Draft) -> Iterator[Problem]:
    """What an image is, its place in the feed and its time pass through FROM: others' rows decide them, and an end has other ones than its begin."""
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


def _uses(draft: Draft) -> Iterator[Use]:
    """Everything that reads columns, but projections of sub-queries that pass one on under its name."""
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
        for join in select.args.get("joins") or ():
            for node in (join.args.get("on"), *(join.args.get("using") or ())):
                if node is not None:
                    yield node, *_JOIN
        for lateral in select.args.get("laterals") or ():
            yield lateral.this, "make rows", "explode a column of the row"


def of_records_alone(draft: Draft) -> Iterator[Problem]:
    """Columns that engines give beside the records', by their names or where no schema tells them apart."""
    passed = BESIDE if any(stream.change_feed for stream in draft.streams) else ()
    columns = [
        (site.scope, column) for site in draft.sites for column in site.node.find_all(exp.Column)
    ]
    for scope in draft.scopes:
        columns += [
            (scope, exp.column(name))
            for join in scope.select.args.get("joins") or ()
            for name in join.args.get("using") or ()
        ]
    for scope, column in columns:
        name, source = scope.reached(column)
        if name not in passed and may_be_beside(name, source is None):
            yield problem(draft.span(column), *_said(name, source))


def _said(name: str, source: str | None) -> tuple[str, str]:
    if name in NOT_OF_RECORDS:
        message = f"`{name}` depends on the records of others or on how they are stored, not on the record"
        return message, "leave it out, or put the value into the records under another name"
    return (
        f"`{name}` may be no column of the records: source {source} declares no schema",
        f"add schema under sources.{source} in sources.yaml",
    )


RULES = (of_records_alone, feed_in_from_only)
