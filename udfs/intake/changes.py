"""The intake of a table whose rows end: images of a change feed to signed increments. What one unit may add is decided from its own images
and the clock alone (docs/privacy/dynamic.md, theorem 16).

Versions are cut first, all rows at once; then it is decided which of them count, all units at once; then where units are present.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Int, run_sums, sort_runs
from dpsql.udfs.contributions import Increment, contributions
from dpsql.udfs.intake import contribution_bounding
from dpsql.udfs.intake.leaf_counts import with_leaves
from dpsql.udfs.intake.live_rows import (
    TABLES,
    count_pairs,
    empty_state,
    known_rows,
    update_ended,
    update_tables,
)
from dpsql.udfs.intake.presence import Spells, VersionBounds, admit_versions, spells
from dpsql.udfs.intake.versions import (
    UNCOUNTED,
    Events,
    Images,
    Places,
    Versions,
    cut_versions,
    read_images,
)
from dpsql.udfs.stage import END, NO_RECORD, OUTSIDE, Clock, Tables
from dpsql.udfs.table_grid import FOR_EVER, Periods, TableGrid

DROP_REASONS = (*contribution_bounding.DROP_REASONS, "unknown_row", "replayed")
"""Reasons of an intake; the last: an end of a row that is not there, and an image whose place in the feed is not after its row's newest."""
OF_CELLS = (*DROP_REASONS, OUTSIDE)
"""Reasons where there are keys that may not count."""


@dataclass(frozen=True)
class FeedParameters:
    """Concrete numbers of the step.

    Args:
        grid: of the table.
        max_rows, max_rows_per_group, max_groups: C, c, G.
        weights: w_1..w_S of a unit's spells, in units of 2^-20.
        increments: one per perturbation.
        copies: rows have no primary key.
        ended_rows_kept_us: how long the places of rows that have ended are kept.
        periods: after which the allowance of a unit renews.
        public_keys: sorted key hashes that may count; None: any key.
        no_key: stands for all keys that may not; None: there is none.
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
    no_key: int | None = None
    by_level: bool = False
    ended_rows_kept_us: int = 0
    periods: Periods = FOR_EVER

    @property
    def bounds(self) -> VersionBounds:
        """Bounds of the versions that one unit begins in one period."""
        return VersionBounds(
            self.max_rows,
            self.max_rows_per_group,
            self.max_groups,
            self.weights,
            self.public_keys,
            self.no_key,
            self.grid.horizon,
        )

    @property
    def gives(self) -> pa.Schema:
        """Columns of the contributions that go on."""
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
    rows = _leave_out_marked(rows, drops)
    images, drops["too_far_ahead"] = read_images(rows, clock, p.increments, p.copies)
    known = known_rows(state, images, clock.closed_us)
    names = rows["key_bytes"].take(images.record)
    trigger = _triggers(images, clock, p.grid)
    version_cut = cut_versions(images, trigger, p.periods.numbers(trigger), names, known, p.copies)
    drops.update(unknown_row=version_cut.unknown, replayed=version_cut.replayed)
    pairs = count_pairs(state, version_cut.versions)
    versions = admit_versions(version_cut.versions, version_cut.events, pairs, p.bounds, drops)
    events = count_events(versions, version_cut.events)
    present = spells(versions, events, pairs, len(p.weights))
    live = versions.take(version_cut.live)
    ended = {"ended": _ended(state, images, known.ended, live, clock, p)}
    tables = update_tables(
        state, known.positions, live, versions, events, present.pairs, _open_period(clock, p)
    )
    return ChangeAdmission(
        {name: (ended | tables)[name] for name in TABLES},
        _sum_by_key(versions, _key_changes(events, present, p), p),
        {reason: drops[reason] for reason in OF_CELLS},
    )


def _ended(
    state: Tables, images: Images, places: Places, live: Versions, clock: Clock, p: FeedParameters
) -> pa.Table:
    """Return the places of rows that have ended, as they are now; copies have none."""
    if p.copies:
        return state["ended"]
    kept_us = p.ended_rows_kept_us
    return update_ended(state["ended"], images, places, live, clock, kept_us)


def _open_period(clock: Clock, p: FeedParameters) -> int:
    """Return the first period in which a version can still begin."""
    next_trigger = np.array([p.grid.closed(clock.closed_us) + 1])
    return int(p.periods.numbers(next_trigger)[0])


def _leave_out_marked(rows: pa.Table, drops: Counter[str]) -> pa.Table:
    """Leave out the images that the engine has marked as no records, and count them."""
    code = rows["drop"].to_numpy()
    for number, reason in enumerate(NO_RECORD, start=1):
        drops[reason] = int((code == number).sum())
    return rows.filter(code == 0)


def count_events(versions: Versions, events: Events) -> Events:
    """Return the events of versions that count, at the triggers at which they do: an end is not before its version's begin."""
    events = events.take(versions.slot[events.version] != UNCOUNTED)
    begin = versions.begin[events.version]
    return Events(
        events.version,
        events.sign,
        np.where(events.sign == END, np.maximum(events.trigger, begin), begin),
    )


