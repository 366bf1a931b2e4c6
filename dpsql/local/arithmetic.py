"""Number literals and arithmetic as Spark computes them: integers wrap around, `/` is of doubles, by zero is NULL."""

from __future__ import annotations

import re

from dpsql.local.spark_types import INTEGER_BITS, MAX_PRECISION, SparkType, as_decimal, widest
from dpsql.local.typed import (
    BIGINT,
    DOUBLE,
    EXACT_DIGITS,
    INT,
    Typed,
    cast,
    shown_types,
    spark_only,
    unify,
    widen,
)


def number(digits: str, sign: str = "") -> Typed:
    """A number literal: INT, BIGINT, DECIMAL or, with an exponent, DOUBLE."""
    if digits.isdigit() and -(1 << 63) <= int(sign + digits) < 1 << 63:
        value = int(sign + digits)
        kind = INT if -(1 << 31) <= value < 1 << 31 else BIGINT
        return Typed(f"CAST({value} AS {kind.duckdb})", kind, value)
    if re.fullmatch(r"[\d.]+[eE][+-]?\d{1,2}", digits):
        return Typed(f"CAST('{sign}{digits}' AS DOUBLE)", DOUBLE)
    whole, _, fraction = digits.partition(".")
    precision = max(len((whole + fraction).lstrip("0")), len(fraction), 1)
    if not (whole + fraction).isdigit() or "." not in digits or precision > EXACT_DIGITS:
        return spark_only(sign + digits)
    decimal = SparkType("decimal", precision, len(fraction))
    return Typed(f"CAST('{sign}{whole or 0}.{fraction or 0}' AS {decimal.duckdb})", decimal)


def negative(value: Typed) -> Typed:
    """Unary minus."""
    if value.type.is_integer:
        return _wrapped(f"-({value.sql})::{wide(value.type)}", value.type)
    if value.type == DOUBLE or value.type.name == "decimal":
        return Typed(f"(-({value.sql}))", value.type)
    return spark_only(f"- of {value.type}")


def arithmetic(operator: str, left: Typed, right: Typed) -> Typed:
    """`+`, `-` and `*`."""
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
    """`/`: of doubles, NULL by zero. Spark divides two decimals as decimals, with rounding: refused."""
    if DOUBLE not in (left.type, right.type) and not (
        left.type.is_integer and right.type.is_integer
    ):
        return spark_only(f"/ of {shown_types((left, right))}")
    return _unless_zero("/", cast(left, DOUBLE), cast(right, DOUBLE))


def remainder(left: Typed, right: Typed) -> Typed:
    """`%`: the sign of the left side, NULL by zero."""
    left, right = unify((left, right), "%")
    if left.type == DOUBLE:
        return _unless_zero("%", left, right)
    if not left.type.is_integer:
        return spark_only(f"% of {left.type}")
    a = left.sql
    b = right.sql
    return Typed(f"CASE WHEN {b} = -1 THEN {a} - {a} WHEN {b} <> 0 THEN {a} % {b} END", left.type)


def whole_quotient(left: Typed, right: Typed) -> Typed:
    """`DIV` of integers: a BIGINT, rounded towards zero, NULL by zero; the smallest BIGINT DIV -1 wraps around."""
    if not (left.type.is_integer and right.type.is_integer):
        return spark_only(f"DIV of {shown_types((left, right))}")
    a = cast(left, BIGINT).sql
    b = cast(right, BIGINT).sql
    return Typed(
        f"CASE WHEN {b} = -1 THEN dpsql_wrap_64(-({a})::HUGEINT) WHEN {b} <> 0 THEN {a} // {b} END",
        BIGINT,
    )


def wide(kind: SparkType) -> str:
    """A DuckDB type in which + - * of two such integers cannot overflow."""
    return "HUGEINT" if kind == BIGINT else "BIGINT"


def _wrapped(sql: str, kind: SparkType) -> Typed:
    return Typed(f"dpsql_wrap_{INTEGER_BITS[kind.name]}({sql})", kind)


def _unless_zero(operator: str, left: Typed, right: Typed) -> Typed:
    return Typed(f"CASE WHEN {right.sql} <> 0 THEN {left.sql} {operator} {right.sql} END", DOUBLE)


def _decimal(operator: str, left: Typed, right: Typed) -> Typed:
    """Exact, in the result type that Spark gives; refused where Spark would have to round."""
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
    """A whole-number literal takes only the digits it has."""
    kind = (
        SparkType("decimal", len(str(abs(value.literal))), 0)
        if isinstance(value.literal, int)
        else as_decimal(value.type)
    )
    return Typed(f"CAST({value.sql} AS {kind.duckdb})", kind)
