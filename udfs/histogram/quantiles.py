"""Quantiles of a window's groups, released once, at the window's last trigger: until then exact counts of leaves are all that is kept.

The noise of a node is a function of (window, key, mechanism, node): that of one release, drawn when it is needed and forgotten.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import (
    Int,
    find,
    int_fields,
    read_columns,
    run_starts,
    run_sums,
    sort_order,
    span_rows,
)
from dpsql.udfs.grid import Grid
from dpsql.udfs.histogram.parameters import ReleaseParameters
from dpsql.udfs.measure import quantiles
from dpsql.udfs.noise.exact_paths import Redraw, rounded
from dpsql.udfs.noise.path_error import trust
from dpsql.udfs.noise.randomness import Blocks, normals, tags
from dpsql.udfs.state_table import StateTable
from dpsql.udfs.table.leaves import QuantileTree

BY = ("window", "key", "leaf")
TABLES = {"leaves": StateTable(BY, "key")}
GROUPS_AT_ONCE = 8
"""A group has 4,368 nodes, with a few numbers each while they are read off. The kernel clears the pages of larger arrays anew, block by block."""
ONCE = 1
"""The one step of a node's noise."""


def no_leaves(trees: tuple[QuantileTree, ...]) -> pa.Table:
    """Return the empty table of `window, key, leaf`, and per column of quantiles `n0..`: how many values are in the leaf."""
    counts = (f"n{j}" for j in range(len(trees)))
    return pa.schema(int_fields((*BY, *counts))).empty_table()


def with_rows(leaves: pa.Table, rows: pa.Table, plain_perturbations: int) -> pa.Table:
    """Return leaves with the contributions to them; `plain_perturbations` come before the quantiles."""
    if not rows.num_rows:
        return leaves
    values = leaves.column_names[len(BY) :]
    more = pa.table(
        [
            rows[name]
            for name in (*BY, *(f"v{plain_perturbations + j}" for j in range(len(values))))
        ],
        names=leaves.column_names,
    )
    columns = {
        name: np.concatenate([leaves[name].to_numpy(), more[name].to_numpy()])
        for name in leaves.column_names
    }
    order = sort_order(*(columns[name] for name in BY))
    starts = run_starts(*(columns[name][order] for name in BY))
    return pa.table(
        {name: columns[name][order[starts]] for name in BY}
        | {name: run_sums(columns[name][order], starts) for name in values}
    )


def of_open_windows(leaves: pa.Table, closed_us: int, grid: Grid) -> pa.Table:
    """Return the leaves of windows whose last trigger has not closed."""
    is_open = grid.closed_triggers(leaves["window"].to_numpy(), closed_us) < grid.horizon
    return leaves if is_open.all() else leaves.filter(is_open).combine_chunks()


def read_off(rows: pa.Table, leaves: pa.Table, p: ReleaseParameters, noise_key: bytes) -> pa.Table:
    """Return released rows with their quantiles; NaN before a window's last trigger."""
    columns = {
        name: np.full(rows.num_rows, np.nan)
        for name in p.of_groups.names
        if name not in rows.column_names
    }
    window, key = read_columns(rows, ("window", "key"))
    last = np.flatnonzero(rows["trigger"].to_numpy() == p.grid.horizon)
    last = last[sort_order(window[last], key[last])]
    low, high = find([window[last], key[last]], read_columns(leaves, ("window", "key")))
    for start in range(0, len(last), GROUPS_AT_ONCE):
        chunk = slice(start, start + GROUPS_AT_ONCE)
        groups = last[chunk]
        group = np.repeat(np.arange(len(groups)), (high - low)[chunk])
        place = span_rows(low[chunk], high[chunk])
        leaf = leaves["leaf"].to_numpy()[place] - 1
        tag = np.repeat(tags(noise_key, window[groups], key[groups]), quantiles.NODES, axis=0)
        for j, q in enumerate(p.quantiles):
            counts = np.zeros((len(groups), quantiles.LEAVES), np.int64)
            counts[group, leaf] = leaves[f"n{j}"].to_numpy()[place]
            noise = _node_noise(tag, q, noise_key)
            for name, values in q.read_off(counts, noise, ONCE).items():
                columns[name][groups] = values
    return pa.table(
        {name: columns[name] if name in columns else rows[name] for name in p.of_groups.names},
        schema=p.of_groups,
    )


def _node_noise(tag: Blocks, q: QuantileTree, noise_key: bytes) -> Int:
    """Return the rounded noise of all nodes of some groups; `tag`: one per node."""
    node = np.tile(np.arange(quantiles.NODES), len(tag) // quantiles.NODES)
    cells = np.arange(len(tag))
    trusted = trust(q.counter)
    redraw = Redraw(noise_key, tag, cells, q.mechanism, node, q.counter)
    path = trusted.advance(
        np.zeros((len(cells), q.counter.width)),
        partial(normals, noise_key, tag, q.mechanism, node, ONCE),
        ONCE,
    )
    return rounded(path[:, 0], q.sigma, ONCE, float(trusted.error[0]), redraw)
