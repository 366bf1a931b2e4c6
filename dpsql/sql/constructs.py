"""Which node types a row-local expression may have, and what is said of some others, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

ALLOWED_NODES: frozenset[type[exp.Expr]] = frozenset(
    {
        exp.Add,
        exp.And,
        exp.Anonymous,
        exp.Between,
        exp.BitwiseAnd,
        exp.BitwiseNot,
        exp.BitwiseOr,
        exp.BitwiseXor,
        exp.Boolean,
        exp.Bracket,
        exp.Case,
        exp.Cast,
        exp.Column,
        exp.DPipe,
        exp.DataType,
        exp.DataTypeParam,
        exp.Div,
        exp.Dot,
        exp.EQ,
        exp.Escape,
        exp.Extract,
        exp.GT,
        exp.GTE,
        exp.HexString,
        exp.ILike,
        exp.Identifier,
        exp.If,
        exp.In,
        exp.IntDiv,
        exp.Is,
        exp.LT,
        exp.LTE,
        exp.Like,
        exp.Literal,
        exp.Mod,
        exp.Mul,
        exp.NEQ,
        exp.Neg,
        exp.Not,
        exp.Null,
        exp.NullSafeEQ,
        exp.NullSafeNEQ,
        exp.Or,
        exp.Paren,
        exp.RawString,
        exp.RegexpLike,
        exp.Sub,
        exp.TryCast,
        exp.Var,
    }
)


@dataclass(frozen=True)
class Refusal:
    """What is said of a construct that is not accepted."""

    message: str
    hint: str


_SUBQUERY = Refusal(
    "Sub-queries inside expressions are not accepted", "sub-queries may stand in FROM only"
)
_OTHER_ROWS = "each row of FROM must come from one record alone"

REFUSED_NODES: Mapping[type[exp.Expr], Refusal] = {
    exp.Subquery: _SUBQUERY,
    exp.Exists: _SUBQUERY,
    exp.Window: Refusal(
        f"Window functions (OVER) are not accepted: {_OTHER_ROWS}",
        "leave it out; a user's records are bounded by max_rows_contributed",
    ),
    exp.Filter: Refusal(
        "FILTER is not accepted", "aggregate CASE WHEN condition THEN x END instead"
    ),
    exp.IgnoreNulls: Refusal(
        "IGNORE NULLS is not accepted", "leave it out: COUNT(x), SUM and AVG skip NULL anyway"
    ),
    exp.RespectNulls: Refusal(
        "RESPECT NULLS is not accepted", "leave it out: COUNT(x), SUM and AVG skip NULL"
    ),
    exp.Concat: Refusal(
        "Two string literals stand side by side",
        "write one literal; a quote inside a string is written \\'",
    ),
    exp.Interval: Refusal(
        "Adding an interval can fail on extreme times, and a failing job would tell that they exist",
        "write try_add(ts, INTERVAL 1 HOUR) or try_subtract(...), which give NULL instead",
    ),
    exp.Distinct: Refusal(
        "DISTINCT is not accepted here", "only COUNT(DISTINCT privacy unit) is accepted"
    ),
    exp.Star: Refusal("`*` cannot stand here", "name the columns"),
    exp.Lambda: Refusal("Functions with `->` are not accepted", "use plain functions"),
    exp.Kwarg: Refusal(
        "Named arguments are accepted in SUM and AVG only", "write the arguments without names"
    ),
    exp.Tuple: Refusal("A list in parentheses cannot stand here", "name one column or expression"),
}

ROOMY_CALLS = frozenset({"try_add", "try_subtract"})
"""Calls inside which an interval is accepted."""

UNUSUAL_FORMS: Mapping[type[exp.Expr], tuple[str, ...]] = {
    exp.Cast: ("format", "action", "default"),
    exp.TryCast: ("format", "action", "default"),
    exp.Between: ("symmetric",),
    exp.In: ("unnest", "field", "is_global"),
}
"""Parts of accepted nodes that sqlglot reads and Spark does not."""

OUTER = "outer"
INNER = "inner"


@dataclass(frozen=True)
class Clause:
    """A clause of SELECT that is refused: its argument in the tree, the first words of it in the text, and why."""

    argument: str
    words: tuple[str, ...]
    message: str
    hint: str
    places: tuple[str, ...] = (OUTER, INNER)


REFUSED_CLAUSES: tuple[Clause, ...] = (
    Clause(
        "distinct",
        ("DISTINCT",),
        "DISTINCT is not accepted",
        "leave it out: the groups of a query are distinct anyway",
        (OUTER,),
    ),
    Clause(
        "distinct",
        ("DISTINCT",),
        f"DISTINCT in FROM is not accepted: {_OTHER_ROWS}",
        "leave it out: max_rows_per_group = 1 counts a user once per key",
        (INNER,),
    ),
    Clause(
        "qualify", ("QUALIFY",), "QUALIFY is not accepted", "filter the histogram when reading it"
    ),
    Clause(
        "order",
        ("ORDER BY",),
        "ORDER BY in FROM is not accepted",
        "leave it out: the order of records changes nothing",
        (INNER,),
    ),
    Clause("sort", ("SORT BY",), "SORT BY is not accepted", "sort when reading the histogram"),
    Clause("cluster", ("CLUSTER BY",), "CLUSTER BY is not accepted", "leave it out"),
    Clause("distribute", ("DISTRIBUTE BY",), "DISTRIBUTE BY is not accepted", "leave it out"),
    Clause(
        "limit",
        ("LIMIT", "FETCH", "TOP"),
        f"LIMIT in FROM is not accepted: {_OTHER_ROWS}",
        "filter with WHERE",
        (INNER,),
    ),
    Clause("offset", ("OFFSET",), "OFFSET is not accepted", "cut the histogram when reading it"),
    Clause(
        "windows",
        ("WINDOW",),
        "A WINDOW clause is not accepted",
        "write window(event_time, '1 day') in GROUP BY",
    ),
    Clause(
        "with_",
        ("WITH",),
        "WITH is not accepted in FROM",
        "write it once, before the outer SELECT",
        (INNER,),
    ),
    Clause(
        "group",
        ("GROUP BY",),
        f"GROUP BY in FROM is not accepted: {_OTHER_ROWS}",
        "group in the outer query",
        (INNER,),
    ),
    Clause(
        "having",
        ("HAVING",),
        f"HAVING in FROM is not accepted: {_OTHER_ROWS}",
        "filter with WHERE",
        (INNER,),
    ),
    Clause(
        "hint",
        ("WITH",),
        "The differential-privacy clause stands in a sub-query",
        "write it once, in the outer SELECT",
        (INNER,),
    ),
)

ACCEPTED_CLAUSES = frozenset(
    {"expressions", "from_", "joins", "laterals", "where", "group", "hint"}
)
"""Arguments of a Select node that rules of their own look at."""

READING = frozenset({"having", "order", "limit"})
"""Those of the outer query that say how its rows are shown."""

ACCEPTED_TABLE_PARTS = frozenset({"this", "alias", "db", "catalog"})
"""Arguments of a Table or Subquery node that rules of their own look at."""
