"""What one unit's rows add up to in one group, held within the bounds of an aggregate.

Guarantee: in one contribution period the increments of a unit in a group add up to at most `upper` above zero, and to no less than `lower` below it.
Each side is a room of its own, which records fill in order of arrival: taking one from the other would let a unit add twice, once before
and once after the other sign came. No record of another unit has a part in it. Source: docs/privacy/lemma.md.

Rooms are counted in 2^-31 of the larger bound, and a record adds the difference of two roundings: so what a unit adds is whole, stays
within the bounds, and is off by half a unit of the grid however many records it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
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
from dpsql.udfs.contributions import Increment
from dpsql.udfs.grid import Grid
from dpsql.udfs.state_table import StateTable

BY = ("period", "user", "window", "key")
TABLES = {"sums": StateTable(BY, "user")}


@dataclass(frozen=True)
class Filled:
    """Copies of records, in order of arrival, and the rooms of their groups.

    `by` and `at` are of each group: its columns, and its row in the state or -1; `group` numbers that of each copy. Of room i, `before[i]` and
    `after[i]` say per copy how full it is; `added` are the increments of each aggregate.
    """

    by: list[Int]
    at: Int
    group: Int
    before: list[Int]
    after: list[Int]
    added: list[Int]
    full: Bool


def empty_sums(rules: int) -> pa.Table:
    """Return the state of a bucket that has seen nothing, for so many rules."""
    return pa.table(
        {name: np.zeros(0, np.int64) for name in (*BY, *(f"room{i}" for i in range(2 * rules)))}
    )


def fill(
    state: pa.Table, by: Sequence[Int], values: Sequence[Int], rules: Sequence[Increment]
) -> Filled:
    """Return what copies of records add to their groups.

    Args:
        state: `period, user, window, key`, sorted by them, and how full each room is.
        by: these four of each copy, a unit's copies in order of arrival.
        values: of each rule, what the copies bring, in parts of its larger bound.
        rules: those that have bounds per group.

    Returns:
        Filled; `full` says which copies add nothing because a room is full.
    """
    order = sort_order(*by)
    starts = run_starts(*(column[order] for column in by))
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(starts) - 1
    heads = [column[order][starts] for column in by]
    at = match(heads, [state.column(name).to_numpy() for name in BY])
    before = []
    after = []
    added = []
    takes = np.zeros(len(group), bool)
    refuses = np.zeros(len(group), bool)
    for j, (rule, value) in enumerate(zip(rules, values, strict=True)):
        sums = []
        for side, (sign, room) in enumerate(((1, rule.upper), (-1, -rule.lower))):
            had = np.concatenate([state.column(f"room{2 * j + side}").to_numpy(), [0]])[
                at
            ]  # -1 is the row that has nothing
            brought = np.maximum(sign * value, 0)
            limit = room * rule.parts_of_unit
            total = np.empty(len(group), np.int64)
            total[order] = running_count(brought[order], starts)
            total += had[group]
            before.append(np.minimum(total - brought, limit))
            after.append(np.minimum(total, limit))
            sums.append(rule.in_units(after[-1]) - rule.in_units(before[-1]))
            takes |= after[-1] > before[-1]
            refuses |= (brought > 0) & (limit > 0) & (before[-1] == limit)
        added.append(sums[0] - sums[1])
    return Filled(heads, at, group, before, after, added, refuses & ~takes)


def keep(state: pa.Table, filled: Filled, kept: Int) -> pa.Table:
    """The state with what the copies that are kept have added."""
    group = filled.group[kept]
    known = filled.at >= 0
    fresh = ~known
    fresh[fresh] = np.bincount(group, minlength=len(known))[fresh] > 0
    new = [column[fresh] for column in filled.by]
    where = places(find(new, [state.column(name).to_numpy() for name in BY])[0])
    columns = {
        name: insert(state.column(name).to_numpy(), column, where)
        for name, column in zip(BY, new, strict=True)
    }
    for i, after in enumerate(filled.after):
        full = np.zeros(len(known), np.int64)
        np.maximum.at(full, group, after[kept])
        rooms = state.column(f"room{i}").to_numpy().copy()
        rooms[filled.at[known]] = np.maximum(rooms[filled.at[known]], full[known])
        columns[f"room{i}"] = insert(rooms, full[fresh], where)
    return pa.table(columns)


def forget(state: pa.Table, grid: Grid, closed_us: int) -> pa.Table:
    """Without the rooms of windows to which no copy comes any more."""
    over = grid.closed_triggers(state.column("window").to_numpy(), closed_us) == grid.horizon
    return state.filter(pa.array(~over)).combine_chunks() if over.any() else state
