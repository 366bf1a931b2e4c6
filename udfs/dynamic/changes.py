"""The intake of a table whose rows end: images of a change feed to signed increments. What one unit may add is decided from its own images
and the clock alone (docs/privacy/dynamic.md, theorem 16).

Versions are cut first, all rows at once; then it is decided which of them count, all units at once; then where units are present.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Int, run_starts, run_sums, sort_order
from dpsql.udfs.contributions import Increment, contributions
from dpsql.udfs.dynamic.interval_tree import level_before
from dpsql.udfs.dynamic.live_rows import closed, empty_state, live_versions, pairs
from dpsql.udfs.dynamic.presence import Spells, VersionBounds, admitted, spells
from dpsql.udfs.dynamic.versions import UNCOUNTED, Events, Images, Versions, cut, images
from dpsql.udfs.intake import contribution_bounding
from dpsql.udfs.intake.leaf_counts import with_leaves
from dpsql.udfs.stage import END, NO_RECORD, Clock, Tables
from dpsql.udfs.table.grid import TableGrid

DROP_REASONS = (*contribution_bounding.DROP_REASONS, "unknown_row")
"""The last: an end of a row that is not there."""


@dataclass(frozen=True)
class FeedParameters:
    """Concrete numbers of the step.

    Args:
        grid: of the table.
        max_rows, max_rows_per_group, max_groups: C, c, G.
        weights: w_1..w_S of a unit's spells, in units of 2^-20.
        increments: one per perturbation.
        copies: rows have no primary key.
        public_keys: sorted key hashes that may count; None: any key.
        by_level: tell also from which node of an interval tree it is that rows end (`dpsql.udfs.dynamic.interval_tree`).
    """

    grid: TableGrid
    max_rows: int
    max_rows_per_group: int
    max_groups: int
    weights: tuple[int, ...]
    increments: tuple[Increment, ...]
    copies: bool
    public_keys: tuple[int, ...] | None = None
    by_level: bool = False

    @property
    def gives(self) -> pa.Schema:
        """Contributions."""
        leaves = any(rule.rule == "leaf" for rule in self.increments)
        return contributions(len(self.increments), by_level=self.by_level, by_leaf=leaves)


@dataclass(frozen=True)
class ChangeAdmission:
    """New state, the signed increments summed by (trigger, key), and how many images were dropped, or did not count, and why."""

    state: Tables
    contributions: pa.Table
    drops: dict[str, int]


def admit_changes(
    state: Tables | None, rows: pa.Table, clock: Clock, p: FeedParameters
) -> ChangeAdmission:
    """Follow the rows of one bucket's units through one micro-batch.

    Args:
        state: the bucket's state (None: nothing seen yet).
        rows: records (docs/architecture.md) with `row, seq, kind`; no NULL in any column.
        clock: the same for every bucket of the micro-batch.
        p: the plan's numbers.

    Returns:
        Admission; pure: the same arguments give the same result, in any row order.
    """
    state = empty_state(len(p.increments)) if state is None else state
    drops = Counter[str]()
    code = rows.column("drop").to_numpy()
    for number, reason in enumerate(NO_RECORD, start=1):
        drops[reason] = int((code == number).sum())
    rows = rows.filter(pa.array(code == 0))
    given, drops["too_far_ahead"] = images(rows, clock, p.increments, p.copies)
    there, at = live_versions(state, given.user, given.row)
    names = rows.column("key_bytes").take(pa.array(given.at))
    found = cut(given, _triggers(given, clock, p.grid), names, there, p.copies)
    drops["unknown_row"] = found.unknown
    known = pairs(state, found.versions)
    bounds = VersionBounds(
        p.max_rows, p.max_rows_per_group, p.max_groups, p.weights, p.public_keys, p.grid.horizon
    )
    versions = admitted(found.versions, found.events, known, bounds, drops)
    events = counted(versions, found.events)
    present = spells(versions, events, known, len(p.weights))
    left = np.ones(len(versions.user), bool)
    left[found.events.version[found.events.sign == END]] = False
    state = closed(state, at, versions.take(np.flatnonzero(left)), versions, events, present.pairs)
    return ChangeAdmission(
        state,
        _summed(versions, events, present, p),
        {reason: drops[reason] for reason in DROP_REASONS},
    )


def counted(versions: Versions, events: Events) -> Events:
    """Those of versions that count, at the triggers at which they do: an end is not before its version's begin."""
    events = events.take(versions.slot[events.version] != UNCOUNTED)
    begin = versions.begin[events.version]
    return Events(
        events.version,
        events.sign,
        np.where(events.sign == END, np.maximum(events.trigger, begin), begin),
    )


def _triggers(given: Images, clock: Clock, grid: TableGrid) -> Int:
    """Return the first trigger that each image can have."""
    start = np.full(len(given.ts), grid.offset_us)
    return np.maximum(
        grid.own_trigger(given.ts, start), grid.closed_triggers(start, clock.closed_us) + 1
    )


def _summed(versions: Versions, events: Events, present: Spells, p: FeedParameters) -> pa.Table:
    """Return one row per (window, trigger, key): what versions add, and what presence does, that is weights and `users`."""
    ranked = present.rank > 0
    size = int(ranked.sum())
    version = np.concatenate([events.version, present.version[ranked]])
    trigger = np.concatenate([events.trigger, present.trigger[ranked]])
    sign = np.concatenate([events.sign, np.zeros(size, np.int64)])
    users = np.concatenate([np.zeros(len(events.sign), np.int64), present.sign[ranked]])
    weight = users * np.concatenate(
        [
            np.zeros(len(events.sign), np.int64),
            np.array((0, *p.weights), np.int64)[present.rank[ranked]],
        ]
    )
    in_time = trigger <= p.grid.horizon
    version, trigger, sign, users, weight = (
        column[in_time] for column in (version, trigger, sign, users, weight)
    )
    key = versions.key[version]
    ends = sign == END if p.by_level else np.zeros(len(sign), bool)
    level = np.where(ends, level_before(versions.begin[version], trigger), 0)
    order = sort_order(trigger, key, level)
    starts = run_starts(trigger[order], key[order], level[order])
    head = order[starts]
    table = {
        "window": np.full(len(head), p.grid.offset_us),
        "trigger": trigger[head],
        "key": key[head],
    }
    table["key_bytes"] = versions.key_bytes.take(pa.array(version[head]))
    table |= {"weight": run_sums(weight[order], starts), "users": run_sums(users[order], starts)}
    leaves = {
        j: versions.values[j][version] for j, rule in enumerate(p.increments) if rule.rule == "leaf"
    }
    for j, rule in enumerate(p.increments):
        counted = (
            users
            if rule.rule == "users"
            else sign * (0 if j in leaves else versions.values[j][version])
        )
        table[f"v{j}"] = run_sums(counted[order], starts)
    if not leaves:
        return pa.table(table | ({"level": level[head]} if p.by_level else {}), p.gives)
    names = versions.key_bytes.take(pa.array(version))
    return with_leaves(
        pa.table(table), np.full(len(version), p.grid.offset_us), trigger, key, names, sign, leaves
    )
