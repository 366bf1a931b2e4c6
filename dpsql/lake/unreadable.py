"""What of a run cannot be read, by name: whatever an opening of its tables raises ends as one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from dpsql.errors import DpsqlError, LakeError
from dpsql.files import Place
from dpsql.lake import remedies
from dpsql.udfs.bucket_state import filesystem

LISTING = "files"
"""The table whose rows a start reads; of the others it reads the logs."""
UNREADABLE = (DeltaError, pa.ArrowException, OSError, ValueError, KeyError)


@contextmanager
def reading(folder: Place, tables: Mapping[str, Place]) -> Iterator[None]:
    """Report what cannot be read with its table and its file.

    Args:
        folder: the run's private folder.
        tables: by name.

    Raises:
        LakeError: a table could not be read.
        OSError: something else could not; a full disk is no reason to begin a new run.
    """
    try:
        yield
    except DpsqlError:
        raise
    except UNREADABLE as problem:
        damaged_file = next(
            (file for name, path in tables.items() if (file := _damaged(name, path))), None
        )
        if damaged_file is None and isinstance(problem, OSError):
            raise
        unreadable_part = damaged_file or f"what the table {LISTING} at {tables[LISTING]} says"
        raise LakeError(
            f"{unreadable_part} cannot be read ({type(problem).__name__}); {remedies.unrepairable(folder)}"
        ) from problem


def _damaged(name: str, path: Place) -> str | None:
    """Return the first file of a table that cannot be read, in words."""
    try:
        names = (
            pa.table(DeltaTable(str(path)).get_add_actions())["path"].to_pylist()
            if name == LISTING
            else []
        )
        DeltaTable(str(path)).history(1)
    except UNREADABLE:
        return f"the log of the table {name} at {path}"
    system, root = filesystem(str(path))
    for file in names:
        try:
            with system.open_input_file(f"{root}/{file}") as source:
                pq.ParquetFile(source).read()
        except UNREADABLE:
            return f"{path}/{file}, a file of the table {name},"
    return None
