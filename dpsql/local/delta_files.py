"""Files of Delta tables, and what the table's log says of each: deleted rows, values of partitions, names of columns in the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.errors import DataError
from dpsql.local.arrow_columns import spark_type, stored, table
from dpsql.local.spark_types import Columns
from dpsql.sources.folders import FolderValues

if TYPE_CHECKING:
    from deltalake import DeltaTable

ROWS = 1 << 17
"""Rows of a file that are in memory at once."""

MODE = "delta.columnMapping.mode"
PHYSICAL = "delta.columnMapping.physicalName"
UNDERSTOOD = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""Features of a table that change how it is read, of those that the local engine knows."""

ON_SPARK = "which runs on Spark only: `dpsql run --until-caught-up`, or write its rows to Parquet files there and name them with --input"


@dataclass(frozen=True)
class DataFile:
    """A Parquet file and what is known of it from elsewhere.

    Args:
        path: of the file.
        partition: values by column.
        columns: of the table; none: those of the file.
        names: of columns in the file, by their names in the table; others are not read, unless the table has no columns.
        folders: texts in the names of its folders, by column; `partition` has them once their types are known.
        is_kept: which rows are not deleted, from the first one on; None: none is. Rows behind the last one are kept.
    """

    path: Path
    partition: Mapping[str, pa.Scalar] = field(default_factory=dict)
    columns: Columns = ()
    names: Mapping[str, str] = field(default_factory=dict)
    folders: FolderValues = field(default_factory=dict)
    is_kept: np.ndarray | None = None

    def __fspath__(self) -> str:
        return str(self.path)

    def schema(self, file: pq.ParquetFile) -> pa.Schema:
        """Return the columns that the file has, partition values included, with the names of the table."""
        schema = stored(file.schema_arrow)
        values = [pa.field(name, value.type) for name, value in self.partition.items()]
        if not self.columns:
            return pa.schema(
                [*(field for field in schema if field.name.lower() not in self.partition), *values]
            )
        types = dict(zip(schema.names, schema.types, strict=True))
        listed = {name: types[place] for name, place in self.names.items() if place in types}
        return pa.schema([*listed.items(), *values])

    def batches(self, file: pq.ParquetFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield some columns of `schema`, or one without a name that has as many rows, without deleted rows."""
        stored_names = {
            name: self.names.get(name, name) for name in names if name not in self.partition
        } or dict(zip([""], file.schema_arrow.names, strict=False))
        start = 0
        for stored_batch in file.iter_batches(ROWS, columns=list(stored_names.values())):
            batch = stored_batch.cast(stored(stored_batch.schema))
            columns = {name: batch.column(place) for name, place in stored_names.items()}
            columns |= {
                name: pa.repeat(self.partition[name], batch.num_rows)
                for name in names
                if name in self.partition
            }
            rows = pa.RecordBatch.from_pydict(columns)
            yield rows if self.is_kept is None else rows.filter(self._mask(start, batch.num_rows))
            start += batch.num_rows

    def _mask(self, start: int, count: int) -> pa.Array:
        assert self.is_kept is not None
        known = self.is_kept[start : start + count]
        return pa.array(np.append(known, np.ones(count - len(known), bool)))


def open_file(file: DataFile) -> pq.ParquetFile:
    """Open a Parquet file; INT96 times of the years 1 to 9999 stay what they are."""
    try:
        return pq.ParquetFile(file.path, coerce_int96_timestamp_unit="us")
    except (pa.ArrowException, OSError):
        raise DataError(f"{file.path}: not a readable Parquet file") from None


def delta_files(path: Path, version: int | None = None) -> list[DataFile]:
    """Return the data files of a Delta table's version, by modification time and name; the folder holds those of other versions too.

    Args:
        path: of the table.
        version: which one; None is the newest.

    Raises:
        DataError: it cannot be read, or has something that the local engine does not understand.
    """
    from deltalake.exceptions import DeltaError  # slow to import

    try:
        delta_table = _open_table(path, version)
        _check_understood(delta_table, path)
        vectors = pa.table(delta_table.deletion_vectors().read_all()).to_pydict()
        actions = pa.table(delta_table.get_add_actions())
        fields = delta_table.schema().fields
        columns = _columns(delta_table)
    except (DeltaError, OSError):
        raise DataError(f"{path}: the Delta table cannot be read") from None
    names = {column.name: str(column.metadata.get(PHYSICAL, column.name)) for column in fields}
    masks = {
        _place(path, name).resolve(): np.array(mask, bool)
        for name, mask in zip(vectors["filepath"], vectors["selection_vector"], strict=True)
    }
    files = []
    ordered = actions.sort_by([("modification_time", "ascending"), ("path", "ascending")])
    has_values = "partition" in ordered.column_names
    partitions = ordered["partition"] if has_values else [{}] * len(ordered)
    for place, values in zip(ordered["path"].to_pylist(), partitions, strict=True):
        file = _place(path, place)
        is_kept = masks.pop(file.resolve(), None)
        files.append(DataFile(file, dict(values), columns, names, is_kept=is_kept))
    if masks:
        raise DataError(f"{path}: the Delta table cannot be read")
    return files


def snapshot(path: Path, version: int) -> pa.Table:
    """Return all rows of a Delta table's version; raises as `delta_files`."""
    from deltalake import DeltaTable  # slow to import

    pieces = []
    for data_file in delta_files(path, version):
        with open_file(data_file) as file:
            names = data_file.schema(file).names
            pieces.append(table(data_file.batches(file, names), data_file.columns))
    columns = _columns(DeltaTable(str(path), version=version))
    return pa.concat_tables([table([], columns), *pieces])


def table_columns(path: Path) -> Columns:
    """Return the columns of a table as it is now; raises as `delta_files`."""
    return _columns(_open_table(path, None))


def _open_table(path: Path, version: int | None) -> DeltaTable:
    """Open a table; raises DataError with the features of its log's newest protocol that no reader here knows."""
    from deltalake import DeltaTable  # slow to import
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(str(path), version=version)
    except (DeltaError, OSError):
        features = set[str]()
    with suppress(ValueError, AttributeError, OSError):  # the log itself is damaged
        features = _features(path) - UNDERSTOOD
    uses = f"uses {', '.join(sorted(features))}, {ON_SPARK}" if features else "cannot be read"
    raise DataError(f"{path}: the Delta table {uses}")


def _features(path: Path) -> set[str]:
    """Return the features that readers of a table must know, as the newest commit that names any says."""
    for commit in sorted((path / "_delta_log").glob("*.json"), reverse=True):
        for line in commit.read_text(encoding="utf-8").splitlines():
            if features := json.loads(line).get("protocol", {}).get("readerFeatures"):
                return set(features)
    return set()


def _columns(delta_table: DeltaTable) -> Columns:
    schema = pa.schema(delta_table.schema())
    return tuple((column.name.lower(), spark_type(column.type)) for column in schema)


def _place(table_path: Path, name: str) -> Path:
    """Return a file of a table; its name is part of a URI, and may be a whole one."""
    return table_path / unquote(name.removeprefix("file:"))


def _check_understood(delta_table: DeltaTable, path: Path) -> None:
    """Refuse a table whose rows need more than the local engine knows."""
    features = set(delta_table.protocol().reader_features or ()) - UNDERSTOOD
    if delta_table.metadata().configuration.get(MODE, "none") not in ("none", "name"):
        features.add(f"{MODE}: id")
    if features:
        raise DataError(f"{path}: the Delta table uses {', '.join(sorted(features))}, {ON_SPARK}")
