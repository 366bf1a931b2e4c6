"""The user-contribution maps of one bucket, as one flat sorted table, and how records are counted against them.

One row per (period, user, part, fingerprint): `period, user` int64, `part` uint8, `fingerprint` uint32, `rows` int32. In the
part KEYS a row is one of the user's keys and `rows` its admitted records; in the part GROUPS (kept only where groups are not
keys) a row is one of the user's (window, key) groups. Two keys of one user with the same 32-bit fingerprint share their
allowance: less is admitted, never more. A user whose rows are used up keeps a single key's row that counts them all (and its groups: a
neighbouring period may ask for them; and how many rows of it were lost, up to a number); so the state of a busy stream stops growing. Only
figures of left-out keys need all of a user's keys.
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
    Numbered,
    Word,
    find,
    insert,
    match,
    places,
    read_columns,
    run_starts,
    running_count,
    sort_runs,
    span_rows,
    span_sums,
    unsort,
)
from dpsql.udfs.grid import Grid
from dpsql.udfs.state_table import StateTable

KEYS = 0
GROUPS = 1
REFUSED = 2
"""Keys of which no record counts, where figures ask for them."""
LOST = 3
"""One entry: how many records do not count, where figures ask for that."""
COLUMNS = ("period", "user", "part", "fingerprint", "rows")
TABLES = {"users": StateTable(COLUMNS[:4], "user")}


@dataclass(frozen=True)
class Entries:
    """Records as entries of the maps: (period, user, fingerprint) per record, sorted by (period, user, order of arrival)."""

    period: Int
    user: Numbered
    fingerprint: Numbered


def whole_users(period: Int, user: Numbered) -> Entries:
    """Return entries that tell no keys apart: one for each (period, user)."""
    return Entries(period, user, Numbered(np.zeros(len(period), np.int32), np.zeros(1, np.uint32)))


ExactGroups = tuple[Int, Bool]
"""The number of each record's group, in full, and whether the state has that group."""


@dataclass(frozen=True)
class Counted:
    """Records counted against the maps, one value per record unless said.

    `pair` numbers the record's entry among the micro-batch's distinct ones; `occurrence` counts its records so far (from 1);
    `is_known` and `prior_rows` say what the state had of the entry; `user_rows`, `user_entries` what it had of the user.
    One per pair, in the order of the state: `heads`, the position of a record of it; `state_row`, the row of the state that is its
    entry or that it would stand before; `is_known_pair`, which of the two; `pair_user`, the number of its user.
    One per user: `low`, `high`, where its part is in the state; `stored_rows`, the rows there.
    """

    entries: Entries
    pair: Int
    occurrence: Int
    is_known: Bool
    prior_rows: Int
    user_rows: Int
    user_entries: Int
    heads: Int
    state_row: Int
    is_known_pair: Bool
    pair_user: Int
    low: Int
    high: Int
    stored_rows: Int

    def spread(self, values: Int, is_flagged: Bool) -> Int:
        """Give every record the value that the one flagged record of its pair has (0 where none is flagged)."""
        pair_values = np.zeros(len(self.heads), np.int64)
        pair_values[self.pair[is_flagged]] = values[is_flagged]
        return pair_values[self.pair]

    def stands_for(self, is_first: Bool, groups: ExactGroups) -> Bool:
        """Tell which records are of the one group that their fingerprint stands for: one more with the same 32 bits would have a capacity of its own."""
        number, is_stored = groups
        return np.where(self.is_known, is_stored, self.spread(number, is_first) == number)


def empty_state() -> pa.Table:
    """Return the state of a bucket that has seen nothing."""
    types = (np.int64, np.int64, np.uint8, np.uint32, np.int32)
    return pa.table({name: np.zeros(0, kind) for name, kind in zip(COLUMNS, types, strict=True)})


def count_entries(
    state: pa.Table, part: int, entries: Entries, is_counted: Bool | None = None
) -> Counted:
    """Count records against one part of the state; `is_counted`: which of them, where not all."""
    is_new_user = run_starts(entries.period, entries.user.numbers)
    user_number = np.cumsum(is_new_user) - 1
    order, starts = sort_runs(user_number, entries.fingerprint.numbers)
    pair = unsort(order, np.cumsum(starts) - 1)
    flags = np.ones(len(order), bool) if is_counted is None else is_counted[order]
    occurrence = unsort(order, running_count(flags, starts))
    heads = order[starts]

    new_users = entries.user.plain(is_new_user)
    low, high = _user_spans(state, part, entries.period[is_new_user], new_users)
    fingerprint, rows = read_columns(state, ("fingerprint", "rows"))
    # Only the entries of the micro-batch's own users are looked at from here on: `stored` are their rows, user by user.
    user_entries = high - low
    ends = np.cumsum(user_entries)
    begins = ends - user_entries
    stored = span_rows(low, high)
    user_rows = span_sums(rows[stored], begins, ends)
    pair_user = user_number[heads]
    position, is_known_pair = _look_up(
        _words(np.repeat(np.arange(len(low)), user_entries), fingerprint[stored]),
        _words(pair_user, entries.fingerprint.plain(heads)),
    )
    state_row = low[pair_user] + position - begins[pair_user]
    prior_rows = np.zeros(len(heads), np.int64)
    prior_rows[is_known_pair] = rows[state_row[is_known_pair]]
    return Counted(
        entries,
        pair,
        occurrence,
        is_known_pair[pair],
        prior_rows[pair],
        user_rows[user_number],
        user_entries[user_number],
        heads,
        state_row,
        is_known_pair,
        pair_user,
        low,
        high,
        user_rows,
    )


