"""Files that tasks hand to the driver: contributions of query 1, released rows of query 2."""

from __future__ import annotations

import hashlib
import json
import uuid
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpsql.udfs.bucket_state import filesystem, make_folder, write_whole
from dpsql.udfs.columns import Int, is_sorted, run_starts
from dpsql.udfs.keys import decode
from dpsql.udfs.stage import ROW

# Released rows on their way from the tasks of query 2 to the driver, which publishes them and
# removes the files.

# Their names are known from the reports alone, so what a task that failed has left is never
# read; the next start removes it.

GROUP_BYTES = 16 << 20
"""Bytes of a row group: rows come by window and trigger, and the driver takes a tick at a time."""


@dataclass(frozen=True)
class ReleasedFiles:
    """A private folder.

    Args:
        path: of it.
        keys: how many key columns there are.
    """

    path: str
    keys: int

    def write(self, rows: pa.Table, bucket: int) -> str:
        """Write the rows that a bucket releases, with a column `k0`, `k1`, ... for every part of the key; returns the name of the file.

        It need not be on the disk: after a power cut the micro-batch is done again.
        """
        for i, column in enumerate(decode(rows["key_bytes"], self.keys)):
            rows = rows.append_column(f"k{i}", column)
        system, folder = filesystem(self.path)
        make_folder(system, folder)
        name = f"{bucket:04d}-{uuid.uuid4().hex}.parquet"
        with system.open_output_stream(f"{folder}/{name}") as file:
            size = max(1, GROUP_BYTES * rows.num_rows // max(1, rows.nbytes))
            pq.write_table(
                rows.combine_chunks(),
                file,
                row_group_size=size,
                compression="none",
                use_dictionary=False,
                write_statistics=False,
            )
        return name


# Data files of the table `contributions`, written by the workers of query 1; the driver commits
# them to the table.

# Rows that are already in columns in a worker would otherwise become rows of the JVM, be cached
# there, and become columns again.

# A file's name holds the SHA-256 of its bytes, so the table's own log lists the digest of every
# file; whoever is about to use a file
# compares it (`dpsql.lake.delta_rows.check_files`). Rows are sorted by the bucket of their key,
# and cut into row groups between buckets: a task of query 2 reads one of them.

RANDOM_COLUMNS = ("key", "key_bytes")
"""Hashes are as good as random: a Parquet dictionary of them is wasted work."""

FIRST_BUCKETS = b"dpsql.first_buckets"
"""In the metadata of a file: the first bucket in each of its row groups, as JSON."""
MOST_ROW_GROUPS = 32
"""Row groups of a file at most. Every task of query 2 parses the footers of all files: one row group for each of 1,024 buckets would take 13 times the CPU."""


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
        """Return one file per era, named by its bytes; they are in the table when the driver has committed them.

        Args:
            rows: contributions with their key's `bucket`, in any order.
            bucket: of users.
            batch: micro-batch of query 1.

        Returns:
            Of every file its path below the table, bytes, rows and partition.
        """
        # Floor division: eras of windows before 1970 are as long as the others.
        era = (rows[self.era_of].to_numpy() - self.first) // self.width
        constants = {"kind": ROW, "batch": batch, "closed_us": 0}
        columns = [
            pa.array(np.full(len(era), constants[field.name]), field.type)
            if field.name in constants
            else rows[field.name]
            for field in self.schema
        ]
        table = pa.table(columns, schema=self.schema)
        order = np.lexsort((rows["bucket"].to_numpy(), era))
        table = table.take(order)
        era = era[order]
        edges = [*np.flatnonzero(run_starts(era)), len(era)]
        return [
            self.write_era(table.slice(a, b - a), int(era[a]), bucket) for a, b in pairwise(edges)
        ]

    def write_era(self, table: pa.Table, era: int, bucket: int) -> dict[str, Any]:
        """Return one file of rows or ticks in all columns, sorted by bucket; returns its path below the table, bytes, rows and partition.

        Raises:
            UnsortedRows: their buckets do not ascend.
        """
        system, root = filesystem(self.path)
        make_folder(system, f"{root}/era={era}")
        sink = pa.BufferOutputStream()
        coded = [column for column in table.column_names if column not in RANDOM_COLUMNS]
        buckets = table["bucket"].to_numpy()
        _check_order(buckets, f"era={era}")
        starts = _group_starts(buckets)
        schema = table.schema.with_metadata(
            {FIRST_BUCKETS: json.dumps(buckets[starts].tolist()).encode()}
        )
        with pq.ParquetWriter(
            sink, schema, compression="lz4", use_dictionary=coded, write_statistics=False
        ) as file:
            for a, b in pairwise([*starts, len(buckets)]):
                file.write_table(table.slice(a, b - a), row_group_size=b - a)
        content = sink.getvalue()
        name = f"part-{bucket:05d}-{hashlib.sha256(content).hexdigest()}.parquet"
        size = write_whole(system, f"{root}/era={era}", name, content)
        return {
            "path": f"era={era}/{name}",
            "bytes": size,
            "rows": table.num_rows,
            "partition": {"era": str(era)},
        }


@dataclass(frozen=True)
class ContributionRows:
    """Rows that a bucket of keys reads of the table.

    Args:
        path: of the table.
        takes: the columns that its stage takes.
        buckets: how many buckets of keys there are.
        void: micro-batches (first, last) of query 1 whose rows do not count.
        relabelled: files may carry buckets of another number of buckets.
    """

    path: str
    takes: pa.Schema
    buckets: int
    void: tuple[tuple[int, int], ...] = ()
    relabelled: bool = False

    def read(self, names: Iterable[str], bucket: int) -> pa.Table:
        """Return the rows of a bucket in some files of the table (paths below it), in columns `takes`.

        Raises:
            UnsortedRows: the buckets of a file do not ascend, so some of its rows would not be found.
        """
        system, root = filesystem(self.path)
        parts = [self.takes.empty_table()]
        for name in names:
            with system.open_input_file(f"{root}/{name}") as source:
                parts.append(self._of_bucket(pq.ParquetFile(source), bucket, name))
        return pa.concat_tables(parts).combine_chunks()

    def _of_bucket(self, file: pq.ParquetFile, bucket: int, name: str) -> pa.Table:
        columns = [
            *self.takes.names,
            *(["batch"] if self.void and "batch" not in self.takes.names else []),
        ]
        if self.relabelled:
            rows = file.read([*dict.fromkeys([*columns, "kind", "key"])])
            of_bucket = pa.array(rows["key"].to_numpy() % self.buckets == bucket)
            rows = rows.filter(pc.and_(of_bucket, pc.equal(rows["kind"], ROW)))
        else:
            rows = _search(file, bucket, [*columns, "bucket"], name)
        for first, last in self.void:
            rows = rows.filter(
                pc.or_(pc.less(rows["batch"], first), pc.greater(rows["batch"], last))
            )
        return rows.select(self.takes.names).cast(self.takes)


def _search(file: pq.ParquetFile, bucket: int, columns: list[str], name: str) -> pa.Table:
    """Return the rows of a bucket in a file that is sorted by bucket, `bucket` among its columns.

    A row group is searched for its own first bucket, too: so all tasks together look at the order of the whole file.
    """
    first_buckets = json.loads(file.schema_arrow.metadata[FIRST_BUCKETS])
    _check_order(np.array(first_buckets), name, distinct=True)
    group = bisect_right(first_buckets, bucket) - 1
    if group < 0:
        return file.read_row_groups([], columns)
    rows = file.read_row_groups([group], columns)
    buckets = rows["bucket"].to_numpy()
    _check_order(buckets, name)
    _check_order(np.array([buckets[-1], *first_buckets[group + 1 :][:1]]), name, distinct=True)
    begin, end = np.searchsorted(buckets, [bucket, bucket + 1])
    return rows.slice(begin, end - begin)


def count_values(values: pa.ChunkedArray | pa.Array) -> list[list[int]]:
    """Return each distinct integer of a column with the number of its rows, ascending."""
    distinct, counts = np.unique(values.to_numpy(), return_counts=True)
    return np.stack([distinct, counts], axis=1).tolist()


class UnsortedRows(ValueError):
    """Rows that a file of contributions must have by bucket are in another order."""


def _check_order(buckets: Int, name: str, distinct: bool = False) -> None:
    if not is_sorted([buckets], distinct):
        raise UnsortedRows(f"{name}: its rows are not sorted by bucket")


def _group_starts(buckets: Int) -> list[int]:
    """Return where row groups begin: no bucket is cut in two, and the groups are about as many buckets each."""
    starts = np.flatnonzero(run_starts(buckets))
    return starts[:: max(1, -(-len(starts) // MOST_ROW_GROUPS))].tolist()