@dataclass(frozen=True)
class KeyChanges:
    """Changes of keys in time, one value each: a version begins or ends (`sign`), or a unit is or is no longer present (`users`, with its `weight`)."""

    version: Int
    trigger: Int
    sign: Int
    users: Int
    weight: Int


def _triggers(images: Images, clock: Clock, grid: TableGrid) -> Int:
    """Return the first trigger that each image can have."""
    start = np.full(len(images.ts), grid.offset_us)
    return np.maximum(
        grid.own_trigger(images.ts, start), grid.closed_triggers(start, clock.closed_us) + 1
    )


def _key_changes(events: Events, present: Spells, p: FeedParameters) -> KeyChanges:
    """Return what versions add, and what presence does, up to the last trigger."""
    is_ranked = present.rank > 0
    no_version = np.zeros(int(is_ranked.sum()), np.int64)
    no_spell = np.zeros(len(events.sign), np.int64)
    weights = np.array((0, *p.weights), np.int64)[present.rank[is_ranked]]
    version = np.concatenate([events.version, present.version[is_ranked]])
    trigger = np.concatenate([events.trigger, present.trigger[is_ranked]])
    sign = np.concatenate([events.sign, no_version])
    users = np.concatenate([no_spell, present.sign[is_ranked]])
    weight = users * np.concatenate([no_spell, weights])
    in_time = trigger <= p.grid.horizon
    return KeyChanges(*(column[in_time] for column in (version, trigger, sign, users, weight)))


def level_before(begin: Int, trigger: Int) -> Int:
    """Return the level of the node that has, just before an earlier or later `trigger`, a row that began at `begin`; 0: no node has it yet."""
    apart = np.where(begin < trigger, (begin - 1) ^ (trigger - 1), 0)
    return np.frexp(apart.astype(np.float64))[1].astype(np.int64)  # exact: below 2^32


def _sum_by_key(versions: Versions, changes: KeyChanges, p: FeedParameters) -> pa.Table:
    """Return one row per (window, trigger, key), with the level of the node that ends are taken from where the plan has levels."""
    version = changes.version
    trigger = changes.trigger
    key = versions.key[version]
    is_end = changes.sign == END if p.by_level else np.zeros(len(version), bool)
    level = np.where(is_end, level_before(versions.begin[version], trigger), 0)
    order, starts = sort_runs(trigger, key, level)
    head = order[starts]
    table = {
        "window": np.full(len(head), p.grid.offset_us),
        "trigger": trigger[head],
        "key": key[head],
        "key_bytes": versions.key_bytes.take(version[head]),
        "weight": run_sums(changes.weight[order], starts),
        "users": run_sums(changes.users[order], starts),
    }
    leaves = {
        j: versions.values[j][version] for j, rule in enumerate(p.increments) if rule.rule == "leaf"
    }
    for j, rule in enumerate(p.increments):
        increments = (
            changes.users
            if rule.rule == "users"
            else changes.sign * (0 if j in leaves else versions.values[j][version])
        )
        table[f"v{j}"] = run_sums(increments[order], starts)
    if not leaves:
        return pa.table(table | ({"level": level[head]} if p.by_level else {}), p.gives)
    names = versions.key_bytes.take(version)
    window = np.full(len(version), p.grid.offset_us)
    return with_leaves(pa.table(table), window, trigger, key, names, changes.sign, leaves)
