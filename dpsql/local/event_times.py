"""Event times out of numbers and texts, as DuckDB text of the same values that Spark makes (`dpsql.streaming.event_times`)."""

from __future__ import annotations

from dpsql.errors import DataError
from dpsql.local.spark_types import SparkType, Typed, cast
from dpsql.sources.time_units import TEXT, has_unit, wrong_unit

TIMESTAMP = SparkType("timestamp")
FIRST_US = -62_135_596_800_000_000
LAST_US = 253_402_300_799_999_999
"""0001-01-01 and the end of 9999-12-31."""

_SCALED = {
    "seconds": "({0} * 1000000)",
    "milliseconds": "({0} * 1000)",
    "microseconds": "{0}",
    "nanoseconds": "(({0} - (({0} % 1000) + 1000) % 1000) // 1000)",
}
_REALS = {
    "seconds": "({0} * 1e6::DOUBLE)",
    "milliseconds": "({0} * 1e3::DOUBLE)",
    "microseconds": "{0}",
    "nanoseconds": "({0} / 1e3::DOUBLE)",
}


def event_time(value: Typed, name: str, unit: str) -> str:
    """Return DuckDB text of a time in microseconds, rounded down; NULL beyond the years 1 to 9999.

    Raises:
        DataError: the value has a type that has no such unit.
    """
    if not has_unit(value.type.name, unit):
        raise DataError(wrong_unit(name, str(value.type), unit))
    if unit == TEXT:
        return cast(value, TIMESTAMP).sql
    us = _SCALED[unit].format(f"CAST({value.sql} AS HUGEINT)")
    if value.type.is_real:
        product = _REALS[unit].format(f"CAST({value.sql} AS DOUBLE)")
        us = f"CASE WHEN {product} BETWEEN -1e17 AND 1e18 THEN CAST(floor({product}) AS BIGINT) END"
    return f"CASE WHEN {us} BETWEEN {FIRST_US} AND {LAST_US} THEN make_timestamp(CAST({us} AS BIGINT)) END"
