"""Tables stay small however old a run is: many small files become one, and a log loses what nobody can need any more.

Rows stay as they are, and so do transaction marks, which checkpoints of the log keep. Whoever reads changes of a table passes over such a
commit: it says of its files that their rows are not new.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from dpsql.delta_rows import check_files
from dpsql.streaming import delta_log
from dpsql.streaming.contributions import TICK_ERA, Contributions, forgotten_mark
from dpsql.streaming.histogram import Histogram
from dpsql.streaming.sorted_file import sorted_file
from udfs.bucket_state import filesystem

MANY_FILES = 40
SMALL_ROWS = 100_000
"""A file of so many rows is left as it is: each row is written anew a few times in its life, not each time."""

MOST_ROWS = 1_000_000
LOG_COMMITS = 20
"""So many commits after a checkpoint of the log comes the next."""
KEPT_HOURS = 7 * 24
"""Of the public table: as long as Delta's own VACUUM by default."""

OF_VERSION = re.compile(r"\.?(\d{20})\.")


def tidy_contributions(table: Contributions, needed: int) -> None:
    """Few files and a short log, however many ticks there were. Nobody else may write.

    Args:
        table: the contributions of a run.
        needed: query 2 and a restore of it begin at this version of the table, or later.
    """
    # Until rows have been deleted a restore may begin with the first commit.
    needed = 0 if delta_log.mark(table.path, forgotten_mark(table.run_id)) is None else needed
    if needed:
        ticks = [name for name in small_files(table.path) if name.startswith(f"era={TICK_ERA}/")]
        read_later = set(delta_log.added_files(table.path, needed, table.version)) if len(ticks) > MANY_FILES else set(ticks)
        old = [name for name in ticks if name not in read_later]
        merge(table.path, old, lambda rows: table.files.write_era(rows, TICK_ERA, 0), f"{table.run_id}/merged")
    shorten(table.path, needed)


def tidy_histogram(table: Histogram) -> None:
    """Few files and a short log, however many ticks have released rows. When, and what comes of it, depends on these and on time alone.

    Who reads the table has the replaced files and the log for a week.
    """
    written = merge(table.path, small_files(table.path), lambda rows: sorted_file(table.path, rows), f"{table.application}/merged")
    if written:
        delta_log.vacuum(table.path, KEPT_HOURS)
    written += shorten(table.path, kept_seconds=KEPT_HOURS * 3600)
    table.open_to_readers(written)


def merge(path: str, names: Sequence[str], write: Callable[[pa.Table], Mapping[str, Any]], application: str) -> list[str]:
    """Put one file in the place of small ones, if they are many. The old ones stay on the disk, for whoever is reading.

    Args:
        path: of the table. Somebody else may write to it: then nothing is changed.
        names: its small files that may be merged, in the order of their rows.
        write: makes a file of rows, as `delta_log.append_files` wants it.
        application: the mark that the commit carries; its version counts the table's.

    Returns:
        The files of the commit, and those of the log that came with it, on a local disk; nothing if there was nothing to do.
    """
    table = DeltaTable(path)
    rows, chosen = list[pa.Table](), list[str]()
    for name in names if len(names) > MANY_FILES else ():
        try:
            check_files(path, [name])
            rows.append(_read(path, name))
        except (OSError, pa.ArrowException):
            # Whoever needs its rows is told so then; a run is not stopped for tidiness.
            return []
        chosen.append(name)
        if sum(map(len, rows)) >= MOST_ROWS:
            break
    if len(chosen) < 2:
        return []
    new = write(pa.concat_tables([one.cast(rows[-1].schema) for one in rows]))
    try:
        return delta_log.replace_files(table, path, chosen, new, {application: table.version() + 1})
    except CommitFailedError:
        system, root = filesystem(path)
        system.delete_file(f"{root}/{new['path']}")
        return []


def small_files(path: str) -> list[str]:
    """Names of the files of a table with few rows, in the order in which they were added."""
    added = pa.table(DeltaTable(path).get_add_actions()).select(["modification_time", "path", "num_records"])
    entries = sorted(zip(*(column.to_pylist() for column in added.columns), strict=True))
    return [name for _, name, rows in entries if rows is not None and rows < SMALL_ROWS]


def shorten(path: str, needed: int | None = None, kept_seconds: float = 0) -> list[str]:
    """Make a checkpoint of a table's log where the last one is long ago, and remove the commits and checkpoints that nobody needs.

    What stays: everything from version `needed` on (None: there is no such version); what is younger than `kept_seconds`; and enough to open
    the version before the newest, whose commit may turn out to be torn. Broken off and done again it does no harm: the oldest go first.

    Returns:
        The new files of the log, on a local disk.
    """
    system, folder = filesystem(f"{path}/_delta_log")
    found = [
        (int(named[1]), file) for file in system.get_file_info(pafs.FileSelector(folder)) if (named := OF_VERSION.match(file.base_name))
    ]
    commits = {version: file for version, file in found if file.base_name == f"{version:020d}.json"}
    checkpoints = {version for version, file in found if ".checkpoint." in file.base_name and not file.base_name.startswith(".")}
    newest = max(commits)
    written = delta_log.checkpoint(path) if newest - max(checkpoints, default=-1) >= LOG_COMMITS else []
    since_ns = time.time_ns() - int(kept_seconds * 1e9)
    young = [version for version, file in commits.items() if kept_seconds and (file.mtime_ns or 0) >= since_ns]
    last = min([*young, newest - 1, newest - 1 if needed is None else needed])
    base = max((version for version in checkpoints if version <= last), default=None)
    if base is not None and _opens(path, base):
        for version, file in sorted(found, key=lambda entry: (entry[0], entry[1].base_name)):
            if version < base:
                _remove(system, file.path)
    return written


def _remove(system: pafs.FileSystem, path: str) -> None:
    system.delete_file(path)


def _opens(path: str, version: int) -> bool:
    """Whether a version can be opened, from its checkpoint: then what came before is not needed for it."""
    try:
        return DeltaTable(path, version=version).version() == version
    except (DeltaError, OSError):
        return False


def _read(path: str, name: str) -> pa.Table:
    system, root = filesystem(path)
    with system.open_input_file(f"{root}/{name}") as file:
        return pq.read_table(file, coerce_int96_timestamp_unit="us")
