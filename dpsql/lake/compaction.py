"""Tables stay small however old a run is: many small files become one, and a log loses what nobody can need any more.

Rows stay as they are, and so do transaction marks, which checkpoints of the log keep. Whoever reads changes of a table passes over such a
commit: it says of its files that their rows are not new.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType

from dpsql.files import Place
from dpsql.lake import delta_tables
from dpsql.lake.contributions import TICK_ERA, Contributions
from dpsql.lake.delta_rows import check_files
from dpsql.lake.marks import forgotten_mark, merged_mark
from dpsql.lake.sorted_file import sorted_file
from dpsql.udfs.bucket_state import DamagedState, filesystem

MANY_FILES = 40
SMALL_ROWS = 100_000
"""A file of so many rows is left as it is: each row is written anew a few times in its life, not each time."""

MOST_ROWS = 1_000_000
SMALL_BYTES = 16 << 20
MOST_BYTES = 128 << 20
"""The limit in bytes: rows of cells are large."""
LOG_COMMITS = 20
"""So many commits after a checkpoint of the log comes the next."""
KEPT_HOURS = 7 * 24
"""Retention of files of the public table: as long as Delta's own VACUUM by default."""

PLAIN = {"timestampNtz"}
"""Features of a table that say nothing of its files."""

OF_VERSION = re.compile(r"\.?(\d{20})\.")


def tidy_contributions(table: Contributions, needed_version: int) -> None:
    """Keep few files and a short log, however many ticks there were. Nobody else may write.

    Args:
        table: the contributions of a run.
        needed_version: query 2 and a restore of it begin at this version of the table, or later.
    """
    # Until rows have been deleted a restore may begin with the first commit.
    needed_version = (
        0 if delta_tables.mark(table.path, forgotten_mark(table.run_id)) is None else needed_version
    )
    if needed_version:
        ticks = [name for name in small_files(table.path) if name.startswith(f"era={TICK_ERA}/")]
        read_later = (
            set(delta_tables.added_files(table.path, needed_version, table.version))
            if len(ticks) > MANY_FILES
            else set(ticks)
        )
        old = [name for name in ticks if name not in read_later]
        merge(
            table.path,
            old,
            lambda ticks: table.files.write_era(ticks.sort_by("bucket"), TICK_ERA, 0),
            merged_mark(table.run_id),
            needed_version,
        )
    shorten(table.path, needed_version)


def tidy_public(path: Place, application: str) -> list[str]:
    """Keep few files and a short log of the histogram, however many ticks have released rows.

    When, and what comes of it, depends on these and on time alone. Who reads the table has the replaced files and the log for a week.

    Args:
        path: of the table.
        application: what marks its commits.

    Returns:
        The new files, which everybody may read.
    """
    new_files = merge(
        path, small_files(path), lambda rows: sorted_file(path, rows), f"{application}/merged"
    )
    if new_files:
        delta_tables.vacuum(path, KEPT_HOURS)
    return new_files + shorten(path, kept_seconds=KEPT_HOURS * 3600)


def merge(
    path: Place,
    names: Sequence[str],
    write: Callable[[pa.Table], Mapping[str, Any]],
    application: str,
    version: int | None = None,
) -> list[str]:
    """Put one file in the place of small ones, if they are many. The old ones stay on the disk, for whoever is reading.

    Args:
        path: of the table. Somebody else may write to it: then nothing is changed.
        names: its small files that may be merged, in the order of their rows.
        write: makes a file of rows, as `delta_tables.append_files` wants it.
        application, version: the mark that the commit carries; by default it counts the table's versions.

    Returns:
        The files of the commit, and those of the log that came with it, on a local disk; nothing if there was nothing to do.

    Raises:
        DamagedState: a file is not as it was written; nothing is changed.
    """
    table = DeltaTable(str(path))
    if (
        len(names) <= MANY_FILES
        or not _is_plain(table)
        or not set(names) <= delta_tables.file_names(table)
    ):
        return []
    rows = list[pa.Table]()
    chosen = list[str]()
    try:
        for name in names:
            check_files(path, [name])
            rows.append(_read_file(table, path, name))
            chosen.append(name)
            if sum(map(len, rows)) >= MOST_ROWS or sum(one.nbytes for one in rows) >= MOST_BYTES:
                break
        content = pa.concat_tables([one.cast(rows[-1].schema) for one in rows])
    except (OSError, ValueError, pa.ArrowException):
        raise DamagedState(
            f"{path}/{name} is lost or damaged: put it back as it was; until then the table's small files stay small"
        ) from None
    if len(chosen) < 2:
        return []
    new = write(content)
    try:
        return delta_tables.replace_files(
            table,
            path,
            chosen,
            new,
            {application: table.version() + 1 if version is None else version},
        )
    except CommitFailedError:
        # A store also says so of a commit that it has made, if its first answer was lost and it was asked again.
        if new["path"] not in delta_tables.file_names(DeltaTable(str(path))):
            system, root = filesystem(str(path))
            system.delete_file(f"{root}/{new['path']}")
        return []


