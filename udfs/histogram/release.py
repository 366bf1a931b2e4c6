"""The release step of one key bucket: rows join the groups' pending increments; a tick closes triggers and releases.

Nothing depends on how rows are cut into micro-batches or buckets: a tick replays, for every group and every newly closed
trigger in order, the increments of that trigger, the next step of noise, the selection test and the release.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.columns import Int, match, sort_order
from udfs.grid import Grid
from udfs.histogram.group_state import ReleaseState, StateLayout, add_groups, add_rows, close_state, empty_state, new_groups, open_closing
from udfs.histogram.key_selection import SelectionParameters, predict, select
from udfs.histogram.perturbation import OutputColumn, PerturbationParameters, finish, perturb, released_columns
from udfs.keys import PublicGroups
from udfs.noise.randomness import tags
from udfs.stage import Tick


@dataclass(frozen=True)
class ReleaseParameters:
    """Concrete numbers of the step; it holds no secret. Either `selection` or `public` is given."""

    grid: Grid
    selection: SelectionParameters | None
    perturbations: tuple[PerturbationParameters, ...]
    columns: tuple[OutputColumn, ...]
    public: PublicGroups | None = None

    @property
    def layout(self) -> StateLayout:
        """What the state holds per group."""
        width = self.selection.counter.width if self.selection else 1
        rounds = self.selection is not None and self.selection.rounds
        return StateLayout(width, tuple(q.counter.width for q in self.perturbations), rounds)

    def for_bucket(self, bucket: int, buckets: int) -> ReleaseParameters:
        """The same, with the public groups of one bucket only."""
        if self.public is None:
            return self
        return dataclasses.replace(self, public=self.public.for_bucket(bucket, buckets))


@dataclass(frozen=True)
class Released:
    """New state and released rows: `window, trigger, key_bytes`, then `c{i}, s{i}` per output column."""

    state: ReleaseState
    rows: pa.Table


def release(state: ReleaseState | None, rows: pa.Table, ticks: Sequence[Tick], p: ReleaseParameters, noise_key: bytes) -> Released:
    """Add rows and close what the ticks close, in order of arrival batch.

    Args:
        state: the bucket's state (None: nothing seen yet).
        rows: contributions with their arrival `batch`; any order.
        ticks: the bucket's ticks in this micro-batch; any order.
        p: the plan's numbers, for this bucket.
        noise_key: 32 bytes, the run's.

    Returns:
        Released; a pure function of its arguments.
    """
    state = empty_state(p.layout) if state is None else state
    out = [released_columns(p.columns).empty_table()]
    batch = rows.column("batch").to_numpy()
    done = np.zeros(rows.num_rows, bool)
    for tick in sorted(ticks, key=lambda t: (t.batch, t.closed_us)):
        due = ~done & (batch <= tick.batch)
        state = add_rows(state, rows.filter(pa.array(due)), p.layout)
        done |= due
        if tick.closed_us > state.closed_us:
            state, released = _close(state, tick.closed_us, p, noise_key)
            out.append(released)
    return Released(add_rows(state, rows.filter(pa.array(~done)), p.layout), pa.concat_tables(out).combine_chunks())


def _close(state: ReleaseState, closed_us: int, p: ReleaseParameters, noise_key: bytes) -> tuple[ReleaseState, pa.Table]:
    """Close every grid point up to closed_us."""
    if p.public is not None:
        state = _add_public(state, closed_us, p, p.public)
    key_bytes = state.groups.column("key_bytes")
    tag = tags(noise_key, state.groups.column("window").to_numpy(), state.groups.column("key").to_numpy())
    closing, pending = open_closing(state, closed_us, p.grid, p.layout, tag)
    if p.selection is not None:
        shown = select(closing, p.selection, noise_key)
        predict(closing, p.selection, noise_key)
    else:
        shown = [np.zeros(0, np.int64)] * (closing.last + 1)
        for trigger in closing.triggers:
            shown[trigger] = np.flatnonzero((closing.before < trigger) & (closing.now >= trigger))
    released = _release_table(perturb(closing, shown, p.perturbations, noise_key), closing.groups["window"], key_bytes, p)
    return close_state(closing, key_bytes, pending, closed_us, p.grid, p.layout), released


def _add_public(state: ReleaseState, closed_us: int, p: ReleaseParameters, public: PublicGroups) -> ReleaseState:
    """Add the groups of every public key in every window that has its first trigger in this tick."""
    grid = p.grid
    last = (closed_us - grid.trigger_us - grid.offset_us) // grid.slide_us * grid.slide_us + grid.offset_us
    # Windows whose first trigger had closed before this tick have their groups already.
    opened = (state.closed_us - grid.trigger_us - grid.offset_us) // grid.slide_us * grid.slide_us + grid.offset_us + grid.slide_us
    windows = np.arange(max(public.first_window_us, opened), last + 1, grid.slide_us, dtype=np.int64)
    order = np.argsort(np.array(public.keys, np.int64))
    window = np.repeat(windows, len(order))
    listed = np.tile(order, len(windows))
    key = np.array(public.keys, np.int64)[listed]
    groups = state.groups
    missing = match([window, key], [groups.column("window").to_numpy(), groups.column("key").to_numpy()]) < 0
    if not missing.any():
        return state
    names = pa.array(public.key_bytes, pa.binary()).take(pa.array(listed[missing]))
    added = new_groups(p.layout, window[missing], key[missing], names, np.ones(int(missing.sum()), np.int64))
    return dataclasses.replace(state, groups=add_groups(groups, added))


def _release_table(rows: tuple[Int, Int, list[Int]], window: Int, key_bytes: pa.ChunkedArray, p: ReleaseParameters) -> pa.Table:
    """Released rows sorted by (window, trigger, key bytes): their order says nothing about hashes or arrival."""
    group, trigger, values = rows
    shown, position = np.unique(group, return_inverse=True)
    names = key_bytes.take(pa.array(shown))
    rank = np.empty(len(shown), np.int64)
    rank[pc.sort_indices(names).to_numpy()] = np.arange(len(shown))
    order = sort_order(window[group], trigger, rank[position])
    group, trigger, values = group[order], trigger[order], [v[order] for v in values]
    table = {"window": window[group], "trigger": trigger, "key_bytes": names.take(pa.array(position[order]))}
    for i, column in enumerate(p.columns):
        table[f"c{i}"], table[f"s{i}"] = finish(column, values, trigger)
    return pa.table(table)
