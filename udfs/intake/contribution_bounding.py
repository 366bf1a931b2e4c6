"""Contribution bounding: what one user may add, decided from that user's own records and the clock alone.

Guarantee: per user and contribution period at most `max_rows` records are admitted, at most `max_rows_per_group` of them
with one key, with at most `max_groups` different keys; an admitted record is copied into each of its windows that is still
open, and all copies together fall into at most K groups, the i-th of them carrying the weight w_i. No record of one user
changes what is admitted of another, nor any trigger. With sliding windows two periods of a user can meet in a group; there the
user counts once as a user. Source: DP-SQLP section 4.1 (arXiv 2303.18086), with the per-key bound
and the decaying weights of docs/privacy/histogram.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.udfs.columns import Bool, Int, run_starts, run_sums, running_count, sort_order
from dpsql.udfs.contributions import Increment
from dpsql.udfs.grid import Grid
from dpsql.udfs.intake import group_sums
from dpsql.udfs.intake.leaf_counts import with_leaves
from dpsql.udfs.intake.user_state import (
    GROUPS,
    KEYS,
    Entries,
    Exact,
    count_entries,
    empty_state,
    forget,
    has,
    merge,
    used_up,
)
from dpsql.udfs.stage import NO_RECORD, Clock

DROP_REASONS = (
    *NO_RECORD,
    "not_a_public_group",
    "too_far_ahead",
    "window_closed",
    "over_max_groups",
    "over_bounds_per_group",
    "over_max_rows_per_group",
    "over_max_rows",
)
"""The first four are the codes 1..4 that the record's `drop` column carries; the rest are decided here, in this order
(but once a user's rows are used up, all further records are `over_max_rows`: nothing else is kept of that user)."""


class Timely(Protocol):
    """What decides whether a record comes in time."""

    @property
    def grid(self) -> Grid:
        """Windows and triggers."""

    @property
    def public_keys(self) -> tuple[int, ...] | None:
        """Sorted key hashes that may appear; None: any key."""

    @property
    def first_window_us(self) -> int | None:
        """Windows that start earlier do not exist; None: all do."""


@dataclass(frozen=True)
class BoundingParameters:
    """Concrete numbers of the step.

    Args:
        grid: windows and triggers.
        renews: the allowance renews with every window-long period (else it is for the whole stream).
        max_rows, max_rows_per_group, max_groups: C, c, G; C and c infinite: rows are not counted.
        weights: w_1, w_2, ... in units of 2^-20.
        by_user: contributions name who counts (a user; where periods meet, a user's period), and weights follow records, not groups
            (rounds of selection).
        public_keys: sorted key hashes that may appear; None: any key.
        first_window_us: windows that start earlier do not exist; None: all do.
        increments: one per perturbation.
    """

    grid: Grid
    renews: bool
    max_rows: float
    max_rows_per_group: float
    max_groups: int
    weights: tuple[int, ...]
    increments: tuple[Increment, ...]
    by_user: bool = False
    public_keys: tuple[int, ...] | None = None
    first_window_us: int | None = None

    @property
    def max_group_copies(self) -> int:
        """K: groups that all copies of a user's records in one period may fall into."""
        return self.grid.windows_per_record * int(min(self.max_rows, self.max_groups))

    @property
    def counts_rows(self) -> bool:
        """Whether rows are counted: a number of 32 bits would go over where any number is admitted."""
        return self.max_rows < math.inf

    @property
    def groups_are_keys(self) -> bool:
        """One window per record and period: a user's groups are its keys, and need no entries of their own."""
        return self.renews and self.grid.windows_per_record == 1

    @property
    def periods_meet(self) -> bool:
        """A window as long as a period that does not start with one holds records of two, so a user's periods can meet in a group."""
        return self.renews and self.grid.windows_per_record > 1

    @property
    def tells_users_apart(self) -> bool:
        """Users are counted, and their periods can meet."""
        return self.periods_meet and any(rule.rule == "users" for rule in self.increments)

    @property
    def per_group(self) -> tuple[int, ...]:
        """Places of the increments that have bounds per group."""
        return tuple(j for j, rule in enumerate(self.increments) if rule.per_group)

    @property
    def only_per_group(self) -> bool:
        """Whether a record that adds to none of those adds nothing: where it is refused for that, its user was counted before."""
        return all(rule.per_group or rule.rule == "users" for rule in self.increments)


@dataclass(frozen=True)
class Admission:
    """New state, the admitted increments summed by (window, trigger, key), how many records were dropped and why, and a new state of sums."""

    state: pa.Table
    contributions: pa.Table
    drops: dict[str, int]
    sums: pa.Table | None = None


def admit(
    state: pa.Table | None,
    rows: pa.Table,
    clock: Clock,
    p: BoundingParameters,
    sums: pa.Table | None = None,
) -> Admission:
    """Admit what the bounds allow of one bucket's records of one micro-batch.

    Args:
        state: the bucket's state (None: nothing seen yet).
        rows: records (docs/architecture.md): `drop, user, ts, key, key_bytes, a0, ...`; no NULL in any column.
        clock: the same for every bucket of the micro-batch.
        p: the plan's numbers.
        sums: of units in groups, where increments have bounds per group (None: nothing seen yet).

    Returns:
        Admission; pure: the same arguments give the same result, in any row order.
    """
    state = empty_state() if state is None else state
    drops = dict.fromkeys(DROP_REASONS, 0)
    in_time = timely(rows, clock, p, drops)
    if not in_time.all():
        rows = rows.filter(pa.array(in_time))
    ts, user, key = (_ints(rows, name) for name in ("ts", "user", "key"))
    period = p.grid.period(ts) if p.renews else np.zeros(len(ts), np.int64)
    values = [rule.of(rows) for rule in p.increments]

    order = sort_order(period, user, ts, mix(user, key, *values))
    period = period[order]
    user = user[order]
    left = _drop(used_up(state, period, user, p.max_rows), "over_max_rows", drops)
    if not left.all():
        order = order[left]
        period = period[left]
        user = user[left]
    ts = ts[order]
    key = key[order]
    records = Entries(period, user, _fingerprint(key))
    has_room = np.ones(len(ts), bool)
    filled = None
    exact = None
    if p.per_group:
        record, window, _ = open_copies(ts, clock, p)
        by = period[record], user[record], window, key[record]
        sums = group_sums.empty_sums(len(p.per_group)) if sums is None else sums
        rules = [p.increments[j] for j in p.per_group]
        filled = group_sums.fill(sums, by, [values[j][order][record] for j in p.per_group], rules)
        copied = record
        exact = filled.group, filled.at[filled.group] >= 0
        if p.only_per_group:
            has_room = np.bincount(record, ~filled.full, len(ts)) > 0
    admitted, first, rank, ordinal, state = _bound(
        state, records, has_room, exact if p.groups_are_keys else None, p, drops
    )

    record, window, trigger = open_copies(ts[admitted], clock, p)
    record, kept = np.flatnonzero(admitted)[record], np.ones(len(record), bool)
    own = kept
    if not p.groups_are_keys:
        # Copies in order of their records, then newest window first: groups are ranked in that order.
        copies = Entries(
            period[record], user[record], _group_fingerprint(period[record], window, key[record], p)
        )
        of_copies = exact and (exact[0][admitted[copied]], exact[1][admitted[copied]])
        before, (first, rank, kept, own, state) = state, _rank_groups(state, copies, of_copies, p)
        new = (
            first & ~_counted_before(before, state, copies, first, p)
            if p.tells_users_apart
            else first
        )
        record = record[kept]
        window = window[kept]
        trigger = trigger[kept]
        first = first[kept]
        rank = rank[kept]
        new = new[kept]
    else:
        first = first[record]
        rank = rank[record]
        new = first

    weights = np.array((0, *p.weights), np.int64)
    copy = (p.grid.latest_window(ts[record]) - window) // p.grid.slide_us
    weight = (
        weights[(ordinal[record] - 1) * p.grid.windows_per_record + copy + 1]
        if p.by_user
        else np.where(first, weights[rank], 0)
    )
    added = [
        np.where(new, 1, 0) if rule.rule == "users" else v[order][record]
        for v, rule in zip(values, p.increments, strict=True)
    ]
    if filled and sums is not None:
        of = np.flatnonzero(admitted[copied])
        for j, each in zip(p.per_group, filled.added, strict=True):
            added[j] = each[of][kept]
        sums = group_sums.forget(group_sums.keep(sums, filled, of[own]), p.grid, clock.closed_us)
    row = order[record]
    counted = (
        _who_counts(user[record], period[record], window, p) if p.periods_meet else user[record]
    )
    contributions = _sum_by_group(
        window,
        trigger,
        key[record],
        counted,
        weight,
        first,
        added,
        rows.column("key_bytes"),
        row,
        p,
    )
    return Admission(forget(state, clock.closed_us, p.grid, p.renews), contributions, drops, sums)


def timely(rows: pa.Table, clock: Clock, p: Timely, drops: dict[str, int]) -> Bool:
    """Tell whether each record may count: not dropped before, a public key, not ahead of the clock, its newest window still open.

    Args:
        rows: with `drop, ts, key`.
        clock: of the micro-batch.
        p: the plan's numbers.
        drops: counts by reason, added to.
    """
    code = _ints(rows, "drop")
    ts = _ints(rows, "ts")
    if p.public_keys is None and not code.any() and _all_in_time(ts, clock, p):
        return np.ones(len(ts), bool)
    for number, count in zip(*np.unique(code, return_counts=True), strict=True):
        if number:
            drops[DROP_REASONS[number - 1]] += int(count)
    live = code == 0
    if p.public_keys is not None:
        live &= _drop(
            live & ~np.isin(_ints(rows, "key"), np.array(p.public_keys, np.int64)),
            "not_a_public_group",
            drops,
        )
    live &= _drop(live & (ts > clock.latest_us), "too_far_ahead", drops)
    return live & _drop(live & _is_closed(ts, clock, p), "window_closed", drops)


def _all_in_time(ts: Int, clock: Clock, p: Timely) -> bool:
    """Tell whether no record is too far ahead, and the newest window of none is closed.

    Windows close in order, and a last trigger closes for all that is later: where the earliest and the latest event time are open, all are.
    """
    if not len(ts):
        return True
    extremes = np.array([ts.min(), ts.max()])
    return bool(extremes[1] <= clock.latest_us and not _is_closed(extremes, clock, p).any())


def open_copies(ts: Int, clock: Clock, p: Timely) -> tuple[Int, Int, Int]:
    """(record, window, trigger) of every copy whose window is open: its first trigger after the event time that is not closed yet."""
    record, window = p.grid.windows_of(ts)
    trigger = _trigger(ts[record], window, clock, p)
    open_ = (trigger <= p.grid.horizon) & _exists(window, p)
    return record[open_], window[open_], trigger[open_]


def _is_closed(ts: Int, clock: Clock, p: Timely) -> Bool:
    """Tell whether the newest window of each event time is closed, or does not exist."""
    newest = p.grid.latest_window(ts)
    return (_trigger(ts, newest, clock, p) > p.grid.horizon) | ~_exists(newest, p)


def _drop(which: Bool, reason: str, drops: dict[str, int]) -> Bool:
    drops[reason] += int(which.sum())
    return ~which


def _trigger(ts: Int, window: Int, clock: Clock, p: Timely) -> Int:
    """Return the first grid point of the window after the record's own event time that is not closed yet."""
    return np.maximum(
        p.grid.own_trigger(ts, window), p.grid.closed_triggers(window, clock.closed_us) + 1
    )


def _exists(window: Int, p: Timely) -> Bool:
    return np.ones(len(window), bool) if p.first_window_us is None else window >= p.first_window_us


def _bound(
    state: pa.Table,
    records: Entries,
    has_room: Bool,
    exact: Exact | None,
    p: BoundingParameters,
    drops: dict[str, int],
) -> tuple[Bool, Bool, Int, Int, pa.Table]:
    """Apply G, c and C to records sorted by (period, user, order of arrival).

    One without room in its group uses nothing up: another of its key came before it. A record over one bound never counts towards another:
    once a user's rows or keys are used up they stay so, hence the three filters can be applied one after the other.

    Returns:
        (admitted, first of its user with its key, rank of that key, ordinal among the user's admitted records, new state).
    """
    pairs = count_entries(state, KEYS, records, has_room)
    new_user = run_starts(records.period, records.user)
    first = has_room & ~pairs.known & (pairs.occurrence == 1)
    rank = pairs.spread(pairs.user_entries + running_count(first, new_user), first)
    # A bound as large as the user's own never bites first: such records are counted under max_rows below.
    has_room = has_room & pairs.stands_for(first, exact) if exact else has_room
    within_groups = pairs.known | (rank <= p.max_groups) | (p.max_groups >= p.max_rows)
    rows_left = (pairs.prior_rows + pairs.occurrence <= p.max_rows_per_group) | (
        p.max_rows_per_group >= p.max_rows
    )
    no_room = within_groups & ~has_room
    within_group = within_groups & has_room & rows_left
    ordinal = pairs.user_rows + running_count(within_group, new_user)
    spent = ordinal - within_group >= p.max_rows
    admitted = within_group & ~spent
    drops["over_max_groups"] += int((~within_groups & ~spent).sum())
    drops["over_bounds_per_group"] += int((no_room & ~spent).sum())
    drops["over_max_rows_per_group"] += int(
        (within_groups & ~no_room & ~within_group & ~spent).sum()
    )
    drops["over_max_rows"] += int(spent.sum())
    return (
        admitted,
        first & admitted,
        rank,
        ordinal,
        merge(state, KEYS, pairs, admitted, p.counts_rows, p.max_rows),
    )


def _rank_groups(
    state: pa.Table, copies: Entries, exact: Exact | None, p: BoundingParameters
) -> tuple[Bool, Int, Bool, Bool, pa.Table]:
    """(first of its user in its group, rank of that group, kept: rank at most K, in a group with rooms of its own, new state), for copies in order.

    A copy beyond K is left out and not counted under `drops`: those count records, and its record is admitted.
    """
    groups = count_entries(state, GROUPS, copies)
    first = ~groups.known & (groups.occurrence == 1)
    rank = groups.spread(
        groups.user_entries + running_count(first, run_starts(copies.period, copies.user)), first
    )
    own = groups.stands_for(first, exact) if exact else np.ones(len(first), bool)
    kept = own & (groups.known | (rank <= p.max_group_copies))
    return first & kept, rank * kept, kept, own, merge(state, GROUPS, groups, kept, p.counts_rows)


def _group_fingerprint(
    period: Int, window: Int, key: Int, p: BoundingParameters
) -> npt.NDArray[np.uint32]:
    """32 bits of a (window, key); where users are told apart the last one says whether the window starts in the copy's own period."""
    fingerprint = _fingerprint(mix(window, key).view(np.int64))
    if not p.tells_users_apart:
        return fingerprint
    return fingerprint & ~np.uint32(1) | (p.grid.period(window) == period).astype(np.uint32)


def _who_counts(user: Int, period: Int, window: Int, p: BoundingParameters) -> Int:
    """Return whom rounds count: a user in one period. One user in two periods would else be counted in one of them only if not in the other.

    The last bit of the id says whether the window starts in the period: a mix of both could be that of somebody else in the other period.
    """
    return user & ~np.int64(1) | (p.grid.period(window) == period).astype(np.int64)


def _counted_before(
    before: pa.Table, after: pa.Table, copies: Entries, first: Bool, p: BoundingParameters
) -> Bool:
    """Tell whether the user of each copy that is the first of its period in its group has been counted there, for the other period that the
    window meets: in earlier micro-batches, or in this one, where the earlier period counts.

    A window that starts in the copy's period meets the next one, another window the one before. So an entry has one counterpart, whose
    fingerprint differs in the last bit, and each of the two looks for the other.
    """
    starts_here = (copies.fingerprint & np.uint32(1)).astype(bool)
    found = np.zeros(len(first), bool)
    for which, state, step in (
        (first & starts_here, before, p.grid.window_us),
        (first & ~starts_here, after, -p.grid.window_us),
    ):
        others = Entries(
            copies.period[which] + step,
            copies.user[which],
            copies.fingerprint[which] ^ np.uint32(1),
        )
        found[which] = has(state, GROUPS, others)
    return found


def _sum_by_group(
    window: Int,
    trigger: Int,
    key: Int,
    user: Int,
    weight: Int,
    first: Bool,
    sums: list[Int],
    key_bytes: pa.ChunkedArray,
    row: Int,
    p: BoundingParameters,
) -> pa.Table:
    """Return one row per (window, trigger, key), or per (window, trigger, key, who counts) for rounds; sorted; key bytes of any of its records.

    `row` says where the copy's record is in `key_bytes`; all other columns have one value per copy.
    """
    names = ["window", "trigger", "key"] + ["user"] * p.by_user
    by = [window, trigger, key] + [user] * p.by_user
    order = sort_order(*by)
    starts = run_starts(*(column[order] for column in by))
    head = order[starts]
    table = {name: column[head] for name, column in zip(names, by, strict=True)} | {
        "key_bytes": key_bytes.take(pa.array(row[head]))
    }
    # In rounds a user counts once per group and trigger, with the weight of its earliest record: the largest.
    table["weight"] = (
        np.maximum.reduceat(weight[order], np.flatnonzero(starts))
        if p.by_user and len(head)
        else run_sums(weight[order], starts)
    )
    table["users"] = run_sums(first[order].astype(np.int64), starts)
    plain = [
        np.zeros(len(column), np.int64) if rule.rule == "leaf" else column
        for column, rule in zip(sums, p.increments, strict=True)
    ]
    summed = pa.table(
        table | {f"v{j}": run_sums(column[order], starts) for j, column in enumerate(plain)}
    )
    leaves = {j: sums[j] for j, rule in enumerate(p.increments) if rule.rule == "leaf"}
    if not leaves:
        return summed
    return with_leaves(
        summed,
        window,
        trigger,
        key,
        key_bytes.take(pa.array(row)),
        np.ones(len(row), np.int64),
        leaves,
    )


def _fingerprint(hashes: Int) -> npt.NDArray[np.uint32]:
    return (hashes.view(np.uint64) >> np.uint64(32)).astype(np.uint32)


def mix(start: Int, *columns: Int) -> npt.NDArray[np.uint64]:
    """Return a 64-bit mix (splitmix64's finaliser). Of a whole record it breaks ties of event time, differently for every user.

    Only one user's own records are compared by it, so it needs no secrecy; it keeps ties independent of arrival
    order and of the engine.
    """
    mixed = start.view(np.uint64).copy()
    for column in columns:
        mixed ^= column.view(np.uint64)
        mixed *= np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(30)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(27)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _ints(rows: pa.Table, name: str) -> Int:
    column = rows.column(name)
    if column.null_count:
        raise TypeError(f"column {name} must not hold NULL")
    return column.to_numpy().astype(np.int64, copy=False)
