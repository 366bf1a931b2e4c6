"""Rows on the way from the intake to the release: partial sketches and candidate keys.

One row per (window, trigger, row of a sketch) with that row's cells as bytes, whichever form is shorter, and one per (window, key) where keys
are unknown. `key` decides the bucket: the row's number, or the first word of the digest.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from udfs.columns import Int
from udfs.sketch.hashing import DIGEST

DENSE, PAIRS, KEY = 0, 1, 2
"""Kinds of rows: all cells; (column, value) of those that are not 0; a candidate key."""

SCHEMA = pa.schema(
    [("kind", pa.int8()), ("window", pa.int64()), ("trigger", pa.int64()), ("key", pa.int64())]
    + [(name, pa.int64()) for name in DIGEST[1:]]
    + [("payload", pa.binary())]
)


def cell_rows(parts: list[tuple[int, int, int, Int]]) -> pa.Table:
    """Partial sketches `(window, trigger, row, cells)` as rows; a part without a record that counts is left out."""
    kinds, payloads, kept = [], [], []
    for window, trigger, row, cells in parts:
        at = np.flatnonzero(cells)
        if len(at):
            pairs = 2 * len(at) < len(cells)
            kinds.append(PAIRS if pairs else DENSE)
            payloads.append((np.stack([at, cells[at]], axis=1) if pairs else cells).astype("<i8").tobytes())
            kept.append((window, trigger, row))
    zeros = np.zeros(len(kept), np.int64)
    columns = [np.array(kinds, np.int8), *np.array(kept, np.int64).reshape(-1, 3).T, zeros, zeros, zeros, pa.array(payloads, pa.binary())]
    return pa.table(columns, schema=SCHEMA)


def key_rows(window: Int, trigger: Int, values: Int, key_bytes: pa.Array) -> pa.Table:
    """Candidate keys as rows."""
    columns = [np.full(len(window), KEY, np.int8), window, trigger, *values.T, key_bytes]
    return pa.table(columns, schema=SCHEMA)


def add_cells(total: Int, kind: int, payload: bytes) -> None:
    """Add one part's cells to a row's; changes `total`."""
    given = np.frombuffer(payload, "<i8")
    if kind == DENSE:
        total += given
    else:
        total[given[0::2]] += given[1::2]
