"""DuckDB text with its Spark type, and Spark's conversions between types (ANSI mode off): casts, and the common type of comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from dpsql.errors import SparkOnly
from dpsql.local.allowed import CASTS
from dpsql.local.spark_types import INTEGER_BITS, SparkType, widest

BIGINT, BOOLEAN, DOUBLE, INT, STRING, VOID = (
    SparkType(name) for name in ("bigint", "boolean", "double", "int", "string", "void")
)
EXACT_DIGITS = 15
"""Decimals up to here are exact as doubles, so both engines convert them alike."""


@dataclass(frozen=True)
class Typed:
    """DuckDB text and the Spark type of its value; `literal` is the value where it is one (text, or a whole number)."""

    sql: str
    type: SparkType
    literal: str | int | None = None


def spark_only(what: str, instead: str = "") -> NoReturn:
    """Refuse something that the local engine does not compute; `instead` is a spelling that it does."""
    raise SparkOnly(what, instead)


def cast(value: Typed, target: SparkType) -> Typed:
    """Spark's CAST (ANSI mode off): what cannot be cast is NULL."""
    source = value.type
    if source == target:
        return Typed(value.sql, target)
    if source.name == "void" and target.name != "other":
        return Typed(f"CAST(NULL AS {target.duckdb})", target)
    if source.is_integer and target.is_integer:
        narrower = INTEGER_BITS[target.name] < INTEGER_BITS[source.name]
        text = (
            f"dpsql_wrap_{INTEGER_BITS[target.name]}({value.sql})"
            if narrower
            else f"CAST({value.sql} AS {target.duckdb})"
        )
        return Typed(text, target)
    if source.name == "decimal" and target.name == "double" and source.precision <= EXACT_DIGITS:
        return Typed(f"CAST({value.sql} AS DOUBLE)", target)
    keys = (
        (source.name, target.name),
        (source.name, _group(target)),
        (_group(source), target.name),
    )
    template = next((CASTS[key] for key in keys if key in CASTS), None)
    if template is None:
        return spark_only(f"CAST of {source} to {target}")
    return Typed(template.format(f"({value.sql})", type=target.duckdb), target)


def unify(values: Sequence[Typed], what: str) -> list[Typed]:
    """All values in the type that Spark brings them to; `what` names the expression in a refusal."""
    values = _dated(values)
    common = widest(value.type for value in values)
    if common is None:
        return spark_only(f"{what} of {shown_types(values)}")
    return [widen(value, common) for value in values]


def compare(operator: str, left: Typed, right: Typed) -> Typed:
    """A comparison, in the common type of both sides."""
    left, right = unify([left, right], operator)
    return Typed(f"({left.sql} {operator} {right.sql})", BOOLEAN)


def widen(value: Typed, target: SparkType) -> Typed:
    """A value in a type that holds all values of its own."""
    if value.type == target or target.name == "void":
        return value
    return (
        Typed(f"CAST({value.sql} AS {target.duckdb})", target)
        if target.name == "decimal"
        else cast(value, target)
    )


def shown_types(values: Sequence[Typed]) -> str:
    """The types, for a message."""
    return ", ".join(str(value.type) for value in values)


def quote(text: str) -> str:
    """A DuckDB string literal."""
    return "'" + text.replace("'", "''") + "'"


def _group(kind: SparkType) -> str:
    return "integer" if kind.is_integer else kind.name


def _dated(values: Sequence[Typed]) -> Sequence[Typed]:
    """A text literal next to a DATE or TIMESTAMP is read as one, as in `ts >= '2024-01-01'`."""
    times = {value.type.name for value in values if value.type.name in ("date", "timestamp")}
    if len(times) != 1:
        return values
    target = SparkType(times.pop())
    return [cast(value, target) if isinstance(value.literal, str) else value for value in values]
