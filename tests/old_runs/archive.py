"""The archive of old runs: written once, by `make.py` at commit 27b5d01, and unpacked wherever a test wants it.

A lake moves freely, but what a run has read it remembers by absolute path: in Spark's log of the file source, in the private table `files`
and in savepoints; and the register knows the lake's place. So unpacking writes the new place wherever the old one stands. In text that is
all. The files of the table `files` are Parquet: they are written anew, and their new size goes into Delta's log. Nothing else is touched:
state, contributions, histogram and all times of change are as 27b5d01 has left them.
"""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ARCHIVE = Path(__file__).with_name("27b5d01.tar.xz")
MADE_AT = "/tmp/dpsql-27b5d01"
"""Where the runs were made, a folder for each case."""

NOT_KEPT = ("running.json",)
"""Who was at work, and on which machine: nothing of a run that has ended."""


def pack(cases: list[Path]) -> None:
    """Write the archive: names in order, nobody's files, times of change as they are."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return None if Path(entry.name).name in NOT_KEPT else entry

    with tarfile.open(ARCHIVE, "w:xz", preset=9, format=tarfile.PAX_FORMAT) as archive:
        for case in cases:
            archive.add(case, case.name, recursive=True, filter=plain)


def unpack(case: str, folder: Path) -> Path:
    """One case below a folder, as if it had been made there."""
    with tarfile.open(ARCHIVE) as archive:
        entries = [entry for entry in archive.getmembers() if entry.name.split("/")[0] == case]
        archive.extractall(folder, entries, filter="tar")
    move(folder / case, f"{MADE_AT}/{case}")
    return folder / case


def move(folder: Path, old: str) -> None:
    """Write the new place of a case wherever its old one stands."""
    new = str(folder.resolve())
    replaced = {f"file://{quote(old)}/": f"file://{quote(new)}/", f"{old}/": f"{new}/"}
    sizes: dict[str, int] = {}
    for path in sorted((folder / "lake" / "private").glob("*/files/**/*.parquet")):
        if _rewrite_table(path, replaced):
            sizes[path.name] = path.stat().st_size
    for path in sorted(folder.rglob("*")):
        # Only what is text; an input file that happens to name the place is the stream's own business.
        if path.is_file() and path.suffix not in (".parquet", ".crc") and path.parent.name not in ("visits", "next"):
            _rewrite_text(path, replaced, sizes)


def _rewrite_table(path: Path, replaced: dict[str, str]) -> bool:
    table = pq.read_table(path, partitioning=None)
    moved = table
    for i, column in enumerate(table.columns):
        if pa.types.is_string(column.type):
            for old, new in replaced.items():
                column = pc.replace_substring(column, old, new)
            moved = moved.set_column(i, table.schema.field(i), column)
    if moved.equals(table):
        return False
    pq.write_table(moved, path)
    return True


def _rewrite_text(path: Path, replaced: dict[str, str], sizes: dict[str, int]) -> None:
    before = path.read_bytes()
    text = before
    for old, new in replaced.items():
        text = text.replace(old.encode(), new.encode())
    if path.parent.name == "_delta_log" and path.suffix == ".json":
        text = b"".join(_with_size(line, sizes) for line in text.splitlines(keepends=True))
    if text == before:
        return
    times = path.stat()
    path.write_bytes(text)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    # Checksums of the old text: Hadoop's of a file, Delta's of a version. Both systems do without.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    if path.parent.name == "_delta_log":
        path.with_suffix(".crc").unlink(missing_ok=True)


def _with_size(line: bytes, sizes: dict[str, int]) -> bytes:
    entry = json.loads(line)
    name = Path(entry.get("add", {}).get("path", "")).name
    if name not in sizes:
        return line
    entry["add"]["size"] = sizes[name]
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"
