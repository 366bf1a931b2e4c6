"""Records to partial sketches and candidate keys, where one privacy unit is protected and where one record is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Bool, Int, run_starts, sort_order
from dpsql.udfs.contributions import Increment
from dpsql.udfs.grid import Grid
from dpsql.udfs.intake import group_sums
from dpsql.udfs.intake.contribution_bounding import DROP_REASONS, open_copies, timely
from dpsql.udfs.sketch import bounds as bounding
from dpsql.udfs.sketch import bounds as ownership
from dpsql.udfs.sketch.bounds import Mask, UnitBounds, admitted_by, bound, fields_of, own
from dpsql.udfs.sketch.hashing import CellShape, Field, digests_of, distinct_digests, hash_key
from dpsql.udfs.sketch.partial import SCHEMA, cell_rows, key_rows
from dpsql.udfs.stage import Clock, Intake, Stepped, Tables
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
        """Of a window."""
        return hash_key(root, window if self.unknown_keys else None)


@dataclass(frozen=True)
class UserIntake(Intake):
    """Where one privacy unit is protected: its bounds, and one key of it per cell. What is counted is a record's key."""

    parameters: IntakeParameters
    arguments: int
    integers: ClassVar[tuple[str, ...]] = ("user", "ts")

    @property
    def tables(self) -> Mapping[str, StateTable]:  # type: ignore[override]
        """Of units, their values and the cells that these own; and of what units add to values, where that is bounded."""
        sums = group_sums.TABLES if self.parameters.per_group else {}
        return {
            "users": StateTable(bounding.BY, "user"),
            "owners": StateTable(ownership.CELL_BY, "user"),
        } | sums

    @property
    def gives(self) -> pa.Schema:
        """Partial sketches and candidate keys."""
        return SCHEMA

    def empty(self) -> Tables:
        """No unit has used or owns anything."""
        rules = len(self.parameters.per_group)
        sums = {"sums": group_sums.empty_sums(rules)} if rules else {}
        return {"users": bounding.no_users(), "owners": ownership.no_owners()} | sums

    def step(self, state: Tables, rows: pa.Table, now: Clock, noise_key: bytes) -> Stepped:
        """`noise_key` is the root of the run's hash keys (`hashing.hash_key`)."""
        p = self.parameters
        assert p.bounds is not None
        rows, drops = in_time(rows, now, p)
        ts = rows.column("ts").to_numpy()
        user = rows.column("user").to_numpy()
        values = digests_of(rows.column("key_bytes"))
        period = p.grid.period(ts) if p.renews else np.zeros(len(ts), np.int64)
        # Ties of event time: another order for every unit, whatever arrived first.
        order = sort_order(
            period,
            user,
            ts,
            user ^ values[:, 0],
            *values.T,
            *(each.increments(rows) for each in p.contributions),
        )
        has_capacity = np.ones(len(order), bool)
        sums = {}
        shares = {}
        if p.per_group:
            copied, window, _ = open_copies(ts[order], now, p)
            at = order[copied]
            rules = [p.contributions[j] for j in p.per_group]
            fill = group_sums.fill(
                state["sums"],
                copied,
                (period[at], user[at], window, values[at, 0]),
                [r.increments(rows)[at] for r in rules],
                rules,
            )
            if len(rules) == len(p.contributions):
                has_capacity = fill.has_capacity(len(order))
        users, admitted = bound(
            state["users"], period[order], user[order], values[order], has_capacity, p.bounds, drops
        )
        if p.per_group:
            fill = fill.of_copies(admitted[fill.record])
            all_copies = np.ones(len(fill.record), bool)
            sums = {
                "sums": group_sums.forget(group_sums.keep(fill, all_copies), p.grid, now.closed_us)
            }
            shares = dict(zip(p.per_group, fill.increments, strict=True))
        kept = order[admitted]
        rows = rows.take(pa.array(kept))
        ts = ts[kept]
        user = user[kept]
        values = values[kept]
        place = p.grid.latest_window(ts) if p.unknown_keys else period[kept]
        keys = {each: p.hash_key(noise_key, each) for each in np.unique(place).tolist()}
        fields = (
            fields_of(place, values, keys, p.shape)
            if p.unknown_keys
            else p.shape.fields(p.hash_key(noise_key, 0), values)
        )
        owners, owned = own(state["owners"], place, user, values, keys, p.shape)
        out = _sketched(rows, ts, values, fields, owned, shares, now, p)
        return Stepped(
            _forget({"users": users, "owners": owners}, now, p) | sums,
            out,
            {"drops": {k: n for k, n in drops.items() if n}},
        )


def in_time(rows: pa.Table, now: Clock, p: IntakeParameters) -> tuple[pa.Table, dict[str, int]]:
    """Return the records that may count, and why the others are left out."""
    drops = dict.fromkeys(REASONS, 0)
    kept = timely(rows, now, p, drops)
    return rows if kept.all() else rows.filter(pa.array(kept)), drops


def _sketched(
    rows: pa.Table,
    ts: Int,
    values: Int,
    fields: Field,
    owned: Mask | None,
    shares: Mapping[int, Int],
    now: Clock,
    p: IntakeParameters,
) -> pa.Table:
    """Partial sketches of every (window, trigger), and the keys that were brought; `shares`: what copies add where groups have bounds."""
    record, window, trigger = open_copies(ts, now, p)
    order = sort_order(window, trigger)
    starts = np.flatnonzero(run_starts(window[order], trigger[order]))
    added = [
        shares[j] if j in shares else None if each.rule == "rows" else each.increments(rows)[record]
        for j, each in enumerate(p.contributions)
    ]
    parts = []
    for low, high in zip(starts, np.append(starts, len(order))[1:], strict=True):
        copies = order[low:high]
        at = (int(window[order[low]]), int(trigger[order[low]]))
        for row in range(p.shape.depth):
            here = copies if owned is None else copies[admitted_by(owned[record[copies]], row)]
            for number, each in enumerate(added):
                cells = p.shape.sums(
                    fields[row][record[here]], None if each is None else each[here]
                )
                parts.append((*at, number * p.shape.depth + row, cells))
    out = [cell_rows(parts)]
    if p.unknown_keys and len(record):
        out.append(_brought(rows, record, window, trigger, values))
    return pa.concat_tables(out).combine_chunks()


