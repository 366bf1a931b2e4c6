"""The intake of a table whose rows end: images of a change feed to signed increments. What one unit may add is decided from its own images
and the clock alone (docs/privacy/dynamic.md, theorem 16).

Units are taken one after the other, image by image: whether a version counts depends on which ended before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from udfs.columns import Int, run_starts, run_sums, sort_order
from udfs.dynamic.grid import TableGrid
from udfs.dynamic.images import Images, images
from udfs.dynamic.live_rows import closed, empty_state, opened
from udfs.dynamic.versions import Bounds, Change, Image, Unit
from udfs.histogram import contribution_bounding
from udfs.histogram.contribution_bounding import Increment
from udfs.histogram.stages import contributions
from udfs.stage import NO_RECORD, Clock, Tables

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
    """

    grid: TableGrid
    max_rows: int
    max_rows_per_group: int
    max_groups: int
    weights: tuple[int, ...]
    increments: tuple[Increment, ...]
    copies: bool
    public_keys: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Admission:
    """New state, the signed increments summed by (trigger, key), and how many images were dropped, or did not count, and why."""

    state: Tables
    contributions: pa.Table
    drops: dict[str, int]


def admit_changes(state: Tables | None, rows: pa.Table, clock: Clock, p: FeedParameters) -> Admission:
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
    rows = rows.filter(pa.array(code == 0)).combine_chunks()
    given, drops["too_far_ahead"] = images(rows, clock, p.increments, p.copies)
    public = None if p.public_keys is None else frozenset(p.public_keys)
    bounds = Bounds(p.max_rows, p.max_rows_per_group, p.max_groups, p.weights, public, p.grid.horizon)
    changes = list[Change]()
    if len(given.user):
        known = opened(state, given.user, given.row, given.key)
        taken = {user: Unit(*unit, bounds, changes, drops) for user, unit in known.units.items()}
        for user, image in zip(given.user.tolist(), _taken(given, rows, clock, p), strict=True):
            taken[user].take(image, p.copies)
        state = closed(state, known)
    return Admission(state, _summed(changes, p), {reason: drops[reason] for reason in DROP_REASONS})


def _taken(given: Images, rows: pa.Table, clock: Clock, p: FeedParameters) -> list[Image]:
    start = np.full(len(given.ts), p.grid.offset_us)
    trigger = np.maximum(p.grid.own_trigger(given.ts, start), p.grid.closed_triggers(start, clock.closed_us) + 1)
    names = rows.column("key_bytes").take(pa.array(given.at)).to_pylist()
    columns = [column.tolist() for column in (given.row, given.seq, given.kind, trigger, given.key)]
    values = zip(*(column.tolist() for column in given.values), strict=True)
    return [Image(*image) for image in zip(*columns, names, values, strict=True)]


def _summed(changes: Sequence[Change], p: FeedParameters) -> pa.Table:
    """One row per (window, trigger, key); the last that a `users` increment is of presence, all others are of versions."""
    trigger, key, weight, users, sign = (
        np.array([change[i] for change in changes], np.int64)
        for i in (Change._fields.index(n) for n in ("trigger", "key", "weight", "users", "sign"))
    )
    order = sort_order(trigger, key)
    starts = run_starts(trigger[order], key[order])
    head = order[starts]
    table = {"window": np.full(len(head), p.grid.offset_us), "trigger": trigger[head], "key": key[head]}
    table["key_bytes"] = pa.array([changes[i].key_bytes for i in head.tolist()], pa.binary())
    table |= {"weight": run_sums(weight[order], starts), "users": run_sums(users[order], starts)}
    zeros = (0,) * len(p.increments)
    values: Int = np.array([change.values or zeros for change in changes], np.int64).reshape(len(changes), len(zeros))
    for j, rule in enumerate(p.increments):
        table[f"v{j}"] = run_sums((users if rule.rule == "users" else sign * values[:, j])[order], starts)
    return pa.table(table, contributions(len(p.increments)))
