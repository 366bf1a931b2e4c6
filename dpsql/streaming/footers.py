"""Times of Parquet files as their footers describe them: of milliseconds and nanoseconds Spark reads the numbers, which no value can end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from dpsql.errors import DataError
from dpsql.sources.config import Source
from dpsql.streaming import formats, internals
from dpsql.streaming.event_times import MICROSECONDS

UNITS = {"MILLIS": "milliseconds", "MICROS": "microseconds", "NANOS": "nanoseconds"}
KINDS = {"UNKNOWN": "void", "FLOAT16": "half", "INTEGER(64,false)": "uint64"}
TIMES = (T.TimestampType, T.TimestampNTZType)
READ_AS_NUMBERS = ("milliseconds", "nanoseconds")
"""Units of which Spark's readers end a job at one value, or at every one."""

_COLUMN = re.compile(
    r"^  \w+ (\w+)(?:\(\d+\))? (.+?)(?: \(([A-Z]\w*(?:\([^()]*\))?)\))?;$", re.MULTILINE
)
"""Stored type, name and annotation of a column, like `TIMESTAMP(NANOS,true)`, as the JVM writes a footer."""

Units = Mapping[str, str]
"""The units of the times in a file by the names of their columns, in lower case; of other columns their stored types."""


def units_of(session: SparkSession, uris: Sequence[str]) -> Iterator[Units]:
    """Yield what the footer of each file says; nothing of a file that is damaged, which its reader tells."""
    for schema in internals.parquet_schemas(session, [unquote(uri) for uri in uris]):
        yield {
            name.lower(): UNITS.get(annotation[10:].partition(",")[0], KINDS.get(annotation, kind))
            for kind, name, annotation in _COLUMN.findall(schema)
        }


def numbers_of(session: SparkSession, source: Source, stored: DataFrame) -> Units:
    """Return the columns that are to be read as numbers, with their units in the first file, and the event time if it is one; none but of Parquet."""
    if source.format != "parquet":
        return {}
    units: Units = next(units_of(session, sorted(stored.inputFiles())[:1]), {})
    kinds = TIMES if source.schema else (*TIMES, T.LongType)
    return {
        field.name: units[field.name.lower()]
        for field in stored.schema
        if (isinstance(field.dataType, kinds) and units.get(field.name.lower()) in READ_AS_NUMBERS)
        or (source.event_time_unit and field.name.lower() == source.event_time in units)
    }


def stored_schema(schema: T.StructType, numbers: Units) -> T.StructType:
    """Return a schema with the type of numbers where numbers are read."""
    return T.StructType(
        [
            T.StructField(
                field.name,
                T.LongType() if numbers.get(field.name) in READ_AS_NUMBERS else field.dataType,
            )
            for field in schema
        ]
    )


def with_times(frame: DataFrame, units: Units) -> DataFrame:
    """Return a frame with times instead of whole numbers in some columns; NULL where a time has no microseconds."""
    listed = []
    for field in frame.schema:
        name = formats.quoted(field.name)
        unit = units.get(field.name)
        listed.append(
            f"timestamp_micros({MICROSECONDS[unit].format(name)}) AS {name}"
            if unit in READ_AS_NUMBERS
            else name
        )
    return frame.selectExpr(*listed)


def unit_problem(
    session: SparkSession, source: Source, numbers: Units, uris: Sequence[str]
) -> str | None:
    """Say which file has numbers or times of another unit than the first file; None: none has."""
    if not numbers:
        return None
    for uri, units in zip(uris, units_of(session, uris), strict=True):
        for name, unit in numbers.items():
            stored_unit = units.get(name.lower(), unit)
            if stored_unit != unit:
                return (
                    f"file {PurePosixPath(unquote(uri)).name!r} of source {source.name!r}: column `{name}` has {stored_unit}, and {unit} in the "
                    "first file: write both in one unit. Nothing of this file was used"
                )
    return None


def check_units(session: SparkSession, source: Source, numbers: Units, uris: Sequence[str]) -> None:
    """Refuse a file whose numbers have another unit than those of the first file.

    Raises:
        DataError: names it.
    """
    if problem := unit_problem(session, source, numbers, uris):
        raise DataError(problem)
