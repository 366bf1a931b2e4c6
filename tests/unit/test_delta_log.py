"""Commits and files are on the disk before anything relies on them, whoever has written them, and there after a power cut."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from dpsql.files import create_file, replace_file
from dpsql.lake import delta_tables, manifest
from dpsql.lake.manifest import Manifest
from dpsql.lake.sorted_file import sorted_file
from dpsql.streaming import published_table
from dpsql.udfs.bucket_state import BucketFiles, write_table
from dpsql.udfs.stage import StateFile

SCHEMA = Schema.from_arrow(pa.schema([("x", pa.int64())]))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(
        delta_tables,
        "sync",
        lambda path: (
            found.append(os.path.basename(path)) if os.path.exists(path) else _missing(path)
        ),
    )
    return found


def _missing(path: str) -> None:
    raise FileNotFoundError(errno.ENOENT, path)


def commit(version: int) -> str:
    return f"{version:020d}.json"


def test_a_new_table_and_the_checkpoints_of_its_log_are_on_the_disk(
    tmp_path: Path, synced: list[str]
) -> None:
    """A table without its first commit, or with half a checkpoint, cannot be read, whatever comes after."""
    path = tmp_path / "table"
    delta_tables.create(path, SCHEMA)
    assert {commit(0), "_delta_log", "table", tmp_path.name} <= set(synced)
    DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": "2"})
    before = set(os.listdir(path / "_delta_log"))
    for number in range(4):
        delta_tables.append_files(
            path, [sorted_file(path, pa.table({"x": [number]}))], {"a": number}
        )
    made = {name for name in os.listdir(path / "_delta_log") if "checkpoint" in name} - before
    assert made and {*made, "_last_checkpoint"} <= set(synced)


class Written:
    """What `append_frame` asks of a frame that is too long for the driver."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self

    @property
    def write(self) -> Self:
        return self

    def option(self, name: str, value: Any) -> Self:
        self.options[name] = value
        return self

    def save(self, path: str) -> None:
        mark = Transaction(self.options["txnAppId"], self.options["txnVersion"])
        write_deltalake(
            path,
            pa.table({"x": [1]}),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[mark]),
        )


def test_what_spark_has_committed_is_on_the_disk(tmp_path: Path, synced: list[str]) -> None:
    path = tmp_path / "table"
    delta_tables.create(path, SCHEMA)
    synced.clear()
    frame: Any = Written()
    published_table.append_frame(frame, path, {"a": 7}, ["x"])
    assert delta_tables.mark(path, "a") == 7
    assert {commit(1), *(Path(name).name for name in DeltaTable(path).file_uris())} <= set(synced)


def test_a_full_disk_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`status.json` is written at every micro-batch. Catches: one more file each time."""
    replace_file(tmp_path / "status.json", b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(tmp_path / "status.json", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["status.json"]
    assert (tmp_path / "status.json").read_bytes() == b"old"


def test_a_start_does_not_read_the_digests_of_all_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take most of the room of the table `files`, which has rows of every micro-batch. Catches: memory that grows with a run's age."""
    listed = Manifest(tmp_path / "files", "run", "release", 1)
    listed.create()
    for batch in range(12):
        files = [
            StateFile(bucket, batch + 1, 1, {"sha256": {"groups": f"{bucket}-{batch}"}})
            for bucket in range(3)
        ]
        listed.commit(batch, files, {"rows": batch})
    read = list[tuple[int, list[str]]]()
    original = manifest.read_rows

    def read_rows(path: Path, columns: list[str], condition: Any) -> pa.Table:
        table = original(path, columns, condition)
        read.append((table.num_rows, columns))
        return table

    monkeypatch.setattr(manifest, "read_rows", read_rows)
    pointers = listed.pointers()
    assert listed.digests(pointers) == {bucket: {"groups": f"{bucket}-11"} for bucket in range(3)}
    points = list(listed.history())
    assert [(batch, detail, pointers[2]) for batch, detail, pointers in points] == [
        (b, {"rows": b}, b + 1) for b in range(11, -1, -1)
    ]
    assert max(rows for rows, columns in read if "detail" in columns) == 12


