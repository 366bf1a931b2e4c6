"""The Spark types that the local engine knows, and Spark's conversions between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa
import sqlglot
from sqlglot import exp

from dpsql.errors import ConfigError, SparkOnly
from dpsql.local.allowed import CASTS

# The Spark types that the local engine knows, their DuckDB and Arrow spelling, and schemas
# written as DDL.

INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
INTEGER_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
MAX_PRECISION = 38


@dataclass(frozen=True)
class SparkType:
    """One Spark type by its SQL name.

    `void` is the type of NULL; `other` is any type that expressions may not touch (arrays, maps, structs, intervals).
    `precision` and `scale` are for `decimal` only.
    """

    name: str
    precision: int = 0
    scale: int = 0

    @property
    def is_integer(self) -> bool:
        """Whether values are integers: TINYINT to BIGINT."""
        return self.name in INTEGER_BITS

    @property
    def is_real(self) -> bool:
        """Whether values are binary floating point."""
        return self.name in ("float", "double")

    @property
    def is_number(self) -> bool:
        """Whether values are integers, binary floating point or decimals."""
        return self.is_integer or self.is_real or self.name == "decimal"

    @property
    def duckdb(self) -> str:
        """The DuckDB type that holds the same values."""
        if self.name == "decimal":
            return f"DECIMAL({self.precision}, {self.scale})"
        return _DUCKDB[self.name]

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of a histogram's key column."""
        if self.name == "decimal":
            return pa.decimal128(self.precision, self.scale)
        return _ARROW[self.name]

    def __str__(self) -> str:
        if self.name == "decimal":
            return f"DECIMAL({self.precision}, {self.scale})"
        return "NESTED" if self.name == "other" else self.name.upper()


_DUCKDB = {
    "boolean": "BOOLEAN",
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "void": '"NULL"',
}

_ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}

_FROM_SQLGLOT = {name.upper(): name for name in (*_ARROW, "float", "double")} | {
    "TEXT": "string",
    "VARCHAR": "string",
    "CHAR": "string",
    "VARBINARY": "binary",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp",  # zone-less times are read as UTC
    "DATETIME": "timestamp",
}

Columns = tuple[tuple[str, SparkType], ...]


def from_sqlglot(node: exp.DataType) -> SparkType:
    """Return the Spark type that a parsed type name means; `other` for the nested ones."""
    kind = node.this.name if hasattr(node.this, "name") else str(node.this)
    if kind == "DECIMAL":
        sizes = [int(size.name) for size in node.expressions]
        precision, scale = (sizes + [10, 0][len(sizes) :])[:2]
        return SparkType("decimal", precision, scale)
    return SparkType(_FROM_SQLGLOT.get(kind, "other"))


def parse_ddl(ddl: str, place: str) -> Columns:
    """Return the column names and types of a schema like `user_id STRING, ts TIMESTAMP`.

    Args:
        ddl: Spark DDL.
        place: where it was written, for the message.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        table = sqlglot.parse_one(f"CREATE TABLE t ({ddl})", read="spark")
    except sqlglot.errors.SqlglotError:
        raise ConfigError(
            f"schema {ddl!r} is not readable: write it like `user_id STRING, ts TIMESTAMP` at {place}"
        ) from None
    schema = table.find(exp.Schema)
    definitions = list(schema.expressions) if schema else []
    if not definitions or not all(
        isinstance(column, exp.ColumnDef) and column.kind for column in definitions
    ):
        raise ConfigError(
            f"schema {ddl!r} is not readable: write it like `user_id STRING, ts TIMESTAMP` at {place}"
        )
    return tuple((column.name, from_sqlglot(column.kind)) for column in definitions)


def widest(types: Iterable[SparkType]) -> SparkType | None:
    """Return the one type that Spark brings values of all these types to (IN, CASE, comparisons), or None where we do not follow it."""
    kinds = sorted(
        {kind for kind in types if kind.name != "void"},
        key=lambda kind: (kind.name, kind.precision, kind.scale),
    )
    names = {kind.name for kind in kinds}
    if "other" in names:
        return None
    if len(kinds) <= 1:
        return kinds[0] if kinds else SparkType("void")
    if all(kind.is_integer for kind in kinds):
        return max(kinds, key=lambda kind: INTEGER_BITS[kind.name])
    if "double" in names and all(kind.is_number for kind in kinds):
        return SparkType("double")
    if names <= {*INTEGER_BITS, "decimal"}:
        return _widest_decimal(kinds)
    return SparkType("timestamp") if names == {"date", "timestamp"} else None


def as_decimal(kind: SparkType) -> SparkType:
    """Return the decimal type that holds every value of an integer type."""
    return SparkType("decimal", INTEGER_DIGITS[kind.name], 0) if kind.is_integer else kind


def _widest_decimal(types: Iterable[SparkType]) -> SparkType | None:
    decimals = [as_decimal(kind) for kind in types]
    scale = max(kind.scale for kind in decimals)
    integer_digits = max(kind.precision - kind.scale for kind in decimals)
    return (
        SparkType("decimal", integer_digits + scale, scale)
        if integer_digits + scale <= MAX_PRECISION
        else None
    )


# DuckDB text with its Spark type, and Spark's conversions between types (ANSI mode off): casts,
# and the common type of comparisons.

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


def spark_only(feature: str, instead: str = "") -> NoReturn:
    """Refuse something that the local engine does not compute; `instead` is a spelling that it does."""
    raise SparkOnly(feature, instead)


def cast(value: Typed, target: SparkType) -> Typed:
    """Convert a value by Spark's CAST (ANSI mode off): what cannot be cast is NULL."""
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


def unify(values: Sequence[Typed], expression: str) -> list[Typed]:
    """Return all values in the type that Spark brings them to; `what` names the expression in a refusal."""
    values = _dated(values)
    common = widest(value.type for value in values)
    if common is None:
        return spark_only(f"{expression} of {shown_types(values)}")
    return [widen(value, common) for value in values]


def compare(operator: str, left: Typed, right: Typed) -> Typed:
    """Return a comparison, in the common type of both sides."""
    left, right = unify([left, right], operator)
    return Typed(f"({left.sql} {operator} {right.sql})", BOOLEAN)


def widen(value: Typed, target: SparkType) -> Typed:
    """Return a value in a type that holds all values of its own."""
    if value.type == target or target.name == "void":
        return value
    return (
        Typed(f"CAST({value.sql} AS {target.duckdb})", target)
        if target.name == "decimal"
        else cast(value, target)
    )


def shown_types(values: Sequence[Typed]) -> str:
    """Return the types, for a message."""
    return ", ".join(str(value.type) for value in values)


def quote(text: str) -> str:
    """Return a DuckDB string literal."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Return a name between the quotes of DuckDB."""
    return '"' + name.replace('"', '""') + '"'


def _group(kind: SparkType) -> str:
    return "integer" if kind.is_integer else kind.name


def _dated(values: Sequence[Typed]) -> Sequence[Typed]:
    """Read a text literal next to a DATE or TIMESTAMP as one, as in `ts >= '2024-01-01'`."""
    times = {value.type.name for value in values if value.type.name in ("date", "timestamp")}
    if len(times) != 1:
        return values
    target = SparkType(times.pop())
    return [cast(value, target) if isinstance(value.literal, str) else value for value in values]


def arrow_types(key_types: Sequence[SparkType], keys: int) -> list[pa.DataType]:
    """Return the types of the key columns; strings where no input was read, and none is known."""
    return [kind.arrow for kind in key_types or [SparkType("string")] * keys]
