"""Delta tables from the driver without a Spark job: transaction marks, and small appends that carry them.

A mark (application, version) is written in the same commit as its rows, so asking for it tells whether those rows are there.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from dpsql.files import ObjectPath, Place
from dpsql.lake.sorted_file import sorted_file
from dpsql.udfs.bucket_state import filesystem, sync

KEPT_OPEN = 8
_open: OrderedDict[str, tuple[DeltaTable, object]] = OrderedDict()
"""Tables on a disk that this process has opened, by path, and which files they have been read from."""


def exists(path: Place) -> bool:
    """Tell whether a Delta table is there."""
    return (path / "_delta_log").is_dir() and DeltaTable.is_deltatable(str(path))


def create(
    path: Place,
    schema: Schema,
    partition_by: list[str] | None = None,
    properties: Mapping[str, str | None] = {},
    marks: Mapping[str, int] = {},
    description: str | None = None,
    comments: Mapping[str, str] = {},
) -> None:
    """Make an empty table unless it is there; of one that is there, wait until its newest commit is on the disk: who made it may have been
    killed before that, and what it made unneeded is removed next.

    Args:
        path, schema, partition_by, properties: of the table.
        marks: of its first commit.
        description, comments: what every reader of the table is shown of it, and of its columns by their names.
    """
    if exists(path):
        settle(path, DeltaTable(str(path)).version() - 1)
    else:
        # Old commits are what a restored or verifying reader starts from: they are not cleaned up behind our back.
        settings: dict[str, str | None] = {"delta.enableExpiredLogCleanup": "false", **properties}
        DeltaTable.create(
            str(path),
            _commented(schema, comments),
            mode="ignore",
            partition_by=partition_by,
            description=description,
            configuration=settings,
            commit_properties=_committing(marks),
            raise_if_key_not_exists=not properties,
        )
        settle(path, -1)


def _commented(schema: Schema, comments: Mapping[str, str]) -> Schema:
    """Return a schema whose columns have comments."""
    return Schema(
        [
            Field(
                column.name,
                column.type,
                nullable=column.nullable,
                metadata={**column.metadata, "comment": comments[column.name]}
                if column.name in comments
                else column.metadata,
            )
            for column in schema.fields
        ]
    )


def describe(path: Place, description: str) -> None:
    """Set what readers are shown of a table, in one commit without rows."""
    table = newest(path)
    version_before = table.version()
    table.alter.set_table_description(description)
    settle(path, version_before)


def set_properties(
    path: Place, properties: Mapping[str, str], marks: Mapping[str, int]
) -> list[str]:
    """Set properties of a table, in one commit without rows.

    Returns:
        As `append_files`.
    """
    table = newest(path)
    version_before = table.version()
    table.alter.set_table_properties(
        dict(properties), raise_if_not_exists=False, commit_properties=_committing(marks)
    )
    return settle(path, version_before)


def _committing(marks: Mapping[str, int], **more: Any) -> CommitProperties:
    return CommitProperties(
        app_transactions=[Transaction(name, number) for name, number in marks.items()], **more
    )


def newest(path: Place) -> DeltaTable:
    """Return a table as it is now, for its marks and for appends to it.

    The object is kept, and reads only the commits that have come since: to open a table costs by the number of its files. It is opened anew
    after each checkpoint of its log, and where its newest commit is not the file any more that it was: damaged, gone, or of another table.
    Somebody whose commit must fail if others have written meanwhile needs an object of his own.
    """
    if isinstance(
        path, ObjectPath
    ):  # to look at the files would take as many requests as to open it
        return DeltaTable(str(path))
    table, files = _open.pop(str(path), (None, None))
    if table is not None and files == _read_from(path, table.version()):
        with contextlib.suppress(DeltaError, OSError):  # opening it says what it is
            table.update_incremental()
            return _keep_open(path, table)
    return _keep_open(path, DeltaTable(str(path)))


def _keep_open(path: Path, table: DeltaTable) -> DeltaTable:
    _open[str(path)] = table, _read_from(path, table.version())
    while len(_open) > KEPT_OPEN:
        _open.popitem(last=False)
    return table


def _read_from(path: Path, version: int) -> object:
    """Return which file the commit of a version is, and the pointer to the newest checkpoint; where one is not there, nothing that is equal to it."""
    fingerprints = list[object]()
    for file in (f"{version:020d}.json", "_last_checkpoint"):
        try:
            stat = (path / "_delta_log" / file).stat()
            fingerprints.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except FileNotFoundError:
            fingerprints.append(None if file == "_last_checkpoint" else object())
    return fingerprints


def mark(path: Place, application: str) -> int | None:
    """Return the newest version that an application has committed to a table; None if it never did or there is no table."""
    return newest(path).transaction_version(application) if exists(path) else None


def committed(table: DeltaTable, application: str, version: int) -> bool:
    """Tell whether the rows that go with a mark are there."""
    newest = table.transaction_version(application)
    return newest is not None and newest >= version


def append(path: Place, rows: pa.Table, marks: Mapping[str, int]) -> bool:
    """Append a few rows under transaction marks, in one commit.

    Returns:
        False if the first mark already exists: then nothing was written.
    """
    if committed(newest(path), *next(iter(marks.items()))):
        return False
    # Not `write_deltalake`: its commit may be on the disk before its file.
    append_files(path, [sorted_file(path, rows)] if rows.num_rows else [], marks)
    return True


def append_files(
    path: Place,
    files: Sequence[Mapping[str, Any]],
    marks: Mapping[str, int],
    info: Mapping[str, str] = {},
) -> list[str]:
    """Append files that are in the table's folder already, under transaction marks, in one commit.

    Args:
        path: the table.
        files: of each its `path` below the table, `bytes`, `rows`, `partition`: name -> value as text, and perhaps `stats` of its columns.
        marks: if the first already exists, nothing is written.
        info: what the commit says of itself besides.

    Returns:
        The files of the commit, and those of the log that came with it, on a local disk.
    """
    table = newest(path)
    if committed(table, *next(iter(marks.items()))):
        return []
    partition_by = list(files[0]["partition"]) if files else []
    actions: list[AddAction | RemoveAction] = [_add_action(file, True) for file in files]
    version_before = table.version()
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        partition_by,
        commit_properties=_committing(marks, custom_metadata=dict(info)),
    )
    return settle(path, version_before)


def _add_action(file: Mapping[str, Any], is_new: bool) -> AddAction:
    stats = json.dumps({"numRecords": file["rows"], **file.get("stats", {})})
    return AddAction(
        file["path"], file["bytes"], file["partition"], time.time_ns() // 1_000_000, is_new, stats
    )


def replace_files(
    table: DeltaTable,
    path: Place,
    names: Sequence[str],
    new: Mapping[str, Any],
    marks: Mapping[str, int],
) -> list[str]:
    """Put a file with the same rows in the place of others, in one commit. Spark's streams pass over it: it says that no row is new.

    Args:
        table: opened before the files were read.
        path: of it.
        names: the files that go.
        new: the file that comes, as for `append_files`.
        marks: of the commit.

    Returns:
        As `append_files`.

    Raises:
        deltalake.exceptions.CommitFailedError: somebody has written to the table since it was opened; it is as it was.
    """
    now_ms = time.time_ns() // 1_000_000
    sizes = pa.table(table.get_add_actions())
    size_of = dict(zip(sizes["path"].to_pylist(), sizes["size_bytes"].to_pylist(), strict=True))
    actions: list[AddAction | RemoveAction] = [
        RemoveAction(name, False, now_ms, size_of[name], new["partition"]) for name in names
    ]
    actions.append(_add_action(new, False))
    # No retry: by itself the commit would be taken for an append, which fits every other.
    properties = _committing(marks, max_commit_retries=0)
    version_before = table.version()
    table.create_write_transaction(
        actions, "append", table.schema(), list(new["partition"]), commit_properties=properties
    )
    return settle(path, version_before)


def checkpoint(path: Place) -> list[str]:
    """Make a checkpoint of a table's log at its newest version; returns its files, on a local disk."""
    table = DeltaTable(str(path))
    table.create_checkpoint()
    return settle(path, table.version() - 1)


