"""Tables stay small: rows, marks and everything that somebody may still read are as before."""

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from pyspark.sql import types as T

from dpsql.lake import compaction, delta_tables
from dpsql.lake.delta_rows import damage, read_rows
from dpsql.lake.engine_file import Engine
from dpsql.lake.marks import merged_mark
from dpsql.lake.restore_points import Tables
from dpsql.lake.sorted_file import sorted_file
from dpsql.lake.torn_commits import torn, unreadable
from dpsql.udfs.bucket_state import DamagedState

HARMS: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "flipped": lambda path: path.write_bytes(path.read_bytes().replace(b"page ", b"pagf ", 1)),
}
"""What may happen to a file. The first page of texts is changed, and no length: nobody but a checksum notices."""

KINDS = {
    "text": T.StringType(),
    "number": T.LongType(),
    "real": T.DoubleType(),
    "raw": T.BinaryType(),
    "day": T.DateType(),
}
KINDS |= {"exact": T.DecimalType(12, 3), "at": T.TimestampType(), "wall": T.TimestampNTZType()}


def rows(number: int) -> pa.Table:
    """Two rows of each type, one of NULLs."""
    given = {
        "text": f"page {number}",
        "number": number,
        "real": float("inf") if number % 2 else number / 3,
        "raw": bytes([number]),
    }
    given |= {
        "day": date(1, 1, 1),
        "exact": Decimal("-1.250"),
        "at": datetime(1500, 1, 1, 0, 0, 0, number, UTC),
    }
    given |= {"wall": datetime(1500, 1, 1, 0, 0, 0, number)}
    types = [
        pa.string(),
        pa.int64(),
        pa.float64(),
        pa.binary(),
        pa.date32(),
        pa.decimal128(12, 3),
        pa.timestamp("us", "UTC"),
    ]
    types.append(pa.timestamp("us"))
    return pa.Table.from_pylist(
        [given, dict.fromkeys(given)], pa.schema(list(zip(given, types, strict=True)))
    )


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compaction, "MANY_FILES", 5)
    monkeypatch.setattr(compaction, "LOG_COMMITS", 3)
    path = tmp_path / "table"
    delta_tables.create(
        path,
        Schema.from_json(
            T.StructType([T.StructField(name, kind) for name, kind in KINDS.items()]).json()
        ),
    )
    for number in range(10):
        add(path, number)
    return path


def add(path: Path, number: int) -> None:
    delta_tables.append_files(path, [sorted_file(path, rows(number))], {"rows": number})


def merged(path: Path) -> list[str]:
    return compaction.merge(
        path, compaction.small_files(path), lambda content: sorted_file(path, content), "merged"
    )


def commits(path: Path) -> list[int]:
    return sorted(
        int(name[:20]) for name in os.listdir(f"{path}/_delta_log") if name.endswith(".json")
    )


def test_many_files_become_one_with_the_same_rows_in_their_order(table: Path) -> None:
    before = read_rows(table)
    marks = DeltaTable(str(table)).transaction_version("rows")
    old = set(DeltaTable(str(table)).file_uris())
    assert merged(table)
    opened = DeltaTable(str(table))
    assert len(opened.file_uris()) == 1 and opened.transaction_version("rows") == marks
    assert read_rows(table).equals(before.sort_by("number")) or read_rows(
        table
    ).to_pylist() == sorted_like(before)
    # Whoever reads the table's changes is told of no new row, and whoever is reading now finds the old files.
    actions = [
        json.loads(line)
        for line in Path(f"{table}/_delta_log/{opened.version():020d}.json")
        .read_text()
        .splitlines()
    ]
    assert {
        action[kind]["dataChange"]
        for action in actions
        for kind in ("add", "remove")
        if kind in action
    } == {False}
    assert all(Path(name).exists() for name in old)
    assert torn(table) is None
    assert merged(table) == []
    for number in range(10, 16):
        add(table, number)
    assert merged(table) and len(DeltaTable(str(table)).file_uris()) == 1
    assert [
        row["number"] for row in read_rows(table).to_pylist() if row["number"] is not None
    ] == list(range(16))


def sorted_like(before: pa.Table) -> list[dict[str, Any]]:
    """The commits' rows, oldest first: each is a row and a row of NULLs."""
    pairs = sorted(
        (before.slice(at, 2).to_pylist() for at in range(0, len(before), 2)),
        key=lambda pair: pair[0]["number"],
    )
    return [row for pair in pairs for row in pair]


def test_equal_rows_make_equal_bytes(table: Path, tmp_path: Path) -> None:
    """Nothing of a process or a moment gets into the public file but its name."""
    other = tmp_path / "other"
    delta_tables.create(
        other,
        Schema.from_json(
            T.StructType([T.StructField(name, kind) for name, kind in KINDS.items()]).json()
        ),
    )
    for number in range(10):
        add(other, number)
    assert merged(table) and merged(other)
    (one,), (two,) = DeltaTable(str(table)).file_uris(), DeltaTable(str(other)).file_uris()
    assert Path(one).read_bytes() == Path(two).read_bytes()


