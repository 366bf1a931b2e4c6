"""HAVING, ORDER BY and LIMIT of the outer query: how released rows are shown. The plan knows nothing of them, and the table keeps all rows."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dpsql.description import START
from dpsql.errors import Problem
from dpsql.parsed_query import SKETCHES, AggregateFunction, Reading
from dpsql.sql.aggregates import read_call
from dpsql.sql.draft import Draft
from dpsql.sql.items import Item, Kind, names_window
from dpsql.sql.relations import write
from dpsql.sql.select_rules import output_items
from dpsql.sql.text import problem
from dpsql.sql.values import bare

_CONDITIONS = (
    exp.And,
    exp.Or,
    exp.Not,
    exp.Paren,
    exp.EQ,
    exp.NEQ,
    exp.GT,
    exp.GTE,
    exp.LT,
    exp.LTE,
    exp.Between,
    exp.In,
    exp.Is,
)
_VALUES = (exp.Literal, exp.Neg, exp.Null, exp.Boolean, exp.Identifier, exp.Star)
_ARRAYS = (AggregateFunction.APPROX_QUANTILES, *SKETCHES)
_HINT = (
    "compare keys and aggregates of the select list with numbers and texts, like HAVING views > 100"
)


def having_reads_released(draft: Draft) -> Iterator[Problem]:
    """Reject HAVING but for comparisons of released columns with literals."""
    having = draft.canonical.args.get("having")
    if having is None:
        return
    span = draft.span(draft.select.args["having"].this)
    released, unknown = _with_released_columns(draft, having.this)
    if unknown:
        yield problem(
            span,
            f"HAVING reads what is released, and `{unknown[0]}` is not",
            f"the select list has {_listed(draft)}",
        )
    elif not all(
        isinstance(node, (*_CONDITIONS, *_VALUES, exp.Column)) for node in released.walk()
    ):
        yield problem(span, "HAVING takes plain comparisons", _HINT)
    else:
        arrays = {
            item.name
            for item in output_items(draft)
            if (call := read_call(item)) and call.function in _ARRAYS
        }
        compared = [
            c.name
            for c in released.find_all(exp.Column)
            if c.name in arrays and not isinstance(c.parent, exp.Is)
        ]
        if compared:
            yield problem(
                span,
                f"HAVING compares single values, and `{compared[0]}` is an array",
                f"leave {compared[0]} out of HAVING",
            )


def order_reads_released(draft: Draft) -> Iterator[Problem]:
    """Reject ORDER BY but for released columns, by name or place, and windows before them, up or down."""
    order = draft.select.args.get("order")
    for place, (ordering, twin) in enumerate(
        zip(order.expressions, draft.canonical.args["order"].expressions, strict=True)
        if order is not None
        else ()
    ):
        if _window_start(draft, bare(twin.this)) and place:
            yield problem(
                draft.span(ordering),
                "Windows are shown one after the other, and ordered before the rows in them",
                "write ORDER BY window.start first",
            )
        elif _ordered(draft, twin) is None:
            message = f"ORDER BY names keys and aggregates of the select list, and `{write(twin.this)}` is neither"
            yield problem(
                draft.span(ordering),
                message,
                f"write {_listed(draft)}; windows are shown newest first, with ORDER BY window.start oldest first",
            )


def limit_is_a_number(draft: Draft) -> Iterator[Problem]:
    """Reject a LIMIT that is no whole number from 1."""
    limit = draft.select.args.get("limit")
    if limit is not None and _limit(limit) is None:
        place = (
            draft.span(limit)
            if any("start" in part.meta for part in limit.walk())
            else draft.clause_span
        )
        yield problem(
            place,
            "LIMIT takes a whole number from 1",
            "write LIMIT 10: 10 rows of each window are shown",
        )


def read_reading(draft: Draft) -> Reading:
    """Return how a draft without problems is read; conditions and orders in DuckDB's SQL, which
    reads the rows."""
    having, order, limit = (draft.canonical.args.get(name) for name in ("having", "order", "limit"))
    condition = _with_released_columns(draft, having.this)[0] if having is not None else None
    ordered = (
        [_ordered(draft, ordering) for ordering in order.expressions] if order is not None else []
    )
    return Reading(
        condition.sql(dialect="duckdb") if condition is not None else None,
        tuple(ordering.sql(dialect="duckdb") for ordering in ordered if ordering is not None),
        _limit(limit) if limit else None,
        condition is not None and _private(draft, condition),
    )


def _private(draft: Draft, condition: exp.Expr) -> bool:
    """Tell whether a condition says more than how aggregates compare with numbers."""
    aggregates = {item.name for item in draft.items if item.kind is Kind.AGGREGATE}
    texts = any(literal.is_string for literal in condition.find_all(exp.Literal))
    return texts or any(column.name not in aggregates for column in condition.find_all(exp.Column))


def _quoted(item: Item) -> exp.Column:
    return exp.Column(this=exp.Identifier(this=item.name, quoted=True))


def _listed(draft: Draft) -> str:
    return ", ".join(item.name or "" for item in output_items(draft))


def _window_start(draft: Draft, node: exp.Expr) -> exp.Column | None:
    """Return the released column of times where a piece of text means the window."""
    is_start = isinstance(node, exp.Column) and node.sql().lower() == START
    if not draft.window_calls or not (is_start or names_window(node)):
        return None
    return exp.Column(this=exp.Identifier(this=START, quoted=True))


def _column(draft: Draft, node: exp.Expr) -> exp.Column | None:
    """Return the released column that a piece of text means: its name, or the same expression."""
    for item in output_items(draft):
        if (isinstance(node, exp.Column) and node.name.lower() == item.name) or write(
            node
        ) == item.sql:
            return _quoted(item)
    return None


def _with_released_columns(draft: Draft, node: exp.Expr) -> tuple[exp.Expr, list[str]]:
    """Return a condition with released columns in the place of what means them, and what means nothing."""
    condition = exp.Paren(this=node.copy())
    unknown = []
    for part in list(condition.find_all(exp.Column, exp.Anonymous)):
        if part.parent is None or part.find_ancestor(exp.Anonymous) is not None:
            continue  # an argument of an aggregate
        column = _column(draft, part)
        if column is None:
            unknown.append(write(part))
        else:
            part.replace(column)
    return condition, unknown


def _ordered(draft: Draft, node: exp.Expr) -> exp.Expr | None:
    target = bare(node.this)
    if isinstance(target, exp.Literal):
        place = int(target.name) if target.name.isdigit() else 0
        item = draft.items[place - 1] if 1 <= place <= len(draft.items) else None
        column = _quoted(item) if item in output_items(draft) and item is not None else None
    else:
        column = _window_start(draft, target) or _column(draft, target)
    if column is None:
        return None
    ordered = node.copy()
    ordered.set("this", column)
    return ordered


def _limit(node: exp.Expr) -> int | None:
    value = node.expression
    digits = value.name if isinstance(value, exp.Literal) and not value.is_string else ""
    return int(digits) if digits.isdigit() and 1 <= len(digits) <= 9 and int(digits) >= 1 else None


RULES = (having_reads_released, order_reads_released, limit_is_a_number)
