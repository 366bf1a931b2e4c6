"""Released rows as the published table that users see: times, typed keys, aggregates in the order written, each with its error bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.local.spark_types import SparkType
from dpsql.mechanisms import registry
from dpsql.mechanisms.protocol import Plan
from udfs.keys import decode

KINDS = {"INT": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64()}
TIME = pa.timestamp("us", tz="UTC")
EPOCH_TYPES = {"date": (pa.int32(), pa.date32()), "timestamp": (pa.int64(), TIME)}


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
    keys = typed_keys(plan, rows.column("key_bytes"), key_types)
    for name in plan.query.columns_in_order:
        if name in keys:
            columns[name] = keys[name]
        columns |= {column.name: _value(rows.column(column.source), KINDS[column.kind]) for column in shape.of(name)}
    return pa.table(columns)


def typed_keys(plan: Plan, key_bytes: pa.ChunkedArray, key_types: Sequence[SparkType]) -> dict[str, pa.Array]:
    """Key columns by name. Without types (no input was read at all) they are strings: there are no rows then."""
    kinds = key_types or [SparkType("string")] * len(plan.query.keys)
    columns = decode(key_bytes.combine_chunks(), len(plan.query.keys))
    return {key.name: typed_key(values, kind) for key, values, kind in zip(plan.query.keys, columns, kinds, strict=True)}


def typed_key(values: pa.Array, kind: SparkType) -> pa.Array:
    """Value bytes of a key column in its type; NULL stays NULL."""
    if kind.name in EPOCH_TYPES:
        number, target = EPOCH_TYPES[kind.name]
        return values.cast(pa.string()).cast(number).cast(target)
    if kind.name == "boolean":
        return pc.equal(values, pa.scalar(b"true"))
    if kind.name == "binary":
        return values
    text = _valid_text(values)
    return text if kind.name == "string" else text.cast(kind.arrow)


def _valid_text(values: pa.Array) -> pa.Array:
    """UTF-8 text; bytes that are none become U+FFFD, as in every reader of the lake."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()], pa.string())


def _value(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """In a DOUBLE, NaN says NULL."""
    if not pa.types.is_floating(kind):
        return values.cast(kind)
    return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)


def _times(us: np.ndarray) -> pa.Array:
    return pa.array(us, pa.int64()).cast(TIME)
