"""Delta tables of other programs: opened only where their files are their rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpsql.errors import DataError

if TYPE_CHECKING:
    from deltalake import DeltaTable

MAPPING = "delta.columnMapping.mode"
ON_SPARK = "which runs on Spark only: `dpsql run --until-caught-up`, or write its rows to Parquet files there and name them with --input"


def open_table(path: Path, version: int | None = None) -> DeltaTable:
    """Open a version of a Delta table whose files have its rows and columns as they are.

    Args:
        path: of the table.
        version: which one; None is the newest.

    Raises:
        DataError: it cannot be opened; rows of its files are deleted, or its columns have other names there.
    """
    from deltalake import DeltaTable  # slow to import
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(str(path), version=version)
        is_mapped = table.metadata().configuration.get(MAPPING, "none") != "none"
        has_deleted = not is_mapped and any(batch.num_rows for batch in table.deletion_vectors())
    except (DeltaError, OSError):
        raise DataError(f"{path}: the Delta table cannot be read") from None
    if is_mapped:
        raise DataError(
            f"{path}: the Delta table maps its columns to other names ({MAPPING}), {ON_SPARK}"
        )
    if has_deleted:
        raise DataError(f"{path}: the Delta table has deletion vectors, {ON_SPARK}")
    return table
