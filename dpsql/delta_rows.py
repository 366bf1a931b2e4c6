"""Rows of Delta tables, read without Spark.

Arrow's threads read the files through a file system of its own. deltalake's is a Python object, which a thread may still hold when the
interpreter ends: then the process aborts after its work is done ("terminate called without an active exception", one read in eight on a
busy machine).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from udfs.bucket_state import filesystem


def read_rows(location: str, columns: Sequence[str] | None = None, condition: pc.Expression | None = None) -> pa.Table:
    """Rows of the newest version of a table.

    Args:
        location: a bare path or a URI.
        columns: which ones; None for all.
        condition: what rows must satisfy; None for all rows.

    Raises:
        deltalake.exceptions.TableNotFoundError: no table is there.
        deltalake.exceptions.DeltaError, OSError, pyarrow.ArrowException: it cannot be read.
    """
    from deltalake import DeltaTable  # slow to import, and not every command reads tables

    files = pafs.SubTreeFileSystem(*reversed(filesystem(location)))
    dataset = DeltaTable(location).to_pyarrow_dataset(filesystem=files)
    return dataset.to_table(None if columns is None else list(columns), filter=condition)
