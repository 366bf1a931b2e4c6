"""A row-local Spark expression as DuckDB text of the same value, arithmetic included; what is not on the allow-list is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import sqlglot
from sqlglot import exp

from dpsql.errors import InputError
from dpsql.local.allowed import (
    COMPARISONS,
    DAYS_ONLY,
    EXTRACTED,
    FUNCTIONS,
    KINDS,
    SPELLINGS,
    SYNONYMS,
    TRUNCATION_UNITS,
)
from dpsql.local.spark_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    EXACT_DIGITS,
    INT,
    INTEGER_BITS,
    MAX_PRECISION,
    STRING,
    VOID,
    SparkType,
    Typed,
    as_decimal,
    cast,
    compare,
    from_sqlglot,
    quote,
    shown_types,
    spark_only,
    unify,
    widen,
    widest,
)
from dpsql.sql.dialect import DpSpark
from dpsql.sql.growth import growth
from dpsql.sql.patterns import refusal, searched

# Number literals and arithmetic as Spark computes them: integers wrap around, `/` is of doubles,
# by zero is NULL.


def number(digits: str, sign: str = "") -> Typed:
    """Return a number literal: INT, BIGINT, DECIMAL or, with an exponent, DOUBLE."""
    if digits.isdigit() and -(1 << 63) <= int(sign + digits) < 1 << 63:
        value = int(sign + digits)
        kind = INT if -(1 << 31) <= value < 1 << 31 else BIGINT
        return Typed(f"CAST({value} AS {kind.duckdb})", kind, value)
    if re.fullmatch(r"[\d.]+[eE][+-]?\d{1,2}", digits):
        return Typed(f"CAST('{sign}{digits}' AS DOUBLE)", DOUBLE)
    integer_digits, _, fraction = digits.partition(".")
    precision = max(len((integer_digits + fraction).lstrip("0")), len(fraction), 1)
    if not (integer_digits + fraction).isdigit() or "." not in digits or precision > EXACT_DIGITS:
        return spark_only(sign + digits)
    decimal = SparkType("decimal", precision, len(fraction))
    return Typed(
        f"CAST('{sign}{integer_digits or 0}.{fraction or 0}' AS {decimal.duckdb})", decimal
    )


def negative(value: Typed) -> Typed:
    """Return the negative of a number."""
    if value.type.is_integer:
        return _wrapped(f"-({value.sql})::{wide(value.type)}", value.type)
    if value.type == DOUBLE or value.type.name == "decimal":
        return Typed(f"(-({value.sql}))", value.type)
    return spark_only(f"- of {value.type}")


def arithmetic(operator: str, left: Typed, right: Typed) -> Typed:
    """Return a sum, a difference or a product."""
    common = widest((left.type, right.type))
    if common is None or not (common.is_integer or common.name in ("double", "decimal")):
        return spark_only(f"{operator} of {shown_types((left, right))}")
    if common.name == "decimal":
        return _decimal(operator, left, right)
    left = widen(left, common)
    right = widen(right, common)
    if common == DOUBLE:
        return Typed(f"({left.sql} {operator} {right.sql})", DOUBLE)
    return _wrapped(
        f"({left.sql})::{wide(common)} {operator} ({right.sql})::{wide(common)}", common
    )


def divide(left: Typed, right: Typed) -> Typed:
    """Return the quotient of two doubles, NULL by zero. Spark divides two decimals as decimals, with rounding: refused."""
    if DOUBLE not in (left.type, right.type) and not (
        left.type.is_integer and right.type.is_integer
    ):
        return spark_only(f"/ of {shown_types((left, right))}")
    return _unless_zero("/", cast(left, DOUBLE), cast(right, DOUBLE))


def remainder(left: Typed, right: Typed) -> Typed:
    """Return the remainder, with the sign of the left side, NULL by zero."""
    left, right = unify((left, right), "%")
    if left.type == DOUBLE:
        return _unless_zero("%", left, right)
    if not left.type.is_integer:
        return spark_only(f"% of {left.type}")
    a = left.sql
    b = right.sql
    return Typed(f"CASE WHEN {b} = -1 THEN {a} - {a} WHEN {b} <> 0 THEN {a} % {b} END", left.type)


def whole_quotient(left: Typed, right: Typed) -> Typed:
    """Return the `DIV` of integers: a BIGINT, rounded towards zero, NULL by zero; the smallest BIGINT DIV -1 wraps around."""
    if not (left.type.is_integer and right.type.is_integer):
        return spark_only(f"DIV of {shown_types((left, right))}")
    a = cast(left, BIGINT).sql
    b = cast(right, BIGINT).sql
    return Typed(
        f"CASE WHEN {b} = -1 THEN dpsql_wrap_64(-({a})::HUGEINT) WHEN {b} <> 0 THEN {a} // {b} END",
        BIGINT,
    )


def wide(kind: SparkType) -> str:
    """Return a DuckDB type in which + - * of two such integers cannot overflow."""
    return "HUGEINT" if kind == BIGINT else "BIGINT"


def _wrapped(sql: str, kind: SparkType) -> Typed:
    return Typed(f"dpsql_wrap_{INTEGER_BITS[kind.name]}({sql})", kind)


def _unless_zero(operator: str, left: Typed, right: Typed) -> Typed:
    return Typed(f"CASE WHEN {right.sql} <> 0 THEN {left.sql} {operator} {right.sql} END", DOUBLE)


def _decimal(operator: str, left: Typed, right: Typed) -> Typed:
    """Compute exactly, in the result type that Spark gives; refused where Spark would have to round."""
    left = _as_decimal(left)
    right = _as_decimal(right)
    a = left.type
    b = right.type
    if operator == "*":
        result = SparkType("decimal", a.precision + b.precision + 1, a.scale + b.scale)
    else:
        scale = max(a.scale, b.scale)
        result = SparkType(
            "decimal", max(a.precision - a.scale, b.precision - b.scale) + scale + 1, scale
        )
    if result.precision >= MAX_PRECISION:
        return spark_only(f"{operator} of {shown_types((left, right))}")
    roomy = (
        SparkType("decimal", result.precision, a.scale) if operator == "*" else result
    )  # DuckDB multiplies in the wider of the two
    sides = f"CAST({left.sql} AS {roomy.duckdb}) {operator} {right.sql if operator == '*' else f'CAST({right.sql} AS {roomy.duckdb})'}"
    return Typed(f"CAST({sides} AS {result.duckdb})", result)


def _as_decimal(value: Typed) -> Typed:
    """Return a number as a decimal; a whole-number literal takes only the digits it has."""
    kind = (
        SparkType("decimal", len(str(abs(value.literal))), 0)
        if isinstance(value.literal, int)
        else as_decimal(value.type)
    )
    return Typed(f"CAST({value.sql} AS {kind.duckdb})", kind)


# A row-local Spark expression as DuckDB text of the same value, with its Spark type; what is not
# on the allow-list is refused.

# Every expression is typed on the way, because what Spark computes depends on the types: `1 / 2`
# is 0.5, INT sums wrap around at 32
# bits, BIGINT and DOUBLE are compared as doubles. The SQL made here never raises an error,
# whatever the data.

Resolve = Callable[[exp.Column], Typed]

_OPERATORS: dict[str, Callable[[Typed, Typed], Typed]] = {
    "Add": partial(arithmetic, "+"),
    "Sub": partial(arithmetic, "-"),
    "Mul": partial(arithmetic, "*"),
    "Div": divide,
    "Mod": remainder,
    "IntDiv": whole_quotient,
}
_OPERANDS = ("this", "expression")
_PARTS = {
    "Column": ("this", "table", "db", "catalog"),
    "Literal": ("this", "is_string"),
    "Between": ("this", "low", "high"),
    "In": ("this", "expressions", "query"),
    "Like": ("this", "expression", "negate"),
    "Case": ("this", "ifs", "default"),
    "Cast": ("this", "to"),
    "TryCast": ("this", "to"),
    "Anonymous": ("this", "expressions"),
    "DPipe": ("this", "expression", "safe"),
    "Extract": ("this", "expression"),
    "Div": ("this", "expression", "typed", "safe"),
}
"""What the nodes of a tree may be made of, besides one or two operands."""

_CALLED_CASTS = ("bigint", "boolean", "double", "int", "smallint", "string", "tinyint", "timestamp")


def parse_expression(text: str) -> exp.Expression:
    """Return the tree of a normalised Spark expression; calls keep their own names."""
    tree = sqlglot.parse_one(text, dialect=DpSpark)
    assert isinstance(tree, exp.Expression)
    return tree


def translate(node: exp.Expression, resolve: Resolve) -> Typed:
    """Return the DuckDB text of a Spark expression.

    Args:
        node: tree of the expression (`parse_expression`).
        resolve: what a column reference means.

    Raises:
        InputError: something in it is not on the allow-list.
    """
    kind = type(node).__name__
    if unknown := [
        part
        for part, value in node.args.items()
        if value and part not in _PARTS.get(kind, _OPERANDS)
    ]:
        return spark_only(
            f"{_message_text(node)} ({unknown[0]})"
        )  # a detail that we would otherwise lose in silence
    if kind in _HANDLERS:
        return _HANDLERS[kind](node, resolve)
    if isinstance(node, exp.Column):
        return resolve(node)
    if kind in COMPARISONS:
        return compare(
            COMPARISONS[kind], translate(node.this, resolve), translate(node.expression, resolve)
        )
    if kind in _OPERATORS:
        return _OPERATORS[kind](translate(node.this, resolve), translate(node.expression, resolve))
    return spark_only(_message_text(node), SPELLINGS.get(kind, ""))


def _message_text(node: exp.Expression) -> str:
    """Return what a message calls an expression: a function's name, else its own text."""
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    text = node.sql(dialect=DpSpark)
    return text if len(text) <= 60 else text[:57] + "..."


