"""The histogram's release: rows join the groups' pending increments; a tick closes triggers and releases. And its two stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import match, read_columns
from dpsql.udfs.contributions import contributions
from dpsql.udfs.histogram import carrying, figures, group_state, memory, quantiles
from dpsql.udfs.histogram.figures import close_figures, no_figures, with_figures, without_figures
from dpsql.udfs.histogram.group_state import (
    ReleaseState,
    add_groups,
    add_rows,
    close_state,
    empty_state,
    new_groups,
    open_closing,
)
from dpsql.udfs.histogram.key_selection import predict, select
from dpsql.udfs.histogram.memory import empty_memory
from dpsql.udfs.histogram.parameters import ReleaseParameters
from dpsql.udfs.histogram.perturbation import perturb, released_rows
from dpsql.udfs.histogram.quantiles import no_leaves, of_open_windows, read_off, with_rows
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.noise.randomness import tags
from dpsql.udfs.stage import BATCH, Release, Released, Stepped, Tables, Tick, replay
from dpsql.udfs.state_table import StateTable

# The release step of one key bucket: rows join the groups' pending increments; a tick closes
# triggers and releases.

# Nothing depends on how rows are cut into micro-batches or buckets: a tick replays, for every
# group and every newly closed
# trigger in order, the increments of that trigger, the next step of noise, the selection test
# and the release.


def release(
    state: ReleaseState | None,
    rows: pa.Table,
    ticks: Sequence[Tick],
    p: ReleaseParameters,
    noise_key: bytes,
) -> Released[ReleaseState]:
    """Add rows and close what the ticks close, in order of arrival batch.

    Args:
        state: the bucket's state (None: nothing seen yet).
        rows: contributions with their arrival `batch`; any order.
        ticks: the bucket's ticks in this micro-batch; any order.
        p: the plan's numbers, for this bucket.
        noise_key: 32 bytes, the run's.

    Returns:
        Rows `window, trigger, key_bytes`, then `c{i}, s{i}` per output column; a pure function of its arguments.
    """
    state = empty_release_state(p) if state is None else state
    return replay(
        state,
        rows,
        ticks,
        partial(_add_rows, p=p),
        partial(_close, p=p, noise_key=noise_key),
        p.gives,
    )


def _add_rows(state: ReleaseState, rows: pa.Table, p: ReleaseParameters) -> ReleaseState:
    """Add rows to the state; those of figures and of leaves are kept apart."""
    if state.figures is not None:
        amounts, rows = with_figures(state.figures, rows)
        state = dataclasses.replace(state, figures=amounts)
    if state.leaves is None:
        return add_rows(state, rows, p.layout)
    is_leaf = rows["leaf"].to_numpy() > 0
    state = dataclasses.replace(
        state, leaves=with_rows(state.leaves, rows.filter(is_leaf), len(p.perturbations))
    )
    return add_rows(state, rows.filter(~is_leaf), p.layout)


def empty_release_state(p: ReleaseParameters) -> ReleaseState:
    """Return the state of a bucket that has seen nothing."""
    state = dataclasses.replace(
        empty_state(p.layout),
        leaves=no_leaves(p.quantiles) if p.quantiles else None,
        figures=no_figures() if p.figures else None,
    )
    return dataclasses.replace(state, **empty_memory()) if p.carries else state


def _close(
    state: ReleaseState, closed_us: int, p: ReleaseParameters, noise_key: bytes
) -> tuple[ReleaseState, list[pa.Table]]:
    """Close every grid point up to closed_us."""
    new_state, released = (carrying.close if p.carries else _close_apart)(
        state, closed_us, p, noise_key
    )
    if state.leaves is not None:
        released = read_off(released, state.leaves, p, noise_key)
        leaves = of_open_windows(state.leaves, closed_us, p.grid)
        new_state = dataclasses.replace(new_state, leaves=leaves)
    if state.figures is None or p.figures is None:
        return new_state, [released]
    amounts, of_windows = close_figures(
        state.figures, state.closed_us, closed_us, p.grid, p.figures, p.gives, noise_key
    )
    new_state = dataclasses.replace(new_state, figures=amounts)
    return new_state, [without_figures(released), of_windows]


def _close_apart(
    state: ReleaseState, closed_us: int, p: ReleaseParameters, noise_key: bytes
) -> tuple[ReleaseState, pa.Table]:
    """Close every grid point up to closed_us, where no window proves a key for another."""
    if p.public is not None:
        state = _add_public(state, closed_us, p, p.public)
    key_bytes = state.groups["key_bytes"]
    tag = tags(noise_key, *read_columns(state.groups, ("window", "key")))
    closing, pending = open_closing(state, closed_us, p.grid, p.layout, tag)
    if p.selection is not None:
        to_release = select(closing, p.selection, noise_key)
        predict(closing, p.selection, noise_key)
    else:
        to_release = [np.zeros(0, np.int64)] * (closing.last + 1)
        for trigger in closing.triggers:
            to_release[trigger] = np.flatnonzero(
                (closing.closed_before < trigger) & (closing.closed_now >= trigger)
            )
    released = released_rows(
        perturb(closing, to_release, p.perturbations, noise_key, p.selection),
        closing.groups,
        key_bytes,
        p.columns,
    )
    return close_state(closing, key_bytes, pending, closed_us, p.grid, p.layout), released


def _add_public(
    state: ReleaseState, closed_us: int, p: ReleaseParameters, public: PublicGroups
) -> ReleaseState:
    """Add the groups of every public key in every window that has its first trigger in this tick."""
    # Windows whose first trigger had closed before this tick have their groups already.
    windows = p.grid.windows_opening(state.closed_us, closed_us, public.first_window_us)
    order = np.argsort(np.array(public.keys, np.int64))
    window = np.repeat(windows, len(order))
    listed = np.tile(order, len(windows))
    key = np.array(public.keys, np.int64)[listed]
    groups = state.groups
    missing = match([window, key], read_columns(groups, ("window", "key"))) < 0
    if not missing.any():
        return state
    names = pa.array(public.key_bytes, pa.binary()).take(listed[missing])
    public_groups = new_groups(
        p.layout, window[missing], key[missing], names, np.ones(int(missing.sum()), np.int64)
    )
    return dataclasses.replace(state, groups=add_groups(groups, public_groups))


__all__ = ["ReleaseParameters", "ReleaseState", "empty_release_state", "release"]


# The histogram's two stages: contribution bounding by unit, then key selection and perturbation
# by key.


@dataclass(frozen=True)
class HistogramRelease(Release):
    """Contributions and ticks to released rows.

    Args:
        parameters: the plan's numbers.
    """

    parameters: ReleaseParameters

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """Tables of groups; and of keys, where windows prove them together."""
        p = self.parameters
        return release_tables(p.carries, bool(p.quantiles), bool(p.figures))

    @property
    def takes(self) -> pa.Schema:
        """Columns of contributions, with the micro-batch that they came in."""
        layout = self.parameters.layout
        trees = self.parameters.quantiles
        values = len(layout.values) + len(trees)
        return contributions(values, layout.rounds, by_leaf=bool(trees)).append(BATCH)

    def empty(self) -> Tables:
        """Return the state in which no group is there, and nothing is closed."""
        return empty_release_state(self.parameters).tables()

    def step(
        self, state: Tables, rows: pa.Table, ticks: Sequence[Tick], noise_key: bytes
    ) -> Stepped:
        """Add rows and close ticks by `release`."""
        return release(ReleaseState(**state), rows, ticks, self.parameters, noise_key).stepped()


def release_tables(carries: bool, ranks: bool, estimates: bool) -> Mapping[str, StateTable]:
    """Return what the release keeps; `carries`: windows prove keys together; `ranks`: there are quantiles; `estimates`: figures of
    what the limits leave out."""
    return (
        group_state.TABLES
        | (memory.TABLES if carries else {})
        | (quantiles.TABLES if ranks else {})
        | (figures.TABLES if estimates else {})
    )
