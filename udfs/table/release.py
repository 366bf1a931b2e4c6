"""The release of a table's groups, with quantiles and without: signed increments join exact sums; every trigger releases what is shown."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import Bool, Float, Int, match, sort_order
from dpsql.udfs.contributions import WEIGHT_UNIT, contributions
from dpsql.udfs.keys import NumberedGroups, PublicGroups
from dpsql.udfs.measure.output_columns import OutputColumn, combine, released_columns
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter
from dpsql.udfs.noise.paths import Paths, standard_deviation
from dpsql.udfs.noise.randomness import SELECTION, tags
from dpsql.udfs.stage import BATCH, Release, Released, Stepped, Tables, Tick, replay
from dpsql.udfs.state_table import StateTable
from dpsql.udfs.table import leaves
from dpsql.udfs.table.leaves import QuantileTree, Trees, empty_leaves, open_trees, waiting
from dpsql.udfs.table.state import (
    TABLES,
    Arrays,
    Layout,
    TableState,
    add_groups,
    add_rows,
    as_arrays,
    as_table,
    due,
    empty_state,
    new_groups,
)
from dpsql.udfs.table_grid import TableGrid

# The release step of one key bucket of a table without windows: signed increments join exact
# sums; every trigger releases what is shown.

# One sum per key for ever, and the noise of one counter on it. Nothing depends on how rows are
# cut into micro-batches or buckets: a tick
# replays, for every newly closed trigger in order, its increments, the noise, the test of keys
# and the release.


@dataclass(frozen=True)
class Selection:
    """Which keys appear, and are shown.

    Args:
        counter: of the selection path.
        sigma: in units' weight.
        first, thresholds: tau is thresholds[j], in units of 2^-20, from trigger first[j] to before first[j + 1]; first[0] is 1.
        shown_from: one per block as `thresholds`; a key that has appeared is shown at triggers at which its noisy weight is at least that.
        min_users: exact units before the noisy test.
    """

    counter: Counter | BltInf
    sigma: float
    first: tuple[int, ...]
    thresholds: tuple[int, ...]
    shown_from: tuple[int, ...]
    min_users: int

    def thresholds_at(self, trigger: int) -> tuple[int, int]:
        """Return (tau, shown from) at a trigger, in units of 2^-20."""
        block = bisect_right(self.first, trigger) - 1
        return self.thresholds[block], self.shown_from[block]


class TableNoise(Protocol):
    """Noise of one sum of every group."""

    @property
    def mechanism(self) -> int:
        """Number of the noise, from 1."""

    @property
    def counter(self) -> Counter | BltInf:
        """Counter of every path."""

    @property
    def grid(self) -> float:
        """Value of one integer unit (a power of two)."""

    def scale_and_error(self, keys: Int, trigger: int) -> tuple[Float | float, Float]:
        """Return the noise of one step of some groups, in units of the grid, and the standard error at a trigger."""


@dataclass(frozen=True)
class Perturbation:
    """`mechanism` numbers the noise (from 1); sigma in value units; grid: value of one integer unit (a power of two)."""

    mechanism: int
    counter: Counter | BltInf
    sigma: float
    grid: float

    def stderr(self, trigger: int) -> float:
        """Return the standard error of the noise at a trigger, the rounding to the grid included."""
        return math.sqrt(
            (self.sigma * standard_deviation(self.counter, trigger)) ** 2 + self.grid**2 / 12
        )

    def scale_and_error(self, keys: Int, trigger: int) -> tuple[float, Float]:
        """Return the noise of one step and the standard error, which are the same in all groups."""
        return self.sigma / self.grid, np.full(len(keys), self.stderr(trigger))


@dataclass(frozen=True)
class TableParameters:
    """Concrete numbers of the step; it holds no secret. Either `selection` or `public` is given. Columns of `quantiles` have mechanisms of their
    own, after those of the perturbations."""

    grid: TableGrid
    selection: Selection | None
    perturbations: tuple[TableNoise, ...]
    columns: tuple[OutputColumn, ...]
    public: PublicGroups | NumberedGroups | None = None
    quantiles: tuple[QuantileTree, ...] = ()

    @property
    def gives(self) -> pa.Schema:
        """Columns of released rows; groups of several kinds say which they are of."""
        plain = released_columns(self.columns)
        return (
            plain.append(pa.field("grouping_id", pa.int64()))
            if isinstance(self.public, NumberedGroups)
            else plain
        )

    @property
    def layout(self) -> Layout:
        """Layout of the state per key."""
        return Layout(
            self.selection.counter.width if self.selection else 0,
            tuple(q.counter.width for q in self.perturbations),
        )

    def for_bucket(self, bucket: int, buckets: int) -> TableParameters:
        """Return the parameters with the public keys of one bucket only."""
        if self.public is None:
            return self
        return replace(self, public=self.public.for_bucket(bucket, buckets))


def release(
    state: TableState | None,
    rows: pa.Table,
    ticks: Sequence[Tick],
    p: TableParameters,
    noise_key: bytes,
) -> Released[TableState]:
    """Add rows and close what the ticks close, in order of arrival batch.

    Args:
        state: the bucket's state (None: nothing seen yet).
        rows: contributions `batch, trigger, key, key_bytes, weight, users, v0..`, of quantiles also `leaf`; any order; the increments of an end
            are negative.
        ticks: the bucket's ticks in this micro-batch; any order.
        p: the plan's numbers, for this bucket.
        noise_key: 32 bytes, the run's.

    Returns:
        Rows `window` (the start), `trigger, key_bytes`, then `c{i}, s{i}` per output column; sorted by trigger and key. A pure function of its
        arguments.
    """
    state = empty_table(p) if state is None else state
    return replay(
        state,
        rows,
        ticks,
        partial(_add_rows, p=p),
        partial(_close, p=p, noise_key=noise_key),
        p.gives,
    )


def empty_table(p: TableParameters) -> TableState:
    """Return the state of a bucket that has seen nothing."""
    return replace(empty_state(p.layout), **(empty_leaves(p.quantiles) if p.quantiles else {}))


def _add_rows(state: TableState, rows: pa.Table, p: TableParameters) -> TableState:
    """Add rows to the state; those of leaves are kept apart."""
    if state.waiting is None:
        return add_rows(state, rows, p.layout)
    is_leaf = rows["leaf"].to_numpy() > 0
    more = waiting(rows.filter(is_leaf), len(p.perturbations), p.quantiles)
    state = replace(state, waiting=pa.concat_tables([state.waiting, more]).combine_chunks())
    return add_rows(state, rows.filter(~is_leaf), p.layout)


def _close(
    state: TableState, closed_us: int, p: TableParameters, noise_key: bytes
) -> tuple[TableState, list[pa.Table]]:
    """Close every trigger up to closed_us."""
    closed_before = p.grid.closed(state.closed_us)
    closed_now = p.grid.closed(closed_us)
    groups = (
        _with_public(state.groups, p.layout, p.public)
        if p.public and closed_now > closed_before
        else state.groups
    )
    names = groups["key_bytes"]
    g = as_arrays(groups, p.layout)
    tag = tags(noise_key, np.zeros(len(g["key"]), np.int64), g["key"])
    noise = Paths(p.selection.counter, SELECTION, noise_key, tag) if p.selection else None
    paths = [Paths(q.counter, q.mechanism, noise_key, tag) for q in p.perturbations]
    trees, still_waiting = (
        open_trees(state.tables(), g["key"], closed_now, p.quantiles, noise_key, tag)
        if p.quantiles
        else (None, None)
    )
    increments, pending = due(state.pending, g["key"], closed_now)
    bounds = np.searchsorted(increments["trigger"], np.arange(closed_before + 1, closed_now + 2))
    listed = _by_name(np.arange(0 if p.selection else len(g["key"])), names)
    closing = _closing(g["key"], p.public)
    released = []
    for trigger, low, high in zip(
        range(closed_before + 1, closed_now + 1),
        bounds[:-1].tolist(),
        bounds[1:].tolist(),
        strict=True,
    ):
        changed = increments["group"][low:high]
        for name in ("weight", "users", *p.layout.values):
            g[name][changed] += increments[name][low:high]
        if trees:
            trees.advance(trigger)
        shown_groups = (
            _by_name(_select(g, trigger, p.selection, noise), names)
            if p.selection and noise
            else listed[closing[listed] <= trigger]
        )
        if len(shown_groups):
            released.append(_release(g, shown_groups, trigger, closing, paths, names, p, trees))
    return TableState(
        as_table(g, names, closed_us, p.layout),
        pending,
        still_waiting,
        **(trees.remaining_tables(g["key"]) if trees else {}),
    ), released


def _select(g: Arrays, trigger: int, p: Selection, noise: Paths) -> Int:
    """Test the keys that have not appeared; returns those that are shown at this trigger."""
    tau, shown_from = p.thresholds_at(trigger)
    tested = np.flatnonzero((g["selected_at"] == 0) & (g["users"] >= p.min_users))
    known_keys = np.flatnonzero(g["selected_at"] > 0)
    noise.follow(g["noise"], g["step"], np.concatenate([tested, known_keys]), trigger)
    hit = tested[_reaches(g, tested, trigger, tau, p, noise)]
    g["selected_at"][hit] = trigger
    known_keys = np.concatenate([known_keys, hit])
    return np.sort(known_keys[_reaches(g, known_keys, trigger, shown_from, p, noise)])


def _reaches(
    g: Arrays, groups: Int, trigger: int, threshold: int, p: Selection, noise: Paths
) -> Bool:
    margin = (
        threshold - g["weight"][groups]
    ) * WEIGHT_UNIT  # exact: an integer below 2^53 times a power of two
    return noise.reaches(g["noise"], groups, trigger, p.sigma, margin)


def _closing(keys: Int, public: PublicGroups | NumberedGroups | None) -> Int:
    """Return the trigger at which each group is measured, once and for all; 0: it is at every trigger."""
    if isinstance(public, NumberedGroups) and public.closing is not None:
        return public.closing(keys)
    return np.zeros(len(keys), np.int64)


def _release(
    g: Arrays,
    shown_groups: Int,
    trigger: int,
    closing: Int,
    paths: list[Paths],
    names: pa.ChunkedArray,
    p: TableParameters,
    trees: Trees | None,
) -> pa.Table:
    """Return the rows of one trigger."""
    is_closed = closing[shown_groups] > 0
    values, errors = _noisy_sums(g, shown_groups[~is_closed], trigger, paths, p)
    if is_closed.any():
        # What is measured once has one draw: the first of its path, whenever it is told again
        order = np.argsort(np.argsort(is_closed, kind="stable"))
        once, once_errors = _noisy_sums(g, shown_groups[is_closed], 1, paths, p)
        values = [np.concatenate(pair)[order] for pair in zip(values, once, strict=True)]
        errors = [np.concatenate(pair)[order] for pair in zip(errors, once_errors, strict=True)]
    table = {
        "window": np.full(len(shown_groups), p.grid.offset_us),
        "trigger": np.full(len(shown_groups), trigger),
    }
    table["key_bytes"] = names.take(shown_groups)
    if trees:
        table |= trees.released(shown_groups, trigger)
    for i, column in enumerate(p.columns):
        if column.kind != "quantiles":
            table[f"c{i}"], table[f"s{i}"] = combine(
                column, values, [errors[j] for j in column.perturbations]
            )
    if isinstance(p.public, NumberedGroups):
        table["grouping_id"] = np.array(p.public.grouping_ids)[
            p.public.kinds(g["key"][shown_groups])
        ]
    return pa.table(table, p.gives)


def _noisy_sums(
    g: Arrays, groups: Int, step: int, paths: list[Paths], p: TableParameters
) -> tuple[list[Int], list[Float]]:
    """Return the noisy sums of some groups with so many steps of their paths, and the standard errors, for every perturbation."""
    values = []
    errors = []
    steps = g["paths_step"].copy()
    for j, (path, q) in enumerate(zip(paths, p.perturbations, strict=True)):
        steps = g["paths_step"].copy()
        path.follow(g[f"p{j}"], steps, groups, step)
        scale, error = q.scale_and_error(g["key"][groups], step)
        values.append(g[f"v{j}"][groups] + path.rounded(g[f"p{j}"], groups, step, scale))
        errors.append(error)
    g["paths_step"][:] = steps
    return values, errors


def _by_name(groups: Int, names: pa.ChunkedArray) -> Int:
    """Sort groups by key bytes: their order says nothing about hashes or arrival."""
    return groups[pc.sort_indices(names.take(groups)).to_numpy()]


def _with_public(
    groups: pa.Table, layout: Layout, public: PublicGroups | NumberedGroups
) -> pa.Table:
    key = np.array(public.keys, np.int64)
    order = sort_order(key)
    new_keys = order[match([key[order]], [groups["key"].to_numpy()]) < 0]
    if not len(new_keys):
        return groups
    return add_groups(groups, new_groups(layout, key[new_keys], public.names(new_keys)))


# The release of a table's groups, with quantiles and without.


@dataclass(frozen=True)
class TableStage(Release):
    """Contributions and ticks to released rows.

    Args:
        parameters: the plan's numbers.
    """

    parameters: TableParameters

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """Tables of groups; and of leaves, where columns are quantiles."""
        return tables(bool(self.parameters.quantiles))

    @property
    def takes(self) -> pa.Schema:
        """Columns of contributions, of quantiles also of leaves, with the micro-batch that they came in."""
        p = self.parameters
        return contributions(
            len(p.perturbations) + len(p.quantiles), by_leaf=bool(p.quantiles)
        ).append(BATCH)

    def empty(self) -> Tables:
        """Return the state in which no key is there, and nothing is closed."""
        return empty_table(self.parameters).tables()

    def step(
        self, state: Tables, rows: pa.Table, ticks: Sequence[Tick], noise_key: bytes
    ) -> Stepped:
        """Add rows and close ticks by `release`."""
        return release(TableState(**state), rows, ticks, self.parameters, noise_key).stepped()


def tables(ranks: bool) -> Mapping[str, StateTable]:
    """Return what the release keeps; `ranks`: there are quantiles."""
    return leaves.TABLES if ranks else TABLES
