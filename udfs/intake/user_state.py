"""The user-contribution maps of one bucket, as one flat sorted table, and how records are counted against them.

One row per (period, user, part, fingerprint): `period, user` int64, `part` uint8, `fingerprint` uint32, `rows` int32. In the
part KEYS a row is one of the user's keys and `rows` its admitted records; in the part GROUPS (kept only where groups are not
keys) a row is one of the user's (window, key) groups. Two keys of one user with the same 32-bit fingerprint share their
allowance: less is admitted, never more. A user whose rows are used up keeps a single key's row that counts them all (and its groups: a
neighbouring period may ask for them); nothing else is asked about that user until the period is over, and the state of a busy stream
stops growing.
"""

from __future__ import annotations

import math
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
from dpsql.udfs.grid import Grid
from dpsql.udfs.state_table import StateTable

KEYS = 0
GROUPS = 1
COLUMNS = ("period", "user", "part", "fingerprint", "rows")
TABLES = {"users": StateTable(COLUMNS[:4], "user")}


@dataclass(frozen=True)
class Entries:
    """Records as entries of the maps: (period, user, fingerprint) per record, sorted by (period, user, order of arrival)."""

    period: Int
    user: Int
    fingerprint: npt.NDArray[np.uint32]


Exact = tuple[Int, Bool]
"""Of each record the number of its group, in full, and whether groups of the state have it."""


@dataclass(frozen=True)
class Counted:
    """Records counted against the maps, one value per record unless said.

    `pair` numbers the record's entry among the micro-batch's distinct ones; `occurrence` counts its records so far (from 1);
    `known` and `prior_rows` say what the state had of the entry; `user_rows`, `user_entries` what it had of the user.
    One per pair, in the order of the state: `heads`, the position of a record of it; `at`, the row of the state that is its
    entry or that it would stand before; `known_pair`, which of the two; `who`, the number of its user.
    One per user: `low`, `high`, where its part is in the state; `had`, the rows there.
    """

    entries: Entries
    pair: Int
    occurrence: Int
    known: Bool
    prior_rows: Int
    user_rows: Int
    user_entries: Int
    heads: Int
    at: Int
    known_pair: Bool
    who: Int
    low: Int
    high: Int
    had: Int

    def spread(self, values: Int, at: Bool) -> Int:
        """Give every record the value that the one flagged record of its pair has (0 where none is flagged)."""
        of_pair = np.zeros(len(self.heads), np.int64)
        of_pair[self.pair[at]] = values[at]
        return of_pair[self.pair]

    def stands_for(self, first: Bool, exact: Exact) -> Bool:
        """Tell whether each is of the one group that its fingerprint stands for: one more with the same 32 bits would have rooms of its own."""
        return np.where(self.known, exact[1], self.spread(exact[0], first) == exact[0])


def empty_state() -> pa.Table:
    """Return the state of a bucket that has seen nothing."""
    types = (np.int64, np.int64, np.uint8, np.uint32, np.int32)
    return pa.table({name: np.zeros(0, kind) for name, kind in zip(COLUMNS, types, strict=True)})


def count_entries(
    state: pa.Table, part: int, entries: Entries, counts: Bool | None = None
) -> Counted:
    """Count records against one part of the state; `counts`: which of them, where not all."""
    new_user = run_starts(entries.period, entries.user)
    who = np.cumsum(new_user) - 1
    order = sort_order(who, entries.fingerprint)
    starts = run_starts(who[order], entries.fingerprint[order])
    pair = np.empty(len(order), np.int64)
    pair[order] = np.cumsum(starts) - 1
    occurrence = np.empty(len(order), np.int64)
    occurrence[order] = running_count(
        np.ones(len(order), bool) if counts is None else counts[order], starts
    )
    heads = order[starts]

    period, user, parts, fingerprint, rows = (state.column(n).to_numpy() for n in COLUMNS)
    asked = (
        entries.period[new_user],
        entries.user[new_user],
        np.full(int(new_user.sum()), part, np.uint8),
    )
    low, high = find(asked, (period, user, parts))
    # Only the entries of the micro-batch's own users are looked at from here on: `theirs` are their rows, user by user.
    user_entries = high - low
    ends = np.cumsum(user_entries)
    begins = ends - user_entries
    theirs = np.repeat(low - begins, user_entries) + np.arange(ends[-1] if len(ends) else 0)
    total = np.concatenate([[0], np.cumsum(rows[theirs], dtype=np.int64)])
    user_rows = total[ends] - total[begins]
    mine = who[heads]
    known_words = _words(np.repeat(np.arange(len(low)), user_entries), fingerprint[theirs])
    found = np.searchsorted(known_words, words := _words(mine, entries.fingerprint[heads]))
    at = low[mine] + found - begins[mine]
    known_pair = np.zeros(len(heads), bool)
    inside = found < len(known_words)
    known_pair[inside] = known_words[found[inside]] == words[inside]
    prior = np.zeros(len(heads), np.int64)
    prior[known_pair] = rows[at[known_pair]]
    known = known_pair[pair]
    prior = prior[pair]
    return Counted(
        entries,
        pair,
        occurrence,
        known,
        prior,
        user_rows[who],
        user_entries[who],
        heads,
        at,
        known_pair,
        mine,
        low,
        high,
        user_rows,
    )