def _all(nodes: list[exp.Expression], resolve: Resolve) -> list[Typed]:
    return [translate(node, resolve) for node in nodes]


def _literal(node: exp.Expression, _: Resolve) -> Typed:
    if isinstance(node, exp.RawString) or node.is_string:
        return Typed(quote(node.name), STRING, node.name)
    return number(node.name)


def _negative(node: exp.Neg, resolve: Resolve) -> Typed:
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return number(node.this.name, "-")
    return negative(translate(node.this, resolve))


def _condition(node: exp.Expression, resolve: Resolve) -> str:
    value = translate(node, resolve)
    return (
        f"({value.sql})"
        if value.type == BOOLEAN
        else spark_only(f"{_message_text(node)} as a condition")
    )


def _truth(node: exp.Expression, resolve: Resolve) -> str:
    """Return an operand of AND, OR, NOT: a condition or NULL."""
    return "CAST(NULL AS BOOLEAN)" if isinstance(node, exp.Null) else _condition(node, resolve)


def _logical(node: exp.Binary, resolve: Resolve) -> Typed:
    word = "AND" if isinstance(node, exp.And) else "OR"
    return Typed(
        f"({_truth(node.this, resolve)} {word} {_truth(node.expression, resolve)})", BOOLEAN
    )


def _is(node: exp.Is, resolve: Resolve) -> Typed:
    value = translate(node.this, resolve)
    if isinstance(node.expression, exp.Null):
        return Typed(f"({value.sql} IS NULL)", BOOLEAN)
    if isinstance(node.expression, exp.Boolean) and value.type == BOOLEAN:
        return Typed(f"({value.sql} IS NOT DISTINCT FROM {node.expression.this})", BOOLEAN)
    return spark_only(_message_text(node))


