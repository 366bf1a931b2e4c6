"""Bounds of one unit over the values of a sketch, and the one-cell rule: in each row at most one key of a unit counts in a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.udfs.columns import (
    Bool,
    Int,
    find,
    insert,
    match,
    places,
    run_starts,
    running_count,
    sort_order,
)
from dpsql.udfs.sketch.hashing import DIGEST, CellShape, Field

# Bounds of one unit over the values of a sketch: C rows, c rows per value, G values, in each
# contribution period.

# As in the histogram, a record over one bound never counts towards another, and no record of one
# unit changes what is admitted of another.
# Values are known by their whole digests, so nothing is shared by accident.

BY = ("period", "user", *DIGEST)


@dataclass(frozen=True)
class UnitBounds:
    """C, c, G."""

    max_rows: int
    max_rows_per_key: int
    max_keys: int


def no_users() -> pa.Table:
    """Nobody has used anything."""
    return pa.table({name: np.zeros(0, np.int64) for name in BY} | {"rows": np.zeros(0, np.int64)})


def bound(
    users: pa.Table,
    period: Int,
    user: Int,
    values: Int,
    has_room: Bool,
    bounds: UnitBounds,
    drops: dict[str, int],
) -> tuple[pa.Table, Bool]:
    """Return the table with what these records use, and which of them are admitted.

    Args:
        users: `period, user, d0.., rows`, sorted by all but the last.
        period, user: sorted so, a unit's records in order of arrival.
        values: their digests.
        has_room: which of them add anything, where sums have bounds per group (`dpsql.udfs.intake.group_sums`).
        bounds: the plan's.
        drops: counts of reasons, added to.
    """
    by = [period, user, *values.T]
    order = sort_order(*by)
    starts = run_starts(*(column[order] for column in by))
    pair = np.empty(len(order), np.int64)
    occurrence = np.empty(len(order), np.int64)
    pair[order] = np.cumsum(starts) - 1
    occurrence[order] = running_count(has_room[order], starts)
    head = order[starts]
    table = [users.column(name).to_numpy() for name in BY]
    rows = users.column("rows").to_numpy()
    mine = [column[head] for column in by]
    at = match(mine, table)
    known = at >= 0
    prior = np.zeros(len(head), np.int64)
    prior[known] = rows[at[known]]

    new_unit = run_starts(period, user)
    who = np.cumsum(new_unit) - 1
    low, high = find([period[new_unit], user[new_unit]], table[:2])
    total = np.concatenate([[0], np.cumsum(rows)])
    first = has_room & ~known[pair] & (occurrence == 1)
    rank = np.zeros(len(head), np.int64)
    rank[pair[first]] = ((high - low)[who] + running_count(first, new_unit))[first]
    within_keys = known[pair] | (rank[pair] <= bounds.max_keys)
    within_key = within_keys & has_room & (prior[pair] + occurrence <= bounds.max_rows_per_key)
    spent = (total[high] - total[low])[who] + running_count(
        within_key, new_unit
    ) - within_key >= bounds.max_rows
    admitted = within_key & ~spent
    drops["over_max_groups"] += int((~within_keys & ~spent).sum())
    drops["over_bounds_per_group"] += int((within_keys & ~has_room & ~spent).sum())
    drops["over_max_rows_per_group"] += int((within_keys & has_room & ~within_key & ~spent).sum())
    drops["over_max_rows"] += int(spent.sum())

    added = np.bincount(pair[admitted], minlength=len(head))
    rows = rows.copy()
    rows[at[known]] += added[known]
    fresh = ~known & (added > 0)
    where = places(find([column[fresh] for column in mine], table)[0])
    columns: list[npt.NDArray[Any]] = [
        insert(c, m[fresh], where) for c, m in zip(table, mine, strict=True)
    ]
    return pa.table(
        dict(zip(BY, columns, strict=True)) | {"rows": insert(rows, added[fresh], where)}
    ), admitted


# The one-cell rule: in each row of a sketch, at most one key of a unit counts in a cell.

# In row i a key of a unit is *owned* if no earlier key of that unit, in the same place, lies in
# the same cell of row i; the records of a key that
# is not owned are left out of row i alone. A place is what shares one hash key: a contribution
# period, or a window. Without the rule a
# unit whose keys meet in a cell changes it by all its records, and the noise would have to cover
# C^2 in the place of c C.

# Whole digests stand for keys: two keys of one unit that shared an entry by a shorter name would
# share what they own, but not their cells.

CELL_BY = ("place", "user", *DIGEST)

Mask = npt.NDArray[np.uint32]
"""Bit i: owned in row i."""


def no_owners() -> pa.Table:
    """Nobody has brought a key."""
    return pa.table(
        {name: np.zeros(0, np.int64) for name in CELL_BY} | {"owned": np.zeros(0, np.uint32)}
    )


def own(
    owners: pa.Table, place: Int, user: Int, values: Int, keys: dict[int, bytes], shape: CellShape
) -> tuple[pa.Table, Mask]:
    """Return what each record's key owns, and the table with the new keys; a function of the unit's own records and the hash key.

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
    table = [owners.column(name).to_numpy() for name in CELL_BY]
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
            {
                n: insert(c, v, where)
                for n, c, v in zip((*CELL_BY, "owned"), columns, new, strict=True)
            }
        )
    return owners, owned[pair]


def _first_in_cell(
    table: list[Int], new: list[Int], when: Int, keys: dict[int, bytes], shape: CellShape
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


def fields_of(place: Int, values: Int, keys: dict[int, bytes], shape: CellShape) -> Field:
    """`Shape.fields` of digests in several places."""
    if len(keys) == 1:
        return shape.fields(next(iter(keys.values())), values)
    out = np.empty((shape.depth, len(values)), np.uint32)
    for each, key in keys.items():
        there = place == each
        out[:, there] = shape.fields(key, values[there])
    return out


def admitted_by(owned: Mask, row: int) -> Bool:
    """Return which records count in a row."""
    return (owned >> np.uint32(row) & np.uint32(1)).astype(bool)
