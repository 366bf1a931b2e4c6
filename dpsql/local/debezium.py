"""Messages of Debezium as images: the columns of the row, and beside them what a Delta change feed has; as on Spark
(`dpsql.streaming.formats`). DuckDB text over the view `dpsql_messages(line)`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from dpsql.local.lines import MISFIT, NO_RECORD, json_select
from dpsql.local.spark_types import Columns, SparkType, identifier, parse_ddl, quote
from dpsql.sources.change_feed import (
    BESIDE,
    CHANGE,
    DECIMAL,
    MESSAGE,
    NO_MESSAGE,
    POSITION,
    SOURCE_TIME,
    TIME,
    TIME_UNITS,
    UNAVAILABLE,
    WRONG_FIELD,
    changes_sql,
    image_sql,
)
from dpsql.sources.config import Source

BESIDE_COLUMNS: Columns = parse_ddl(
    f"{CHANGE} STRING, {POSITION} BIGINT, {TIME} TIMESTAMP", "a change feed"
)
"""What is beside the columns of the table."""

_UNUSUAL = "[0-9][eE]|-0|[0-9]{16}|[0-9]{7}[.][0-9]|[^0-9]0[.]00"
"""In messages that may have numbers which DuckDB writes otherwise than Java does."""


def without_header(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return messages with their values alone, where a registry of schemas has put five bytes before them."""
    position = [name.lower() for name in batch.schema.names].index("value")
    value = batch.column(position)
    if not (pa.types.is_binary(value.type) or pa.types.is_large_binary(value.type)):
        return batch
    stripped = [
        text[5:] if text is not None and text[:1] == b"\0" and len(text) >= 5 else text
        for text in value.to_pylist()
    ]
    return batch.set_column(position, batch.schema.names[position], pa.array(stripped, value.type))


def images_select(source: Source) -> str:
    """Return the images as `line, old, CHANGE, POSITION, TIME`; of a message that is none CHANGE is what is wrong with it, and `line` is NULL.

    `old`: the row before an update whose new row lacks a value.
    """
    place = str(source.sequence_by).split(".")[1]
    messages = (
        f"SELECT line FROM dpsql_messages WHERE NOT regexp_matches(line, {quote(NO_MESSAGE)})"
    )
    mended = f"SELECT dpsql_mended(line) AS good, regexp_matches(line, {quote(_UNUSUAL)}) AS unusual FROM ({messages})"
    outer = f"SELECT good, unusual, {_text('payload')} AS payload FROM ({_fields(mended, ('payload',))})"
    messages_select = f"SELECT unusual, CASE WHEN payload IS NULL THEN good ELSE dpsql_mended(payload) END AS good FROM ({outer})"
    inner = f"SELECT {', '.join(f'{_text(name)} AS {name}' for name in MESSAGE[:-1])} FROM ({_fields(messages_select, MESSAGE[:-1])})"
    in_source = f"SELECT before, after, op, dpsql_mended(source) AS good FROM ({inner})"
    numbers = ", ".join(
        f'{_integer(name)} AS {alias}, "{name}" IS NOT NULL AND {_integer(name)} IS NULL AS is_odd_{alias}'
        for alias, name in (("place", place), ("moment", SOURCE_TIME))
    )
    names = tuple(dict.fromkeys((place, SOURCE_TIME)))
    fields = _fields(in_source, names, ("before", "after", "op", "good"))
    numbered = (
        f"SELECT before, after, op, good IS NOT NULL AS has_source, {numbers} FROM ({fields})"
    )
    # Milliseconds of which Spark's 64 bits hold the microseconds; those beyond the years 1 to 9999 only need to be beyond them.
    time = (
        "CASE WHEN moment BETWEEN -9223372036854775 AND 9223372036854775 "
        "THEN make_timestamp(greatest(least(moment, 999999999999999), -999999999999999) * 1000) END"
    )
    changes = f"SELECT *, unnest(split({changes_sql(str(source.sequence_by))}, ' ')) AS {CHANGE} FROM ({numbered})"
    image = ", ".join(image_sql(quote(source.unavailable_value or UNAVAILABLE)))
    return f"SELECT {image}, {CHANGE}, place AS {POSITION}, {time} AS {TIME} FROM ({changes})"


