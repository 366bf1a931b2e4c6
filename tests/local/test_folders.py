"""Folders like `day=2024-02-29` are columns of each file below them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.local.connection import connect
from dpsql.local.sources import InputReader, source_files
from dpsql.sources.config import Source

FORMATS = ("parquet", "csv", "json")
NULL = "__HIVE_DEFAULT_PARTITION__"

READ: list[tuple[str, str, Any]] = [
    ("n BIGINT", "01", "01"),
    ("n BIGINT, k STRING", "a%20b%2Fc", "a b/c"),
    ("k STRING, n BIGINT", NULL, None),
    ("n BIGINT, k STRING", "a=b", "a=b"),
    ("n BIGINT, k STRING", "%zz%C3%A9", "%zzÃ©"),
    ("n BIGINT, K INT", "007", 7),
    ("n BIGINT, k BIGINT", NULL, None),
    ("n BIGINT, k DOUBLE", "1e3", 1000.0),
    ("n BIGINT, k BOOLEAN", "True", True),
    ("n BIGINT, k DATE", "2026-01-01", date(2026, 1, 1)),
    ("n BIGINT, k TIMESTAMP", "2026-01-01 10%3A30%3A00", datetime(2026, 1, 1, 10, 30)),
    ("n BIGINT, k TIMESTAMP", "2026-01-02", datetime(2026, 1, 2)),
]
"""The schema, what stands in the folder's name, and the column that it is."""

REFUSED: list[tuple[str, Mapping[str, int], str]] = [
    ("n BIGINT, k INT", {"k=x": 1}, "its folder k=... has no INT"),
    ("n BIGINT, k INT", {"k=1.5": 1}, "its folder k=... has no INT"),
    ("n BIGINT, k DOUBLE", {"k=x": 1}, "its folder k=... has no DOUBLE"),
    ("n BIGINT, k TIMESTAMP", {"k=10%3A30": 1}, "its folder k=... has no TIMESTAMP"),
    ("n BIGINT, k BINARY", {"k=x": 1}, "cannot be BINARY: declare `k STRING` and cast it"),
    ("n BIGINT", {"k=": 1}, "write the folder 'k=' like day=2024-02-29"),
    ("n BIGINT", {"k=1": 1, ".": 2}, "its files are in k=.../ and no such folder"),
    ("n BIGINT", {"k=1": 1, "m=1": 2}, "its files are in k=.../ and m=.../"),
]
"""The schema, the folders, and what is wrong."""


def write(file: Path, numbers: int, user: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"n": number} for number in range(numbers)]
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix == ".json":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        file.write_text("".join(f"{row['n']}\n" for row in rows))


def local_rows(source: Source) -> list[dict[str, Any]]:
    connection = connect()
    chunk = InputReader(connection, source).all_files(source_files(source, {}))
    names = ", ".join(f'"{name}"' for name, _ in chunk.table.columns)
    return connection.sql(f'SELECT {names} FROM "{chunk.table.view}"').to_arrow_table().to_pylist()


def in_lower_case(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    without_zones = [
        {
            name.lower(): value.astimezone(UTC).replace(tzinfo=None)
            if isinstance(value, datetime) and value.tzinfo
            else value
            for name, value in row.items()
        }
        for row in rows
    ]
    return sorted(without_zones, key=lambda row: repr(sorted(row.items())))


def layout(folder: Path, kind: str, number: int) -> Source:
    """Two files, one of them with a value of its own, in folders below folders."""
    schema, text, _ = READ[number]
    write(folder / f"k={text}" / "_of=1" / f"a.{kind}", 2)
    write(folder / f"k={NULL}" / "_of=1" / f"b.{kind}", 1)
    return Source("d", kind, str(folder), schema=schema)


@pytest.mark.parametrize("number", range(len(READ)))
@pytest.mark.parametrize("kind", FORMATS)
def test_folders_are_columns(tmp_path: Path, kind: str, number: int) -> None:
    """Catches: a folder that is no column; a value that keeps its escapes; a type that is not the declared one."""
    value = READ[number][2]
    expected = [{"n": n, "k": value, "_of": "1"} for n in (0, 1)]
    expected.append({"n": 0, "k": None, "_of": "1"})
    found = local_rows(layout(tmp_path, kind, number))
    assert in_lower_case(found) == in_lower_case(expected)
