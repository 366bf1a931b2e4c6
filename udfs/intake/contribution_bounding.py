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

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.udfs.columns import (
    Bool,
    Int,
    Numbered,
    mix,
    number_values,
    read_integers,
    read_numbers,
    run_starts,
    run_sums,
    running_count,
    sort_runs,
)
from dpsql.udfs.contributions import Increment, Side
from dpsql.udfs.grid import Grid
from dpsql.udfs.intake import group_sums
from dpsql.udfs.intake.arrival import sort_by_arrival
from dpsql.udfs.intake.group_sums import GroupFill
from dpsql.udfs.intake.leaf_counts import with_leaves
from dpsql.udfs.intake.left_out import FigureLimits, Verdicts, add_figures
from dpsql.udfs.intake.timeliness import count_drops, open_copies, timely
from dpsql.udfs.intake.user_state import (
    GROUPS,
    KEYS,
    LOST,
    Counted,
    Entries,
    count_entries,
    empty_state,
    forget,
    has,
    merge,
    used_up,
    whole_users,
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
        figures: of what the limits leave out; None: none.
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
    figures: FigureLimits | None = None

    @property
    def most_stored_rows(self) -> float:
        """C, at which a unit keeps one entry; infinite where figures ask for its keys."""
        return math.inf if self.figures and self.figures.most_pairs else self.max_rows

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
    """New state, the admitted increments summed by (window, trigger, key), how many records were dropped and why, a new state of sums, and the
    figures of what is left out (`dpsql.udfs.intake.left_out`)."""

    state: pa.Table
    contributions: pa.Table
    drops: dict[str, int]
    sums: pa.Table | None = None
    left_out: pa.Table | None = None


@dataclass(frozen=True)
class Records:
    """Records of one micro-batch, by user and in order of arrival; one value per record.

    `increments` has one column per perturbation, and so has `sides_beyond` (`Increment.side_beyond`), where it is counted what bounds clamp;
    `key_bytes` one value per distinct key. `lost_rows` are further records, of units that had no row left before, as far as
    figures count them.
    """

    period: Int
    user: Numbered
    ts: Int
    key: Numbered
    increments: list[Int]
    key_bytes: pa.Array
    sides_beyond: list[Side]
    lost_rows: Entries


@dataclass(frozen=True)
class RowVerdicts(Verdicts):
    """Outcome of the row limits; `ordinal`: of each record among the user's admitted ones; `has_part`: it counts, or would but for the bounds of
    its group."""

    ordinal: Int
    has_part: Bool


@dataclass(frozen=True)
class Copies:
    """Admitted records in their open windows: by record, then newest window first; one value per copy."""

    record: Int
    window: Int
    trigger: Int


@dataclass(frozen=True)
class RankedCopies(Copies):
    """Copies and the groups that they fall into; one value per copy.

    `is_first`: the copy is the first of its user in its group; `rank`: of that group among the user's; `counts_user`: the user has not
    been counted in the group before; `has_own_capacity`: the group shares its bounds with no other; `is_kept`: it is one of the first K.
    """

    is_first: Bool
    rank: Int
    counts_user: Bool
    has_own_capacity: Bool
    is_kept: Bool

    def select_kept(self) -> RankedCopies:
        """Leave out the copies that are not kept."""
        if self.is_kept.all():
            return self
        return RankedCopies(*(column[self.is_kept] for column in vars(self).values()))


def admit(
    state: pa.Table | None,
    rows: pa.Table,
    clock: Clock,
    p: BoundingParameters,
    sums: pa.Table | None = None,
) -> Admission:
    """Keep timely records, apply row limits, copy into open windows, rank groups, compute amounts and sum them by group.

    Args:
        state: the bucket's state (None: nothing seen yet).
        rows: records (docs/architecture.md): `drop, user, ts, key, key_bytes, a0, ...`; no NULL in any column. `user`, and `key` with
            `key_bytes`, may be numbered (`read_numbers`).
        clock: the same for every bucket of the micro-batch.
        p: the plan's numbers.
        sums: of units in groups, where increments have bounds per group (None: nothing seen yet).

    Returns:
        Admission; pure: the same arguments give the same result, in any row order.
    """
    drops = dict.fromkeys(DROP_REASONS, 0)
    user_counts = empty_state() if state is None else state
    records = keep_timely_records(rows, user_counts, clock, p, drops)
    group_fill = fill_groups(records, sums, clock, p) if p.per_group else None
    verdicts, user_counts = apply_row_limits(user_counts, records, group_fill, clock, p, drops)
    user_counts, left_out = count_left_out(user_counts, records, verdicts, group_fill, p)
    copies = copy_into_open_windows(records, verdicts.is_admitted, clock, p)
    admitted_fill = None
    if group_fill:
        admitted_fill = group_fill.select_copies(verdicts.is_admitted[group_fill.record])
    ranked_copies, user_counts = rank_groups(
        user_counts, records, verdicts, copies, admitted_fill, p
    )
    if group_fill and admitted_fill:
        if p.figures:  # A record has one copy. Those that are refused for its group's bounds are of its sum, too.
            sums = group_sums.updated(group_fill, verdicts.has_part)
        else:
            sums = group_sums.updated(admitted_fill, ranked_copies.has_own_capacity)
        sums = group_sums.forget(sums, p.grid, clock.closed_us)
        admitted_fill = admitted_fill.select_copies(ranked_copies.is_kept)
    ranked_copies = ranked_copies.select_kept()
    weights, increments = compute_amounts(records, verdicts, ranked_copies, admitted_fill, p)
    contributions = sum_by_group(records, ranked_copies, weights, increments, p)
    user_counts = forget(user_counts, clock.closed_us, p.grid, p.renews)
    return Admission(user_counts, contributions, drops, sums, left_out)


def keep_timely_records(
    rows: pa.Table, users: pa.Table, clock: Clock, p: BoundingParameters, drops: dict[str, int]
) -> Records:
    """Keep records that come in time, of users that have rows left, and sort them by user and order of arrival."""
    is_timely = timely(rows, clock, p, drops)
    if not is_timely.all():
        rows = rows.filter(is_timely)
    ts = read_integers(rows, "ts")
    user = read_numbers(rows, "user")
    key = read_numbers(rows, "key")
    period = p.grid.period(ts) if p.renews else np.zeros(len(ts), np.int64)
    increments = [rule.increments(rows) for rule in p.increments]
    sides_beyond = []
    if p.figures and p.figures.clamps:
        sides_beyond = [rule.side_beyond(rows) for rule in p.increments]
    amounts = (*increments, *(side.astype(np.int64) for side in sides_beyond))
    order = sort_by_arrival(period, user, ts, key, amounts)
    is_used_up = used_up(users, KEYS, period[order], user.take(order), p.most_stored_rows)
    has_rows_left = count_drops(is_used_up, "over_max_rows", drops)
    lost_rows = order[is_used_up]
    if not has_rows_left.all():
        order = order[has_rows_left]
    return Records(
        period[order],
        user.take(order),
        ts[order],
        key.take(order),
        [column[order] for column in increments],
        name_keys(rows["key_bytes"], key),
        [column[order] for column in sides_beyond],
        _counted_losses(users, whole_users(period[lost_rows], user.take(lost_rows)), p),
    )


def _counted_losses(users: pa.Table, lost_rows: Entries, p: BoundingParameters) -> Entries:
    """Choose, among records of units that had no row left, those that figures count."""
    period = lost_rows.period
    user = lost_rows.user
    if not p.figures:
        return whole_users(period[:0], user.take(slice(0)))
    is_counted = ~used_up(users, LOST, period, user, p.figures.most_rows)
    return whole_users(period[is_counted], user.take(is_counted))


def name_keys(key_bytes: pa.ChunkedArray, key: Numbered) -> pa.Array:
    """Return the encoded key of each distinct one: that of any of its records."""
    if pa.types.is_dictionary(key_bytes.type):
        return key_bytes.combine_chunks().dictionary
    row = np.empty(len(key.values), np.int64)
    row[key.numbers] = np.arange(len(key.numbers))
    return key_bytes.take(row)


def fill_groups(
    records: Records, sums: pa.Table | None, clock: Clock, p: BoundingParameters
) -> GroupFill:
    """Add up what copies of records bring to their groups, as far as the bounds per group go."""
    record, window, _ = open_copies(records.ts, clock, p)
    rules = [p.increments[j] for j in p.per_group]
    return group_sums.fill(
        group_sums.empty_sums(len(rules)) if sums is None else sums,
        record,
        records.period[record],
        records.user.take(record),
        window,
        records.key.take(record),
        [records.increments[j][record] for j in p.per_group],
        rules,
        [records.sides_beyond[j][record] for j in p.per_group if records.sides_beyond],
    )


def apply_row_limits(
    users: pa.Table,
    records: Records,
    fill: GroupFill | None,
    clock: Clock,
    p: BoundingParameters,
    drops: dict[str, int],
) -> tuple[RowVerdicts, pa.Table]:
    """Apply G, c and C to records, and return the verdicts with the new state: the old one after the last micro-batch.

    A record without capacity in its group uses nothing up: another of its key came before it. A record over one bound never counts towards
    another: once a user's rows or keys are used up they stay so, hence the three filters can be applied one after the other.
    """
    has_capacity = np.ones(len(records.ts), bool)
    if fill and p.only_per_group:
        has_capacity = fill.has_capacity(len(records.ts))
    pairs, is_first, rank = rank_keys(users, records, has_capacity)
    is_over_capacity = ~has_capacity
    if fill and p.groups_are_keys:
        is_own_group = pairs.stands_for(is_first, fill.exact_groups)
        is_over_capacity &= is_own_group
        has_capacity = has_capacity & is_own_group
    # A bound as large as the user's own never bites first: such records are counted under max_rows below.
    within_groups = pairs.is_known | (rank <= p.max_groups) | (p.max_groups >= p.max_rows)
    within_key = (pairs.prior_rows + pairs.occurrence <= p.max_rows_per_group) | (
        p.max_rows_per_group >= p.max_rows
    )
    within_group = within_groups & has_capacity & within_key
    is_new_user = run_starts(records.period, records.user.numbers)
    ordinal = pairs.user_rows + running_count(within_group, is_new_user)
    is_over = ordinal - within_group >= p.max_rows
    has_rows_left = count_drops(is_over, "over_max_rows", drops)
    count_drops(has_rows_left & ~within_groups, "over_max_groups", drops)
    within_groups &= has_rows_left
    count_drops(within_groups & ~has_capacity, "over_bounds_per_group", drops)
    count_drops(within_groups & has_capacity & ~within_key, "over_max_rows_per_group", drops)
    is_admitted = within_group & has_rows_left
    # What comes after the c-th record of a key is refused whether it fits in or not.
    has_rows_of_key = pairs.prior_rows + pairs.occurrence < p.max_rows_per_group
    has_part = is_admitted | (is_over_capacity & within_groups & has_rows_of_key)
    verdicts = RowVerdicts(pairs, is_admitted, is_first & is_admitted, rank, ordinal, has_part)
    if clock.is_last:
        return verdicts, users
    return verdicts, merge(users, KEYS, pairs, is_admitted, p.counts_rows, p.most_stored_rows)


def rank_keys(users: pa.Table, records: Records, has_capacity: Bool) -> tuple[Counted, Bool, Int]:
    """Count records against the keys of their users.

    Returns:
        The counts; which records are the first of a new key, of those that have capacity; and the rank of each record's key.
    """
    key_fingerprints = number_values(_fingerprint(records.key.values))
    fingerprint = key_fingerprints.take(records.key.numbers)
    entries = Entries(records.period, records.user, fingerprint)
    pairs = count_entries(users, KEYS, entries, has_capacity)
    is_new_user = run_starts(records.period, records.user.numbers)
    is_first = has_capacity & ~pairs.is_known & (pairs.occurrence == 1)
    rank = pairs.spread(pairs.user_entries + running_count(is_first, is_new_user), is_first)
    return pairs, is_first, rank


def count_left_out(
    users: pa.Table,
    records: Records,
    verdicts: RowVerdicts,
    fill: GroupFill | None,
    p: BoundingParameters,
) -> tuple[pa.Table, pa.Table | None]:
    """Count what the limits leave out and what bounds cut, where there are figures of that; returned after the new state of users."""
    if not p.figures:
        return users, None
    is_clamped = np.zeros(len(records.ts), bool)
    for rule, side in zip(p.increments, records.sides_beyond, strict=False):
        is_clamped |= (side != 0) & (not rule.per_group)
    clamped = (is_clamped & verdicts.is_admitted).astype(np.int64)
    if fill:
        clamped += fill.is_cut & verdicts.has_part
    return add_figures(users, verdicts, records.lost_rows, p.figures, clamped)


def copy_into_open_windows(
    records: Records, is_admitted: Bool, clock: Clock, p: BoundingParameters
) -> Copies:
    """Copy each admitted record into those of its windows that are open."""
    admitted, window, trigger = open_copies(records.ts[is_admitted], clock, p)
    return Copies(np.flatnonzero(is_admitted)[admitted], window, trigger)


def rank_groups(
    users: pa.Table,
    records: Records,
    verdicts: RowVerdicts,
    copies: Copies,
    fill: GroupFill | None,
    p: BoundingParameters,
) -> tuple[RankedCopies, pa.Table]:
    """Rank the groups of each user in order of its copies, and return them with the new state.

    A copy beyond rank K is left out and not counted under `drops`: those count records, and its record is admitted.
    """
    record = copies.record
    all_copies = np.ones(len(record), bool)
    if p.groups_are_keys:
        is_first = verdicts.is_first[record]
        rank = verdicts.rank[record]
        return (
            RankedCopies(
                record,
                copies.window,
                copies.trigger,
                is_first,
                rank,
                is_first,
                all_copies,
                all_copies,
            ),
            users,
        )
    period = records.period[record]
    user = records.user.take(record)
    fingerprint = _group_fingerprint(period, copies.window, records.key.plain(record), p)
    entries = Entries(period, user, number_values(fingerprint))
    groups = count_entries(users, GROUPS, entries)
    is_first = ~groups.is_known & (groups.occurrence == 1)
    new_groups = running_count(is_first, run_starts(period, user.numbers))
    rank = groups.spread(groups.user_entries + new_groups, is_first)
    has_own_capacity = groups.stands_for(is_first, fill.exact_groups) if fill else all_copies
    # Groups with the same 32 bits are one group of the unit: they share c. One that has them for itself is refused nothing here
    has_rows_left = groups.prior_rows + groups.occurrence <= p.max_rows_per_group
    is_known_or_new = groups.is_known | (rank <= p.max_group_copies)
    is_kept = has_own_capacity & is_known_or_new & has_rows_left
    is_first = is_first & is_kept
    new_users = merge(users, GROUPS, groups, is_kept, p.counts_rows)
    counts_user = is_first
    if p.tells_users_apart:
        counts_user = is_first & ~_counted_before(users, new_users, entries, is_first, p)
    ranked = RankedCopies(
        record,
        copies.window,
        copies.trigger,
        is_first,
        rank,
        counts_user,
        has_own_capacity,
        is_kept,
    )
    return ranked, new_users


def compute_amounts(
    records: Records,
    verdicts: RowVerdicts,
    copies: RankedCopies,
    fill: GroupFill | None,
    p: BoundingParameters,
) -> tuple[Int, list[Int]]:
    """Return the weight of each copy, and what it adds to each perturbation."""
    weights = np.array((0, *p.weights), np.int64)
    if p.by_user:
        newest = p.grid.latest_window(records.ts[copies.record])
        copy_number = (newest - copies.window) // p.grid.slide_us
        earlier_copies = (verdicts.ordinal[copies.record] - 1) * p.grid.windows_per_record
        weight = weights[earlier_copies + copy_number + 1]
    else:
        weight = np.where(copies.is_first, weights[copies.rank], 0)
    increments = [
        copies.counts_user.astype(np.int64) if rule.rule == "users" else column[copies.record]
        for rule, column in zip(p.increments, records.increments, strict=True)
    ]
    if fill:
        for j, column in zip(p.per_group, fill.increments, strict=True):
            increments[j] = column
    return weight, increments


def sum_by_group(
    records: Records,
    copies: RankedCopies,
    weight: Int,
    increments: list[Int],
    p: BoundingParameters,
) -> pa.Table:
    """Return one row per (window, trigger, key), or per (window, trigger, key, who counts) for rounds; sorted; key bytes of any of its records.

    `weight` and each of `increments` have one value per copy.
    """
    key = records.key.take(copies.record)
    counted_user = {"user": _counted_user(records, copies, p)} if p.by_user else {}
    order, starts = sort_runs(copies.window, copies.trigger, key.numbers, *counted_user.values())
    heads = order[starts]
    table = {"window": copies.window[heads], "trigger": copies.trigger[heads]}
    table["key"] = key.plain(heads)
    table |= {name: column[heads] for name, column in counted_user.items()}
    table["key_bytes"] = records.key_bytes.take(key.numbers[heads])
    # In rounds a user counts once per group and trigger, with the weight of its earliest record: the largest.
    table["weight"] = (
        np.maximum.reduceat(weight[order], np.flatnonzero(starts))
        if p.by_user and len(heads)
        else run_sums(weight[order], starts)
    )
    table["users"] = run_sums(copies.is_first[order].astype(np.int64), starts)
    leaves = {j: increments[j] for j, rule in enumerate(p.increments) if rule.rule == "leaf"}
    for j, column in enumerate(increments):
        table[f"v{j}"] = (
            np.zeros(len(heads), np.int64) if j in leaves else run_sums(column[order], starts)
        )
    summed = pa.table(table)
    if not leaves:
        return summed
    key_bytes = records.key_bytes.take(key.numbers)
    sign = np.ones(len(copies.record), np.int64)
    return with_leaves(summed, copies.window, copies.trigger, key.all(), key_bytes, sign, leaves)


def _group_fingerprint(
    period: Int, window: Int, key: Int, p: BoundingParameters
) -> npt.NDArray[np.uint32]:
    """Return 32 bits of a (window, key); where users are told apart the last one says whether the window starts in the copy's own period."""
    fingerprint = _fingerprint(mix(window, key).view(np.int64))
    if not p.tells_users_apart:
        return fingerprint
    return fingerprint & ~np.uint32(1) | (p.grid.period(window) == period).astype(np.uint32)


def _counted_user(records: Records, copies: Copies, p: BoundingParameters) -> Int:
    """Return whom rounds count: a user, and where periods meet a user in one period.

    One user in two periods would else be counted in one of them only if not in the other. The last bit of the id says whether the window
    starts in the period: a mix of both could be that of somebody else in the other period.
    """
    user = records.user.plain(copies.record)
    if not p.periods_meet:
        return user
    period = records.period[copies.record]
    return user & ~np.int64(1) | (p.grid.period(copies.window) == period).astype(np.int64)


def _counted_before(
    users: pa.Table, new_users: pa.Table, entries: Entries, is_first: Bool, p: BoundingParameters
) -> Bool:
    """Tell whether the user of each copy that is the first of its period in its group has been counted there, for the other period that the
    window meets: in earlier micro-batches, or in this one, where the earlier period counts.

    A window that starts in the copy's period meets the next one, another window the one before. So an entry has one counterpart, whose
    fingerprint differs in the last bit, and each of the two looks for the other.
    """
    fingerprint = entries.fingerprint.all()
    starts_here = (fingerprint & np.uint32(1)).astype(bool)
    is_counted = np.zeros(len(is_first), bool)
    for is_asked, state, step_us in (
        (is_first & starts_here, users, p.grid.window_us),
        (is_first & ~starts_here, new_users, -p.grid.window_us),
    ):
        is_counted[is_asked] = has(
            state,
            GROUPS,
            entries.period[is_asked] + step_us,
            entries.user.plain(is_asked),
            fingerprint[is_asked] ^ np.uint32(1),
        )
    return is_counted


def _fingerprint(hashes: Int) -> npt.NDArray[np.uint32]:
    return (hashes.view(np.uint64) >> np.uint64(32)).astype(np.uint32)
