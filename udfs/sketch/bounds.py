"""Bounds of one unit over the values of a sketch, and the one-cell rule: in each row at most one key of a unit counts in a cell."""

from __future__ import annotations

from collections.abc import Sequence
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
    int_fields,
    match,
    places,
    read_columns,
    run_starts,
    running_count,
    sort_order,
    sort_runs,
    span_rows,
    span_sums,
    unsort,
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
    """Contribution limits of one unit: C, c, G."""

    max_rows: int
    max_rows_per_key: int
    max_keys: int


@dataclass(frozen=True)
class CountedValues:
    """Records of units, counted by unit and value.

    One value per record: `pair`, the number of its unit and value, and `occurrence`, which of the pair's records it is (from 1). One per
    pair, in the order of the table: `columns`; `state_row`, its row in the table or -1; `prior_rows`, its rows there.
    """

    pair: Int
    occurrence: Int
    columns: list[Int]
    state_row: Int
    prior_rows: Int


def no_users() -> pa.Table:
    """Return the table in which no unit has used anything."""
    return pa.schema(int_fields((*BY, "rows"))).empty_table()


def bound(
    users: pa.Table,
    period: Int,
    user: Int,
    values: Int,
    has_capacity: Bool,
    bounds: UnitBounds,
    drops: dict[str, int],
) -> tuple[pa.Table, Bool]:
    """Return the table with what these records use, and which of them are admitted.

    Args:
        users: `period, user, d0.., rows`, sorted by all but the last.
        period, user: sorted so, a unit's records in order of arrival.
        values: their digests.
        has_capacity: which of them add anything, where sums have bounds per group (`dpsql.udfs.intake.group_sums`).
        bounds: the plan's.
        drops: counts of reasons, added to.
    """
    tally = count_values(users, [period, user, *values.T], has_capacity)
    pair = tally.pair
    prior_rows = tally.prior_rows[pair]
    is_known = tally.state_row[pair] >= 0
    is_new_unit = run_starts(period, user)
    unit = np.cumsum(is_new_unit) - 1
    low, high = find([period[is_new_unit], user[is_new_unit]], read_columns(users, BY[:2]))
    unit_rows = span_sums(users["rows"].to_numpy(), low, high)[unit]

    is_first = has_capacity & ~is_known & (tally.occurrence == 1)
    rank = np.zeros(len(tally.state_row), np.int64)
    rank[pair[is_first]] = ((high - low)[unit] + running_count(is_first, is_new_unit))[is_first]
    within_keys = is_known | (rank[pair] <= bounds.max_keys)
    within_key = prior_rows + tally.occurrence <= bounds.max_rows_per_key
    within_group = within_keys & has_capacity & within_key
    ordinal = unit_rows + running_count(within_group, is_new_unit)
    has_rows_left = ordinal - within_group < bounds.max_rows
    drops["over_max_rows"] += int((~has_rows_left).sum())
    drops["over_max_groups"] += int((has_rows_left & ~within_keys).sum())
    within_keys &= has_rows_left
    drops["over_bounds_per_group"] += int((within_keys & ~has_capacity).sum())
    drops["over_max_rows_per_group"] += int((within_keys & has_capacity & ~within_key).sum())
    is_admitted = within_group & has_rows_left
    return add_rows(users, tally, is_admitted), is_admitted


def count_values(users: pa.Table, columns: list[Int], has_capacity: Bool) -> CountedValues:
    """Count records by unit and value, without those that have no capacity."""
    order, starts = sort_runs(*columns)
    pair_columns = [column[order[starts]] for column in columns]
    state_row = match(pair_columns, read_columns(users, BY))
    is_known = state_row >= 0
    prior_rows = np.zeros(len(state_row), np.int64)
    prior_rows[is_known] = users["rows"].to_numpy()[state_row[is_known]]
    return CountedValues(
        unsort(order, np.cumsum(starts) - 1),
        unsort(order, running_count(has_capacity[order], starts)),
        pair_columns,
        state_row,
        prior_rows,
    )