def delete(path: Place, condition: str, marks: Mapping[str, int]) -> None:
    """Delete rows in a commit that is on the disk when this returns: only then may their files go.

    Args:
        path: of the table.
        condition: in SQL.
        marks: of the commit.
    """
    table = DeltaTable(str(path))
    version_before = table.version()
    table.delete(condition, commit_properties=_committing(marks))
    settle(path, version_before)


def vacuum(path: Place, hours: int) -> None:
    """Remove files that no commit names any more, or never has, for so many hours.

    Not by `DeltaTable.vacuum`, which makes two commits of it, and the second may be on the disk before the first.
    """
    system, root = filesystem(str(path))
    for name in DeltaTable(str(path)).vacuum(
        retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True
    ):
        with contextlib.suppress(
            FileNotFoundError
        ):  # removed before: the log remembers its name for a while
            system.delete_file(f"{root}/{name}")


def file_names(table: DeltaTable) -> set[str]:
    """Return the files of a table as it was opened."""
    return set(pa.table(table.get_add_actions())["path"].to_pylist())


def first_version(path: Place) -> int:
    """Return the oldest commit that the log of a table still has."""
    names = (file.name for file in (path / "_delta_log").iterdir())
    return min(
        (int(name[:20]) for name in names if name[:20].isdigit() and name.endswith(".json")),
        default=0,
    )


