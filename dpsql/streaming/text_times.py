"""TIMESTAMP columns of text (JSON, CSV, XML), cast here and not by Spark's readers, which give a time without a date today's.

A record that is read again tomorrow must be the same record. So such a text is no time: its line is malformed, as on the local engine.
JSON has numbers as well (seconds since 1970), so there a time is read as VARIANT, which keeps what it was.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from dpsql.errors import ConfigError
from dpsql.sources.config import Source
from dpsql.sql.clock_words import NO_DATE

CORRUPT = "dpsql_corrupt_line"
"""Column that is not NULL for a malformed line or message."""

FORMAT = "timestampformat"


def declared(session: SparkSession, source: Source) -> T.StructType:
    """The declared columns.

    Raises:
        ConfigError: there is a TIMESTAMP inside of another type, where it cannot be cast here.
    """
    schema = session.createDataFrame([], str(source.schema)).schema
    inner = next((field.name for field in schema if _is_inside(field.dataType)), None)
    if inner is not None and not _has_format(source):
        raise ConfigError(
            f"source {source.name!r}: column {inner} has a TIMESTAMP inside of another type, which Spark would give today's date where the text "
            "has none: declare it as STRING there and cast it in FROM"
        )
    return schema


def as_read(schema: T.StructType, source: Source) -> T.StructType:
    """The same as the reader is to take them: what this module casts as it stands in the text."""
    raw = T.VariantType() if "json" in (source.format, source.value_format) else T.StringType()
    cast = () if _has_format(source) else _times(schema)
    return T.StructType(
        [
            T.StructField(field.name, raw if field.name in cast else field.dataType)
            for field in schema
        ]
    )


def typed(frame: DataFrame, schema: T.StructType) -> DataFrame:
    """A frame of `as_read`'s with its times; a text that is none is a malformed line, where CORRUPT says so, and else NULL."""
    kinds = {field.name: field.dataType for field in frame.schema}
    times = [name for name in _times(schema) if not isinstance(kinds[name], T.TimestampType)]
    if not times:
        return frame
    listed = []
    wrong = [CORRUPT]
    for name, kind in kinds.items():
        quoted = "`" + name.replace("`", "``") + "`"
        if name in times:
            value, there = _value(quoted, isinstance(kind, T.VariantType))
            wrong.append(f"CASE WHEN {value} IS NULL AND {there} THEN '' END")
            quoted = f"{value} AS {quoted}"
        listed.append(quoted if name != CORRUPT else "")
    told = [f"coalesce({', '.join(wrong)}) AS {CORRUPT}"] if CORRUPT in kinds else []
    return frame.selectExpr(*filter(None, listed), *told)


def _value(name: str, variant: bool) -> tuple[str, str]:
    """SQL of a time, and of whether there is anything. Texts like `2024-...` come first: they are almost all, and need no second look."""
    text = f"variant_get({name}, '$', 'string')" if variant else name
    common = f"CASE WHEN substring({text}, 5, 1) = '-' THEN CAST({text} AS TIMESTAMP)"
    dated = f"CAST(regexp_replace({text}, '{NO_DATE}', 'x') AS TIMESTAMP)"
    if not variant:
        return f"{common} ELSE {dated} END", f"{name} IS NOT NULL"
    kind = f"schema_of_variant({name})"
    seconds = f"timestamp_micros(try_multiply(variant_get({name}, '$', 'bigint'), 1000000L))"
    return (
        f"{common} WHEN {kind} = 'STRING' THEN {dated} WHEN {kind} = 'BIGINT' THEN {seconds} END",
        f"{name} IS NOT NULL AND NOT is_variant_null({name})",
    )


def _times(schema: T.StructType) -> list[str]:
    return [field.name for field in schema if isinstance(field.dataType, T.TimestampType)]


def _is_inside(kind: T.DataType) -> bool:
    return not isinstance(kind, T.TimestampType) and '"timestamp"' in kind.json()


def _has_format(source: Source) -> bool:
    """With a format of its own a text is read by that alone."""
    return any(name.lower() == FORMAT for name, _ in source.options)
