"""Kafka as a source: the same rows as from files, whatever else is in the topic, and never past a gap."""

import json
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.deployment.kafka_broker import PASSWORD, Broker
from tests.streaming.conftest import DAY, SQL, START

SCHEMA = "user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE"
AVRO = json.dumps(
    {
        "type": "record",
        "name": "visit",
        "fields": [
            {"name": "user_id", "type": "string"},
            {"name": "page", "type": ["null", "string"]},
            {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "seconds", "type": "double"},
            {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        ],
    }
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("kafka")) as started:
        yield started


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return table.set_column(2, "ts", table["ts"].cast(pa.int64())).to_pylist()


def as_json(row: dict[str, Any]) -> bytes:
    return json.dumps(
        {**row, "ts": datetime.fromtimestamp(row["ts"] / 1e6, UTC).isoformat()}
    ).encode()


def number(value: int) -> bytes:
    """An Avro long."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def text(value: bytes) -> bytes:
    return number(len(value)) + value


def as_avro(row: dict[str, Any]) -> bytes:
    page = b"\x00" if row["page"] is None else b"\x02" + text(row["page"].encode())
    return (
        text(row["user_id"].encode())
        + page
        + number(row["ts"])
        + struct.pack("<d", row["seconds"])
        + b"\x00"
    )


HUGE = number((1 << 31) - 20)
BAD_JSON = [b"{", b'{"user_id": 1, "page"', b"\xff\xfe", b'"text"', b"17"]
BAD_JSON += [b'{"user_id": "u", "page": "p", "ts": "no time", "seconds": "x"}']
BAD_AVRO = [b"\x01", text(b"u") + b"\x08", HUGE + b"u", text(b"u") + b"\x00" + number(START)]
BAD_AVRO += [as_avro({"user_id": "u", "page": "p", "ts": START, "seconds": 0.0})[:-1] + HUGE]


def declared(broker: Broker, topic: str, value_format: str = "json", **more: str) -> dict[str, Any]:
    options = {f"kafka.{name}": value for name, value in broker.options.items()} | {
        "subscribe": topic,
        **more,
    }
    schema = AVRO if value_format == "avro" else None
    return {
        **{
            "format": "kafka",
            "path": None,
            "schema": SCHEMA,
            "options": tuple(sorted(options.items())),
        },
        **{"value_format": value_format, "value_schema": schema, "max_malformed": 1},
    }


@pytest.mark.parametrize(
    ("value_format", "write_value", "bad"),
    [("json", as_json, BAD_JSON), ("avro", as_avro, BAD_AVRO)],
)
def test_rows_are_those_of_files_and_bad_messages_are_counted(
    case: Any, visits: Any, broker: Broker, value_format: str, write_value: Any, bad: list[bytes]
) -> None:
    """Three partitions, of which one stays empty; a tombstone is no record."""
    table = visits(days=1)
    broker.make_topic(f"of_{value_format}", 3)
    good = [(i % 2, write_value(row)) for i, row in enumerate(rows_of(table))]
    broker.send(
        f"of_{value_format}", [*good[:100], *((0, value) for value in bad), (1, None), *good[100:]]
    )
    kafka = case(SQL, **declared(broker, f"of_{value_format}", value_format))
    told: list[Any] = []
    summary = kafka.go(START + DAY, told=told)
    assert kafka.histogram() == kafka.of_local_engine(table, START + DAY) != []
    assert summary.records == len(good) + len(bad) + 1
    assert summary.dropped["malformed"] == len(bad), summary
    warnings = [report.warning.partition(" If")[0] for report in told if report.warning]
    assert warnings == [
        "more malformed records than max_malformed = 1 in micro-batch 0 of source 'visits', more than 1% of all: do they fit `schema`?"
    ]
    written = [path for path in kafka.folder.parent.rglob("*") if path.is_file()]
    assert len(written) > 20 and not [
        path for path in written if PASSWORD.encode() in path.read_bytes()
    ]
