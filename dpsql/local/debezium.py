"""Messages of Debezium as images: the columns of the row, and beside them what a Delta change feed has; as on Spark
(`dpsql.streaming.formats`). DuckDB text over the view `dpsql_messages(line)`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from dpsql.local.spark_types import Columns, parse_ddl, quote
from dpsql.sources.change_feed import (
    CHANGE,
    IMAGES,
    MESSAGE,
    NO_MESSAGE,
    POSITION,
    SNAPSHOT,
    SOURCE_TIME,
    TIME,
)

BESIDE_COLUMNS: Columns = parse_ddl(
    f"{CHANGE} STRING, {POSITION} BIGINT, {TIME} TIMESTAMP", "a change feed"
)
"""What is beside the columns of the table."""

_UNUSUAL = "[0-9][eE]|-0|[0-9]{16}|[0-9]{7}[.][0-9]|[^0-9]0[.]00"
"""In messages that may have numbers which DuckDB writes otherwise than Java does."""


def images_select(sequence_by: str) -> str:
    """Return the images as `line, CHANGE, POSITION, TIME`; a message that is none has NULL for the first two of them."""
    place = sequence_by.split(".")[1]
    messages = (
        f"SELECT line FROM dpsql_messages WHERE NOT regexp_matches(line, {quote(NO_MESSAGE)})"
    )
    mended = f"SELECT dpsql_mended(line) AS good, regexp_matches(line, {quote(_UNUSUAL)}) AS unusual FROM ({messages})"
    outer = f"SELECT good, unusual, {_text('payload')} AS payload FROM ({_fields(mended, ('payload',))})"
    messages_select = f"SELECT unusual, CASE WHEN payload IS NULL THEN good ELSE dpsql_mended(payload) END AS good FROM ({outer})"
    inner = f"SELECT {', '.join(f'{_text(name)} AS {name}' for name in MESSAGE[:-1])} FROM ({_fields(messages_select, MESSAGE[:-1])})"
    number_names = tuple(dict.fromkeys((place, SOURCE_TIME)))
    source = f"SELECT before, after, op, dpsql_mended(source) AS good FROM ({inner})"
    numbers = ", ".join(
        f'{_integer(name)} AS "n_{name}", "{name}" IS NOT NULL AND {_integer(name)} IS NULL AS "b_{name}"'
        for name in number_names
    )
    fields = _fields(source, number_names, ("before", "after", "op", "good"))
    numbers_select = (
        f"SELECT before, after, op, good IS NOT NULL AS has_source, {numbers} FROM ({fields})"
    )
    readable_condition = " AND ".join(
        (
            f"(\"n_{place}\" IS NOT NULL OR (op = '{SNAPSHOT}' AND has_source))",
            *(f'NOT "b_{name}"' for name in number_names),
        )
    )
    branches = []
    for op, images in IMAGES.items():
        listed = ", ".join(f"{{'change': '{change}', 'line': {field}}}" for change, field in images)
        branches.append(f"WHEN {readable_condition} AND op = '{op}' THEN [{listed}]")
    nothing = "[{'change': NULL::VARCHAR, 'line': NULL::VARCHAR}]"
    time = f'"n_{SOURCE_TIME}"'
    # Milliseconds of which Spark's 64 bits hold the microseconds; those beyond the years 1 to 9999 only need to be beyond them.
    time_sql = (
        f"CASE WHEN {time} BETWEEN -9223372036854775 AND 9223372036854775 "
        f"THEN make_timestamp(greatest(least({time}, 999999999999999), -999999999999999) * 1000) END"
    )
    image = f"unnest(CASE {' '.join(branches)} ELSE {nothing} END) AS image"
    listed = f'SELECT {image}, "n_{place}" AS place, {time_sql} AS moment FROM ({numbers_select})'
    return f"SELECT image.line AS line, image.change AS {CHANGE}, place AS {POSITION}, moment AS {TIME} FROM ({listed})"


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
