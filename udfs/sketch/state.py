"""What a bucket remembers of the rows of sketches that it has: cells of open windows, whose number depends on no record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.udfs.columns import Int
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.sketch.hashing import DIGEST
from dpsql.udfs.sketch.partial import KEY
from dpsql.udfs.stage import CLOSED, State
from dpsql.udfs.state_table import Table

TABLES = {
    "cells": Table(("window", "row"), "window"),
    "pending": Table(("window", "trigger", "row"), "window", order="any"),
    "keys": Table(("window", "trigger", *DIGEST), "window", order="any"),
}
"""cells: one row per open window and row of a sketch: `window, row, v` (sums of closed triggers), `path` (noise). pending:
partial sketches of triggers that have not closed. keys: candidates of such triggers."""

PENDING = pa.schema(
    [
        *((name, pa.int64()) for name in ("window", "trigger", "form", "row")),
        ("payload", pa.binary()),
    ]
)
KEYS = pa.schema(
    [*((name, pa.int64()) for name in ("window", "trigger", *DIGEST)), ("key_bytes", pa.binary())]
)


@dataclass(frozen=True)
class SketchState(State):
    """As `TABLES`."""

    cells: pa.Table
    pending: pa.Table
    keys: pa.Table


@dataclass(frozen=True)
class Cells:
    """The rows of one window as arrays that may be changed: (rows, width) integers, and (rows, width, numbers) of noise."""

    row: Int
    v: Int
    path: npt.NDArray[np.float64]


def new_cells(rows: Int, width: int, numbers: int) -> Cells:
    """Of a window that begins."""
    return Cells(
        rows, np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width, numbers))
    )


def empty_state(width: int, numbers: int) -> SketchState:
    """No window is open, nothing is closed."""
    return SketchState(
        cells_table({}, width, numbers, NO_CLOCK), PENDING.empty_table(), KEYS.empty_table()
    )


def cells_table(windows: dict[int, Cells], width: int, numbers: int, closed_us: int) -> pa.Table:
    """All open windows, in order."""
    none = new_cells(np.zeros(0, np.int64), width, numbers)
    each = [none, *(windows[window] for window in sorted(windows))]
    columns: dict[str, Any] = {
        "window": np.repeat(
            np.array(sorted(windows), np.int64),
            [len(windows[window].row) for window in sorted(windows)],
        ),
        "row": np.concatenate([cells.row for cells in each]),
    }
    for name, size in (("v", width), ("path", width * numbers)):
        flat = np.concatenate([getattr(cells, name).reshape(-1) for cells in each])
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(flat), size)
    return pa.table(columns).replace_schema_metadata({CLOSED: str(closed_us)})


def opened(cells: pa.Table, width: int, numbers: int) -> dict[int, Cells]:
    """The windows of a table; copies."""
    window = cells.column("window").to_numpy()
    row = cells.column("row").to_numpy()
    lists = {}
    for name, size in (("v", width), ("path", width * numbers)):
        lists[name] = np.array(cells.column(name).combine_chunks().flatten().to_numpy()).reshape(
            len(row), size
        )
    out = {}
    for each in np.unique(window).tolist():
        at = window == each
        paths = lists["path"][at].reshape(-1, width, numbers)
        out[each] = Cells(row[at].copy(), lists["v"][at], paths)
    return out


def split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Rows of the intake as (pending, keys)."""
    is_key = rows.column("form").to_numpy() == KEY
    cells = rows.filter(pa.array(~is_key))
    keys = rows.filter(pa.array(is_key))
    return cells.select(PENDING.names), keys.select([*KEYS.names[:-1], "payload"]).rename_columns(
        KEYS.names
    )
