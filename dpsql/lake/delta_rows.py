"""Rows of Delta tables, read without Spark.

Arrow's threads read the files through a file system of its own. deltalake's is a Python object, which a thread may still hold when the
interpreter ends: then the process aborts after its work is done ("terminate called without an active exception", one read in eight on a
busy machine).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from dpsql.files import Place
from dpsql.udfs.bucket_state import DamagedFile, filesystem

NAMED_BY_BYTES = re.compile(r"-([0-9a-f]{64})\.parquet$")
"""Those of other writers have other names; they are used as they are."""

READERS = 8


def read_rows(location: Place, columns: Sequence[str] | None = None, condition: pc.Expression | None = None) -> pa.Table:
    """Rows of the newest version of a table.

    Args:
        location: of the table.
        columns: which ones; None for all.
        condition: what rows must satisfy; None for all rows.

    Raises:
        deltalake.exceptions.TableNotFoundError: no table is there.
        deltalake.exceptions.DeltaError, OSError, pyarrow.ArrowException: it cannot be read.
    """
    from deltalake import DeltaTable  # slow to import, and not every command reads tables

    files = pafs.SubTreeFileSystem(*reversed(filesystem(str(location))))
    dataset = DeltaTable(str(location)).to_pyarrow_dataset(filesystem=files)
    return dataset.to_table(None if columns is None else list(columns), filter=condition)


def check_files(location: Place, names: Iterable[str]) -> None:
    """Refuse files of a table that are named by the SHA-256 of their bytes and have other bytes.

    Args:
        location: of the table.
        names: paths below it.

    Raises:
        FileNotFoundError: a file is not there.
        DamagedFile: a file is damaged.
    """
    named = [(name, found[1]) for name in names if (found := NAMED_BY_BYTES.search(name))]
    if named:
        with ThreadPoolExecutor(min(READERS, len(named))) as readers:
            list(readers.map(lambda entry: _check_file(location, *entry), named))


def _check_file(location: Place, name: str, digest: str) -> None:
    system, folder = filesystem(str(location))
    with system.open_input_file(f"{folder}/{name}") as file:
        if hashlib.sha256(file.read_buffer()).hexdigest() != digest:
            raise DamagedFile(f"{location}/{name} is damaged: its bytes are not those that were written")
