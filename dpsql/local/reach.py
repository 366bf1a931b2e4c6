"""How many times as long as its records a query can make texts: told by its own words, before any record is read.

DuckDB computes some 2,000 records at once. Where each of them can become a long text, one person with many records could fill the memory, so such
a query reads a few records at a time. Time may depend on that, and results do not.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from dpsql.local.expressions import parse_expression
from dpsql.sql.growth import LONGEST
from dpsql.sql.values import bare

ORDINARY = 100
"""Characters of a text in most records: lengths that a query names are measured by them."""

MOST = 1_000.0
AT_ONCE = 32
"""Records that are computed together where their texts may be long."""


def makes_long_texts(from_sql: str, expressions: Iterable[str]) -> bool:
    """Tell whether a query can make texts more than MOST times as long as an ordinary one.

    Args:
        from_sql: normalised Spark SQL from the word FROM on.
        expressions: what is computed over it.
    """
    times = max([1.0, *(_times(parse_expression(text)) for text in expressions)])
    for select in parse_expression(f"SELECT 1 {from_sql}").find_all(exp.Select):
        times *= max(1.0, *(_times(item) for item in select.expressions))
    return times > MOST


def _times(node: exp.Expr) -> float:
    """Return how many times as long as a column's the text of an expression can be; a literal is measured by ORDINARY."""
    node = bare(node)
    children = [_times(child) for child in node.iter_expressions()]
    name = str(node.name).lower() if isinstance(node, exp.Anonymous) else ""
    if isinstance(node, exp.Column):
        return 1.0
    if isinstance(node, exp.Literal):
        return len(node.name) / ORDINARY
    if isinstance(node, exp.DPipe) or name == "concat":
        return sum(children)
    if name == "replace" and len(node.expressions) > 2:
        return children[0] * (1 + len(bare(node.expressions[2]).name))
    if name in ("lpad", "rpad"):
        digits = bare(node.expressions[1]).name if len(node.expressions) > 1 else ""
        return int(digits) / ORDINARY if digits.isdigit() else LONGEST / ORDINARY
    return max(children, default=0.0)
