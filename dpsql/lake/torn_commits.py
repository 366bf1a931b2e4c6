"""The newest commit of a table of the run was cut: which, and what it was.

Only the newest commit can be torn by a crash. Of the manifest and of the histogram it is put aside: then it is as if it had not been made, and
`restore` makes both anew from what is left. A commit of `contributions` may have been read already. It is written again from the files that it
added: they lie in the table's folder, named by the SHA-256 of their bytes, and what they hold says which commit they were.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from dpsql.files import Place, replace_file
from dpsql.lake.contributions import written_info
from dpsql.lake.delta_rows import check_files
from dpsql.lake.delta_tables import file_names
from dpsql.lake.hadoop_checksums import checksum_path, differs
from dpsql.lake.manifest import Manifest
from dpsql.lake.marks import closed_mark, rows_mark, tick_mark, ticked_mark
from dpsql.udfs.bucket_state import filesystem, sync
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.stage import ROW, TICK

FOLDER = "damaged"
"""In the private folder: what was put aside."""

DATA_FILE = re.compile(r"part-\d+-[0-9a-f]{64}\.parquet")
CUT_AFTER = ("/tick", "/closed_us")
"""Marks that are never the last ones of a commit."""


@dataclass(frozen=True)
class Torn:
    """A table whose newest commit cannot be read.

    Args:
        table: its path.
        version: of that commit.
    """

    table: Place
    version: int

    @property
    def path(self) -> Place:
        """The file of that commit."""
        return _log(self.table) / f"{self.version:020d}.json"

    @property
    def has_checkpoint(self) -> bool:
        """Whether the table can be read without the file."""
        return any(
            file.name.startswith(f"{self.version:020d}.checkpoint")
            for file in _log(self.table).iterdir()
        )

    def put_aside(self, folder: Place, table_name: str) -> None:
        """Keep its bytes in the run's private folder and take it out of the log: the table is as before it."""
        self._keep(folder, table_name)
        self.path.unlink()

    def replace(self, folder: Place, table_name: str, actions: Iterable[dict[str, Any]]) -> None:
        """Keep its bytes in the run's private folder and write the commit anew."""
        self._keep(folder, table_name)
        replace_file(
            self.path,
            "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode(),
        )
        if isinstance(self.path, Path):
            sync(str(self.path.parent))

    def _keep(self, folder: Place, table_name: str) -> None:
        content = self.path.read_bytes()
        aside = folder / FOLDER
        if isinstance(aside, Path):
            aside.mkdir(mode=0o700, exist_ok=True)
        replace_file(
            aside
            / f"{table_name}-{self.version:020d}-{hashlib.sha256(content).hexdigest()[:12]}.json",
            content,
        )
        if checksum_path(self.path).exists():
            checksum_path(self.path).unlink()


def torn(table: Place) -> Torn | None:
    """Return the newest commit of a table, if it cannot be read."""
    versions = [
        int(file.name[:20])
        for file in _log(table).iterdir()
        if re.fullmatch(r"\d{20}\.json", file.name)
    ]
    newest = Torn(table, max(versions)) if versions else None
    # Where the first commit is torn there is no table without it.
    return newest if newest and newest.version and not _is_whole(newest.path) else None


def unreadable(table: Place, version: int | None = None) -> bool:
    """Tell whether a table, or an earlier version of it, cannot be opened or lacks a file."""
    try:
        delta_table = DeltaTable(str(table), version=version)
        if version is None:
            return False
        return not all((table / name).exists() for name in file_names(delta_table))
    except (DeltaError, OSError):
        return True


def rewritten(
    torn_commit: Torn,
    run_id: str,
    manifest: Manifest,
    ticks: dict[int, int],
    released_us: int | None,
) -> list[dict[str, Any]] | None:
    """Return the commit of `contributions` that was torn, from the files that it added; None if they are not all there, or may be another's.

    Args:
        torn_commit: the torn commit.
        run_id: of the run.
        manifest: of query 1: lists a micro-batch, with its number of rows, before they are committed.
        ticks: time -> number of the catch-up that ticked, as far as known; live ticks have none.
        released_us: the time up to which query 2 is listed; None if it is not.
    """
    table_before = DeltaTable(str(torn_commit.table), version=torn_commit.version - 1)
    unlisted = list(_unlisted_files(torn_commit.table, file_names(table_before)))
    candidates = [
        *_ticks(unlisted, table_before, run_id, ticks, released_us),
        *_rows(unlisted, table_before, run_id, manifest),
    ]
    named_files = set(DATA_FILE.findall(torn_commit.path.read_bytes().decode(errors="replace")))
    fitting = [
        (files, marks, info)
        for files, marks, info in candidates
        if named_files <= {file.rpartition("/")[2] for file, _ in files}
    ]
    if len(fitting) != 1:
        return None
    files, marks, info = fitting[0]
    try:
        check_files(torn_commit.table, [name for name, _ in files])
    except OSError:
        return None
    # As `delta_tables.append_files` writes it; its time and its engine are nobody's business.
    head = {
        "commitInfo": {
            "timestamp": 0,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": '["era"]'},
            **info,
        }
    }
    return [
        head,
        *(_add(torn_commit.table, *file) for file in files),
        *({"txn": {"appId": name, "version": mark}} for name, mark in marks.items()),
    ]