def add_rows(users: pa.Table, tally: CountedValues, is_admitted: Bool) -> pa.Table:
    """Add the admitted records to the table of units; values without one are not made."""
    is_known = tally.state_row >= 0
    row_counts = np.bincount(tally.pair[is_admitted], minlength=len(is_known))
    rows = users["rows"].to_numpy().copy()
    rows[tally.state_row[is_known]] += row_counts[is_known]
    is_new = ~is_known & (row_counts > 0)
    new_values = [column[is_new] for column in tally.columns]
    table = {name: users[name].to_numpy() for name in BY} | {"rows": rows}
    return _insert_rows(table, [*new_values, row_counts[is_new]], len(BY))


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
    """Return the table in which no unit owns a cell."""
    return pa.schema([*int_fields(CELL_BY), ("owned", pa.uint32())]).empty_table()


def own_cells(
    owners: pa.Table, place: Int, user: Int, values: Int, keys: dict[int, bytes], shape: CellShape
) -> tuple[pa.Table, Mask]:
    """Return what each record's key owns, and the table with the new keys; a function of the unit's own records and the hash key.

    Args:
        owners: `place, user, d0.., owned`, sorted by all but the last.
        place, user, values: of admitted records, a unit's earlier ones first; `values` are digests.
        keys: the hash key of every place.
        shape: of the sketch.
    """
    record_columns = [place, user, *values.T]
    order, starts = sort_runs(*record_columns)
    pair = unsort(order, np.cumsum(starts) - 1)
    head = order[starts]  # the sort is stable: the earliest record of each key
    pair_columns = [column[head] for column in record_columns]
    table = read_columns(owners, CELL_BY)
    state_row = match(pair_columns, table)
    is_new = state_row < 0
    owned = np.zeros(len(head), np.uint32)
    owned[~is_new] = owners["owned"].to_numpy()[state_row[~is_new]]
    if is_new.any():
        new_keys = [column[is_new] for column in pair_columns]
        owned[is_new] = _first_in_cell(table, new_keys, head[is_new], keys, shape)
        columns = {name: owners[name].to_numpy() for name in owners.column_names}
        owners = _insert_rows(columns, [*new_keys, owned[is_new]], len(CELL_BY))
    return owners, owned[pair]


def _first_in_cell(
    table: list[Int], new_keys: list[Int], arrival: Int, keys: dict[int, bytes], shape: CellShape
) -> Mask:
    """Return per new key, sorted by (place, user), in which rows no known key of the unit and no earlier new one has its cell."""
    starts = run_starts(new_keys[0], new_keys[1])
    new_group = np.cumsum(starts) - 1
    low, high = find([column[starts] for column in new_keys[:2]], table[:2])
    state_rows = span_rows(low, high)
    # Known keys come first, then new ones as they arrived: then a stable sort by unit and column has the earliest of each cell in front.
    arrived = np.argsort(arrival, kind="stable")
    group = np.concatenate([np.repeat(np.arange(len(low)), high - low), new_group[arrived]])
    columns = [
        np.concatenate([known[state_rows], new[arrived]])
        for known, new in zip(table, new_keys, strict=True)
    ]
    fields = fields_of(columns[0], np.stack(columns[2:], axis=1), keys, shape)
    owned = np.zeros(len(group), np.uint32)
    for row in range(shape.depth):
        cell = (fields[row] >> 1).astype(np.int64)
        order = sort_order(group, cell)
        owned[order[run_starts(group[order], cell[order])]] |= np.uint32(1 << row)
    return unsort(arrived, owned[len(state_rows) :])


def _insert_rows(
    table: dict[str, npt.NDArray[Any]], new_rows: Sequence[npt.NDArray[Any]], sorted_by: int
) -> pa.Table:
    """Insert new rows into a table that is sorted by so many of its columns."""
    columns = list(table.values())
    positions = places(find(new_rows[:sorted_by], columns[:sorted_by])[0])
    return pa.table(
        {
            name: insert(column, new_values, positions)
            for (name, column), new_values in zip(table.items(), new_rows, strict=True)
        }
    )


def fields_of(place: Int, values: Int, keys: dict[int, bytes], shape: CellShape) -> Field:
    """Return the fields of digests in several places."""
    if len(keys) == 1:
        return shape.fields(next(iter(keys.values())), values)
    fields = np.empty((shape.depth, len(values)), np.uint32)
    for start, key in keys.items():
        is_here = place == start
        fields[:, is_here] = shape.fields(key, values[is_here])
    return fields


def admitted_by(owned: Mask, row: int) -> Bool:
    """Return which records count in a row."""
    return (owned >> np.uint32(row) & np.uint32(1)).astype(bool)
