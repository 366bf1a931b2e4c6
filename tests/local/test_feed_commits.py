"""Change feeds on the local engine: which commits a run has read, their images as Spark has seen them, and messages of Debezium."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from dpsql.errors import DataError
from dpsql.local.connection import connect
from dpsql.local.feed_commits import Commits, changes, read_commits
from dpsql.local.sources import InputReader
from dpsql.sources.change_feed import CHANGE, POSITION, TIME, FeedForm
from dpsql.sources.config import Source
from tests.debezium import (
    AS_WRITTEN,
    BEGUN,
    BOTH,
    DECLARED,
    HARD,
    HARD_VALUES,
    NEW,
    OLD,
    SCHEMA,
    message,
)
from tests.local.other_delta import delete_first_rows, rename_columns


def feed(path: Path | None = None, **options: str) -> Source:
    return Source(
        "accounts",
        "delta",
        path and str(path),
        change_feed=FeedForm.DELTA,
        options=tuple(options.items()),
    )


def read(version: int, index: int, whole: bool = False) -> dict[str, Any]:
    return {
        "offsets": [
            json.dumps({"reservoirVersion": version, "index": index, "isStartingVersion": whole})
        ]
    }


def test_commits_follow_each_other() -> None:
    """Catches: a commit in two micro-batches, or in none, where one changed nothing and is not listed."""
    details = {0: read(5, 0), 2: read(9, 1), 3: read(10, -1), 4: read(12, -1)}
    expected = {0: Commits(2, 5), 2: Commits(6, 9), 3: Commits(10, 9), 4: Commits(10, 11)}
    assert read_commits(details, feed(startingVersion="2")) == expected


def test_a_run_that_begins_with_the_table_as_it_is() -> None:
    details = {0: read(4, -1), 1: read(4, 0)}
    assert read_commits(details, feed()) == {0: Commits(3, 3, snapshot=True), 1: Commits(4, 4)}


@pytest.mark.parametrize(
    ("options", "position", "message"),
    [
        ({}, read(4, 0), "at which commit is not known"),
        ({}, read(4, 0, whole=True), "still reading table `accounts`"),
        ({"startingTimestamp": "2026-01-01"}, read(4, 0), "only Spark knows"),
        ({"startingVersion": "latest"}, read(4, 0), "only Spark knows"),
    ],
)
def test_what_is_not_known_is_refused(
    options: dict[str, str], position: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_commits({0: position}, feed(**options))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three commits; the clock of the last one went back."""
    path = tmp_path / "accounts"
    properties = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(
        path, pa.table({"account": [1, 2], "balance": [5.0, 6.0]}), configuration=properties
    )
    DeltaTable(path).update({"balance": "7.0"}, predicate="account = 1")
    DeltaTable(path).delete("account = 2")
    for version, second in enumerate((100, 200, 150)):
        os.utime(path / "_delta_log" / f"{version:020d}.json", (second, second))
    return path


def images(found: pa.Table | None) -> set[tuple[Any, ...]]:
    assert found is not None
    columns = [found[name].to_pylist() for name in ("account", "balance", CHANGE, POSITION)]
    return set(zip(*columns, [time.timestamp() for time in found[TIME].to_pylist()], strict=True))


def test_images_of_commits_with_times_that_ascend(table: Path) -> None:
    assert images(changes(feed(table), Commits(0, 0))) == {
        (1, 5.0, "insert", 0, 100.0),
        (2, 6.0, "insert", 0, 100.0),
    }
    assert images(changes(feed(table), Commits(1, 2))) == {
        (1, 5.0, "update_preimage", 1, 200.0),
        (1, 7.0, "update_postimage", 1, 200.0),
        (2, 6.0, "delete", 2, 200.001),
    }
    assert images(changes(feed(table), Commits(1, 1, snapshot=True))) == {
        (1, 7.0, "insert", 1, 200.0),
        (2, 6.0, "insert", 1, 200.0),
    }