@pytest.fixture
def openings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A table of two commits, which this process has open; which tables it opens from then on."""
    path = tmp_path / "table"
    found = list[str]()
    delta_tables.create(path, SCHEMA)
    append(path, 1)
    assert delta_tables.mark(path, "a") == 1

    class Counted(DeltaTable):
        def __init__(self, table_uri: str, **given: Any) -> None:
            found.append(table_uri)
            super().__init__(table_uri, **given)

    monkeypatch.setattr(delta_tables, "DeltaTable", Counted)
    return found


def append(path: Path, number: int) -> None:
    delta_tables.append_files(path, [sorted_file(path, pa.table({"x": [number]}))], {"a": number})


def test_a_table_is_not_opened_again_for_each_commit(tmp_path: Path, openings: list[str]) -> None:
    """Catches: cost per micro-batch that grows with the files of a table."""
    path = tmp_path / "table"
    for number in range(2, 6):
        append(path, number)
        assert (delta_tables.mark(path, "a"), delta_tables.newest(path).version()) == (
            number,
            number,
        )
    assert openings == []
    # What another process writes is there at once.
    code = "import sys, pyarrow as pa; from pathlib import Path; from dpsql.lake.delta_tables import append"
    code += "\nprint(append(Path(sys.argv[1]), pa.table({'x': [6]}), {'a': 6}))"
    subprocess.run([sys.executable, "-c", code, path], check=True)
    assert delta_tables.mark(path, "a") == 6 and openings == []
    assert not delta_tables.append(path, pa.table({"x": [6]}), {"a": 6})
    # A checkpoint of the log: what came before it is not kept in memory.
    delta_tables.checkpoint(path)
    assert delta_tables.mark(path, "a") == 6 and openings == [str(path)] * 2


def test_another_table_in_the_place_of_one_that_is_open(
    tmp_path: Path, openings: list[str]
) -> None:
    path = tmp_path / "table"
    other = tmp_path / "other"
    delta_tables.create(other, SCHEMA)
    append(other, 7)
    append(other, 8)
    for gone in ("first", "second"):
        path.rename(tmp_path / gone)
        shutil.copytree(other, path)
        assert delta_tables.mark(path, "a") == 8
        # With as many commits, made in the same moment.
        (path / "_delta_log" / commit(2)).unlink()
        assert delta_tables.mark(path, "a") == 7


def test_a_commit_of_an_open_table_that_is_torn_or_gone(
    tmp_path: Path, openings: list[str]
) -> None:
    path = tmp_path / "table"
    append(path, 2)
    for version in (2, 3):  # known to the open table; and come since
        torn = path / "_delta_log" / commit(version)
        content = (path / "_delta_log" / commit(2)).read_bytes()
        torn.write_bytes(content[: len(content) // 2])
        with pytest.raises(DeltaError):
            DeltaTable(str(path))
        with pytest.raises(DeltaError):
            delta_tables.mark(path, "a")
        torn.write_bytes(content)
        assert delta_tables.newest(path).version() == version
    torn.unlink()
    assert delta_tables.newest(path).version() == 2
    (path / "_delta_log" / commit(2)).unlink()
    assert delta_tables.mark(path, "a") == 1


TABLE = pa.table({"user": [1, 2]})


class Disk:
    """What would be left: bytes of files and names in folders as they were when somebody waited for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[str, set[str]] = {}
        self.sizes: dict[int, int] = {}
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            status = os.fstat(descriptor)
            if os.path.isdir(path):
                self.names[path] = set(os.listdir(path))
            else:
                self.sizes[status.st_ino] = status.st_size

        monkeypatch.setattr(os, "fsync", fsync)

    def lost(self, root: Path) -> list[Path]:
        """What is below a folder that was there before, and would be missing or not whole."""

        def kept(path: Path) -> bool:
            status = path.stat()
            return path.name in self.names.get(str(path.parent), ()) and (
                path.is_dir() or self.sizes.get(status.st_ino) == status.st_size
            )

        return [path for path in root.rglob("*") if not kept(path)]


def listed(root: Path) -> None:
    """A micro-batch as query 1 commits it: state files, then their list."""
    files = Manifest(root / "files", "00" * 16, "admission", 1)
    files.create()
    for batch in range(3):
        size, digests = BucketFiles(str(root / "state"), "admission", 1, 1, ("users",)).store(
            0, batch + 1, {"users": TABLE}
        )
        files.commit(batch, [StateFile(0, batch + 1, size, {"sha256": digests})], {})


@pytest.mark.parametrize(
    "write",
    [
        listed,
        lambda root: BucketFiles(str(root), "release", 16, 1, ("groups", "pending")).store(
            3, 1, {"groups": TABLE, "pending": TABLE}
        ),
        lambda root: write_table(str(root / "public_groups.parquet"), TABLE),
        lambda root: create_file(root / "run.json", b"{}"),
        lambda root: replace_file(root / "engine.json", b"{}"),
    ],
)
def test_nothing_that_is_written_is_lost(
    write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    write(tmp_path)
    assert any(path.is_file() for path in tmp_path.rglob("*"))
    assert disk.lost(tmp_path) == []