def has(state: pa.Table, part: int, entries: Entries) -> Bool:
    """Tell whether one part of the state has each entry; in any order."""
    asked = (
        entries.period,
        entries.user,
        np.full(len(entries.user), part, np.uint8),
        entries.fingerprint,
    )
    return match(asked, [state.column(n).to_numpy() for n in COLUMNS[:4]]) >= 0


def used_up(state: pa.Table, period: Int, user: Int, max_rows: float) -> Bool:
    """Tell whether the user of each record, sorted by (period, user), had no row left before this micro-batch."""
    if not state.num_rows:
        return np.zeros(len(user), bool)
    new_user = run_starts(period, user)
    asked = (period[new_user], user[new_user], np.full(int(new_user.sum()), KEYS, np.uint8))
    low, high = find(asked, [state.column(n).to_numpy() for n in COLUMNS[:3]])
    rows = state.column("rows").to_numpy()
    full = (high > low) & (rows[np.minimum(low, len(rows) - 1)] >= max_rows)
    return full[np.cumsum(new_user) - 1]


def merge(
    state: pa.Table,
    part: int,
    counted: Counted,
    admitted: Bool,
    counts: bool = True,
    max_rows: float = math.inf,
) -> pa.Table:
    """Add the admitted records to the state; entries without an admitted record are not made.

    Users that have now used `max_rows` keep one entry. Where nothing `counts`, an entry says that there is one.
    """
    added = np.bincount(counted.pair[admitted], minlength=len(counted.heads))
    known = counted.known_pair
    added = (added if counts else np.minimum(added, ~known)).astype(np.int32)
    columns: list[npt.NDArray[Any]] = [state.column(n).to_numpy() for n in COLUMNS]
    columns[4] = columns[4].copy()
    columns[4][counted.at[known]] += added[known]
    fresh = ~known & (added > 0)
    gone = np.zeros(state.num_rows, bool)
    if max_rows < math.inf:
        full = (
            counted.had + np.bincount(counted.who, added, len(counted.had)).astype(np.int64)
            >= max_rows
        )
        stored = full & (counted.high > counted.low)
        columns[4][counted.low[stored]] = max_rows
        gone = _inside(counted.low[stored] + 1, counted.high[stored], state.num_rows)
        alone = (full & ~stored)[counted.who] & run_starts(counted.who)
        fresh = fresh & ~full[counted.who] | alone
        added[alone] = max_rows
    if fresh.any():
        where = places(counted.at[fresh])
        heads = counted.heads[fresh]
        entries = counted.entries
        new: list[npt.NDArray[Any]] = [
            entries.period[heads],
            entries.user[heads],
            np.full(len(heads), part, np.uint8),
        ]
        new += [entries.fingerprint[heads], added[fresh]]
        columns = [
            insert(column, values, where) for column, values in zip(columns, new, strict=True)
        ]
        gone = insert(gone, np.zeros(len(where), bool), where)
    if gone.any():
        columns = [column[~gone] for column in columns]
    return pa.table(dict(zip(COLUMNS, columns, strict=True)))


def forget(state: pa.Table, closed_us: int, grid: Grid, renews: bool) -> pa.Table:
    """Drop the periods whose every window has had its last trigger; never earlier, which would renew an allowance."""
    if not renews:
        return state
    period = state.column("period").to_numpy()
    if not grid.period_is_over(
        period[:1], closed_us
    ).any():  # sorted: the first period is the first to be over
        return state
    return state.filter(pa.array(~grid.period_is_over(period, closed_us)))


def _inside(low: Int, high: Int, size: int) -> Bool:
    """True at the positions of any of the disjoint spans low..high - 1."""
    steps = np.zeros(size + 1, np.int8)
    # Spans may touch, and then a step up falls on a step down; empty ones fall on themselves.
    np.add.at(steps, low, 1)
    np.subtract.at(steps, high, 1)
    inside: Bool = np.cumsum(steps[:-1], dtype=np.int8) > 0
    return inside


def _words(number: Int, fingerprint: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """(number of the user, fingerprint) as one word."""
    return number.astype(np.uint64) << np.uint64(32) | fingerprint