def added_files(path: Place, first: int, last: int) -> list[str]:
    """Return paths below a table of the files that its versions `first` to `last` have added, of those versions that are there."""
    log = path / "_delta_log"
    names = []
    for version in range(first, last + 1):
        with contextlib.suppress(FileNotFoundError):
            for line in (log / f"{version:020d}.json").read_text().splitlines():
                action = json.loads(line).get("add")
                names += [unquote(action["path"])] if action else []
    return names


@dataclass(frozen=True)
class Commit:
    """A commit of a table: the files that it has added whose rows are new (paths below the table), its transaction marks, and what it says of
    itself."""

    files: tuple[str, ...]
    marks: Mapping[str, int]
    info: Mapping[str, Any]


def commit_of(path: Place, version: int) -> Commit:
    """Return a commit of a table, from its log.

    Raises:
        FileNotFoundError: it is not there.
    """
    text = (path / "_delta_log" / f"{version:020d}.json").read_text()
    actions = [json.loads(line) for line in text.splitlines() if line]
    actions_of_files = (action["add"] for action in actions if "add" in action)
    marks = (action["txn"] for action in actions if "txn" in action)
    return Commit(
        tuple(unquote(one["path"]) for one in actions_of_files if one.get("dataChange", True)),
        {str(mark["appId"]): int(mark["version"]) for mark in marks},
        next((action["commitInfo"] for action in actions if "commitInfo" in action), {}),
    )


def settle(root: Place, version_before: int) -> list[str]:
    """Wait until the commits after a version (-1: and the table itself) are on the local disk: what comes next relies on them, also after a
    power cut. Returns their files."""
    version = version_before + 1
    new_files = list[Path]()
    if isinstance(root, ObjectPath):  # a request that has succeeded is durable
        return []
    log = root / "_delta_log"
    while (commit := log / f"{version:020d}.json").exists():
        files = [root / name for name in added_files(root, version, version)]
        # A checkpoint of the log that is not whole would hide the table, though every commit is there.
        new = [*files, commit, log / f"{version:020d}.checkpoint.parquet", log / "_last_checkpoint"]
        new_files += new
        for path in (*new, *{file.parent for file in files}):
            # Another writer may have compacted it away.
            with contextlib.suppress(FileNotFoundError):
                sync(str(path))
        version += 1
    for folder in (log, root, root.parent) if version_before < 0 else (log,):
        sync(str(folder))
    return [str(file) for file in new_files if file.exists()]
