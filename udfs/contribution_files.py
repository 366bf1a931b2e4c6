"""Data files of the table `contributions`, written by the workers of query 1; the driver commits them to the table.

Rows that are already in columns in a worker would otherwise become rows of the JVM, be cached there, and become columns again.

A file's name holds the SHA-256 of its bytes, so the table's own log lists the digest of every file; whoever is about to use a file
compares it (`dpsql.lake.delta_rows.check_files`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from udfs.bucket_state import filesystem, make_folder, write_whole
from udfs.columns import run_starts
from udfs.stage import ROW

RANDOM_COLUMNS = ("key", "key_bytes")
"""Hashes are as good as random: a Parquet dictionary of them is wasted work."""


@dataclass(frozen=True)
class ContributionFiles:
    """Where contributions go.

    Args:
        path: of the table.
        schema: its columns without `era`.
        era_of, first, width: a row is in era (column era_of - first) // width.
    """

    path: str
    schema: pa.Schema
    era_of: str
    first: int
    width: int

    def write(self, rows: pa.Table, bucket: int, batch: int) -> list[dict[str, Any]]:
        """One file per era, named by its bytes; they are in the table when the driver has committed them.

        Args:
            rows: contributions with their key's `bucket`, sorted by era.
            bucket: of users.
            batch: micro-batch of query 1.

        Returns:
            Of every file its path below the table, bytes, rows and partition.
        """
        # Floor division: eras of windows before 1970 are as long as the others.
        era = (rows.column(self.era_of).to_numpy() - self.first) // self.width
        constants = {"kind": ROW, "batch": batch, "closed_us": 0}
        columns = [
            pa.array(np.full(len(era), constants[field.name]), field.type) if field.name in constants else rows[field.name]
            for field in self.schema
        ]
        table = pa.table(columns, schema=self.schema)
        edges = [*np.flatnonzero(run_starts(era)), len(era)]
        return [self.write_era(table.slice(a, b - a), int(era[a]), bucket) for a, b in pairwise(edges)]

    def write_era(self, table: pa.Table, era: int, bucket: int) -> dict[str, Any]:
        """One file of rows or ticks in all columns; returns its path below the table, bytes, rows and partition."""
        system, root = filesystem(self.path)
        make_folder(system, f"{root}/era={era}")
        sink = pa.BufferOutputStream()
        coded = [column for column in table.column_names if column not in RANDOM_COLUMNS]
        pq.write_table(table, sink, compression="lz4", use_dictionary=coded, write_statistics=False)
        content = sink.getvalue()
        name = f"part-{bucket:05d}-{hashlib.sha256(content).hexdigest()}.parquet"
        size = write_whole(system, f"{root}/era={era}", name, content)
        return {"path": f"era={era}/{name}", "bytes": size, "rows": table.num_rows, "partition": {"era": str(era)}}