def test_commits_without_a_feed_are_read_from_their_files(table: Path) -> None:
    """Catches: a table whose feed was off for one commit, which Spark reads, and `verify` calls vacuumed."""
    for is_on, balance in (("false", 8.0), ("true", 9.0)):
        DeltaTable(table).alter.set_table_properties({"delta.enableChangeDataFeed": is_on})
        DeltaTable(table).update({"balance": str(balance)}, predicate="account = 1")
    found = {image[:4] for image in images(changes(feed(table), Commits(2, 6)))}
    assert found == {
        (2, 6.0, "delete", 2),
        (1, 7.0, "delete", 4),
        (1, 8.0, "insert", 4),
        (1, 8.0, "update_preimage", 6),
        (1, 9.0, "update_postimage", 6),
    }
    assert changes(feed(table), Commits(3, 3)) is None


def overwrite(path: Path) -> None:
    write_deltalake(path, pa.table({"account": [1, 3], "balance": [7.0, 8.0]}), mode="overwrite")


def merge(path: Path) -> None:
    rows = pa.table({"account": [1, 3], "balance": [8.0, 9.0]})
    merging = DeltaTable(path).merge(
        rows, "t.account = s.account", source_alias="s", target_alias="t"
    )
    merging.when_matched_update_all().when_not_matched_insert_all().execute()


def add_column(path: Path) -> None:
    rows = pa.table({"account": [4], "balance": [9.0], "note": ["new"]})
    write_deltalake(path, rows, mode="append", schema_mode="merge")


COMMITS = {
    "overwrite": overwrite,
    "merge": merge,
    "restore": lambda path: DeltaTable(path).restore(0),
    "optimize": lambda path: DeltaTable(path).optimize.compact(),
    "a column more": add_column,
}


@pytest.mark.parametrize("kind", COMMITS)
def test_commits_of_each_kind_leave_the_rows_of_the_table(table: Path, kind: str) -> None:
    """Catches: a kind of commit whose images do not add up to the table, or that moves rows and changes none."""
    write_deltalake(table, pa.table({"account": [5], "balance": [1.0]}), mode="append")
    COMMITS[kind](table)
    counts = Counter[tuple[Any, ...]]()
    found = changes(feed(table), Commits(0, DeltaTable(table).version()))
    for account, balance, change, *_ in images(found):
        counts[account, balance] += 1 if change in ("insert", "update_postimage") else -1
    rows = DeltaTable(table).to_pyarrow_table()
    true = zip(rows["account"].to_pylist(), rows["balance"].to_pylist(), strict=True)
    assert +counts == Counter(true) and min(counts.values()) == 0


def test_commits_that_are_gone_or_elsewhere_are_told(table: Path) -> None:
    (table / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(DataError, match="commits 1 to 2, which the run has read, cannot be read"):
        changes(feed(table), Commits(1, 2))
    for source, says in (
        (feed(), "Spark's catalog"),
        (Source("accounts", "delta", "s3a://a/b"), "s3a://"),
    ):
        with pytest.raises(DataError, match=says):
            changes(source, Commits(0, 0))


def test_a_feed_of_a_table_whose_files_are_not_its_rows(tmp_path: Path) -> None:
    """Catches: deleted rows and wrong columns in the first snapshot, and images of a commit that deletes by a vector."""
    for name in ("deleted", "renamed"):
        write_deltalake(
            tmp_path / name,
            pa.table({"u": ["a"] * 30, "v": ["b"] * 30}),
            configuration={"delta.enableChangeDataFeed": "true"},
        )
    delete_first_rows(tmp_path / "deleted", 20)
    rename_columns(tmp_path / "renamed", {"u": "v", "v": "u"})
    deleted = changes(feed(tmp_path / "deleted"), Commits(1, 1, snapshot=True))
    assert deleted and deleted["u"].to_pylist() == ["a"] * 10
    renamed = changes(feed(tmp_path / "renamed"), Commits(1, 1, snapshot=True))
    assert (
        renamed
        and set(renamed["u"].to_pylist()) == {"b"}
        and set(renamed["v"].to_pylist()) == {"a"}
    )
    with pytest.raises(DataError, match="have deletion vectors, which runs on Spark only"):
        changes(feed(tmp_path / "deleted"), Commits(1, 1))
    assert changes(feed(tmp_path / "renamed"), Commits(1, 1)) is None
    with pytest.raises(DataError, match="cannot be read"):
        changes(feed(tmp_path / "renamed"), Commits(0, 1))


def test_a_feed_that_begins_with_an_empty_table(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"u": pa.array([], pa.string())}))
    images = changes(feed(tmp_path / "t"), Commits(0, 0, snapshot=True))
    assert images is not None and images.num_rows == 0 and "u" in images.column_names