def _in(node: exp.In, resolve: Resolve) -> Typed:
    if node.args.get("query") or not node.expressions:
        return spark_only("IN (SELECT ...)")
    value, *choices = unify(_all([node.this, *node.expressions], resolve), "IN")
    return Typed(f"({value.sql} IN ({', '.join(choice.sql for choice in choices)}))", BOOLEAN)


def _between(node: exp.Between, resolve: Resolve) -> Typed:
    value, low, high = _all([node.this, node.args["low"], node.args["high"]], resolve)
    return Typed(f"({compare('>=', value, low).sql} AND {compare('<=', value, high).sql})", BOOLEAN)


def _like(node: exp.Like, resolve: Resolve) -> Typed:
    """Accept only a literal pattern whose backslashes stand before a backslash, % or _: Spark fails on others."""
    value, pattern = _all([node.this, node.expression], resolve)
    text = pattern.literal
    if value.type != STRING or not isinstance(text, str) or "\\" in re.sub(r"\\[\\%_]", "", text):
        return spark_only(_message_text(node))
    word = "NOT LIKE" if node.args.get("negate") else "LIKE"
    if problem := refusal(text, like=True):
        raise InputError(problem)
    characters = searched(text, like=True)
    searched_text = f"dpsql_substring({value.sql}, 1, {characters})" if characters else value.sql
    return Typed(f"({searched_text} {word} {pattern.sql} ESCAPE '\\')", BOOLEAN)


