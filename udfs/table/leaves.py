"""Quantiles of a table's groups: exact counts of leaves, and the noise of the trees of those groups that have been shown.

Counts of leaves are kept where there are any. A group gets its nodes when it is first shown: their noise is a function of (key, mechanism, node,
trigger) and of nothing else, so it is caught up then, as a path of a sum is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import (
    Float,
    Int,
    from_lists,
    int_fields,
    match,
    run_sums,
    sort_runs,
    to_lists,
)
from dpsql.udfs.measure import quantiles
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter
from dpsql.udfs.noise.paths import Paths, standard_deviation
from dpsql.udfs.noise.randomness import Blocks
from dpsql.udfs.stage import Tables
from dpsql.udfs.state_table import StateTable
from dpsql.udfs.table.state import TABLES as PLAIN

TABLES = PLAIN | {
    "waiting": StateTable(("trigger", "key"), "key", order="any"),
    "leaves": StateTable(("key", "leaf"), "key"),
    "nodes": StateTable(("key",), "key"),
}
NODES = quantiles.NODES


@dataclass(frozen=True)
class QuantileTree:
    """One column of quantiles.

    Args:
        column: which column of the released rows it is.
        mechanism: numbers the noise, like that of a perturbation; node n of a tree has its round n.
        counter: of every node.
        sigma: of one step of a node.
        parts: how many parts of equal size.
        lower, upper: of the values.
    """

    column: int
    mechanism: int
    counter: Counter | BltInf
    sigma: float
    parts: int
    lower: float
    upper: float

    def stderr(self, trigger: int) -> float:
        """Return the standard error of how many values there are up to a released one, where they lie evenly."""
        return quantiles.rows_error(self.parts, self.deviation(trigger))

    def read_off(self, leaves: Int, noise: Int, trigger: int) -> dict[str, Float]:
        """Return the released columns of groups: exact counts of leaves, shape (groups, LEAVES), and the noise of all nodes, group by group."""
        counts = quantiles.nodes(leaves)
        sums = quantiles.cumulated(counts + noise.reshape(counts.shape))
        edges = quantiles.places(sums, self.parts)
        values = quantiles.values(edges, sums, self.lower, self.upper)
        columns = {f"c{self.column}_{k}": values[:, k] for k in range(self.parts + 1)}
        return columns | {
            f"s{self.column}": quantiles.rank_error(edges, sums, self.deviation(trigger))
        }

    def deviation(self, trigger: int) -> float:
        """Return the standard deviation of a node's noise at a trigger, the rounding to whole numbers included."""
        return float(
            np.sqrt((self.sigma * standard_deviation(self.counter, trigger)) ** 2 + 1 / 12)
        )


def empty_leaves(trees: tuple[QuantileTree, ...]) -> Tables:
    """Return the tables without rows.

    waiting: `trigger, key, leaf`, and per column of quantiles `n0..`: signed counts of triggers that have not closed. leaves: those of
    triggers that have, where they are not 0. nodes: groups that have been shown; `step` and, per column, `q0..`, the noise states of all nodes.
    """
    counts = int_fields(f"n{j}" for j in range(len(trees)))
    lists = [
        (f"q{j}", pa.list_(pa.float64(), NODES * q.counter.width)) for j, q in enumerate(trees)
    ]
    ints = int_fields(("trigger", "key", "leaf", "step"))
    return {
        "waiting": pa.schema([*ints[:3], *counts]).empty_table(),
        "leaves": pa.schema([*ints[1:3], *counts]).empty_table(),
        "nodes": pa.schema([ints[1], ints[3], *lists]).empty_table(),
    }


def waiting(rows: pa.Table, plain_perturbations: int, trees: tuple[QuantileTree, ...]) -> pa.Table:
    """Return contributions of leaves as they are kept.

    Args:
        rows: of leaves only.
        plain_perturbations: how many perturbations come before the quantiles.
        trees: the columns.
    """
    columns = {name: rows[name] for name in ("trigger", "key", "leaf")}
    return pa.table(
        columns | {f"n{j}": rows[f"v{plain_perturbations + j}"] for j in range(len(trees))}
    )


