"""What one unit's rows add up to in one group, held within the bounds of an aggregate.

Guarantee: in one contribution period the increments of a unit in a group add up to at most `upper` above zero, and to no less than `lower` below it.
Each side has a capacity of its own, which records fill in order of arrival: taking one from the other would let a unit add twice, once before
and once after the other sign came. No record of another unit has a part in it. Source: docs/privacy/lemma.md.

Capacities are counted in 2^-31 of the larger bound, and a record adds the difference of two roundings: so what a unit adds is whole, stays
within the bounds, and is off by half a unit of the grid however many records it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import (
    Bool,
    Int,
    Numbered,
    find,
    insert,
    int_fields,
    match,
    places,
    read_columns,
    running_count,
    sort_runs,
    unsort,
)
from dpsql.udfs.contributions import Increment, Side
from dpsql.udfs.grid import Grid
from dpsql.udfs.intake.user_state import ExactGroups
from dpsql.udfs.state_table import StateTable

GROUP_COLUMNS = ("period", "user", "window", "key")
TABLES = {"sums": StateTable(GROUP_COLUMNS, "user")}


@dataclass(frozen=True)
class GroupFill:
    """Copies of records, in order of arrival, and how far they fill the capacities of their groups.

    `state` is as it was before. One value per group: `columns`, and `state_row`, its row in the state or -1. One value per copy: `record`,
    the number of its record; `group`, that of its group; `levels`, how full each capacity is after it; `increments` of each aggregate;
    `is_refused`, where it adds nothing because a capacity is used up; `is_cut`, where it is the first with which its group has half a unit more
    than a capacity (where that is asked).
    """

    state: pa.Table
    columns: list[Int]
    state_row: Int
    record: Int
    group: Int
    levels: list[Int]
    increments: list[Int]
    is_refused: Bool
    is_cut: Bool

    @property
    def exact_groups(self) -> ExactGroups:
        """The group of each copy, and whether the state has it."""
        return self.group, self.state_row[self.group] >= 0

    def has_capacity(self, records: int) -> Bool:
        """Tell which of so many records have a copy that is not refused."""
        return np.bincount(self.record, ~self.is_refused, records) > 0

    def select_copies(self, is_chosen: Bool) -> GroupFill:
        """Leave out the copies that are not chosen."""
        return replace(
            self,
            record=self.record[is_chosen],
            group=self.group[is_chosen],
            levels=[level[is_chosen] for level in self.levels],
            increments=[increment[is_chosen] for increment in self.increments],
            is_refused=self.is_refused[is_chosen],
            is_cut=self.is_cut[is_chosen],
        )


def empty_sums(rules: int) -> pa.Table:
    """Return the state of a bucket that has seen nothing, for so many rules."""
    names = (*GROUP_COLUMNS, *(f"room{i}" for i in range(2 * rules)))
    return pa.schema(int_fields(names)).empty_table()


def fill(
    state: pa.Table,
    record: Int,
    period: Int,
    user: Numbered,
    window: Int,
    key: Numbered,
    values: Sequence[Int],
    rules: Sequence[Increment],
    sides_beyond: Sequence[Side] = (),
) -> GroupFill:
    """Return what copies of records add to their groups.

    Args:
        state: `period, user, window, key`, sorted by them, and how full each capacity is.
        record: the number of each copy's record, a unit's copies in order of arrival.
        period, user, window, key: of each copy.
        values: of each rule, what the copies bring, in parts of its larger bound.
        rules: those that have bounds per group.
        sides_beyond: of each rule, where a copy's own value is beyond the bounds (`Increment.side_beyond`); none: nobody asks which groups are
            cut. Where somebody does, a level of the state goes half a unit beyond its capacity.
    """
    order, starts = sort_runs(period, user.numbers, window, key.numbers)
    group = unsort(order, np.cumsum(starts) - 1)
    heads = order[starts]
    group_columns = [period[heads], user.plain(heads), window[heads], key.plain(heads)]
    state_row = match(group_columns, read_columns(state, GROUP_COLUMNS))
    levels = []
    increments = []
    adds = np.zeros(len(group), bool)
    meets_limit = np.zeros(len(group), bool)
    was_cut = np.zeros(len(group), bool)
    is_cut = np.zeros(len(group), bool)
    for j, (rule, value) in enumerate(zip(rules, values, strict=True)):
        signed = []
        more = 0
        if sides_beyond:
            more = rule.parts_of_half
            value = value + more * sides_beyond[j].astype(np.int64)
        for side, (sign, bound) in enumerate(((1, rule.upper), (-1, -rule.lower))):
            # Row -1 is the last one, of a group that has added nothing.
            stored = np.append(state[f"room{2 * j + side}"].to_numpy(), 0)[state_row]
            amount = np.maximum(sign * value, 0)
            capacity = bound * rule.parts_of_unit
            total = unsort(order, running_count(amount[order], starts))
            total += stored[group]
            level_before = np.minimum(total - amount, capacity)
            level = np.minimum(total, capacity)
            levels.append(np.minimum(total, capacity + more))
            signed.append(rule.in_units(level) - rule.in_units(level_before))
            adds |= level > level_before
            meets_limit |= (amount > 0) & (capacity > 0) & (level_before == capacity)
            if more:
                was_cut |= total - amount >= capacity + more
                is_cut |= total >= capacity + more
        increments.append(signed[0] - signed[1])
    return GroupFill(
        state,
        group_columns,
        state_row,
        record,
        group,
        levels,
        increments,
        meets_limit & ~adds,
        is_cut & ~was_cut,
    )


def updated(fill: GroupFill, is_kept: Bool) -> pa.Table:
    """Return the state with what the kept copies have added."""
    state = fill.state
    group = fill.group[is_kept]
    is_known = fill.state_row >= 0
    is_new = ~is_known
    is_new[is_new] = np.bincount(group, minlength=len(is_known))[is_new] > 0
    new_groups = [column[is_new] for column in fill.columns]
    state_groups = read_columns(state, GROUP_COLUMNS)
    positions = places(find(new_groups, state_groups)[0])
    columns = {
        name: insert(column, new_column, positions)
        for name, column, new_column in zip(GROUP_COLUMNS, state_groups, new_groups, strict=True)
    }
    known_rows = fill.state_row[is_known]
    for i, level in enumerate(fill.levels):
        highest = np.zeros(len(is_known), np.int64)
        np.maximum.at(highest, group, level[is_kept])
        room = state[f"room{i}"].to_numpy().copy()
        room[known_rows] = np.maximum(room[known_rows], highest[is_known])
        columns[f"room{i}"] = insert(room, highest[is_new], positions)
    return pa.table(columns)


def forget(state: pa.Table, grid: Grid, closed_us: int) -> pa.Table:
    """Drop the sums of windows to which no copy comes any more."""
    is_over = grid.closed_triggers(state["window"].to_numpy(), closed_us) == grid.horizon
    return state.filter(~is_over).combine_chunks() if is_over.any() else state
