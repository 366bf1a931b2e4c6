"""Delta tables as deltalake, Databricks and Spark leave them: the rows of the table, and not those of its files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dpsql.errors import DataError
from dpsql.local.connection import connect
from dpsql.local.sources import InputReader, source_files
from dpsql.sources.config import Source
from tests.local.other_delta import delete_first_rows, refuse_readers, rename_columns

ROWS = pa.table(
    {"u": [f"household{i // 10}" for i in range(30)], "person": [f"p{i}" for i in range(30)]}
)
PLACES = pa.table(
    {
        "k": ["a b", "c=d/e", None],
        "day": [dt.date(2024, 1, 1), None, dt.date(2024, 1, 2)],
        "n": [1, 2, 3],
    }
)


def plain(path: Path) -> None:
    write_deltalake(path, ROWS)


def deleted(path: Path) -> None:
    write_deltalake(path, ROWS)
    delete_first_rows(path, 20)


def exchanged(path: Path) -> None:
    write_deltalake(path, ROWS)
    rename_columns(path, {"u": "person", "person": "u"})


def dropped(path: Path) -> None:
    write_deltalake(path, ROWS.append_column("extra", pa.array([1] * 30)))
    rename_columns(path, {"extra": None})


def partitioned(path: Path) -> None:
    write_deltalake(path, PLACES, partition_by=["k", "day"])


def renamed_partition(path: Path) -> None:
    write_deltalake(path, PLACES, partition_by=["k", "day"])
    rename_columns(path, {"k": "key"})


def widened(path: Path) -> None:
    write_deltalake(path, pa.table({"u": ["a"]}))
    write_deltalake(path, pa.table({"u": ["b"], "v": [1]}), mode="append", schema_mode="merge")


def long(path: Path) -> None:
    for number in range(13):
        write_deltalake(path, pa.table({"n": [number]}), mode="append")
        DeltaTable(path).delete(f"n = {number - 2}")
    DeltaTable(path).create_checkpoint()


def odd_texts(path: Path) -> None:
    texts = pa.array([b"caf\xe9", b"a"], pa.binary()).view(pa.string())
    write_deltalake(path, pa.table({"u": texts}))


PEOPLE = set(zip(*ROWS.to_pydict().values(), strict=True))
FIRST, LAST = dt.date(2024, 1, 1), dt.date(2024, 1, 2)
TABLES: list[tuple[Callable[[Path], None], str, set[tuple[Any, ...]]]] = [
    (plain, "u STRING, person STRING", PEOPLE),
    (deleted, "u STRING, person STRING", {("household2", f"p{i}") for i in range(20, 30)}),
    (exchanged, "person STRING, u STRING", PEOPLE),
    (dropped, "u STRING, person STRING", PEOPLE),
    (partitioned, "n BIGINT, k STRING, day DATE", {(1, "a b", FIRST), (2, "c=d/e", None), (3, None, LAST)}),
    (partitioned, "k STRING", {("a b",), ("c=d/e",), (None,)}),
    (renamed_partition, "N BIGINT, key STRING", {(1, "a b"), (2, "c=d/e"), (3, None)}),
    (widened, "v BIGINT, u STRING", {(None, "a"), (1, "b")}),
    (long, "n BIGINT", {(11,), (12,)}),
    (odd_texts, "u STRING", {("caf\ufffd",), ("a",)}),
]  # fmt: skip


def rows(source: Source, version: int | None = None) -> set[tuple[Any, ...]]:
    connection = connect()
    reader = InputReader(connection, source)
    files = source_files(source, {}, version)
    reader.check(files)
    chunks = [reader.all_files(files)] if source.static else reader.files(files)
    return {
        row for chunk in chunks for row in connection.sql(f'FROM "{chunk.table.view}"').fetchall()
    }


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(("write", "schema", "expected"), TABLES)
def test_rows_of_tables_as_other_programs_leave_them(
    tmp_path: Path,
    write: Callable[[Path], None],
    schema: str,
    expected: set[tuple[Any, ...]],
    static: bool,
) -> None:
    """Catches: rows that a vector deletes, counted again; a column that is another one in the files; a blank in a path."""
    path = tmp_path / "my tables" / "t"
    path.mkdir(parents=True)
    write(path)
    assert rows(Source("visits", "delta", str(path), schema=schema, static=static)) == expected


def test_a_table_says_its_columns_itself(tmp_path: Path) -> None:
    renamed_partition(tmp_path / "t")
    source = Source("visits", "delta", str(tmp_path / "t"))
    reader = InputReader(connect(), source)
    names = [name for name, _ in reader.check(source_files(source, {})).columns]
    assert names == ["key", "day", "n"]
    assert rows(source) == {("a b", FIRST, 1), ("c=d/e", None, 2), (None, LAST, 3)}
    exchanged(tmp_path / "old")
    old = Source("visits", "delta", str(tmp_path / "old"), schema="person STRING, u STRING")
    assert {person for person, _ in rows(old, version=0)} == {f"p{i}" for i in range(30)}


def test_a_column_that_was_dropped_is_missing(tmp_path: Path) -> None:
    dropped(tmp_path / "t")
    with pytest.raises(DataError, match="column `extra` of source `visits` is missing"):
        rows(Source("visits", "delta", str(tmp_path / "t"), schema="extra BIGINT"))


@pytest.mark.parametrize("feature", ["typeWidening", "catalogManaged", "rowsOfLater", "mode: id"])
def test_tables_that_are_not_understood_are_refused(tmp_path: Path, feature: str) -> None:
    """Catches: a feature that no reader here knows, and that is not named."""
    write_deltalake(tmp_path / "t", ROWS)
    if feature == "mode: id":
        rename_columns(tmp_path / "t", {}, mode="id")
    else:
        refuse_readers(tmp_path / "t", feature)
    with pytest.raises(DataError, match=rf"the Delta table uses .*{feature}, which runs on Spark"):
        source_files(Source("visits", "delta", str(tmp_path / "t")), {})
    assert rows(Source("visits", "delta", str(tmp_path / "t"), schema="u STRING"), version=0)
