"""Released rows as the public table that users see: times, typed keys, aggregates in the order written, each with its error bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.parsed_query import ParsedQuery
from dpsql.published.cells import TIME, top_lists
from dpsql.schedule import Schedule
from dpsql.typed_values import typed
from dpsql.udfs.keys import decode

if TYPE_CHECKING:
    from dpsql.mechanisms.protocol import OutputColumn

KINDS = {"INT": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64()}
ORDER = [("window", "ascending"), ("trigger", "ascending"), ("key_bytes", "ascending")]


def published_rows(
    query: ParsedQuery,
    schedule: Schedule,
    columns: Sequence[OutputColumn],
    released: pa.Table,
    key_types: Sequence[pa.DataType],
) -> pa.Table:
    """The public form of released rows, sorted by (window_start, trigger, key bytes).

    Args:
        query: what was asked.
        schedule: of its triggers.
        columns: those that are no keys.
        released: rows of the release stage, of any buckets and ticks.
        key_types: the type of each key of the query.

    Returns:
        The columns of the public table, in order.
    """
    rows = released.combine_chunks()
    rows = rows.take(pc.sort_indices(rows, sort_keys=ORDER))
    grid = schedule.grid
    windows = schedule.windows
    window = rows.column("window").to_numpy()
    trigger = rows.column("trigger").to_numpy()
    found: dict[str, Any] = (
        {"window_start": _times(window), "window_end": _times(window + grid.window_us)}
        if windows
        else {}
    )
    found["trigger"] = pa.array(trigger.astype(np.int32 if windows else np.int64))
    found["trigger_time"] = _times(window + trigger * grid.trigger_us)
    keys = typed_keys(query, rows.column("key_bytes"), key_types) if query.output_keys else {}
    for name in query.columns_in_order:
        if name in keys:
            found[name] = keys[name]
        for column in (each for each in columns if each.aggregate == name):
            if column.size:
                found[column.name] = _doubles([rows.column(source) for source in column.sources])
                continue
            values = rows.column(column.source)
            if column.kind in KINDS:
                found[column.name] = _value(values, KINDS[column.kind])
            else:
                parts = [(key.name, kind) for key, kind in zip(query.keys, key_types, strict=True)]
                found[column.name] = top_lists(values, column.kind, parts)
    return pa.table(found)


def typed_keys(
    query: ParsedQuery, key_bytes: pa.ChunkedArray, key_types: Sequence[pa.DataType]
) -> dict[str, pa.Array]:
    """Key columns by name."""
    columns = decode(key_bytes.combine_chunks(), len(query.keys))
    return {
        key.name: typed(values, kind)
        for key, values, kind in zip(query.keys, columns, key_types, strict=True)
    }


def _doubles(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """ARRAY<DOUBLE> of columns that are NaN together; NULL then."""
    values = np.stack([column.to_numpy() for column in columns], axis=1)
    none = np.isnan(values[:, 0])
    ends = np.concatenate([[0], np.cumsum(np.where(none, 0, len(columns)))])
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(values[~none].ravel()), mask=pa.array(none)
    )


def _value(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """In a DOUBLE, NaN says NULL."""
    if not pa.types.is_floating(kind):
        return values.cast(kind)
    return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)


def _times(us: np.ndarray) -> pa.Array:
    return pa.array(us, pa.int64()).cast(TIME)