SOURCE = Source("visits", path="x", schema=SCHEMA, privacy_unit=("user_id",), **DECLARED)


def read_messages(
    made: Any, source: Source = SOURCE, connection: Any = None
) -> tuple[list[tuple[Any, ...]], int]:
    """Of a file, or of a frame."""
    connection = connection or connect()
    reader = InputReader(connection, source)
    rows = []
    malformed = 0
    for chunk in reader.files([made]) if isinstance(made, Path) else [reader.frame(made)]:
        columns = (
            f'epoch_us("{name}")' if kind.name == "timestamp" else f'"{name}"'
            for name, kind in chunk.table.columns
        )
        rows.extend(
            connection.sql(f'SELECT {", ".join(columns)} FROM "{chunk.table.view}"').fetchall()
        )
        malformed += chunk.malformed
    return rows, malformed


def test_what_messages_say(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    connection = connect()
    for line, images, malformed in HARD:
        file.write_text(line + "\n", encoding="utf-8")
        assert read_messages(file, connection=connection) == (images, malformed), line
    source = Source("visits", path="x", schema=SCHEMA, **AS_WRITTEN)
    for line, images, malformed in HARD_VALUES:
        file.write_text(line + "\n", encoding="utf-8")
        assert read_messages(file, source, connection) == (images, malformed), line


def test_messages_of_files_topics_and_frames_are_the_same(tmp_path: Path) -> None:
    """A value that is NULL is a tombstone, and bytes that are no UTF-8 are no message."""
    lines = [json.dumps(message("c", None, OLD)), json.dumps(message("u", OLD, NEW))]
    values = pa.table(
        {
            "key": [1, 1, 1, 1],
            "value": pa.array(
                [lines[0].encode(), None, b"\xff\xfe", lines[1].encode()], pa.binary()
            ),
        }
    )
    pq.write_table(values, tmp_path / "a.parquet")
    assert read_messages(tmp_path / "a.parquet") == ([*BEGUN, *BOTH], 1) == read_messages(values)
    assert read_messages(pa.table({"value": lines})) == ([*BEGUN, *BOTH], 0)
    with pytest.raises(DataError, match="the records have no column `value`"):
        read_messages(pa.table({"account": [1]}))


def test_headers_of_registries_are_skipped() -> None:
    """Catches: a number of a schema that is no UTF-8, and makes another text of the value."""
    source = Source(
        "visits",
        schema=SCHEMA,
        schema_registry=True,
        value_format="json",
        **DECLARED | {"format": "kafka"},
    )
    line = json.dumps(message("c", None, OLD)).encode()
    headers = (b"", b"\0\0\0\0\x01", b"\0\0\x01\xff{")
    values = pa.array([header + line for header in headers] + [b"\0\0"], pa.binary())
    assert read_messages(pa.table({"value": values}), source) == (BEGUN * 3, 1)


def test_another_number_orders_changes(tmp_path: Path) -> None:
    by_time = Source(
        "visits", path="x", schema=SCHEMA, **{**DECLARED, "sequence_by": "source.ts_ms"}
    )
    ((*_, place, _),), _ = read_messages(
        pa.table({"value": [json.dumps(message("c", None, OLD))]}), by_time
    )
    assert place == message("c")["source"]["ts_ms"]
