"""Released rows as users see them: times, typed keys, values with their errors, lists of a sketch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.description import Column, Published, Role, Rows, SketchShape
from dpsql.parsed_query import AS_RELEASED, ParsedQuery
from dpsql.schedule import Schedule
from dpsql.udfs.keys import decode
from dpsql.udfs.sketch.reading import unpack
from dpsql.udfs.stage import LEFT_OUT

# Value bytes of a key (`dpsql.udfs.keys`) as values of its type.


def typed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert value bytes of a column to its type; NULL stays NULL.

    Args:
        values: binary, as `dpsql.udfs.keys.decode` gives them.
        kind: the type that readers see.
    """
    if pa.types.is_date(kind):
        return values.cast(pa.string()).cast(pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return values.cast(pa.string()).cast(pa.int64()).cast(kind)
    if pa.types.is_boolean(kind):
        return pc.equal(values, pa.scalar(b"true"))
    if pa.types.is_binary(kind):
        return values
    text = _valid_text(values)
    return text if pa.types.is_string(kind) else text.cast(kind)


def _valid_text(values: pa.Array) -> pa.Array:
    """Decode UTF-8 text; bytes that are none become U+FFFD, as in every reader of the lake."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [
                None if value is None else value.decode("utf-8", "replace")
                for value in values.to_pylist()
            ],
            pa.string(),
        )


# What a run of sketches publishes, as Arrow: lists as arrays of structs, and the table of cells,
# from which the count of any value is read.

COUNTS = {"TOP_COUNT": ("count", pa.int64()), "TOP_SUM": ("sum", pa.float64())}
TIME = pa.timestamp("us", tz="UTC")
TIMES = [
    ("window_start", TIME),
    ("window_end", TIME),
    ("trigger", pa.int32()),
    ("trigger_time", TIME),
]
CELLS = pa.schema(
    [*TIMES, ("row", pa.int32()), ("cells", pa.list_(pa.int64())), ("hash_key", pa.binary())]
)


def top_lists(
    packed: pa.ChunkedArray, kind: str, parts: Sequence[tuple[str, pa.DataType]]
) -> pa.Array:
    """Convert packed lists to ARRAY<STRUCT<value, count or sum, stderr, low, high>>.

    Args:
        packed: of `dpsql.udfs.sketch.reading`.
        kind: `TOP_COUNT` or `TOP_SUM`.
        parts: path and type of each part of a value; the value of several is a STRUCT.
    """
    sizes, rows = unpack(packed.to_pylist())
    columns = [
        typed(values, each)
        for values, (_, each) in zip(decode(rows["key_bytes"], len(parts)), parts, strict=True)
    ]
    value = (
        columns[0]
        if len(parts) == 1
        else pa.StructArray.from_arrays(columns, [path.rpartition(".")[2] for path, _ in parts])
    )
    name, number = COUNTS[kind]
    numbers = {each: rows[each].combine_chunks() for each in ("value", "stderr", "low", "high")}
    fields = [
        value,
        numbers["value"].cast(number),
        numbers["stderr"],
        numbers["low"].cast(number),
        numbers["high"].cast(number),
    ]
    structs = pa.StructArray.from_arrays(fields, ["value", name, "stderr", "low", "high"])
    return pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32()), structs
    )


def cell_rows(released: pa.Table, schedule: Schedule, sketch: SketchShape) -> pa.Table:
    """Return rows of the table of cells, of released rows that publish some; sorted by window, trigger and row."""
    grid = schedule.grid
    size = len(sketch.aliases) * sketch.depth
    parts = [CELLS.empty_table()]
    released = released.sort_by([("window", "ascending"), ("trigger", "ascending")])
    for row in released.select(["window", "trigger", "cells", "hash_key"]).to_pylist():
        if not row["cells"]:
            continue
        flat = np.frombuffer(row["cells"], "<i8")
        times = (
            row["window"],
            row["window"] + grid.window_us,
            row["window"] + row["trigger"] * grid.trigger_us,
        )
        start, end, due = (pa.array(np.full(size, us)).cast(TIME) for us in times)
        cells = pa.ListArray.from_arrays(
            pa.array(np.arange(size + 1) * (len(flat) // size), pa.int32()), pa.array(flat)
        )
        number, places = (
            pa.array(values, pa.int32()) for values in ([row["trigger"]] * size, range(size))
        )
        parts.append(
            pa.table(
                [start, end, number, due, places, cells, pa.array([row["hash_key"]] * size)],
                schema=CELLS,
            )
        )
    return pa.concat_tables(parts).combine_chunks()


def of_cells(
    published: Published, sketch: SketchShape, kinds: Sequence[tuple[str, str]]
) -> Published:
    """Return what the table of cells says of itself.

    Args:
        published: what the table of lists says.
        sketch: of the plan.
        kinds: path and Spark type of each part of a value.
    """
    times = tuple(column for column in published.columns if column.role is Role.TIME)
    return replace(
        published,
        rows=Rows.CELLS,
        columns=(*times, *(Column(name, Role.BESIDE) for name in CELLS.names[len(times) :])),
        reading=AS_RELEASED,
        neighbours=(),
        sketch=replace(sketch, value=tuple(kinds)),
    )


# Released rows as the public table that users see: times, typed keys, aggregates in the order
# written, each with its error bar.

if TYPE_CHECKING:
    from dpsql.mechanisms.protocol import PublicColumn

KINDS = {"INT": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64()}
ORDER = [("window", "ascending"), ("trigger", "ascending"), ("key_bytes", "ascending")]


def published_rows(
    query: ParsedQuery,
    schedule: Schedule,
    columns: Sequence[PublicColumn],
    released: pa.Table,
    key_types: Sequence[pa.DataType],
) -> pa.Table:
    """Return the public form of released rows, sorted by (window_start, trigger, key bytes).

    Args:
        query: what was asked.
        schedule: of its triggers.
        columns: those that are no keys.
        released: rows of the release stage, of any buckets and ticks.
        key_types: the type of each key of the query.

    Returns:
        The columns of the public table, in order.
    """
    if LEFT_OUT.name in released.column_names:
        released = released.filter(pc.equal(pc.binary_length(released[LEFT_OUT.name]), 0))
    rows = released.combine_chunks()
    rows = rows.take(pc.sort_indices(rows, sort_keys=ORDER))
    output = times_of(rows, schedule)
    keys = typed_keys(query, rows["key_bytes"], key_types) if query.output_keys else {}
    for name in query.columns_in_order:
        if name in keys:
            output[name] = keys[name]
        for column in (candidate for candidate in columns if candidate.aggregate == name):
            output[column.name] = _public_values(rows, column, query, key_types)
    return pa.table(output)


def times_of(rows: pa.Table, schedule: Schedule) -> dict[str, Any]:
    """Return the columns that say when released rows are of."""
    grid = schedule.grid
    windows = schedule.windows
    window = rows["window"].to_numpy()
    trigger = rows["trigger"].to_numpy()
    output: dict[str, Any] = (
        {"window_start": _times(window), "window_end": _times(window + grid.window_us)}
        if windows
        else {}
    )
    output["trigger"] = pa.array(trigger.astype(np.int32 if windows else np.int64))
    output["trigger_time"] = _times(window + trigger * grid.trigger_us)
    return output


def _public_values(
    rows: pa.Table, column: PublicColumn, query: ParsedQuery, key_types: Sequence[pa.DataType]
) -> pa.Array | pa.ChunkedArray:
    """Return the values of one column of an aggregate, as they are published."""
    if column.size:
        return _doubles([rows[source] for source in column.sources])
    values = rows[column.source]
    if column.kind in KINDS:
        return _value(values, KINDS[column.kind])
    parts = [(key.name, kind) for key, kind in zip(query.keys, key_types, strict=True)]
    return top_lists(values, column.kind, parts)


def typed_keys(
    query: ParsedQuery, key_bytes: pa.ChunkedArray, key_types: Sequence[pa.DataType]
) -> dict[str, pa.Array]:
    """Return the key columns by name."""
    columns = decode(key_bytes.combine_chunks(), len(query.keys))
    return {
        key.name: typed(values, kind)
        for key, values, kind in zip(query.keys, columns, key_types, strict=True)
    }


def _doubles(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """Combine columns that are NaN together into ARRAY<DOUBLE>; NULL then."""
    values = np.stack([column.to_numpy() for column in columns], axis=1)
    none = np.isnan(values[:, 0])
    ends = np.concatenate([[0], np.cumsum(np.where(none, 0, len(columns)))])
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(values[~none].ravel()), mask=pa.array(none)
    )


def _value(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert a column to its public type; in a DOUBLE, NaN says NULL."""
    if not pa.types.is_floating(kind):
        return values.cast(kind)
    return pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)


def _times(us: np.ndarray) -> pa.Array:
    return pa.array(us, pa.int64()).cast(TIME)
