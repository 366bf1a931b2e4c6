"""Bounds of one unit over the values of a sketch: C rows, c rows per value, G values, in each contribution period.

As in the histogram, a record over one bound never counts towards another, and no record of one unit changes what is admitted of another.
Values are known by their whole digests, so nothing is shared by accident.
"""

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
from dpsql.udfs.sketch.hashing import DIGEST

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
    """The table with what these records use, and which of them are admitted.

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