def small_files(path: Place) -> list[str]:
    """Return names of the small files of a table, in the order in which they were added."""
    actions = pa.table(DeltaTable(str(path)).get_add_actions()).select(
        ["modification_time", "path", "num_records", "size_bytes"]
    )
    entries = sorted(zip(*(column.to_pylist() for column in actions.columns), strict=True))
    return [
        name
        for _, name, rows, size in entries
        if rows is not None and rows < SMALL_ROWS and size < SMALL_BYTES
    ]


def shorten(path: Place, needed_version: int | None = None, kept_seconds: float = 0) -> list[str]:
    """Make a checkpoint of a table's log where the last one is long ago, and remove the commits and checkpoints that nobody needs.

    What stays: everything from version `needed` on (None: there is no such version); what is younger than `kept_seconds`; and enough to open
    the version before the newest, whose commit may turn out to be torn. Broken off and done again it does no harm: the oldest go first.

    Returns:
        The new files of the log, on a local disk.
    """
    system, folder = filesystem(f"{path}/_delta_log")
    log_files = [
        (int(match[1]), file)
        for file in system.get_file_info(pafs.FileSelector(folder))
        if (match := OF_VERSION.match(file.base_name))
    ]
    commits = {
        version: file for version, file in log_files if file.base_name == f"{version:020d}.json"
    }
    # One of several parts may lack some, and the table could be opened without it.
    checkpoints = {
        version
        for version, file in log_files
        if file.base_name == f"{version:020d}.checkpoint.parquet"
    }
    newest = max(commits)
    new_files = (
        delta_tables.checkpoint(path)
        if newest - max(checkpoints, default=-1) >= LOG_COMMITS
        else []
    )
    since_ns = time.time_ns() - int(kept_seconds * 1e9)
    young = [
        version
        for version, file in commits.items()
        if kept_seconds and (file.mtime_ns or 0) >= since_ns
    ]
    last = min([*young, newest - 1, newest - 1 if needed_version is None else needed_version])
    base = max((version for version in checkpoints if version <= last), default=None)
    if base is not None and _opens(path, base):
        for version, file in sorted(log_files, key=lambda entry: (entry[0], entry[1].base_name)):
            if version < base:
                with contextlib.suppress(FileNotFoundError):  # somebody else was tidy, too
                    system.delete_file(file.path)
    return new_files


def _is_plain(table: DeltaTable) -> bool:
    """Tell whether its files are its rows: somebody may have switched on deletion vectors or other names of columns since it was made."""
    return (
        table.protocol().min_reader_version == 1
        or set(table.protocol().reader_features or ["?"]) <= PLAIN
    )


def _opens(path: Place, version: int) -> bool:
    """Tell whether a version can be opened, from its checkpoint: then what came before is not needed for it."""
    try:
        return DeltaTable(str(path), version=version).version() == version
    except (DeltaError, OSError):
        return False


def _read_file(table: DeltaTable, path: Place, name: str) -> pa.Table:
    system, root = filesystem(str(path))
    with system.open_input_file(f"{root}/{name}") as file:
        rows = pq.read_table(
            file, coerce_int96_timestamp_unit="us", page_checksum_verification=True
        )
    # Spark's INT96 does not say that it is UTC.
    instants = {
        field.name for field in table.schema().fields if field.type == PrimitiveType("timestamp")
    }
    fields = [
        field.with_type(pa.timestamp("us", "UTC")) if field.name in instants else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields, rows.schema.metadata))