Files = list[tuple[str, pa.Table]]
Candidate = tuple[Files, dict[str, int], dict[str, str]]


def _ticks(
    unlisted: Files,
    table_before: DeltaTable,
    run_id: str,
    ticks: dict[int, int],
    released_us: int | None,
) -> Iterator[Candidate]:
    """Yield the ticks that may have come next."""
    mark = table_before.transaction_version(closed_mark(run_id))
    last_us = NO_CLOCK if mark is None else mark
    for name, rows in unlisted:
        if not rows.num_rows or rows["kind"][0].as_py() != TICK:
            continue
        batch = rows["batch"][0].as_py()
        closed_us = rows["closed_us"][0].as_py()
        # Query 2 lists a tick before it publishes what is due: one that is listed was this one.
        if closed_us > last_us and (
            released_us is None or released_us <= last_us or released_us == closed_us
        ):
            number = {tick_mark(run_id): ticks[closed_us]} if closed_us in ticks else {}
            yield (
                [(name, rows)],
                {**number, closed_mark(run_id): closed_us, ticked_mark(run_id): batch + 1},
                {},
            )


def _rows(
    unlisted: Files, table_before: DeltaTable, run_id: str, manifest: Manifest
) -> Iterator[Candidate]:
    """Yield the rows of the micro-batch that may have come next."""
    mark = table_before.transaction_version(
        rows_mark(run_id, manifest.operator, manifest.generation)
    )
    pending = {
        batch: detail
        for batch, detail in manifest.batches().items()
        if detail.get("rows") and batch > (-1 if mark is None else mark)
    }
    for batch, detail in pending.items():
        files = [
            (name, rows)
            for name, rows in unlisted
            if rows.num_rows and (rows["kind"][0].as_py(), rows["batch"][0].as_py()) == (ROW, batch)
        ]
        if sum(rows.num_rows for _, rows in files) == detail["rows"]:
            mark_name = rows_mark(run_id, manifest.operator, manifest.generation)
            yield files, {mark_name: batch}, written_info(batch, detail["written"])


def _unlisted_files(table: Place, listed_names: set[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield files below the table that no commit has, and their columns that say whose they are."""
    system, root = filesystem(str(table))
    for era in table.iterdir():
        for file in era.iterdir() if era.name.startswith("era=") else ():
            name = f"{era.name}/{file.name}"
            if name not in listed_names and DATA_FILE.fullmatch(file.name):
                try:
                    with system.open_input_file(f"{root}/{name}") as source:
                        yield name, pq.read_table(source, columns=["kind", "batch", "closed_us"])
                except (OSError, pa.ArrowException):
                    continue


def _add(table: Place, name: str, rows: pa.Table) -> dict[str, Any]:
    system, root = filesystem(str(table))
    era = name.partition("/")[0].removeprefix("era=")
    return {
        "add": {
            "path": name,
            "partitionValues": {"era": era},
            "size": int(system.get_file_info(f"{root}/{name}").size),
            "modificationTime": 0,
            "dataChange": True,
            "stats": json.dumps({"numRecords": rows.num_rows}),
        }
    }


def _is_whole(path: Place) -> bool:
    """Tell whether a commit can be read and is whole. Our own ends with its marks; Spark's has a checksum."""
    try:
        actions = [json.loads(line) for line in path.read_text().splitlines() if line]
    except (OSError, ValueError):
        return False
    if not actions or not all(isinstance(action, dict) for action in actions) or differs(path):
        return False
    is_ours = any(
        "delta-rs" in str(action.get("commitInfo", {}).get("engineInfo", "")) for action in actions
    )
    operation = next(
        (action["commitInfo"].get("operation") for action in actions if "commitInfo" in action),
        None,
    )
    if not is_ours or operation != "WRITE":
        return True
    last = actions[-1].get("txn", {}).get("appId", CUT_AFTER[0])
    return not last.endswith(CUT_AFTER)


def _log(table: Place) -> Place:
    return table / "_delta_log"
