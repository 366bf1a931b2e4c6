"""Records to partial sketches and candidate keys, where one privacy unit is protected and where one record is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Bool, Int, number_values, read_columns, run_starts, sort_order
from dpsql.udfs.contributions import Increment
from dpsql.udfs.grid import Grid
from dpsql.udfs.intake import group_sums
from dpsql.udfs.intake.arrival import sort_by_arrival
from dpsql.udfs.intake.contribution_bounding import DROP_REASONS
from dpsql.udfs.intake.group_sums import GroupFill
from dpsql.udfs.intake.timeliness import open_copies, timely
from dpsql.udfs.sketch import bounds as bounding
from dpsql.udfs.sketch.bounds import Mask, UnitBounds, admitted_by, bound, fields_of, own_cells
from dpsql.udfs.sketch.hashing import CellShape, Field, digests_of, distinct_digests, hash_key
from dpsql.udfs.sketch.partial import SCHEMA, cell_rows, key_rows
from dpsql.udfs.stage import Clock, Intake, Stepped, Tables, counted_drops
from dpsql.udfs.state_table import StateTable

# The intake where one privacy unit is protected: records to partial sketches and candidate keys,
# by bounds and the one-cell rule.

REASONS = tuple(reason for reason in DROP_REASONS if reason != "not_a_public_group")


@dataclass(frozen=True)
class IntakeParameters:
    """Concrete numbers; no secret.

    Args:
        grid: windows and triggers.
        first_window_us: windows that start earlier do not exist.
        shape: of every sketch.
        contributions: what a record adds to each sketch.
        unknown_keys: keys that are brought are named, and every window has a hash key of its own.
        renews: the allowance is per period as long as a window, not for the whole stream.
        bounds: of one unit; None where one record is protected.
    """

    grid: Grid
    first_window_us: int
    shape: CellShape
    contributions: tuple[Increment, ...]
    unknown_keys: bool
    renews: bool
    bounds: UnitBounds | None
    public_keys: ClassVar[None] = None

    @property
    def per_group(self) -> tuple[int, ...]:
        """Places of the contributions that have bounds per group."""
        return tuple(j for j, rule in enumerate(self.contributions) if rule.per_group)

    def hash_key(self, root: bytes, window: int) -> bytes:
        """Return the hash key of a window."""
        return hash_key(root, window if self.unknown_keys else None)


@dataclass(frozen=True)
class UserIntake(Intake):
    """Intake where one privacy unit is protected: its bounds, and one key of it per cell. A record's key is counted."""

    parameters: IntakeParameters
    arguments: int
    integers: ClassVar[tuple[str, ...]] = ("user", "ts")

    @property
    def tables(self) -> Mapping[str, StateTable]:  # type: ignore[override]
        """Tables of units, their values and the cells that these own; and of what units add to values, where that is bounded."""
        sums = group_sums.TABLES if self.parameters.per_group else {}
        return {
            "users": StateTable(bounding.BY, "user"),
            "owners": StateTable(bounding.CELL_BY, "user"),
        } | sums

    @property
    def gives(self) -> pa.Schema:
        """Partial sketches and candidate keys."""
        return SCHEMA

    def empty(self) -> Tables:
        """Return the state in which no unit has used or owns anything."""
        rules = len(self.parameters.per_group)
        sums = {"sums": group_sums.empty_sums(rules)} if rules else {}
        return {"users": bounding.no_users(), "owners": bounding.no_owners()} | sums

    def step(self, state: Tables, rows: pa.Table, clock: Clock, noise_key: bytes) -> Stepped:
        """Bound and sketch records; `noise_key` is the root of the run's hash keys (`hashing.hash_key`)."""
        p = self.parameters
        assert p.bounds is not None
        rows, drops = in_time(rows, clock, p)
        records = read_records(rows, p)
        fill = fill_groups(state["sums"], rows, records, clock, p) if p.per_group else None
        has_capacity = np.ones(len(records.row), bool)
        if fill and len(p.per_group) == len(p.contributions):
            has_capacity = fill.has_capacity(len(records.row))
        users, is_admitted = bound(
            state["users"],
            records.period,
            records.user,
            records.values,
            has_capacity,
            p.bounds,
            drops,
        )
        admitted = records.select(is_admitted)
        place = p.grid.latest_window(admitted.ts) if p.unknown_keys else admitted.period
        keys = {start: p.hash_key(noise_key, start) for start in np.unique(place).tolist()}
        fields = (
            fields_of(place, admitted.values, keys, p.shape)
            if p.unknown_keys
            else p.shape.fields(p.hash_key(noise_key, 0), admitted.values)
        )
        owners, owned = own_cells(
            state["owners"], place, admitted.user, admitted.values, keys, p.shape
        )
        new_state = _forget({"users": users, "owners": owners}, clock, p)
        shares = dict[int, Int]()
        if fill:
            fill = fill.select_copies(is_admitted[fill.record])
            sums = group_sums.updated(fill, np.ones(len(fill.record), bool))
            new_state["sums"] = group_sums.forget(sums, p.grid, clock.closed_us)
            shares = dict(zip(p.per_group, fill.increments, strict=True))
        admitted_rows = rows.take(admitted.row)
        partial = _sketch(
            admitted_rows, admitted.ts, admitted.values, fields, owned, shares, clock, p
        )
        return Stepped(new_state, partial, counted_drops(drops))


