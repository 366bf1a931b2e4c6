"""Rows on the way from the intake to the release: partial sketches and candidate keys.

One row per (window, trigger, row of a sketch) with that row's cells as bytes, whichever form is shorter, and one per (window, value) where values
are unknown. All of a window goes to one bucket, where its lists are made: `key` is the window.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Int, int_fields
from dpsql.udfs.sketch.hashing import DIGEST

DENSE = 0
PAIRS = 1
KEY = 2
"""Forms of rows: all cells; (column, value) of those that are not 0; a candidate key."""

SCHEMA = pa.schema(
    [*int_fields(("window", "trigger", "key", "form", "row", *DIGEST)), ("payload", pa.binary())]
)


def cell_rows(parts: list[tuple[int, int, int, Int]]) -> pa.Table:
    """Return partial sketches `(window, trigger, row, cells)` as rows; a part without a record that counts is left out."""
    forms = []
    payloads = []
    headers = []
    for window, trigger, row, cells in parts:
        columns = np.flatnonzero(cells)
        if len(columns):
            pairs = 2 * len(columns) < len(cells)
            forms.append(PAIRS if pairs else DENSE)
            payloads.append(
                (np.stack([columns, cells[columns]], axis=1) if pairs else cells)
                .astype("<i8")
                .tobytes()
            )
            headers.append((window, trigger, window, forms[-1], row))
    zeros = [np.zeros(len(headers), np.int64)] * len(DIGEST)
    return pa.table(
        [*np.array(headers, np.int64).reshape(-1, 5).T, *zeros, pa.array(payloads, pa.binary())],
        schema=SCHEMA,
    )


def key_rows(window: Int, trigger: Int, values: Int, key_bytes: pa.Array) -> pa.Table:
    """Return candidate keys as rows."""
    size = len(window)
    return pa.table(
        [
            window,
            trigger,
            window,
            np.full(size, KEY),
            np.zeros(size, np.int64),
            *values.T,
            key_bytes,
        ],
        schema=SCHEMA,
    )


def add_cells(total: Int, form: int, payload: bytes) -> None:
    """Add one part's cells to a row's; changes `total`."""
    numbers = np.frombuffer(payload, "<i8")
    if form == DENSE:
        total += numbers
    else:
        total[numbers[0::2]] += numbers[1::2]
