"""The rows that the tasks of a micro-batch of query 2 have released: in files, whose names their reports say."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from dpsql.files import Place
from dpsql.streaming.workers import TYPES
from dpsql.udfs.bucket_state import filesystem
from dpsql.udfs.stage import LEFT_OUT

FOLDER = "released"
"""In the private folder of a run."""
Pair = tuple[int, int]
"""(window start in microseconds, trigger number)."""


@dataclass(frozen=True)
class ReleasedRows:
    """The rows of one micro-batch.

    Args:
        session: reads them where they are many.
        folder: where the files are.
        names: of the files.
    """

    session: SparkSession
    folder: Place
    names: tuple[str, ...]

    def table(self, pairs: Collection[Pair] | None = None) -> pa.Table:
        """Return the rows of some triggers, or all; in any order."""
        system, root = filesystem(str(self.folder))
        parts = []
        for name in self.names:
            with system.open_input_file(f"{root}/{name}") as file:
                parquet = pq.ParquetFile(file)
                parts += (
                    [parquet.read()]
                    if pairs is None
                    else [parquet.schema_arrow.empty_table(), *_of_pairs(parquet, pairs)]
                )
        return pa.concat_tables(parts)

    def figures(self) -> pa.Table:
        """Return the rows that have figures of what the limits left out, and no group."""
        system, root = filesystem(str(self.folder))
        parts = []
        for name in self.names:
            with system.open_input_file(f"{root}/{name}") as file:
                rows = pq.ParquetFile(file).read(["window", "trigger", LEFT_OUT.name])
            parts.append(rows.filter(pc.greater(pc.binary_length(rows[LEFT_OUT.name]), 0)))
        return pa.concat_tables(parts)

    def frame(self) -> DataFrame:
        """Return all rows, for Spark."""
        system, root = filesystem(str(self.folder))
        with system.open_input_file(f"{root}/{self.names[0]}") as file:
            columns = ", ".join(
                f"{field.name} {TYPES[field.type]}" for field in pq.ParquetFile(file).schema_arrow
            )
        return self.session.read.schema(columns).parquet(
            *(f"{self.folder}/{name}" for name in self.names)
        )

    def remove(self) -> None:
        """Remove the files: their rows are published."""
        for name in self.names:
            with contextlib.suppress(FileNotFoundError):
                (self.folder / name).unlink()


def sweep(folder: Place) -> None:
    """Remove what an earlier start has left; no micro-batch is at work. A folder is nobody's of ours, and stays."""
    files: list[Place] = list(folder.iterdir()) if folder.is_dir() else []
    for file in files:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            file.unlink()


def _of_pairs(file: pq.ParquetFile, pairs: Collection[Pair]) -> Iterator[pa.Table]:
    """Yield the rows of some triggers; of the other row groups two columns are read."""
    for group in range(file.num_row_groups):
        row_pairs = file.read_row_group(group, ["window", "trigger"]).to_pandas()
        is_wanted = pd.MultiIndex.from_frame(row_pairs).isin(list(pairs))
        if is_wanted.any():
            yield file.read_row_group(group).filter(pa.array(is_wanted))
