"""Sorted integer columns: runs of equal rows, their sums, and look-ups between two tables. All of numpy, nothing per row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


def sort_order(*columns: npt.NDArray[np.generic]) -> Int:
    """Stable order that sorts rows by the first column, then the second, and so on."""
    return np.lexsort(columns[::-1]).astype(np.int64, copy=False)


def run_starts(*columns: npt.NDArray[np.generic]) -> Bool:
    """True where a row of *sorted* columns differs from the row before (the first row is always True)."""
    size = len(columns[0])
    starts = np.zeros(size, dtype=bool)
    if size:
        starts[0] = True
    for column in columns:
        starts[1:] |= column[1:] != column[:-1]
    return starts


def run_sums(values: Int, starts: Bool) -> Int:
    """Sum of each run (wrapping int64 arithmetic; the planner has excluded overflow)."""
    if not len(values):
        return values.astype(np.int64)
    return np.add.reduceat(values, np.flatnonzero(starts))


def running_count(flags: Bool, starts: Bool) -> Int:
    """How many flags are set from the start of a row's run up to and including the row."""
    total = np.cumsum(flags, dtype=np.int64)
    first = np.flatnonzero(starts)
    before = total[first] - flags[first]
    return total - np.repeat(before, np.diff(np.append(first, len(flags))))


def match(keys: Sequence[npt.NDArray[np.generic]], table: Sequence[npt.NDArray[np.generic]]) -> Int:
    """Position in `table` of every row of `keys`, or -1.

    Args:
        keys, table: column by column, same types; the rows of each are distinct.

    Returns:
        int64 array as long as `keys`.
    """
    n_keys, n_table = len(keys[0]), len(table[0])
    found = np.full(n_keys, -1, dtype=np.int64)
    if not n_keys or not n_table:
        return found
    merged = [np.concatenate([t, k]) for t, k in zip(table, keys, strict=True)]
    order = sort_order(*merged)
    starts = run_starts(*(column[order] for column in merged))
    # Rows are distinct on both sides, so a run of two is a table row followed by its key row (the sort is stable).
    second = np.flatnonzero(~starts)
    found[order[second] - n_table] = order[second - 1]
    return found
