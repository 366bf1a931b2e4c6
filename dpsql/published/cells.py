"""What a run of sketches publishes, as Arrow: lists as arrays of structs, and the table of cells, from which the count of any value is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dpsql.description import Column, Published, Role, Rows, SketchShape
from dpsql.parsed_query import AS_RELEASED
from dpsql.schedule import Schedule
from dpsql.typed_values import typed
from dpsql.udfs.keys import decode
from dpsql.udfs.sketch.reading import unpack

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
    """Packed lists as ARRAY<STRUCT<value, count or sum, stderr, low, high>>.

    Args:
        packed: of `dpsql.udfs.sketch.reading`.
        kind: `TOP_COUNT` or `TOP_SUM`.
        parts: path and type of each part of a value; the value of several is a STRUCT.
    """
    sizes, rows = unpack(packed.to_pylist())
    columns = [
        typed(values, each)
        for values, (_, each) in zip(
            decode(rows.column("key_bytes"), len(parts)), parts, strict=True
        )
    ]
    value = (
        columns[0]
        if len(parts) == 1
        else pa.StructArray.from_arrays(columns, [path.rpartition(".")[2] for path, _ in parts])
    )
    name, number = COUNTS[kind]
    numbers = {
        each: rows.column(each).combine_chunks() for each in ("value", "stderr", "low", "high")
    }
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
    """Rows of the table of cells, of released rows that publish some; sorted by window, trigger and row."""
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
    """What the table of cells says of itself.

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