def _brought(rows: pa.Table, record: Int, window: Int, trigger: Int, values: Int) -> pa.Table:
    """Return every (window, key) once, with its earliest trigger."""
    by = [window, *values[record].T]
    order = sort_order(*by, trigger)
    head = order[run_starts(*(column[order] for column in by))]
    names = rows.column("key_bytes").take(pa.array(record[head])).combine_chunks()
    return key_rows(window[head], trigger[head], values[record[head]], names)


def _forget(state: Tables, now: Clock, p: IntakeParameters) -> Tables:
    """Without the periods and windows that no later record can fall into."""
    users = state["users"]
    owners = state["owners"]
    if p.renews:
        users = _without(
            users, p.grid.period_is_over(users.column("period").to_numpy(), now.closed_us)
        )
    if p.unknown_keys:
        owners = _without(
            owners,
            p.grid.closed_triggers(owners.column("place").to_numpy(), now.closed_us)
            == p.grid.horizon,
        )
    elif p.renews:
        owners = _without(
            owners, p.grid.period_is_over(owners.column("place").to_numpy(), now.closed_us)
        )
    return {"users": users, "owners": owners}


def _without(table: pa.Table, gone: Bool) -> pa.Table:
    return table.filter(pa.array(~gone)).combine_chunks() if gone.any() else table


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

    def step(self, state: Tables, rows: pa.Table, now: Clock, noise_key: bytes) -> Stepped:
        """`noise_key` is the root of the run's hash keys (`hashing.hash_key`)."""
        p = self.parameters
        rows, drops = in_time(rows, now, p)
        values, value, names = distinct_digests(rows.column("key_bytes"))
        record, window, trigger = _places(rows.column("ts").to_numpy(), now, p)
        added = [None if each.rule == "rows" else each.increments(rows) for each in p.contributions]
        cells = []
        brought = []
        fields = dict[int, Field]()
        for low, high, at in _pieces(window, trigger):
            here = slice(low, high) if record is None else record[low:high]
            present, sums = _summed(
                value[here], len(values), [None if each is None else each[here] for each in added]
            )
            hashed_under = at[0] if p.unknown_keys else 0
            if hashed_under not in fields:
                fields[hashed_under] = p.shape.fields(p.hash_key(noise_key, at[0]), values)
            for row in range(p.shape.depth):
                there = fields[hashed_under][row][present]
                cells += [
                    (*at, number * p.shape.depth + row, p.shape.sums(there, each))
                    for number, each in enumerate(sums)
                ]
            brought.append((at, present))
        out = [cell_rows(cells)]
        if p.unknown_keys and brought:
            out.append(_brought_of_pieces(brought, values, names))
        done = pa.concat_tables(out).combine_chunks()
        return Stepped({}, done, {"drops": {reason: n for reason, n in drops.items() if n}})


def _places(ts: Int, now: Clock, p: IntakeParameters) -> tuple[Int | None, Int, Int]:
    """Return every (record, window, trigger) that is open, in order of window and trigger; None for the records where all are, in their own order."""
    if len(ts) and p.grid.windows_per_record == 1:
        _, first, at = open_copies(np.array([ts.min(), ts.max()]), now, p)
        if len(at) == 2 and first[0] == first[1] and at[0] == at[1]:
            return (
                None,
                np.full(len(ts), first[0]),
                np.full(len(ts), at[0]),
            )  # one window, one trigger, as in most micro-batches
    record, window, trigger = open_copies(ts, now, p)
    order = sort_order(window, trigger)
    return record[order], window[order], trigger[order]


def _pieces(window: Int, trigger: Int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield where each (window, trigger) begins and ends."""
    starts = np.flatnonzero(run_starts(window, trigger))
    for low, high in zip(starts.tolist(), np.append(starts, len(window))[1:].tolist(), strict=True):
        yield low, high, (int(window[low]), int(trigger[low]))


def _summed(value: Int, values: int, added: list[Int | None]) -> tuple[Int, list[Int]]:
    """Return the values that are there, and per sketch what their records add."""
    if values > FEW * len(value):
        present, value = np.unique(value, return_inverse=True)
    else:
        present = np.arange(values)
    counts = np.bincount(value, minlength=len(present))
    sums = [counts if each is None else np.zeros(len(present), np.int64) for each in added]
    for total, each in zip(sums, added, strict=True):
        if each is not None:
            np.add.at(total, value, each)
    there = np.flatnonzero(counts)
    return present[there], [each[there] for each in sums]


def _brought_of_pieces(
    brought: list[tuple[tuple[int, int], Int]], values: Int, names: pa.Array
) -> pa.Table:
    """Return every (window, value) once, with its earliest trigger: pieces come in order."""
    value = np.concatenate([present for _, present in brought])
    window, trigger = (
        np.concatenate([np.full(len(present), at[i]) for at, present in brought]) for i in (0, 1)
    )
    order = sort_order(window, *values[value].T, trigger)
    head = order[run_starts(window[order], value[order])]
    return key_rows(
        window[head], trigger[head], values[value[head]], names.take(pa.array(value[head]))
    )
