"""One canonical spelling: equal questions give equal text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlglot import exp

from dpsql.sql.dialect import DpGenerator, DpSpark

# Words that sqlglot's tokenizer knows but that Spark and sqlglot both read as plain column names.
_PLAIN_WORDS = frozenset(
    [
        "DATE",
        "TIMESTAMP",
        "TIME",
        "COMMENT",
        "FORMAT",
        "FILE",
        "INDEX",
        "SESSION",
        "VIEW",
        "TEXT",
        "NUMBER",
        "PERCENT",
        "FIRST",
        "TRIGGER",
    ]
)
_KEYWORDS = (
    frozenset(DpSpark.Tokenizer.KEYWORDS) | {"STREAM"}
) - _PLAIN_WORDS  # Spark 4 reads `FROM stream x` as a clause
_LEVELS: tuple[tuple[type[exp.Expr], ...], ...] = (
    (exp.Or,),
    (exp.And,),
    (exp.Not,),
    (exp.Predicate, exp.Between, exp.In, exp.Is, exp.Escape, exp.NullSafeEQ, exp.NullSafeNEQ),
    (exp.Binary, exp.Neg, exp.BitwiseNot),
)
_NOT = 2
_ARITHMETIC = 4
_BITWISE = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)
_ATOMS = (exp.Dot, exp.Kwarg, exp.Func)


def canonical(select: exp.Select) -> exp.Select:
    """A copy in which equal questions are equal: lower-case names, no needless parentheses, aliases or qualifiers."""
    copy = select.copy()
    copy.set("hint", None)
    for query in list(copy.find_all(exp.Subquery)):
        while isinstance(query.this, exp.Subquery) and not query.this.args.get("alias"):
            query.set("this", query.this.this)
    for column in list(copy.find_all(exp.Column)):
        _drop_qualifier(column)
    for name in copy.find_all(exp.Identifier):
        name.set("this", name.this.lower())
        name.set("quoted", needs_quotes(name.this))
    for call in copy.find_all(exp.Anonymous):
        call.set("this", call.name.lower())
    for word in copy.find_all(exp.Var):
        unit = word.name.upper()
        word.set("this", unit.removesuffix("S") if isinstance(word.parent, exp.Interval) else unit)
    for paren in list(copy.find_all(exp.Paren)):
        paren.replace(paren.this)
    for chain in list(copy.find_all(exp.And, exp.Or)):
        _lean_left(chain)
    for node in list(copy.walk()):
        _wrap_operands(node)
    return copy


def write(node: exp.Expr) -> str:
    """The canonical text of a node of a canonical tree."""
    return DpGenerator(dialect=DpSpark(), comments=False, normalize_functions="lower").generate(
        node
    )


def write_from(select: exp.Select) -> str:
    """Everything from the word FROM on up to GROUP BY."""
    parts = {name: select.args.get(name) for name in ("from_", "joins", "laterals", "where")}
    whole = exp.Select(
        expressions=[exp.Star()], **{name: part for name, part in parts.items() if part}
    )
    return write(whole).removeprefix("SELECT * ")


def quoted(name: str) -> str:
    """A name as Spark SQL."""
    return "`" + name.replace("`", "``") + "`" if needs_quotes(name) else name


def needs_quotes(name: str) -> bool:
    """Whether Spark would not read the name as it stands."""
    return not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or name.upper() in _KEYWORDS


def _drop_qualifier(column: exp.Column) -> None:
    table = column.args.get("table")
    select = column.find_ancestor(exp.Select)
    clause = select.args.get("from_") if select else None
    if (
        not table
        or select is None
        or clause is None
        or clause.this is None
        or select.args.get("joins")
        or select.args.get("laterals")
    ):
        return
    parts = column.parts
    if parts[0].name.lower() != clause.this.alias_or_name.lower():
        return
    rest = list(parts[1:])
    for place in ("this", "table", "db", "catalog"):
        column.set(place, rest.pop() if rest else None)


def _lean_left(chain: exp.Expr) -> None:
    """`a AND (b AND c)` as `(a AND b) AND c`: the parentheses never matter."""
    kind = type(chain)
    if isinstance(chain.parent, kind):
        return
    operands = list(_operands(chain, kind))
    while len(operands) > 2:
        operands[:2] = [kind(this=operands[0], expression=operands[1])]
    chain.set("this", operands[0])
    chain.set("expression", operands[1])


def _operands(chain: exp.Expr, kind: type) -> Iterable[exp.Expr]:
    stack = [chain]
    while stack:
        node = stack.pop()
        if isinstance(node, kind):
            stack.extend((node.expression, node.this))
        else:
            yield node


def _level(node: object) -> int | None:
    """How loosely the operator binds, or None for anything that needs no parentheses."""
    if isinstance(node, _ATOMS) and not isinstance(
        node, (exp.And, exp.Or, exp.RegexpLike, exp.Like, exp.ILike)
    ):
        return None
    return next((i for i, kinds in enumerate(_LEVELS) if isinstance(node, kinds)), None)


def _wrap_operands(node: exp.Expr) -> None:
    level = _level(node)
    if level is None and not isinstance(node, (exp.Bracket, exp.Dot)):
        return
    for place in ("this", "expression", "low", "high"):
        operand = node.args.get(place)
        inner = _level(operand)
        if inner is None or (isinstance(node, exp.Escape) and place == "this"):
            continue
        chained = (
            place == "this"
            and type(operand) is type(node)
            and inner in (0, 1, _ARITHMETIC)
            and isinstance(node, exp.Binary)
        )
        looser_parent = (
            level is not None
            and level < inner
            and level != _NOT
            and not isinstance(operand, _BITWISE)
        )
        if not (chained or looser_parent):
            node.set(place, exp.Paren(this=operand))