def _case(node: exp.Case, resolve: Resolve) -> Typed:
    subject = translate(node.this, resolve) if node.this else None
    branches = [branch.args["true"] for branch in node.args["ifs"]] + [
        node.args.get("default") or exp.Null()
    ]
    results = unify(_all(branches, resolve), "CASE")
    text = "CASE"
    for branch, result in zip(node.args["ifs"], results[:-1], strict=True):
        test = (
            compare("=", subject, translate(branch.this, resolve)).sql
            if subject
            else _condition(branch.this, resolve)
        )
        text += f" WHEN {test} THEN {result.sql}"
    return Typed(f"{text} ELSE {results[-1].sql} END", results[0].type)


def _cast(node: exp.Cast, resolve: Resolve) -> Typed:
    return cast(translate(node.this, resolve), from_sqlglot(node.to))


def _call(node: exp.Anonymous, resolve: Resolve) -> Typed:
    name = _called(node)
    if name in _SPECIAL:
        return _SPECIAL[name](node, resolve)
    if name in _CALLED_CASTS and len(node.expressions) == 1:
        return cast(translate(node.expressions[0], resolve), SparkType(name))
    if name not in FUNCTIONS:
        return spark_only(name, SPELLINGS.get(name, ""))
    arguments = _all(node.expressions, resolve)
    for signature, duckdb in FUNCTIONS[name].items():
        kinds, result = signature.split(" -> ")
        if (matched := _matched(kinds.split(), arguments, name)) is not None:
            return _fill_form(duckdb, result, _cut_texts(KINDS.get(name, name), result, matched))
    return spark_only(f"{name}({shown_types(arguments)})")


def _extract(node: exp.Extract, resolve: Resolve) -> Typed:
    function = EXTRACTED.get(node.name.upper())
    if function is None:
        return spark_only(_message_text(node), "hour(ts), month(ts), ...")
    return _call(exp.Anonymous(this=function, expressions=[node.expression]), resolve)


def _called(node: exp.Anonymous) -> str:
    """Return the function that is called: of synonyms the one that is known."""
    name = str(node.name).lower()
    return SYNONYMS.get(name, name)


def _matched(kinds: list[str], arguments: list[Typed], name: str) -> list[Typed] | None:
    """Return the arguments as a form takes them, or None."""
    if len(arguments) != len(kinds):
        return None
    cast_arguments = [
        _fitting_argument(argument, form_kind, name)
        for argument, form_kind in zip(arguments, kinds, strict=True)
    ]
    return [argument for argument in cast_arguments if argument] if all(cast_arguments) else None


def _fitting_argument(argument: Typed, form_kind: str, name: str) -> Typed | None:
    kind = form_kind.removesuffix("!")
    if kind == "unit":
        unit = TRUNCATION_UNITS.get(str(argument.literal).lower())
        return (
            Typed(quote(unit), STRING, unit)
            if unit and (name != "trunc" or unit in DAYS_ONLY)
            else None
        )
    if form_kind != kind and argument.literal is None:
        return None
    if kind == "filled":
        return argument if isinstance(argument.literal, str) and argument.literal else None
    if kind == "real":
        return cast(argument, DOUBLE) if argument.type.is_real else None
    fits = kind in (argument.type.name, "any") or (kind == "integer" and argument.type.is_integer)
    return argument if fits else None