def test_replaced_files_go_once_and_without_a_commit(table: Path) -> None:
    old = [Path(name) for name in DeltaTable(str(table)).file_uris()]
    (table / "part-of-a-failed-task.parquet").write_bytes(b"records")
    assert merged(table)
    version = DeltaTable(str(table)).version()
    delta_tables.vacuum(table, 1)
    assert all(path.exists() for path in old)
    delta_tables.vacuum(table, 0)
    delta_tables.vacuum(table, 0)  # the log still names them
    assert [path for path in table.glob("*.parquet")] == [
        Path(name) for name in DeltaTable(str(table)).file_uris()
    ]
    assert DeltaTable(str(table)).version() == version and read_rows(table).num_rows == 20


def test_large_files_are_left_alone(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is written anew a few times, not with every merge."""
    monkeypatch.setattr(compaction, "SMALL_ROWS", 2)
    assert compaction.small_files(table) == [] and merged(table) == []


def test_one_merge_is_bounded(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MOST_ROWS", 6)
    assert merged(table) and len(DeltaTable(str(table)).file_uris()) == 8


def test_somebody_else_writes_meanwhile(table: Path) -> None:
    """An operator's OPTIMIZE and ours at once: rows would be there twice. Catches: a commit that is tried again as an append."""

    def slow(content: pa.Table) -> Any:
        DeltaTable(str(table)).optimize.compact()
        return sorted_file(table, content)

    files = set(table.glob("*.parquet"))
    assert compaction.merge(table, compaction.small_files(table), slow, "merged") == []
    assert len(read_rows(table)) == 20
    # One file more: the operator's.
    assert len(set(table.glob("*.parquet")) - files) == 1


def test_files_that_somebody_has_replaced_before(table: Path) -> None:
    """Their rows are in the table already."""
    names = compaction.small_files(table)
    DeltaTable(str(table)).optimize.compact()
    assert (
        compaction.merge(table, names, lambda content: sorted_file(table, content), "merged") == []
    )
    assert len(read_rows(table)) == 20


def test_a_commit_that_a_store_denies_to_have_made(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again after a lost answer, it says that there is such a version. Catches: removing the file that the commit names."""
    real = delta_tables.replace_files

    def denied(*given: Any) -> Any:
        real(*given)
        raise CommitFailedError

    before = read_rows(table).num_rows
    monkeypatch.setattr(delta_tables, "replace_files", denied)
    assert merged(table) == []
    monkeypatch.undo()
    delta_tables.vacuum(table, 0)
    assert len(DeltaTable(str(table)).file_uris()) == 1 and read_rows(table).num_rows == before


def test_times_that_spark_has_written(table: Path) -> None:
    """INT96 says nothing of UTC; a Delta TIMESTAMP must. Catches: the newest file giving the merged one its type."""
    pq.write_table(rows(10), table / "spark.parquet", use_deprecated_int96_timestamps=True)
    size = os.path.getsize(table / "spark.parquet")
    delta_tables.append_files(
        table, [{"path": "spark.parquet", "bytes": size, "rows": 2, "partition": {}}], {"rows": 10}
    )
    assert merged(table)
    (one,) = DeltaTable(str(table)).file_uris()
    assert pq.read_schema(one).field("at").type == pa.timestamp("us", "UTC") and pq.read_schema(
        one
    ).field("wall").type == pa.timestamp("us")
    found = [row["at"] for row in read_rows(table).to_pylist() if row["at"] is not None]
    assert found == [datetime(1500, 1, 1, 0, 0, 0, number, UTC) for number in range(11)]


def test_a_table_whose_files_are_not_its_rows(table: Path) -> None:
    """Somebody switched on deletion vectors: rows that are deleted lie in its files."""
    features = ["deletionVectors", "timestampNtz"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    newest = DeltaTable(str(table)).version() + 1
    table.joinpath("_delta_log", f"{newest:020d}.json").write_text(
        json.dumps({"protocol": protocol})
    )
    assert merged(table) == [] and DeltaTable(str(table)).version() == newest


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_file_is_named_and_nothing_is_merged(table: Path, harm: str) -> None:
    name = compaction.small_files(table)[3]
    HARMS[harm](table / name)
    with pytest.raises(DamagedState, match=name):
        merged(table)
    assert DeltaTable(str(table)).version() == 10


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("writer", ["ours", "another"])
def test_damage_of_a_data_file_is_told(table: Path, harm: str, writer: str) -> None:
    """Also in a file that Spark has written: then by the checksums of its pages."""
    name = compaction.small_files(table)[3]
    if writer == "another":
        (table / name).rename(table / "part-00000-c000.snappy.parquet")
        log = table / "_delta_log"
        for commit in log.glob("*.json"):
            commit.write_text(commit.read_text().replace(name, "part-00000-c000.snappy.parquet"))
        for file in [*log.glob("*.checkpoint.parquet"), log / "_last_checkpoint"]:
            file.unlink(missing_ok=True)
        name = "part-00000-c000.snappy.parquet"
    assert damage(table, reads_bytes=True) is None
    HARMS[harm](table / name)
    told = damage(table, reads_bytes=True)
    assert told is not None and name in told and told.count("part-") == 1
    assert (damage(table, reads_bytes=False) is None) == (harm == "flipped")
    with pytest.raises((OSError, pa.ArrowException)):
        read_rows(table)


@pytest.mark.parametrize(("needed", "oldest"), [(None, 10), (7, 5), (11, 10), (4, 0), (0, 0)])
def test_the_log_keeps_what_is_needed(table: Path, needed: int | None, oldest: int) -> None:
    """A checkpoint at 5, one at 10 and one at 14; what stays begins with the newest that is not after what is needed."""
    log = table.joinpath("_delta_log")
    for version in (5, 10):
        DeltaTable(str(table), version=version).create_checkpoint()
    for number in range(10, 14):
        add(table, number)
    before = read_rows(table)
    marks = DeltaTable(str(table)).transaction_version("rows")
    compaction.shorten(table, needed)
    assert commits(table) == list(range(oldest, 15))
    assert (log / f"{14:020d}.checkpoint.parquet").exists()
    assert (
        read_rows(table).equals(before)
        and DeltaTable(str(table)).transaction_version("rows") == marks
    )
    # The newest commit may be torn: then there has to be a table without it.
    assert not unreadable(table, 13)
    assert delta_tables.first_version(table) == oldest
    compaction.shorten(table, needed)
    assert commits(table) == list(range(oldest, 15))


def test_young_commits_stay(table: Path) -> None:
    """Readers of the public table's changes have a week."""
    DeltaTable(str(table), version=8).create_checkpoint()
    for number in range(10, 14):
        add(table, number)
    compaction.shorten(table, kept_seconds=3600)
    assert commits(table)[0] == 0
    for version in range(9):
        os.utime(table.joinpath("_delta_log", f"{version:020d}.json"), (time.time() - 7200,) * 2)
    compaction.shorten(table, kept_seconds=3600)
    assert commits(table) == list(range(8, 15))


def test_a_checkpoint_that_cannot_be_read_replaces_nothing(table: Path) -> None:
    for version in (5, 8):
        DeltaTable(str(table), version=version).create_checkpoint()
    table.joinpath("_delta_log", f"{5:020d}.checkpoint.parquet").write_bytes(b"not Parquet at all")
    for number in range(10, 14):
        add(table, number)
    compaction.shorten(table, 7)
    assert commits(table)[0] == 0


def test_a_checkpoint_that_lacks_a_part_replaces_nothing(table: Path) -> None:
    """Without it the table is opened from its commits."""
    log = table / "_delta_log"
    DeltaTable(str(table), version=5).create_checkpoint()
    (log / f"{5:020d}.checkpoint.parquet").rename(
        log / f"{5:020d}.checkpoint.{1:010d}.{2:010d}.parquet"
    )
    (log / "_last_checkpoint").unlink()
    compaction.shorten(table, 7)
    assert commits(table)[0] == 0


def test_what_a_killed_process_left_is_on_the_disk_before_the_next_removes_anything(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit, and a checkpoint of the log, that it had not synced yet."""
    DeltaTable(str(table)).create_checkpoint()
    synced: list[str] = []
    monkeypatch.setattr(delta_tables, "sync", lambda path: synced.append(Path(path).name))
    delta_tables.create(table, DeltaTable(str(table)).schema())
    assert {f"{10:020d}.json", f"{10:020d}.checkpoint.parquet", "_delta_log"} <= set(synced)


def test_nobody_begins_where_ticks_have_moved(table: Path) -> None:
    """Catches: a restore to a commit whose own files of ticks are gone."""
    tables = Tables(table.parent, table, "run", Engine(table.parent, (1, 1), {}))
    table.rename(tables.contributions)
    assert tables.deletions() == []
    path = tables.contributions
    compaction.merge(
        path,
        compaction.small_files(path),
        lambda content: sorted_file(path, content),
        merged_mark("run"),
        7,
    )
    assert tables.deletions() == [6]


def test_a_log_that_is_shortened_stays_short(table: Path) -> None:
    for number in range(10, 30):
        add(table, number)
        merged(table)
        compaction.shorten(table)
    found = len(os.listdir(f"{table}/_delta_log"))
    for number in range(30, 50):
        add(table, number)
        merged(table)
        compaction.shorten(table)
    assert len(os.listdir(f"{table}/_delta_log")) <= found + 4 <= 16
    assert read_rows(table).num_rows == 100
