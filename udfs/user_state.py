"""The user-contribution maps of one bucket, as one flat sorted table, and how records are counted against them.

One row per (period, user, part, fingerprint): `period, user` int64, `part` uint8, `fingerprint` uint32, `rows` int32. In the
part KEYS a row is one of the user's keys and `rows` its admitted records; in the part GROUPS (kept only where groups are not
keys) a row is one of the user's (window, key) groups. Two keys of one user with the same 32-bit fingerprint share their
allowance: less is admitted, never more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.columns import Bool, Int, match, run_starts, run_sums, running_count, sort_order
from udfs.grid import Grid

KEYS, GROUPS = 0, 1
COLUMNS = ("period", "user", "part", "fingerprint", "rows")


@dataclass(frozen=True)
class Entries:
    """Records as entries of the maps: (period, user, fingerprint) per record, sorted by (period, user, order of arrival)."""

    period: Int
    user: Int
    fingerprint: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Counted:
    """Records counted against the maps, one value per record unless said.

    `pair` numbers the record's entry among the micro-batch's distinct ones; `occurrence` counts its records so far (from 1);
    `known` and `prior_rows` say what the state had of the entry; `user_rows`, `user_entries` what it had of the user.
    `heads` (one per pair): position of a record of it; `known_at` (one per pair): row of the state, or -1.
    """

    entries: Entries
    pair: Int
    occurrence: Int
    known: Bool
    prior_rows: Int
    user_rows: Int
    user_entries: Int
    heads: Int
    known_at: Int

    def spread(self, values: Int, at: Bool) -> Int:
        """Give every record the value that the one flagged record of its pair has (0 where none is flagged)."""
        of_pair = np.zeros(len(self.heads), np.int64)
        of_pair[self.pair[at]] = values[at]
        return of_pair[self.pair]


def empty_state() -> pa.Table:
    """The state of a bucket that has seen nothing."""
    types = (np.int64, np.int64, np.uint8, np.uint32, np.int32)
    return pa.table({name: np.zeros(0, kind) for name, kind in zip(COLUMNS, types, strict=True)})


def count_entries(state: pa.Table, part: int, entries: Entries) -> Counted:
    """Count records against one part of the state."""
    here = np.flatnonzero(state.column("part").to_numpy() == part)
    period, user, fingerprint, rows = (state.column(n).to_numpy()[here] for n in ("period", "user", "fingerprint", "rows"))
    order = sort_order(entries.period, entries.user, entries.fingerprint)
    starts = run_starts(entries.period[order], entries.user[order], entries.fingerprint[order])
    pair = np.empty(len(order), np.int64)
    pair[order] = np.cumsum(starts) - 1
    occurrence = np.empty(len(order), np.int64)
    occurrence[order] = running_count(np.ones(len(order), bool), starts)
    heads = order[starts]
    found = match([entries.period[heads], entries.user[heads], entries.fingerprint[heads]], [period, user, fingerprint])
    prior = _pick(rows.astype(np.int64), found)

    new_user = run_starts(entries.period, entries.user)
    who = np.cumsum(new_user) - 1
    known_users = run_starts(period, user)
    at = match([entries.period[new_user], entries.user[new_user]], [period[known_users], user[known_users]])
    user_rows = _pick(run_sums(rows.astype(np.int64), known_users), at)
    user_entries = _pick(run_sums(np.ones(len(rows), np.int64), known_users), at)
    known_at = np.where(found >= 0, _pick(here, found), -1)
    return Counted(entries, pair, occurrence, (found >= 0)[pair], prior[pair], user_rows[who], user_entries[who], heads, known_at)


def merge(state: pa.Table, part: int, counted: Counted, admitted: Bool) -> pa.Table:
    """Add the admitted records to the state; entries without an admitted record are not made."""
    added = np.bincount(counted.pair[admitted], minlength=len(counted.heads)).astype(np.int32)
    known = counted.known_at >= 0
    rows = state.column("rows").to_numpy().copy()
    rows[counted.known_at[known]] += added[known]
    fresh = counted.heads[~known & (added > 0)]
    entries = counted.entries
    new = (entries.period[fresh], entries.user[fresh], np.full(len(fresh), part, np.uint8), entries.fingerprint[fresh])
    columns = [np.concatenate([state.column(n).to_numpy(), column]) for n, column in zip(COLUMNS, new, strict=False)]
    columns.append(np.concatenate([rows, added[~known & (added > 0)]]))
    order = sort_order(*columns[:4])
    return pa.table({name: column[order] for name, column in zip(COLUMNS, columns, strict=True)})


def forget(state: pa.Table, closed_us: int, grid: Grid, renews: bool) -> pa.Table:
    """Drop the periods whose every window has had its last trigger; never earlier, which would renew an allowance."""
    if not renews:
        return state
    over = grid.period_is_over(state.column("period").to_numpy(), closed_us)
    return state.filter(pa.array(~over)) if over.any() else state


def _pick(values: Int, at: Int) -> Int:
    """values[at], 0 where at is -1."""
    return np.where(at >= 0, values[at], 0) if len(values) else np.zeros(len(at), np.int64)
