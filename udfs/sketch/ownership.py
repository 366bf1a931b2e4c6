"""The one-cell rule: in each row of a sketch, at most one key of a unit counts in a cell.

In row i a key of a unit is *owned* if no earlier key of that unit, in the same place, lies in the same cell of row i; the records of a key that
is not owned are left out of row i alone. A place is what shares one hash key: a contribution period, or a window. Without the rule a
unit whose keys meet in a cell changes it by all its records, and the noise would have to cover C^2 in the place of c C.

Whole digests stand for keys: two keys of one unit that shared an entry by a shorter name would share what they own, but not their cells.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.udfs.columns import Bool, Int, find, insert, match, places, run_starts, sort_order
from dpsql.udfs.sketch.hashing import DIGEST, Field, Shape

BY = ("place", "user", *DIGEST)

Mask = npt.NDArray[np.uint32]
"""Bit i: owned in row i."""


def no_owners() -> pa.Table:
    """Nobody has brought a key."""
    return pa.table(
        {name: np.zeros(0, np.int64) for name in BY} | {"owned": np.zeros(0, np.uint32)}
    )


def own(
    owners: pa.Table, place: Int, user: Int, values: Int, keys: dict[int, bytes], shape: Shape
) -> tuple[pa.Table, Mask]:
    """What each record's key owns, and the table with the new keys; a function of the unit's own records and the hash key.

    Args:
        owners: `place, user, d0.., owned`, sorted by all but the last.
        place, user, values: of admitted records, a unit's earlier ones first; `values` are digests.
        keys: the hash key of every place.
        shape: of the sketch.
    """
    by = [place, user, *values.T]
    order = sort_order(*by)
    starts = run_starts(*(column[order] for column in by))
    pair = np.empty(len(order), np.int64)
    pair[order] = np.cumsum(starts) - 1
    head = order[starts]  # the sort is stable: the earliest record of each key
    table = [owners.column(name).to_numpy() for name in BY]
    mine = [column[head] for column in by]
    at = match(mine, table)
    owned = np.zeros(len(head), np.uint32)
    owned[at >= 0] = owners.column("owned").to_numpy()[at[at >= 0]]
    fresh = at < 0
    if fresh.any():
        owned[fresh] = _first_in_cell(
            table, [column[fresh] for column in mine], head[fresh], keys, shape
        )
        columns: list[npt.NDArray[Any]] = [*table, owners.column("owned").to_numpy()]
        where = places(find([column[fresh] for column in mine], table)[0])
        new: list[npt.NDArray[Any]] = [*(column[fresh] for column in mine), owned[fresh]]
        owners = pa.table(
            {n: insert(c, v, where) for n, c, v in zip((*BY, "owned"), columns, new, strict=True)}
        )
    return owners, owned[pair]


def _first_in_cell(
    table: list[Int], new: list[Int], when: Int, keys: dict[int, bytes], shape: Shape
) -> Mask:
    """Per new key, sorted by (place, user): in which rows no known key of the unit and no earlier new one has its cell."""
    group = np.cumsum(starts := run_starts(new[0], new[1])) - 1
    low, high = find([column[starts] for column in new[:2]], table[:2])
    known = np.repeat(low - np.cumsum(high - low) + (high - low), high - low) + np.arange(
        int((high - low).sum())
    )
    # Known keys come first, then new ones as they arrived: then a stable sort by unit and column has the earliest of each cell in front.
    arrived = np.argsort(when, kind="stable")
    groups = np.concatenate([np.repeat(np.arange(len(low)), high - low), group[arrived]])
    place = np.concatenate([table[0][known], new[0][arrived]])
    values = np.stack(
        [
            np.concatenate([column[known], mine[arrived]])
            for column, mine in zip(table[2:], new[2:], strict=True)
        ],
        axis=1,
    )
    fields = fields_of(place, values, keys, shape)
    owned = np.zeros(len(groups), np.uint32)
    for row in range(shape.depth):
        column = (fields[row] >> 1).astype(np.int64)
        order = sort_order(groups, column)
        owned[order[run_starts(groups[order], column[order])]] |= np.uint32(1 << row)
    out = np.empty(len(arrived), np.uint32)
    out[arrived] = owned[len(known) :]
    return out


def fields_of(place: Int, values: Int, keys: dict[int, bytes], shape: Shape) -> Field:
    """`Shape.fields` of digests in several places."""
    if len(keys) == 1:
        return shape.fields(next(iter(keys.values())), values)
    out = np.empty((shape.depth, len(values)), np.uint32)
    for each, key in keys.items():
        there = place == each
        out[:, there] = shape.fields(key, values[there])
    return out


def admitted_by(owned: Mask, row: int) -> Bool:
    """Which records count in a row."""
    return (owned >> np.uint32(row) & np.uint32(1)).astype(bool)
