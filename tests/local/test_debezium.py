"""Messages of Debezium as the local engine reads them; `tests/streaming/test_change_feeds.py` asks Spark for the same."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.config import Source
from dpsql.errors import DataError
from dpsql.local.connection import connect
from dpsql.local.sources import InputReader
from tests.debezium import BEGUN, BOTH, DECLARED, HARD, NEW, OLD, SCHEMA, message

SOURCE = Source("visits", path="x", schema=SCHEMA, privacy_unit=("user_id",), **DECLARED)


def read(made: Any, source: Source = SOURCE, connection: Any = None) -> tuple[list[tuple[Any, ...]], int]:
    """Of a file, or of a frame."""
    connection = connection or connect()
    reader = InputReader(connection, source)
    rows, malformed = [], 0
    for chunk in reader.files([made]) if isinstance(made, Path) else [reader.frame(made)]:
        columns = (f'epoch_us("{name}")' if kind.name == "timestamp" else f'"{name}"' for name, kind in chunk.table.columns)
        rows.extend(connection.sql(f'SELECT {", ".join(columns)} FROM "{chunk.table.view}"').fetchall())
        malformed += chunk.malformed
    return rows, malformed


def test_what_messages_say(tmp_path: Path) -> None:
    file, connection = tmp_path / "a.json", connect()
    for line, images, malformed in HARD:
        file.write_text(line + "\n", encoding="utf-8")
        assert read(file, connection=connection) == (images, malformed), line


def test_messages_of_files_topics_and_frames_are_the_same(tmp_path: Path) -> None:
    """A value that is NULL is a tombstone, and bytes that are no UTF-8 are no message."""
    lines = [json.dumps(message("c", None, OLD)), json.dumps(message("u", OLD, NEW))]
    values = pa.table({"key": [1, 1, 1, 1], "value": pa.array([lines[0].encode(), None, b"\xff\xfe", lines[1].encode()], pa.binary())})
    pq.write_table(values, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == ([*BEGUN, *BOTH], 1) == read(values)
    assert read(pa.table({"value": lines})) == ([*BEGUN, *BOTH], 0)
    with pytest.raises(DataError, match="messages of source `visits` are to be in a column `value`"):
        read(pa.table({"account": [1]}))


def test_another_number_orders_changes(tmp_path: Path) -> None:
    by_time = Source("visits", path="x", schema=SCHEMA, **{**DECLARED, "sequence_by": "source.ts_ms"})
    ((*_, place, _),), _ = read(pa.table({"value": [json.dumps(message("c", None, OLD))]}), by_time)
    assert place == message("c")["source"]["ts_ms"]