def _user_spans(state: pa.Table, part: int, period: Int, user: Int) -> tuple[Int, Int]:
    """Return where one part of each (period, user) begins and ends in the state."""
    table = read_columns(state, COLUMNS[:3])
    return find((period, user, np.full(len(user), part, np.uint8)), table)


def _look_up(table: Word, words: Word) -> tuple[Int, Bool]:
    """Return where each word stands in a sorted table, or would stand, and which of the two."""
    position = np.searchsorted(table, words)
    is_known = np.zeros(len(words), bool)
    is_inside = position < len(table)
    is_known[is_inside] = table[position[is_inside]] == words[is_inside]
    return position, is_known


def has(
    state: pa.Table, part: int, period: Int, user: Int, fingerprint: npt.NDArray[np.uint32]
) -> Bool:
    """Tell whether one part of the state has each entry; in any order."""
    parts = np.full(len(user), part, np.uint8)
    table = read_columns(state, COLUMNS[:4])
    return match((period, user, parts, fingerprint), table) >= 0


def used_up(state: pa.Table, part: int, period: Int, user: Numbered, max_rows: float) -> Bool:
    """Tell whether the first entry of the user of each record, sorted by (period, user), had so many rows before this micro-batch.

    Of KEYS: the user has no row left; of LOST: no more of its rows are counted.
    """
    if not state.num_rows:
        return np.zeros(len(period), bool)
    is_new_user = run_starts(period, user.numbers)
    low, high = _user_spans(state, part, period[is_new_user], user.plain(is_new_user))
    rows = state["rows"].to_numpy()
    is_full = (high > low) & (rows[np.minimum(low, len(rows) - 1)] >= max_rows)
    return is_full[np.cumsum(is_new_user) - 1]


def merge(
    state: pa.Table,
    part: int,
    tally: Counted,
    is_admitted: Bool,
    counts_rows: bool = True,
    max_rows: float = math.inf,
) -> pa.Table:
    """Add the admitted records to the state; entries without an admitted record are not made.

    Users that have now used `max_rows` keep one entry. Where rows are not counted, an entry says that there is one.
    """
    if not is_admitted.any():
        return state
    is_known = tally.is_known_pair
    row_counts = np.bincount(tally.pair[is_admitted], minlength=len(tally.heads))
    row_counts = (row_counts if counts_rows else np.minimum(row_counts, ~is_known)).astype(np.int32)
    columns = read_columns(state, COLUMNS)
    columns[4] = columns[4].copy()
    columns[4][tally.state_row[is_known]] += row_counts[is_known]
    is_new = ~is_known & (row_counts > 0)
    is_dropped = np.zeros(state.num_rows, bool)
    if max_rows < math.inf:
        is_new, is_dropped = _keep_one_entry(columns[4], tally, row_counts, is_new, max_rows)
    if is_new.any():
        positions = places(tally.state_row[is_new])
        new_columns = _new_entries(tally, part, row_counts, is_new)
        columns = [
            insert(column, new_column, positions)
            for column, new_column in zip(columns, new_columns, strict=True)
        ]
        is_dropped = insert(is_dropped, np.zeros(len(positions), bool), positions)
    if is_dropped.any():
        columns = [column[~is_dropped] for column in columns]
    return pa.table(dict(zip(COLUMNS, columns, strict=True)))


def _keep_one_entry(
    rows: Int, tally: Counted, row_counts: npt.NDArray[Any], is_new: Bool, max_rows: float
) -> tuple[Bool, Bool]:
    """Let users that have used `max_rows` keep one entry; changes `rows` and `row_counts`, and returns which entries are new, and which go."""
    pair_user = tally.pair_user
    new_rows = np.bincount(pair_user, row_counts, len(tally.stored_rows)).astype(np.int64)
    is_full = tally.stored_rows + new_rows >= max_rows
    has_entry = is_full & (tally.high > tally.low)
    rows[tally.low[has_entry]] = max_rows
    is_dropped = _in_spans(tally.low[has_entry] + 1, tally.high[has_entry], len(rows))
    is_only_entry = (is_full & ~has_entry)[pair_user] & run_starts(pair_user)
    row_counts[is_only_entry] = max_rows
    return is_new & ~is_full[pair_user] | is_only_entry, is_dropped


def _new_entries(
    tally: Counted, part: int, row_counts: npt.NDArray[np.signedinteger[Any]], is_new: Bool
) -> list[npt.NDArray[Any]]:
    """Return the columns of entries that the state has not."""
    heads = tally.heads[is_new]
    entries = tally.entries
    parts = np.full(len(heads), part, np.uint8)
    return [
        entries.period[heads],
        entries.user.plain(heads),
        parts,
        entries.fingerprint.plain(heads),
        row_counts[is_new],
    ]


def forget(state: pa.Table, closed_us: int, grid: Grid, renews: bool) -> pa.Table:
    """Drop the periods whose every window has had its last trigger; never earlier, which would renew an allowance."""
    if not renews:
        return state
    period = state["period"].to_numpy()
    if not grid.period_is_over(
        period[:1], closed_us
    ).any():  # sorted: the first period is the first to be over
        return state
    return state.filter(~grid.period_is_over(period, closed_us))


def _in_spans(low: Int, high: Int, size: int) -> Bool:
    """Tell which positions are in any of the disjoint spans low..high - 1."""
    steps = np.zeros(size + 1, np.int8)
    # Spans may touch, and then a step up falls on a step down; empty ones fall on themselves.
    np.add.at(steps, low, 1)
    np.subtract.at(steps, high, 1)
    is_inside: Bool = np.cumsum(steps[:-1], dtype=np.int8) > 0
    return is_inside


def _words(number: Int, fingerprint: npt.NDArray[np.uint32]) -> Word:
    """Pack the number of a user and a fingerprint into one word."""
    return number.astype(np.uint64) << np.uint64(32) | fingerprint
