"""Released rows as the published table that users see: times, typed keys, aggregates in the order written, each with its error bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.lake.sketch_tables import top_lists
from dpsql.local.spark_types import SparkType
from dpsql.mechanisms import registry
from dpsql.mechanisms.protocol import Plan
from dpsql.typed_values import typed
from udfs.keys import decode

KINDS = {"INT": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64()}
TIME = pa.timestamp("us", tz="UTC")


def published_table(plan: Plan, released: Sequence[pa.Table], key_types: Sequence[SparkType]) -> pa.Table:
    """The histogram of all released rows, sorted by (window_start, trigger, key bytes).

    Args:
        plan: the plan.
        released: tables of the release stage, of any buckets and ticks.
        key_types: the Spark type of each key.

    Returns:
        Columns as `dpsql.mechanisms.protocol.Shape` says.
    """
    rows = pa.concat_tables(released).combine_chunks()
    order = [("window", "ascending"), ("trigger", "ascending"), ("key_bytes", "ascending")]
    rows = rows.take(pc.sort_indices(rows, sort_keys=order))
    shape = registry.shape(plan)
    grid, windows = shape.schedule.grid, shape.schedule.windows
    window = rows.column("window").to_numpy()
    trigger = rows.column("trigger").to_numpy()
    columns: dict[str, Any] = {"window_start": _times(window), "window_end": _times(window + grid.window_us)} if windows else {}
    columns["trigger"] = pa.array(trigger.astype(np.int32 if windows else np.int64))
    columns["trigger_time"] = _times(window + trigger * grid.trigger_us)
    keys = typed_keys(plan, rows.column("key_bytes"), key_types) if plan.query.output_keys else {}
    for name in plan.query.columns_in_order:
        if name in keys:
            columns[name] = keys[name]
        for column in shape.of(name):
            if column.size:
                columns[column.name] = lists([rows.column(name) for name in column.sources])
                continue
            values = rows.column(column.source)
            columns[column.name] = (
                _value(values, KINDS[column.kind]) if column.kind in KINDS else _list(plan, values, column.kind, key_types)
            )
    return pa.table(columns)


def lists(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """ARRAY<DOUBLE> of columns that are NaN together; NULL then."""
    values = np.stack([column.to_numpy() for column in columns], axis=1)
    none = np.isnan(values[:, 0])
    ends = np.concatenate([[0], np.cumsum(np.where(none, 0, len(columns)))])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values[~none].ravel()), mask=pa.array(none))


def _list(plan: Plan, packed: pa.ChunkedArray, kind: str, key_types: Sequence[SparkType]) -> pa.Array:
    kinds = key_types or [SparkType("string")] * len(plan.query.keys)
    return top_lists(packed, kind, [(key.name, each.arrow) for key, each in zip(plan.query.keys, kinds, strict=True)])


def typed_keys(plan: Plan, key_bytes: pa.ChunkedArray, key_types: Sequence[SparkType]) -> dict[str, pa.Array]:
    """Key columns by name. Without types (no input was read at all) they are strings: there are no rows then."""
    kinds = key_types or [SparkType("string")] * len(plan.query.keys)
    columns = decode(key_bytes.combine_chunks(), len(plan.query.keys))
    return {key.name: typed_key(values, kind) for key, values, kind in zip(plan.query.keys, columns, kinds, strict=True)}


def typed_key(values: pa.Array, kind: SparkType) -> pa.Array:
    """Value bytes of a key column in its type; NULL stays NULL."""
    return typed(values, kind.arrow)


def _value(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """In a DOUBLE, NaN says NULL."""
    if not pa.types.is_floating(kind):
        return values.cast(kind)
    return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)


def _times(us: np.ndarray) -> pa.Array:
    return pa.array(us, pa.int64()).cast(TIME)