def rows_select(columns: Columns, source: Source) -> str:
    """Return DuckDB text that turns `dpsql_raw`, made of images, into the declared columns, those of a feed and `dpsql_misfit`."""
    scales = dict(source.decimals)
    text_type = SparkType("string")
    raw_columns = tuple(
        (name, text_type if name.lower() in scales else kind) for name, kind in columns
    )
    unit_us = TIME_UNITS[source.time_unit] if source.time_unit else 1_000_000
    parsed = json_select(raw_columns, (*BESIDE, "old"), unit_us)
    text_columns = [name for name, kind in columns if kind == text_type]
    shape = quote(json.dumps(dict.fromkeys(text_columns, "JSON")))
    old = f"TRY(from_json(dpsql_mended(old), {shape}))" if text_columns else "NULL"
    word = quote(source.unavailable_value or UNAVAILABLE)
    values = []
    misfits = [
        f"WHEN {MISFIT} = '{NO_RECORD}' THEN {WRONG_FIELD}",
        f"WHEN {MISFIT} IS NOT NULL THEN {MISFIT}",
    ]
    for name, _ in columns:
        column = identifier(name)
        if name.lower() in scales:
            value = _decimal(column, scales[name.lower()])
        elif name in text_columns:
            raw = f"CAST(o[{quote(name)}] AS VARCHAR)"
            old_value = f"CASE WHEN {raw}[1] = '\"' THEN CAST({raw} AS JSON) ->> '$' END"
            value = f"CASE WHEN {column} = {word} THEN {old_value} ELSE {column} END"
        else:
            continue
        values.append(f"{value} AS {column}")
        misfits.append(f"WHEN {column} IS NOT NULL AND ({value}) IS NULL THEN {quote(name)}")
    values.append(f"CASE {' '.join(misfits)} END AS {MISFIT}")
    return f"SELECT * REPLACE ({', '.join(values)}) FROM (SELECT *, {old} AS o FROM ({parsed}))"


def _decimal(text: str, scale: int) -> str:
    """Return a decimal as a DOUBLE; NULL for a text that is none."""
    digits = f"hex(from_base64({text}))"
    padded = f"lpad({digits}, 16, CASE WHEN {digits} >= '8' THEN 'F' ELSE '0' END)"
    unsigned = f"CAST(CAST('0x' || {padded} AS UBIGINT) AS HUGEINT)"
    number = f"CASE WHEN {digits} >= '8' THEN {unsigned} - {1 << 64} ELSE {unsigned} END"
    is_decimal = f"length({text}) BETWEEN 4 AND 12 AND regexp_full_match({text}, {quote(DECIMAL)})"
    return f"CASE WHEN {is_decimal} THEN CASE WHEN length({digits}) <= 16 THEN CAST({number} AS DOUBLE) / 1e{scale} END END"


def _fields(
    objects: str, names: Sequence[str], extra_columns: Sequence[str] = ("good", "unusual")
) -> str:
    """Return the raw text of fields of the JSON objects `good`."""
    shape = json.dumps(dict.fromkeys(names, "JSON"))
    raw = ", ".join(f'CAST(o[{quote(name)}] AS VARCHAR) AS "{name}"' for name in names)
    return f"SELECT {', '.join(extra_columns)}, {raw} FROM (SELECT *, from_json(good, {quote(shape)}) AS o FROM ({objects}))"


def _text(name: str) -> str:
    """Return a field as text: of a string what it says, of anything else its JSON."""
    return (
        f"CASE WHEN {name}[1] = '\"' THEN CAST({name} AS JSON) ->> '$' WHEN {name} IS NULL THEN NULL "
        f"WHEN unusual THEN dpsql_py_rewritten(good, '{name}') ELSE {name} END"
    )


def _integer(name: str) -> str:
    """Return a field as a whole number, which connectors write as a number or as a text of digits."""
    text = f'CASE WHEN "{name}"[1] = \'"\' THEN CAST("{name}" AS JSON) ->> \'$\' ELSE "{name}" END'
    return f"CASE WHEN regexp_full_match({text}, '-?[0-9]+') THEN TRY_CAST({text} AS BIGINT) END"
