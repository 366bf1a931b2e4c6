"""What is written is there after a power cut: the bytes of every file, and its name in its folder, are on the disk when a commit returns."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dpsql.files import create_file, replace_file
from dpsql.lake.manifest import Manifest
from dpsql.udfs.bucket_state import BucketFiles, write_table
from dpsql.udfs.stage import StateFile

TABLE = pa.table({"user": [1, 2]})


class Disk:
    """What would be left: bytes of files and names in folders as they were when somebody waited for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: dict[str, set[str]] = {}
        self.sizes: dict[int, int] = {}
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            path, status = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
            if os.path.isdir(path):
                self.names[path] = set(os.listdir(path))
            else:
                self.sizes[status.st_ino] = status.st_size

        monkeypatch.setattr(os, "fsync", fsync)

    def lost(self, root: Path) -> list[Path]:
        """What is below a folder that was there before, and would be missing or not whole."""

        def kept(path: Path) -> bool:
            status = path.stat()
            return path.name in self.names.get(str(path.parent), ()) and (path.is_dir() or self.sizes.get(status.st_ino) == status.st_size)

        return [path for path in root.rglob("*") if not kept(path)]


def listed(root: Path) -> None:
    """A micro-batch as query 1 commits it: state files, then their list."""
    files = Manifest(root / "files", "00" * 16, "admission", 1)
    files.create()
    for batch in range(3):
        size, digests = BucketFiles(str(root / "state"), "admission", 1, 1, ("users",)).store(0, batch + 1, {"users": TABLE})
        files.commit(batch, [StateFile(0, batch + 1, size, {"sha256": digests})], {})


@pytest.mark.parametrize(
    "write",
    [
        listed,
        lambda root: BucketFiles(str(root), "release", 16, 1, ("groups", "pending")).store(3, 1, {"groups": TABLE, "pending": TABLE}),
        lambda root: write_table(str(root / "public_groups.parquet"), TABLE),
        lambda root: create_file(root / "run.json", b"{}"),
        lambda root: replace_file(root / "engine.json", b"{}"),
    ],
)
def test_nothing_that_is_written_is_lost(write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    write(tmp_path)
    assert any(path.is_file() for path in tmp_path.rglob("*"))
    assert disk.lost(tmp_path) == []
