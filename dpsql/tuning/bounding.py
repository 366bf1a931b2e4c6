"""Contribution bounding of a sample for many settings: everything that does not depend on C, c, G is sorted once.

The same rules as `dpsql.udfs.intake.contribution_bounding` (a test compares them record by record), for stored input without a clock. Of one
user's records with equal event times the earlier in the file comes first; the engine breaks such ties by a hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.histogram.stages import grid
from dpsql.parsed_query import ContributionPeriod
from dpsql.tuning.sample import Sample
from dpsql.udfs.columns import Bool, Int, run_starts, running_count, sort_order


@dataclass(frozen=True)
class Bounds:
    """C, c and G: admitted records per user and period, of them per key, and keys."""

    rows: int
    per_group: int
    groups: int


@dataclass(frozen=True)
class Admitted:
    """What the bounds let through.

    Args:
        copies: positions of the admitted copies of records (one per window) in `Arrangement.cell`.
        first: per admitted copy, whether it is its user's first of its period in its cell.
        new: per admitted copy, whether it is its user's first in its cell, of all periods.
        rank: per admitted copy, which of the user's cells this is (from 1), where `first`.
        records: admitted records.
        dropped: records over G, c and C.
    """

    copies: Int
    first: Bool
    new: Bool
    rank: Int
    records: int
    dropped: dict[str, int]


class Arrangement:
    """The records by (period, user, time), and their copies, one per window. A cell is one (window, key).

    Attributes: `cell` and `record` per copy, `ts` and `key` per record, `cells` (their number), `window` per cell.
    """

    def __init__(self, sample: Sample, plan: PrivacyPlan) -> None:
        self.plan, times = plan, grid(plan)
        renews = plan.query.contribution_period is ContributionPeriod.WINDOW
        period = times.period(sample.ts) if renews else np.zeros(len(sample.ts), np.int64)
        self.order = sort_order(period, sample.user, sample.ts)
        period, self.user, self.key, self.ts = (column[self.order] for column in (period, sample.user, sample.key, sample.ts))
        self._new_user = run_starts(period, self.user)
        user = np.cumsum(self._new_user) - 1
        pair, pair_order = _runs(user, self.key)
        self._occurrence = _unsort(pair_order, running_count(np.ones(len(pair), bool), pair))
        self._key_rank = _spread(pair_order, pair, self._rank(self._occurrence == 1))
        self.record, start = times.windows_of(self.ts)
        if sample.public is not None:
            exists = start >= sample.public.first_window_us
            self.record, start = self.record[exists], start[exists]
        self._one_window_each = renews and times.windows_per_record == 1
        self._group, self._group_order = _runs(user[self.record], start, self.key[self.record])
        self._copy_new_user = run_starts(user[self.record]) if len(self.record) else np.zeros(0, bool)
        self._cells(sample, start)

    def longest(self) -> Bounds:
        """Bounds that drop nothing of this sample."""
        per_user = int(self._ordinal(np.ones(len(self.ts), bool)).max())
        return Bounds(per_user, int(self._occurrence.max()), int(self._key_rank.max()))

    def admit(self, bounds: Bounds, max_groups: int) -> Admitted:
        """What the bounds let through; `max_groups` is the plan's K."""
        within_groups = (self._key_rank <= bounds.groups) | (bounds.groups >= bounds.rows)
        within_group = within_groups & ((self._occurrence <= bounds.per_group) | (bounds.per_group >= bounds.rows))
        used_up = self._ordinal(within_group) - within_group >= bounds.rows
        admitted = within_group & ~used_up
        dropped = {
            "over_max_groups": int((~within_groups & ~used_up).sum()),
            "over_max_rows_per_group": int((within_groups & ~within_group & ~used_up).sum()),
            "over_max_rows": int(used_up.sum()),
        }
        copies = np.flatnonzero(admitted[self.record])
        record = self.record[copies]
        if self._one_window_each:
            first = self._occurrence[record] == 1
            return Admitted(copies, first, first, self._key_rank[record], int(admitted.sum()), dropped)
        inside = admitted[self.record]
        nth = _unsort(self._group_order, running_count(inside[self._group_order], self._group))
        first = inside & (nth == 1)
        total = np.cumsum(first)
        rank = total - np.repeat((total - first)[self._copy_new_user], np.diff(np.append(np.flatnonzero(self._copy_new_user), len(total))))
        rank = self._group_rank(rank, first)
        copies = np.flatnonzero(inside & (rank <= max_groups))
        runs, order = _runs(self.user[self.record[copies]], self.cell[copies])
        new = np.zeros(len(copies), bool)
        new[order] = runs
        return Admitted(copies, first[copies], new, rank[copies], int(admitted.sum()), dropped)

    def _ordinal(self, counted: Bool) -> Int:
        return running_count(counted, self._new_user)

    def _rank(self, first: Bool) -> Int:
        return np.where(first, running_count(first, self._new_user), 0)

    def _group_rank(self, rank: Int, first: Bool) -> Int:
        """The rank of a group's first admitted copy, for all its copies."""
        return _spread(self._group_order, self._group, np.where(first, rank, 0))

    def _cells(self, sample: Sample, start: Int) -> None:
        key, window = self.key[self.record], start
        if sample.public is not None:
            windows = np.unique(start)
            key = np.concatenate([key, np.tile(np.array(sample.public.keys, np.int64), len(windows))])
            window = np.concatenate([window, np.repeat(windows, len(sample.public.keys))])
        runs, order = _runs(window, key)
        self.cells = int(runs.sum())
        self.cell = _unsort(order, np.cumsum(runs) - 1)[: len(start)]
        self.window = window[order][runs]
        self.start = start
        members = sort_order(self.cell, self.user[self.record])
        distinct = run_starts(self.cell[members], self.user[self.record][members])
        self.users_of_cell = np.bincount(self.cell[members][distinct], minlength=self.cells)


def _runs(*columns: Int) -> tuple[Bool, Int]:
    """(where a run of equal rows starts, the stable order that sorts them)."""
    order = sort_order(*columns)
    return run_starts(*(column[order] for column in columns)), order


def _unsort(order: Int, values: Int) -> Int:
    out = np.empty_like(values)
    out[order] = values
    return out


def _spread(order: Int, starts: Bool, values: Int) -> Int:
    """The largest value of every run, for all its members."""
    if not len(values):
        return values
    largest = np.maximum.reduceat(values[order], np.flatnonzero(starts))
    return _unsort(order, largest[np.cumsum(starts) - 1])


def steps_up_to(most: int, steps: Iterable[int]) -> tuple[int, ...]:
    """The steps below `most`, and `most`."""
    return (*(step for step in steps if step < most), most)