@dataclass
class Trees:
    """The trees of one bucket while triggers close, one after the other.

    Args:
        columns: of quantiles.
        noise_key, tag: of the groups' noise.
        trigger, group, leaf, counts: what there is to count, sorted by trigger; what closed before is at trigger 0.
        place: of each group in the arrays below; -1: it has never been shown.
        leaf_counts, step, noise: of those that have been: counts of leaves, and per column the noise states of their nodes.
    """

    columns: tuple[QuantileTree, ...]
    noise_key: bytes
    tag: Blocks
    trigger: Int
    group: Int
    leaf: Int
    counts: list[Int]
    place: Int
    step: Int
    noise: list[Float]
    leaf_counts: Int = field(init=False)

    def __post_init__(self) -> None:
        self.leaf_counts = np.zeros((len(self.step), len(self.columns), quantiles.LEAVES), np.int64)
        self._count(slice(0, int(np.searchsorted(self.trigger, 0, side="right"))))

    def advance(self, trigger: int) -> None:
        """Count what a trigger makes due."""
        self._count(slice(*np.searchsorted(self.trigger, [trigger, trigger + 1]).tolist()))

    def released(self, shown_groups: Int, trigger: int) -> dict[str, Any]:
        """Return the columns of the groups that are shown, in their order; changes their noise states."""
        self._open(shown_groups[self.place[shown_groups] < 0], trigger)
        place = self.place[shown_groups]
        cells = (place[:, None] * NODES + np.arange(NODES)).ravel()
        groups = np.empty(len(self.step), np.int64)
        groups[self.place[self.place >= 0]] = np.flatnonzero(self.place >= 0)
        tag = np.repeat(self.tag[groups], NODES, axis=0)
        node = np.tile(np.arange(NODES), len(groups))
        columns: dict[str, Any] = {}
        step = np.repeat(self.step, NODES)
        for j, q in enumerate(self.columns):
            paths = Paths(q.counter, q.mechanism, self.noise_key, tag, node)
            step_after = step.copy()
            paths.follow(self.noise[j], step_after, cells, trigger)
            columns |= q.read_off(
                self.leaf_counts[place, j],
                paths.rounded(self.noise[j], cells, trigger, q.sigma),
                trigger,
            )
        self.step[place] = trigger
        return columns

    def remaining_tables(self, key: Int) -> Tables:
        """Return what remains of it; `key` has those of all groups."""
        order, starts = sort_runs(self.group, self.leaf)
        sums = [run_sums(column[order], starts) for column in self.counts]
        is_kept = (
            np.any([column != 0 for column in sums], axis=0) if len(order) else np.zeros(0, bool)
        )
        head = order[starts][is_kept]
        leaves = {"key": key[self.group[head]], "leaf": self.leaf[head]} | {
            f"n{j}": column[is_kept] for j, column in enumerate(sums)
        }
        groups = np.flatnonzero(self.place >= 0)
        place = self.place[groups]
        states = {
            f"q{j}": to_lists(noise.reshape(len(self.step), NODES * noise.shape[1])[place])
            for j, noise in enumerate(self.noise)
        }
        return {
            "leaves": pa.table(leaves),
            "nodes": pa.table({"key": key[groups], "step": self.step[place]} | states),
        }

    def _count(self, positions: slice) -> None:
        place = self.place[self.group[positions]]
        leaf = self.leaf[positions] - 1
        known = place >= 0
        for j, column in enumerate(self.counts):
            np.add.at(self.leaf_counts[:, j], (place[known], leaf[known]), column[positions][known])

    def _open(self, groups: Int, trigger: int) -> None:
        """Open nodes for groups that are shown for the first time, with what has been counted so far."""
        if not len(groups):
            return
        size = len(self.step)
        self.place[groups] = size + np.arange(len(groups))
        self.step = np.concatenate([self.step, np.zeros(len(groups), np.int64)])
        new_noise = [np.zeros((len(groups) * NODES, q.counter.width)) for q in self.columns]
        self.noise = [np.concatenate(both) for both in zip(self.noise, new_noise, strict=True)]
        self.leaf_counts = np.concatenate(
            [
                self.leaf_counts,
                np.zeros((len(groups), len(self.columns), quantiles.LEAVES), np.int64),
            ]
        )
        due = slice(0, int(np.searchsorted(self.trigger, trigger, side="right")))
        place = self.place[self.group[due]]
        new = place >= size
        for j, column in enumerate(self.counts):
            np.add.at(
                self.leaf_counts[:, j], (place[new], self.leaf[due][new] - 1), column[due][new]
            )


def open_trees(
    state: Tables,
    key: Int,
    closed_now: int,
    trees: tuple[QuantileTree, ...],
    noise_key: bytes,
    tag: Blocks,
) -> tuple[Trees, pa.Table]:
    """Return the trees of the groups whose keys are `key`, up to trigger `closed_now`, and what waits still."""
    waits = state["waiting"]
    is_due = waits["trigger"].to_numpy() <= closed_now
    rows = waits.filter(is_due)
    still_waiting = waits.filter(~is_due).combine_chunks()
    stored = state["leaves"]
    names = [f"n{j}" for j in range(len(trees))]
    trigger = np.concatenate([np.zeros(stored.num_rows, np.int64), rows["trigger"].to_numpy()])
    order = np.argsort(trigger, kind="stable")
    columns = {
        name: np.concatenate([stored[name].to_numpy(), rows[name].to_numpy()])[order]
        for name in ("key", "leaf", *names)
    }
    nodes = state["nodes"]
    place = match([key], [nodes["key"].to_numpy()])
    noise = [
        from_lists(nodes[f"q{j}"], NODES * q.counter.width).reshape(-1, q.counter.width)
        for j, q in enumerate(trees)
    ]
    return Trees(
        trees,
        noise_key,
        tag,
        trigger[order],
        match([columns["key"]], [key]),
        columns["leaf"],
        [columns[name] for name in names],
        place,
        nodes["step"].to_numpy().copy(),
        noise,
    ), still_waiting
