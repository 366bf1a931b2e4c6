"""Values of Kafka messages: Avro of which bytes are left over, and what a registry of schemas puts before a value."""

import json
import struct
from dataclasses import replace
from typing import Any

from dpsql.sources.config import Source
from dpsql.streaming import formats
from dpsql.streaming.session import run_session

FIELDS = [
    {"name": "u", "type": "string"},
    {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "k", "type": "string"},
    {"name": "v", "type": "double"},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
]
SCHEMA = json.dumps({"type": "record", "name": "visit", "fields": FIELDS})
AVRO = Source(
    "w",
    "kafka",
    schema="u STRING, ts TIMESTAMP, k STRING, v DOUBLE",
    value_format="avro",
    value_schema=SCHEMA,
    event_time="ts",
)
VALUE = b"\x02u\x00\x02k" + struct.pack("<d", 1.5) + b"\x00"
TWO_BLOCKS = VALUE[:-1] + b"\x02\x02x\x01\x04\x02y\x00"
HEADER = b"\0\0\0\0\x01"


def read(spark: Any, source: Source, messages: list[bytes]) -> list[Any]:
    """Return u, k and v of each message; None for one that is malformed."""
    session = run_session(spark, 2)
    frame = session.createDataFrame([(bytearray(value),) for value in messages], "value BINARY")
    rows = formats.parsed(formats.values(frame, source), source).collect()
    return [None if row[-1] is not None else (row["u"], row["k"], row["v"]) for row in rows]


def test_headers_of_registries_are_skipped_or_malformed(spark: Any) -> None:
    """Catches: a value with a registry's five bytes that is read as another value."""
    good = ("u", "k", 1.5)
    whole = [VALUE, TWO_BLOCKS]
    bad = [HEADER + VALUE, VALUE + b"\0", VALUE + formats.TAIL[:8], VALUE[:-1], b""]
    assert read(spark, AVRO, whole + bad) == [good] * len(whole) + [None] * len(bad)
    registered = replace(AVRO, schema_registry=True)
    messages = [VALUE, HEADER + VALUE, HEADER + VALUE + b"\0", HEADER]
    assert read(spark, registered, messages) == [good, good, None, None]
    text = replace(registered, value_format="json", value_schema=None)
    assert read(spark, text, [HEADER + b'{"u": "u", "ts": 0, "k": "k", "v": 1.5}']) == [good]
