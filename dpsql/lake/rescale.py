"""The state of one operator cut into another number of buckets: the same rows, each in the bucket that its id falls into."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from dpsql.udfs.stage import CLOSED, Tables
from dpsql.udfs.state_table import StateTable


def recut(
    state: Mapping[int, Tables], buckets: int, layout: Mapping[str, StateTable]
) -> dict[int, Tables]:
    """Cut state into `buckets` buckets.

    Args:
        state: bucket -> tables, of every bucket that has any.
        buckets: how many there shall be.
        layout: of the operator's tables.
    """
    if not state:
        return {}
    all_rows = {name: _joined([tables[name] for tables in state.values()]) for name in layout}
    all_rows = {
        name: table.sort_by([(column, "ascending") for column in layout[name].sorted_by])
        for name, table in all_rows.items()
    }
    state_by_bucket: dict[int, Tables] = {}
    for bucket in range(buckets):
        bucket_tables = {
            name: _rows(table, layout[name].bucket_by, bucket, buckets)
            for name, table in all_rows.items()
        }
        # A bucket that has closed the grid remembers up to when, also without any row.
        if any(
            table.num_rows or CLOSED in (table.schema.metadata or {})
            for table in bucket_tables.values()
        ):
            state_by_bucket[bucket] = bucket_tables
    return state_by_bucket


def _joined(parts: list[pa.Table]) -> pa.Table:
    """Return all rows; of the closed times the newest."""
    closed = [int((part.schema.metadata or {}).get(CLOSED, b"0")) for part in parts]
    metadata = parts[0].schema.metadata
    if metadata and CLOSED in metadata:
        metadata = {**metadata, CLOSED: str(max(closed)).encode()}
    return (
        pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
        .combine_chunks()
        .replace_schema_metadata(metadata)
    )


def _rows(table: pa.Table, column: str, bucket: int, buckets: int) -> pa.Table:
    return table.filter(
        pa.array(table.column(column).to_numpy() % np.int64(buckets) == bucket)
    ).combine_chunks()