@dataclass(frozen=True)
class UnitRecords:
    """Records by unit and in order of arrival, one value each: `values` are digests, `row` is the place in the table of rows."""

    period: Int
    user: Int
    ts: Int
    values: Int
    row: Int

    def select(self, is_chosen: Bool) -> UnitRecords:
        """Leave out the records that are not chosen."""
        return UnitRecords(*(column[is_chosen] for column in vars(self).values()))


def in_time(rows: pa.Table, clock: Clock, p: IntakeParameters) -> tuple[pa.Table, dict[str, int]]:
    """Return the records that may count, and why the others are left out."""
    drops = dict.fromkeys(REASONS, 0)
    is_timely = timely(rows, clock, p, drops)
    return rows if is_timely.all() else rows.filter(is_timely), drops


def read_records(rows: pa.Table, p: IntakeParameters) -> UnitRecords:
    """Read records, and sort them by unit and order of arrival."""
    ts, user = read_columns(rows, ("ts", "user"))
    values = digests_of(rows["key_bytes"])
    period = p.grid.period(ts) if p.renews else np.zeros(len(ts), np.int64)
    amounts = (*values.T[1:], *(rule.increments(rows) for rule in p.contributions))
    digest = number_values(values[:, 0])
    order = sort_by_arrival(period, number_values(user), ts, digest, amounts)
    return UnitRecords(period[order], user[order], ts[order], values[order], order)


def fill_groups(
    sums: pa.Table, rows: pa.Table, records: UnitRecords, clock: Clock, p: IntakeParameters
) -> GroupFill:
    """Add up what copies of records bring to their groups, as far as the bounds per group go."""
    record, window, _ = open_copies(records.ts, clock, p)
    row = records.row[record]
    rules = [p.contributions[j] for j in p.per_group]
    return group_sums.fill(
        sums,
        record,
        records.period[record],
        number_values(records.user).take(record),
        window,
        number_values(records.values[:, 0]).take(record),
        [rule.increments(rows)[row] for rule in rules],
        rules,
    )


def _sketch(
    rows: pa.Table,
    ts: Int,
    values: Int,
    fields: Field,
    owned: Mask,
    shares: Mapping[int, Int],
    clock: Clock,
    p: IntakeParameters,
) -> pa.Table:
    """Return partial sketches of every (window, trigger), and the candidate keys; `shares`: what copies add where groups have bounds."""
    record, window, trigger = open_copies(ts, clock, p)
    order = sort_order(window, trigger)
    amounts = [
        shares[j] if j in shares else None if rule.rule == "rows" else rule.increments(rows)[record]
        for j, rule in enumerate(p.contributions)
    ]
    parts = []
    for low, high, place in _pieces(window[order], trigger[order]):
        copies = order[low:high]
        for row in range(p.shape.depth):
            owned_copies = copies[admitted_by(owned[record[copies]], row)]
            for number, amount in enumerate(amounts):
                cells = p.shape.sums(
                    fields[row][record[owned_copies]],
                    None if amount is None else amount[owned_copies],
                )
                parts.append((*place, number * p.shape.depth + row, cells))
    tables = [cell_rows(parts)]
    if p.unknown_keys and len(record):
        tables.append(_candidates(rows, record, window, trigger, values))
    return pa.concat_tables(tables).combine_chunks()


def _candidates(rows: pa.Table, record: Int, window: Int, trigger: Int, values: Int) -> pa.Table:
    """Return every (window, key) once, with its earliest trigger."""
    columns = [window, *values[record].T]
    order = sort_order(*columns, trigger)
    head = order[run_starts(*(column[order] for column in columns))]
    names = rows["key_bytes"].take(record[head]).combine_chunks()
    return key_rows(window[head], trigger[head], values[record[head]], names)


def _forget(state: Tables, clock: Clock, p: IntakeParameters) -> Tables:
    """Drop the periods and windows that no later record can fall into."""
    users = state["users"]
    owners = state["owners"]
    if p.renews:
        users = _drop_rows(
            users, p.grid.period_is_over(users["period"].to_numpy(), clock.closed_us)
        )
    if p.unknown_keys:
        owners = _drop_rows(
            owners,
            p.grid.closed_triggers(owners["place"].to_numpy(), clock.closed_us) == p.grid.horizon,
        )
    elif p.renews:
        owners = _drop_rows(
            owners, p.grid.period_is_over(owners["place"].to_numpy(), clock.closed_us)
        )
    return {"users": users, "owners": owners}


