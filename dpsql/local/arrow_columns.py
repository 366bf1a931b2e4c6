"""Columns of Arrow as Spark has them: one conversion for Parquet files, Delta tables and frames.

What is wrong with a type is told before a value is read. No value raises: a time outside the years 1 to 9999 is NULL, and bytes of a text
that are no UTF-8 become U+FFFD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.local.spark_text import FIRST_DAY, LAST_DAY
from dpsql.local.spark_types import INTEGER_BITS, Columns, SparkType

DAY_SECONDS = 86_400
DAY_MS = DAY_SECONDS * 1_000
DAY_US = DAY_MS * 1_000
PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_INTEGERS = {bits: name for name, bits in INTEGER_BITS.items()}
_UNSIGNED = {8: "smallint", 16: "int", 32: "bigint"}
_OTHERS: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("timestamp", pa.types.is_timestamp),
    ("date", pa.types.is_date),
    ("boolean", pa.types.is_boolean),
    ("void", pa.types.is_null),
    ("string", pa.types.is_string),
    ("string", pa.types.is_large_string),
    ("string", pa.types.is_string_view),
    ("string", lambda kind: isinstance(kind, pa.UuidType)),
    ("binary", pa.types.is_binary),
    ("binary", pa.types.is_large_binary),
    ("binary", pa.types.is_binary_view),
    ("binary", pa.types.is_fixed_size_binary),
    ("double", pa.types.is_float64),
    ("float", pa.types.is_floating),
)
_ARROW = {
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.large_string(),
    "binary": pa.large_binary(),
    "timestamp": pa.timestamp("us"),
    "void": pa.null(),
    "other": pa.bool_(),
}


def spark_type(kind: pa.DataType) -> SparkType:
    """Return the Spark type that holds every value of an Arrow type; `other` where expressions may touch none."""
    if pa.types.is_dictionary(kind):
        return spark_type(kind.value_type)
    if pa.types.is_uint64(kind):
        return SparkType("decimal", 20, 0)
    if pa.types.is_unsigned_integer(kind):
        return SparkType(_UNSIGNED[kind.bit_width])
    if pa.types.is_signed_integer(kind):
        return SparkType(_INTEGERS[kind.bit_width])
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return SparkType("decimal", kind.precision, kind.scale)
    return SparkType(next((name for name, test in _OTHERS if test(kind)), "other"))


def table(batches: Iterable[pa.RecordBatch], columns: Columns) -> pa.Table:
    """Return the columns of some batches, converted; a column that a batch lacks is NULL.

    Args:
        batches: with columns whose types fit, under their names or others of the same letters.
        columns: names and types.
    """
    schema = pa.schema([(name, arrow_type(kind)) for name, kind in columns])
    return pa.Table.from_batches([_typed(batch, columns) for batch in batches], schema)


def arrow_type(kind: SparkType) -> pa.DataType:
    """Return the Arrow type of a converted column; of a value that no expression may touch it is told that it is there."""
    return _ARROW.get(kind.name) or kind.arrow


def stored(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a Parquet file as Spark sees them: without the types that Arrow notes beside Parquet's own."""
    return pa.schema([field.with_type(_stored(field.type)) for field in schema])


def _stored(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type
    return pa.int64() if pa.types.is_duration(kind) else kind


def _typed(batch: pa.RecordBatch, columns: Columns) -> pa.RecordBatch:
    places = {name.lower(): place for place, name in enumerate(batch.schema.names)}
    arrays = [
        converted(batch.column(places[name]), kind)
        if name in places
        else pa.nulls(batch.num_rows, arrow_type(kind))
        for name, kind in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])


def converted(column: pa.Array, kind: SparkType) -> pa.Array:
    """Return the values of a type that fits."""
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), arrow_type(kind))
    if pa.types.is_dictionary(column.type):
        return converted(column.dictionary, kind).take(column.indices)
    if convert := _CONVERSIONS.get(kind.name):
        return convert(column)
    return column.cast(arrow_type(kind), safe=False)


def _integers(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers behind dates or times, and where there is none."""
    numbers = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    is_missing = numbers.is_null().to_numpy(zero_copy_only=False)
    return numbers.fill_null(0).to_numpy().astype(np.int64), is_missing


def _microseconds(column: pa.Array) -> pa.Array:
    if pa.types.is_date(column.type):
        numbers, is_missing = _integers(_days(column))
        return pa.array(numbers * DAY_US, pa.timestamp("us"), mask=is_missing)
    if column.type.unit == "us" and _within_calendar(column):
        return column.view(pa.timestamp("us"))
    numbers, is_missing = _integers(column)
    per_second = PER_SECOND[column.type.unit]
    is_missing |= numbers < FIRST_DAY * DAY_SECONDS * per_second
    is_missing |= numbers >= (LAST_DAY + 1) * DAY_SECONDS * per_second
    numbers = np.where(is_missing, 0, numbers)
    us = numbers // 1_000 if column.type.unit == "ns" else numbers * (1_000_000 // per_second)
    return pa.array(us, pa.timestamp("us"), mask=is_missing)


def _within_calendar(column: pa.Array) -> bool:
    """Tell whether all times in microseconds are within the years 1 to 9999."""
    first, last = pc.min_max(column.view(pa.int64())).as_py().values()
    return first is not None and first >= FIRST_DAY * DAY_US and last < (LAST_DAY + 1) * DAY_US


def _days(column: pa.Array) -> pa.Array:
    numbers, is_missing = _integers(column)
    days = numbers // DAY_MS if pa.types.is_date64(column.type) else numbers
    is_missing |= (days < FIRST_DAY) | (days > LAST_DAY)
    return pa.array(np.where(is_missing, 0, days), pa.int32(), mask=is_missing).view(pa.date32())


def _text(column: pa.Array) -> pa.Array:
    if isinstance(column.type, pa.UuidType):
        return pa.array([value and str(value) for value in column.to_pylist()], pa.large_string())
    content = column.cast(pa.large_binary())
    text = content.view(pa.large_string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        texts = [
            value.decode("utf-8", "replace") if value else value for value in content.to_pylist()
        ]
        return pa.array(texts, pa.large_string())
    return text


_CONVERSIONS: Mapping[str, Callable[[pa.Array], pa.Array]] = {
    "timestamp": _microseconds,
    "date": _days,
    "string": _text,
    "other": lambda column: pc.if_else(column.is_valid(), True, pa.scalar(None, pa.bool_())),
}
