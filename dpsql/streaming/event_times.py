"""Event times out of numbers and texts, in the place of their column."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from dpsql.errors import DataError
from dpsql.sources.config import Source
from dpsql.sources.time_units import TEXT, has_unit, wrong_unit
from dpsql.sql.clock_words import NO_DATE
from dpsql.streaming import formats

MICROSECONDS = {
    "seconds": "try_multiply(cast({0} AS BIGINT), 1000000L)",
    "milliseconds": "try_multiply(cast({0} AS BIGINT), 1000L)",
    "microseconds": "cast({0} AS BIGINT)",
    "nanoseconds": "{0} div 1000L - CASE WHEN {0} % 1000L < 0 THEN 1L ELSE 0L END",
}
"""Whole numbers in microseconds, rounded down; NULL where these are too large."""

_REALS = {
    "seconds": "cast({0} AS DOUBLE) * 1e6D",
    "milliseconds": "cast({0} AS DOUBLE) * 1e3D",
    "microseconds": "cast({0} AS DOUBLE)",
    "nanoseconds": "cast({0} AS DOUBLE) / 1e3D",
}


def with_event_time(frame: DataFrame, source: Source) -> DataFrame:
    """Return a frame whose event time is a TIMESTAMP, where the source says in what unit it is.

    Raises:
        DataError: it has a type that has no such unit.
    """
    if not source.event_time_unit:
        return frame
    listed = []
    for field in frame.schema:
        text = formats.quoted(field.name)
        is_time = field.name.lower() == source.event_time
        value = _value(text, field, source.event_time_unit) if is_time else text
        listed.append(f"{value} AS {text}")
    return frame.selectExpr(*listed)


def _value(text: str, field: T.StructField, unit: str) -> str:
    kind = field.dataType.simpleString()
    if not has_unit(kind, unit):
        raise DataError(wrong_unit(field.name, kind, unit))
    if unit == TEXT:
        return f"CAST(regexp_replace({text}, '{NO_DATE}', 'x') AS TIMESTAMP)"
    if isinstance(field.dataType, T.FloatType | T.DoubleType):
        product = _REALS[unit].format(text)
        return f"CASE WHEN {product} BETWEEN -1e17D AND 1e18D THEN timestamp_micros(floor({product})) END"
    return f"timestamp_micros({MICROSECONDS[unit].format(text)})"