def _drop_rows(table: pa.Table, is_dropped: Bool) -> pa.Table:
    return table.filter(~is_dropped).combine_chunks() if is_dropped.any() else table


# The intake where one record is protected: it has no state, and counts equal values before it
# sketches them.

# Of a window and a trigger every value is hashed once, whatever number of records brings it:
# cells are sums, so this changes no bit of them.

FEW = 4
"""Values per record from which on the values of a piece are sorted, in the place of counted by number."""


@dataclass(frozen=True)
class SketchEvents(Intake):
    """Records to partial sketches and candidate keys."""

    parameters: IntakeParameters
    arguments: int
    integers: ClassVar[tuple[str, ...]] = ("ts",)

    @property
    def gives(self) -> pa.Schema:
        """Partial sketches and candidate keys."""
        return SCHEMA

    def step(self, state: Tables, rows: pa.Table, clock: Clock, noise_key: bytes) -> Stepped:
        """Add records to partial sketches; `noise_key` is the root of the run's hash keys (`hashing.hash_key`)."""
        p = self.parameters
        rows, drops = in_time(rows, clock, p)
        values, value, names = distinct_digests(rows["key_bytes"])
        record, window, trigger = _places(rows["ts"].to_numpy(), clock, p)
        amounts = [
            None if rule.rule == "rows" else rule.increments(rows) for rule in p.contributions
        ]
        cells = []
        candidates = []
        fields = dict[int, Field]()
        for low, high, place in _pieces(window, trigger):
            piece = slice(low, high) if record is None else record[low:high]
            present, sums = _sum_values(
                value[piece],
                len(values),
                [None if amount is None else amount[piece] for amount in amounts],
            )
            hashed_under = place[0] if p.unknown_keys else 0
            if hashed_under not in fields:
                fields[hashed_under] = p.shape.fields(p.hash_key(noise_key, place[0]), values)
            for row in range(p.shape.depth):
                present_fields = fields[hashed_under][row][present]
                cells += [
                    (*place, number * p.shape.depth + row, p.shape.sums(present_fields, total))
                    for number, total in enumerate(sums)
                ]
            candidates.append((place, present))
        tables = [cell_rows(cells)]
        if p.unknown_keys and candidates:
            tables.append(_candidates_of_pieces(candidates, values, names))
        partial = pa.concat_tables(tables).combine_chunks()
        return Stepped({}, partial, counted_drops(drops))


def _places(ts: Int, clock: Clock, p: IntakeParameters) -> tuple[Int | None, Int, Int]:
    """Return every (record, window, trigger) that is open, in order of window and trigger; None for the records where all are, in their own order."""
    if len(ts) and p.grid.windows_per_record == 1:
        _, windows, triggers = open_copies(np.array([ts.min(), ts.max()]), clock, p)
        if len(triggers) == 2 and windows[0] == windows[1] and triggers[0] == triggers[1]:
            return (
                None,
                np.full(len(ts), windows[0]),
                np.full(len(ts), triggers[0]),
            )  # one window, one trigger, as in most micro-batches
    record, window, trigger = open_copies(ts, clock, p)
    order = sort_order(window, trigger)
    return record[order], window[order], trigger[order]


def _pieces(window: Int, trigger: Int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield where each (window, trigger) begins and ends."""
    starts = np.flatnonzero(run_starts(window, trigger))
    for low, high in zip(starts.tolist(), np.append(starts, len(window))[1:].tolist(), strict=True):
        yield low, high, (int(window[low]), int(trigger[low]))


def _sum_values(value: Int, values: int, amounts: list[Int | None]) -> tuple[Int, list[Int]]:
    """Return the values that are there, and per sketch what their records add."""
    if values > FEW * len(value):
        present, value = np.unique(value, return_inverse=True)
    else:
        present = np.arange(values)
    counts = np.bincount(value, minlength=len(present))
    sums = [counts if amount is None else np.zeros(len(present), np.int64) for amount in amounts]
    for total, amount in zip(sums, amounts, strict=True):
        if amount is not None:
            np.add.at(total, value, amount)
    positions = np.flatnonzero(counts)
    return present[positions], [total[positions] for total in sums]


def _candidates_of_pieces(
    candidates: list[tuple[tuple[int, int], Int]], values: Int, names: pa.Array
) -> pa.Table:
    """Return every (window, value) once, with its earliest trigger: pieces come in order."""
    value = np.concatenate([present for _, present in candidates])
    sizes = [len(present) for _, present in candidates]
    window, trigger = np.repeat(np.array([place for place, _ in candidates]).T, sizes, axis=1)
    order = sort_order(window, *values[value].T, trigger)
    head = order[run_starts(window[order], value[order])]
    return key_rows(window[head], trigger[head], values[value[head]], names.take(value[head]))
