"""What a key bucket remembers of its bins: numbers of fixed size each, for ever, and the exact sums of panes that are still open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.sliding.measurement import Bins, Measurement, new_bins
from dpsql.udfs.stage import CLOSED, State
from dpsql.udfs.state_table import Table

TABLES = {"bins": Table(("key",), "key"), "pending": Table(("pane", "key"), "key")}


@dataclass(frozen=True)
class SlidingState(State):
    """Two tables of plain columns.

    bins: one row per listed key, sorted by `key`: `key, key_bytes`, then the numbers of each measurement j as `name_j`, lists of fixed length
        where they are several. Schema metadata: the closed time.
    pending: `pane, key, v0, ..`: exact sums of open panes, sorted by (pane, key).
    """

    bins: pa.Table
    pending: pa.Table


def first_state(
    keys: tuple[int, ...], key_bytes: tuple[bytes, ...], measurements: tuple[Measurement, ...]
) -> SlidingState:
    """The state of a bucket before its first pane: its listed keys."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    bins = pa.table(
        {
            "key": pa.array([keys[i] for i in order], pa.int64()),
            "key_bytes": pa.array([key_bytes[i] for i in order], pa.binary()),
        }
    )
    ints = ("pane", "key", *(f"v{j}" for j in range(len(measurements))))
    pending = pa.table({name: pa.array([], pa.int64()) for name in ints})
    return SlidingState(
        with_numbers(bins, [new_bins(m.columns, len(keys)) for m in measurements], NO_CLOCK),
        pending,
    )


def with_numbers(bins: pa.Table, numbers: list[Bins], closed_us: int) -> pa.Table:
    """Keys and the numbers of all measurements as one table."""
    columns = {name: bins.column(name) for name in ("key", "key_bytes")}
    for j, each in enumerate(numbers):
        for name, values in each.items():
            flat = pa.array(values.reshape(-1))
            columns[f"{name}_{j}"] = (
                pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
                if values.ndim == 2
                else flat
            )
    return pa.table(columns).replace_schema_metadata(
        None if closed_us == NO_CLOCK else {CLOSED: str(closed_us)}
    )


def numbers_of(bins: pa.Table, columns: Mapping[str, tuple[type, int]], j: int) -> Bins:
    """The numbers of measurement j as arrays of their own."""
    out = {}
    for name, (_, width) in columns.items():
        column = bins.column(f"{name}_{j}").combine_chunks()
        values = column.flatten().to_numpy().reshape(-1, width) if width else column.to_numpy()
        out[name] = np.array(values)
    return out