def _cut_texts(kind: str, result_type: str, arguments: list[Typed]) -> list[Typed]:
    """Cut the texts among the arguments of a node as Spark's are cut; `made` is its type."""
    literals = {
        place: str(argument.literal)
        for place, argument in enumerate(arguments)
        if argument.literal is not None
    }
    rule = growth(kind, result_type, [argument.type.name for argument in arguments], literals)
    if isinstance(rule, str):
        return spark_only(kind)
    return [_beginning(argument, rule.limit) for argument in arguments]


def _beginning(value: Typed, max_characters: int | None) -> Typed:
    if max_characters is None or value.literal is not None or value.type != STRING:
        return value
    return Typed(f"substr({value.sql}, 1, {max_characters})", STRING)


def _fill_form(duckdb: str, result_type: str, arguments: list[Typed]) -> Typed:
    first = arguments[0].type
    result = first if result_type == "same" else SparkType(result_type)
    sizes = {"bits": INTEGER_BITS.get(first.name, 0), "wide": wide(first)}
    return Typed(
        f"({duckdb.format(*(f'({argument.sql})' for argument in arguments), **sizes)})", result
    )


def _nullif(node: exp.Anonymous, resolve: Resolve) -> Typed:
    left, right = _all(node.expressions, resolve)
    return Typed(
        f"CASE WHEN {compare('=', left, right).sql} THEN NULL ELSE {left.sql} END", left.type
    )


def _choice(node: exp.Anonymous, resolve: Resolve) -> Typed:
    """Return one of two values: if(test, yes, no); nvl2(tested for NULL, yes, no)."""
    test, *branches = node.expressions
    is_if = str(node.name).lower() == "if"
    condition = (
        _condition(test, resolve) if is_if else f"({translate(test, resolve).sql} IS NOT NULL)"
    )
    yes, no = unify(_all(branches, resolve), str(node.name).lower())
    return Typed(f"CASE WHEN {condition} THEN {yes.sql} ELSE {no.sql} END", yes.type)


def _one_of(node: exp.Anonymous, resolve: Resolve) -> Typed:
    """Return the first known value, the greatest or the least."""
    name = _called(node)
    values = unify(_all(node.expressions, resolve), name)
    return Typed(f"{name}({', '.join(value.sql for value in values)})", values[0].type)


def _concat(node: exp.Expression, resolve: Resolve) -> Typed:
    """Join texts; NULL if any part is NULL (DuckDB's own concat skips it)."""
    items = node.expressions if isinstance(node, exp.Anonymous) else [node.this, node.expression]
    parts = _cut_texts("Concat", "string", [_as_text(part) for part in _all(items, resolve)])
    return (
        Typed("(" + " || ".join(f"({part.sql})" for part in parts) + ")", STRING)
        if parts
        else spark_only("concat()")
    )


def _as_text(part: Typed) -> Typed:
    return part if part.type == STRING else cast(part, STRING)


def _null_safe(node: exp.Anonymous, resolve: Resolve) -> Typed:
    left, right = _all(node.expressions, resolve)
    return compare("IS NOT DISTINCT FROM", left, right)


_SPECIAL: dict[str, Callable[[exp.Anonymous, Resolve], Typed]] = {
    "coalesce": _one_of,
    "nullif": _nullif,
    "if": _choice,
    "nvl2": _choice,
    "greatest": _one_of,
    "least": _one_of,
    "concat": _concat,
    "<=>": _null_safe,
}

_HANDLERS: dict[str, Callable[..., Typed]] = {
    "Literal": _literal,
    "RawString": _literal,
    "Boolean": lambda node, _: Typed("TRUE" if node.this else "FALSE", BOOLEAN),
    "Null": lambda node, _: Typed("NULL", VOID),
    "Paren": lambda node, resolve: translate(node.this, resolve),
    "Neg": _negative,
    "And": _logical,
    "Or": _logical,
    "Not": lambda node, resolve: Typed(f"(NOT {_truth(node.this, resolve)})", BOOLEAN),
    "Is": _is,
    "In": _in,
    "Between": _between,
    "Like": _like,
    "Case": _case,
    "Cast": _cast,
    "TryCast": _cast,
    "Anonymous": _call,
    "Extract": _extract,
    "DPipe": _concat,
}
