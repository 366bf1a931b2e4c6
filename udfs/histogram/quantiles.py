"""Quantiles of a window's groups, released once, at the window's last trigger: until then exact counts of leaves are all that is kept.

The noise of a node is a function of (window, key, mechanism, node): that of one release, drawn when it is needed and forgotten.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Int, find, run_starts, run_sums, sort_order
from dpsql.udfs.grid import Grid
from dpsql.udfs.histogram.parameters import ReleaseParameters
from dpsql.udfs.measure import quantiles
from dpsql.udfs.noise.exact_paths import Redraw, rounded
from dpsql.udfs.noise.path_error import trust
from dpsql.udfs.noise.randomness import normals, tags
from dpsql.udfs.state_table import StateTable
from dpsql.udfs.table.leaves import QuantileTree

BY = ("window", "key", "leaf")
TABLES = {"leaves": StateTable(BY, "key")}
GROUPS_AT_ONCE = 8
"""A group has 4,368 nodes, with a few numbers each while they are read off. The kernel clears the pages of larger arrays anew, block by block."""
ONCE = 1
"""The one step of a node's noise."""


def no_leaves(of: tuple[QuantileTree, ...]) -> pa.Table:
    """`window, key, leaf`, and per column of quantiles `n0..`: how many values are in the leaf."""
    return pa.table(
        {name: pa.array([], pa.int64()) for name in (*BY, *(f"n{j}" for j in range(len(of))))}
    )


def with_rows(leaves: pa.Table, rows: pa.Table, plain: int) -> pa.Table:
    """With contributions of leaves; `plain` perturbations come before the quantiles."""
    if not rows.num_rows:
        return leaves
    values = leaves.column_names[len(BY) :]
    more = pa.table(
        [rows.column(name) for name in (*BY, *(f"v{plain + j}" for j in range(len(values))))],
        names=leaves.column_names,
    )
    both = {
        name: np.concatenate([leaves.column(name).to_numpy(), more.column(name).to_numpy()])
        for name in leaves.column_names
    }
    order = sort_order(*(both[name] for name in BY))
    starts = run_starts(*(both[name][order] for name in BY))
    return pa.table(
        {name: both[name][order[starts]] for name in BY}
        | {name: run_sums(both[name][order], starts) for name in values}
    )


def of_open_windows(leaves: pa.Table, closed_us: int, grid: Grid) -> pa.Table:
    """Those of windows whose last trigger has not closed."""
    is_open = grid.closed_triggers(leaves.column("window").to_numpy(), closed_us) < grid.horizon
    return leaves if is_open.all() else leaves.filter(pa.array(is_open)).combine_chunks()


def read_off(rows: pa.Table, leaves: pa.Table, p: ReleaseParameters, noise_key: bytes) -> pa.Table:
    """Released rows with their quantiles; NaN before a window's last trigger."""
    out = {
        name: np.full(rows.num_rows, np.nan)
        for name in p.gives.names
        if name not in rows.column_names
    }
    window = rows.column("window").to_numpy()
    key = rows.column("key").to_numpy()
    last = np.flatnonzero(rows.column("trigger").to_numpy() == p.grid.horizon)
    last = last[sort_order(window[last], key[last])]
    low, high = find(
        [window[last], key[last]],
        [leaves.column("window").to_numpy(), leaves.column("key").to_numpy()],
    )
    for start in range(0, len(last), GROUPS_AT_ONCE):
        some = slice(start, start + GROUPS_AT_ONCE)
        at = last[some]
        group, place = _ranges(low[some], high[some])
        leaf = leaves.column("leaf").to_numpy()[place] - 1
        tag = np.repeat(tags(noise_key, window[at], key[at]), quantiles.NODES, axis=0)
        node = np.tile(np.arange(quantiles.NODES), len(at))
        cells = np.arange(len(at) * quantiles.NODES)
        for j, q in enumerate(p.quantiles):
            exact = np.zeros((len(at), quantiles.LEAVES), np.int64)
            exact[group, leaf] = leaves.column(f"n{j}").to_numpy()[place]
            trusted = trust(q.counter)
            again = Redraw(noise_key, tag, cells, q.mechanism, node, q.counter)
            path = trusted.advance(
                np.zeros((len(cells), q.counter.width)),
                partial(normals, noise_key, tag, q.mechanism, node, ONCE),
                ONCE,
            )
            noise = rounded(path[:, 0], q.sigma, ONCE, float(trusted.error[0]), again)
            for name, values in q.read_off(exact, noise, ONCE).items():
                out[name][at] = values
    return pa.table(
        {name: out[name] if name in out else rows.column(name) for name in p.gives.names},
        schema=p.gives,
    )


def _ranges(low: Int, high: Int) -> tuple[Int, Int]:
    """(which range, place) of every place in [low, high) of some ranges."""
    sizes = high - low
    which = np.repeat(np.arange(len(low)), sizes)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + low[which]
