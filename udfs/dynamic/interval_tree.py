"""The release step of the interval tree (Qiu and Yi, corrected: docs/privacy/dynamic.md), with its state: a baseline for listed keys."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import ndtri

from dpsql.udfs.columns import (
    Float,
    Int,
    from_lists,
    int_fields,
    match,
    read_columns,
    sort_order,
    to_lists,
)
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.measure.output_columns import OutputColumn, combine, released_columns
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.paths import Paths, standard_deviation
from dpsql.udfs.noise.randomness import tags
from dpsql.udfs.stage import CLOSED, Released, State, Tick, replay
from dpsql.udfs.state_table import StateTable
from dpsql.udfs.table_grid import TableGrid

# What a key bucket remembers of an interval tree: one node per binary digit of the newest
# trigger and key, and increments to come.

TABLES = {
    "nodes": StateTable(("key", "level"), "key"),
    "pending": StateTable(("trigger", "key", "level"), "key", order="any"),
}
OF_NODE = ("round", "first", "halted", "size")
WIDTH = BltInf().width


@dataclass(frozen=True)
class Node:
    """The nodes of one level, of all keys; arrays that a trigger changes.

    `round_`, from 1, and `first`, the trigger at which it began; `halted`: answers 0; `size`: noisy, of the round's begin; `live`: what is there, rows and
    then each sum, `ended`: the same of what has gone in this round; `released`: each sum as released at the round's begin; `noise` and `removed`: paths of the
    counts of what has gone.
    """

    level: int
    round_: Int
    first: Int
    halted: Int
    size: Int
    live: Int
    ended: Int
    released: Int
    noise: Float
    removed: tuple[Float, ...]

    @classmethod
    def new(cls, level: int, live: Int, sums: int, width: int) -> Node:
        """Return a node of every key, in its first round."""
        keys = len(live)
        round_, first, halted, size = (np.full(keys, value) for value in (1, 0, 0, 0))
        counts = live, np.zeros_like(live), np.zeros((keys, sums), np.int64)
        noise, *removed = (np.zeros((keys, width)) for _ in range(1 + sums))
        return cls(level, round_, first, halted, size, *counts, noise, tuple(removed))


@dataclass(frozen=True)
class TreeState(State):
    """State of a bucket. `nodes`: key, level and the columns of `Node`; schema metadata: the closed time. `pending`: increments of open triggers."""

    nodes: pa.Table
    pending: pa.Table

    def with_rows(self, rows: pa.Table) -> TreeState:
        """Return the state with more increments."""
        if not rows.num_rows:
            return self
        more = rows.select(self.pending.column_names).cast(self.pending.schema)
        return TreeState(self.nodes, pa.concat_tables([self.pending, more]).combine_chunks())

    def due(self, trigger: int) -> tuple[pa.Table, pa.Table]:
        """Split increments into those up to a trigger, and the others."""
        is_due = self.pending["trigger"].to_numpy() <= trigger
        return self.pending.filter(is_due), self.pending.filter(~is_due).combine_chunks()


def empty_state(sums: int) -> TreeState:
    """Return the state in which nothing is closed, and no node is there."""
    values = (f"v{j}" for j in range(1 + sums))
    pending = pa.schema(int_fields(("trigger", "key", "level", *values))).empty_table()
    return TreeState(table_of({}, np.zeros(0, np.int64), NO_CLOCK, sums), pending)


def table_of(nodes: dict[int, Node], key: Int, closed_us: int, sums: int) -> pa.Table:
    """Return nodes as a table, sorted by key and level."""
    sorted_nodes = [node for _, node in sorted(nodes.items())]

    def join(columns: list[np.ndarray], empty: np.ndarray) -> np.ndarray:
        return np.concatenate([empty, *columns])

    no_ints = np.zeros(0, np.int64)
    no_paths = np.zeros((0, WIDTH))
    columns = {
        "key": join([key for _ in sorted_nodes], no_ints),
        "level": join([np.full(len(key), node.level) for node in sorted_nodes], no_ints),
    }
    for name, field in zip(OF_NODE, ("round_", "first", "halted", "size"), strict=True):
        columns[name] = join([getattr(node, field) for node in sorted_nodes], no_ints)
    for j in range(1 + sums):
        columns[f"live{j}"] = join([node.live[:, j] for node in sorted_nodes], no_ints)
        columns[f"gone{j}"] = join([node.ended[:, j] for node in sorted_nodes], no_ints)
    for j in range(sums):
        columns[f"told{j}"] = join([node.released[:, j] for node in sorted_nodes], no_ints)
    lists = {"noise": join([node.noise for node in sorted_nodes], no_paths)}
    lists |= {
        f"p{j}": join([node.removed[j] for node in sorted_nodes], no_paths) for j in range(sums)
    }
    order = sort_order(columns["key"], columns["level"])
    table = {name: column[order] for name, column in columns.items()} | {
        name: to_lists(column[order]) for name, column in lists.items()
    }
    return pa.table(table).replace_schema_metadata({CLOSED: str(closed_us)})


def nodes_of(table: pa.Table, key: Int, sums: int) -> dict[int, Node]:
    """Return the nodes of sorted keys, by level."""
    ints = {
        name: table[name].to_numpy()
        for name in table.column_names
        if name != "noise" and not name.startswith("p")
    }
    paths = {
        name: from_lists(table[name], WIDTH) for name in ("noise", *(f"p{j}" for j in range(sums)))
    }
    nodes = dict[int, Node]()
    for level in np.unique(ints["level"]).tolist():
        of_level = np.flatnonzero(ints["level"] == level)
        rows = of_level[match([key], [ints["key"][of_level]])]

        def stack(name: str, many: int, rows: Int = rows) -> Int:
            return np.stack([ints[f"{name}{j}"][rows] for j in range(many)], axis=1)

        counts = stack("live", 1 + sums), stack("gone", 1 + sums), stack("told", sums)
        noise, *removed = (path[rows] for path in paths.values())
        round_, first, halted, size = (ints[name][rows].copy() for name in OF_NODE)
        nodes[level] = Node(level, round_, first, halted, size, *counts, noise, tuple(removed))
    return nodes


# The release step of the interval tree (Qiu and Yi, corrected: docs/privacy/dynamic.md): a
# baseline, for listed keys of a table whose rows end.

# Node i is made at trigger i. It has the rows that are there then and began at triggers i -
# lowbit(i) + 1 .. i, so its level is that of the lowest
# bit. Of a trigger the nodes that are read are those of its binary digits, one a level, and each
# row is in one of them: all others are
# forgotten. A node releases its sums once a round, and counts what goes; when about half has
# gone, a round ends.

COUNTER = BltInf()
SIZE = 1
GONE = 2
"""Mechanism numbers of a node's size and of the count of its rows that have gone; sum j has 2j + 1 and 2j + 2."""
MOST_ROUNDS = 16
"""A node answers 0 after these. Each begins when half of its rows have gone, or by noise."""
ROUND_BITS = 33
"""Above the 32 bits of a node's number, in the place of a window in its noise cells."""


@dataclass(frozen=True)
class TreeSum:
    """One noisy sum; `sigma` of what a node of level 1 releases in its first round, `removed` of a step of the counter of what goes from it; both
    times level and round elsewhere. `mechanism` counts sums from 1; grid: value of one integer unit."""

    mechanism: int
    sigma: float
    removed: float
    grid: float

    def variance(self, times: Int, age: int) -> np.ndarray:
        """Return the variance of a node's answer; `times`: level by round, `age`: triggers since the round began."""
        path = standard_deviation(COUNTER, age) ** 2 if age else 0.0
        return times**2 * (self.sigma**2 + self.removed**2 * path) + self.grid**2 / 12 * (
            2 if age else 1
        )

    def stderr(self, trigger: int) -> float:
        """Return the standard error at a trigger, where no node has begun a second round or answers 0."""
        nodes = [(level, trigger - node) for level, node in nodes_at(trigger)]
        return math.sqrt(sum(float(self.variance(np.array(level), age)) for level, age in nodes))


@dataclass(frozen=True)
class TreeParameters:
    """Concrete numbers of the step; it holds no secret.

    Args:
        grid: triggers.
        size, gone: sigma of a node's size, and of a step of the counter of rows that have gone, likewise.
        beta: probability that a node ends a round by noise alone.
        sums: the noisy sums.
        columns: what is published of them.
        public: the keys.
    """

    grid: TableGrid
    size: float
    gone: float
    beta: float
    sums: tuple[TreeSum, ...]
    columns: tuple[OutputColumn, ...]
    public: PublicGroups

    def for_bucket(self, bucket: int, buckets: int) -> TreeParameters:
        """Return the parameters with the keys of one bucket only."""
        return dataclasses.replace(self, public=self.public.for_bucket(bucket, buckets))

    def margin(self, level: int, round_: int, age: int) -> float:
        """Return gamma: what the noise of the count of rows that have gone exceeds at no age of a round, but with probability beta / (pi round)^2."""
        often = self.beta / (math.pi * round_) ** 2 / (age * (age + 1))
        return -float(ndtri(often)) * self.gone * level * round_ * standard_deviation(COUNTER, age)


def nodes_at(trigger: int) -> list[tuple[int, int]]:
    """Return (level, number) of the nodes that are read at a trigger."""
    bits = [bit for bit in range(trigger.bit_length()) if trigger >> bit & 1]
    return [(bit + 1, trigger >> bit << bit) for bit in bits]


def grow(
    state: TreeState | None,
    rows: pa.Table,
    ticks: Sequence[Tick],
    p: TreeParameters,
    noise_key: bytes,
) -> Released[TreeState]:
    """Add rows and close what the ticks close, in order of arrival batch; arguments as of `dpsql.udfs.table.release.release`.

    The rows' first value counts rows, the others are the sums; `level` is that of the node that what ends is taken from.
    """
    state = empty_state(len(p.sums)) if state is None else state
    return replay(
        state,
        rows,
        ticks,
        TreeState.with_rows,
        partial(_close, p=p, noise_key=noise_key),
        released_columns(p.columns),
    )


def _close(
    state: TreeState, closed_us: int, p: TreeParameters, noise_key: bytes
) -> tuple[TreeState, list[pa.Table]]:
    closed_before = p.grid.closed(state.closed_us)
    closed_now = p.grid.closed(closed_us)
    order = np.argsort(np.array(p.public.keys, np.int64), kind="stable")
    key = np.array(p.public.keys, np.int64)[order]
    names = pa.array(p.public.key_bytes, pa.binary()).take(order)
    by_name = pc.sort_indices(names).to_numpy()
    nodes = nodes_of(state.nodes, key, len(p.sums))
    due, pending = state.due(closed_now)
    group = match([due["key"].to_numpy()], [key])
    due_trigger, level = read_columns(due, ("trigger", "level"))
    values = np.stack([due[f"v{j}"].to_numpy() for j in range(1 + len(p.sums))], axis=1)
    released = []
    for trigger in range(closed_before + 1, closed_now + 1) if len(key) else ():
        due_rows = (
            np.flatnonzero(due_trigger == trigger) if len(due_trigger) else np.zeros(0, np.int64)
        )
        tree = _Tree(trigger, key, p, noise_key)
        nodes = tree.advance(nodes, group[due_rows], level[due_rows], values[due_rows])
        released.append(_rows(trigger, *tree.answers(nodes), by_name, names, p))
    return TreeState(table_of(nodes, key, closed_us, len(p.sums)), pending), released


@dataclass(frozen=True)
class _Tree:
    """One trigger of all keys of a bucket."""

    trigger: int
    key: Int
    p: TreeParameters
    noise_key: bytes

    def advance(
        self, nodes: dict[int, Node], group: Int, level: Int, values: Int
    ) -> dict[int, Node]:
        """Return the nodes of this trigger: what has gone is taken out, smaller ones become part of the new one."""
        lowest = (self.trigger & -self.trigger).bit_length()
        new = np.zeros((len(self.key), 1 + len(self.p.sums)), np.int64)
        np.add.at(new, group[level == 0], values[level == 0])
        kept_nodes = dict[int, Node]()
        for height, node in nodes.items():
            of_node = level == height
            np.add.at(node.live, group[of_node], values[of_node])
            if height < lowest:
                new += node.live
            else:
                np.subtract.at(node.ended, group[of_node], values[of_node])
                kept_nodes[height] = node
                self._count(node)
        new_node = kept_nodes[lowest] = Node.new(lowest, new, len(self.p.sums), COUNTER.width)
        self._begin(new_node, np.arange(len(self.key)))
        return kept_nodes

    def answers(self, nodes: dict[int, Node]) -> tuple[list[Int], list[np.ndarray]]:
        """Return the noisy value of each sum and key, and its standard error; NaN where no node answers, and the value is 0 whatever there is."""
        size = len(self.key)
        values = [np.zeros(size, np.int64) for _ in self.p.sums]
        variances = [np.zeros(size) for _ in self.p.sums]
        for node in nodes.values():
            for round_, age, keys in self._alike(node):
                for j, q in enumerate(self.p.sums):
                    answer = node.released[keys, j] - node.ended[keys, 1 + j]
                    times = node.level * round_
                    if age:
                        answer -= self._paths(node, 2 * j + 4).rounded(
                            node.removed[j], keys, age, q.removed * times / q.grid
                        )
                    values[j][keys] += answer
                    variances[j][keys] += q.variance(np.array(times), age)
        return values, [np.sqrt(np.where(each > 0, each, np.nan)) for each in variances]

    def _count(self, node: Node) -> None:
        """Follow a node for one more trigger: its noise, and whether a round ends."""
        for round_, age, keys in self._alike(node):
            step = np.full(len(self.key), age - 1)
            ended_path = self._paths(node, GONE)
            ended_path.follow(node.noise, step.copy(), keys, age)
            for j in range(len(self.p.sums)):
                self._paths(node, 2 * j + 4).follow(node.removed[j], step.copy(), keys, age)
            margin = (
                node.size[keys] / 2
                + 2 * self.p.margin(node.level, round_, age)
                - node.ended[keys, 0]
            )
            finished = keys[
                ended_path.reaches(node.noise, keys, age, self.p.gone * node.level * round_, margin)
            ]
            node.round_[finished] += 1
            node.halted[finished] |= node.round_[finished] > MOST_ROUNDS
            self._begin(node, finished[node.halted[finished] == 0])

    def _begin(self, node: Node, groups: Int) -> None:
        """Start a round: the size, and what is there; nothing has gone. A node that is too small for its noise answers 0 from now on."""
        node.first[groups] = self.trigger
        node.ended[groups] = 0
        for state in (node.noise, *node.removed):
            state[groups] = 0.0
        for round_ in np.unique(node.round_[groups]).tolist():
            keys = groups[node.round_[groups] == round_]
            times = node.level * round_
            node.size[keys] = node.live[keys, 0] + self._once(node, SIZE, keys, self.p.size * times)
            for j, q in enumerate(self.p.sums):
                node.released[keys, j] = node.live[keys, 1 + j] + self._once(
                    node, 2 * j + 3, keys, q.sigma * times / q.grid
                )
            node.halted[keys] |= node.size[keys] < 2 * self.p.margin(node.level, round_, 1)

    def _alike(self, node: Node) -> list[tuple[int, int, Int]]:
        """Return (round, age, keys) of the nodes that answer."""
        active = np.flatnonzero(node.halted == 0)
        pairs = np.unique(np.stack([node.round_[active], node.first[active]], axis=1), axis=0)
        chosen = [
            (r, f, active[(node.round_[active] == r) & (node.first[active] == f)])
            for r, f in pairs.tolist()
        ]
        return [(r, self.trigger - f, some) for r, f, some in chosen]

    def _paths(self, node: Node, mechanism: int) -> Paths:
        number = self.trigger >> (node.level - 1) << (node.level - 1)
        return Paths(
            COUNTER,
            mechanism,
            self.noise_key,
            tags(self.noise_key, number + (node.round_ - 1 << ROUND_BITS), self.key),
        )

    def _once(self, node: Node, mechanism: int, groups: Int, scale: float) -> Int:
        """Return a rounded normal of a node's round: the first step of a path is one."""
        path = self._paths(node, mechanism)
        state = np.zeros((len(self.key), COUNTER.width))
        path.follow(state, np.zeros(len(self.key), np.int64), groups, 1)
        return path.rounded(state, groups, 1, scale)


def _rows(
    trigger: int,
    values: list[Int],
    errors: list[np.ndarray],
    by_name: Int,
    names: pa.Array,
    p: TreeParameters,
) -> pa.Table:
    """Return released rows, sorted by key bytes."""
    table = {
        "window": np.full(len(by_name), p.grid.offset_us),
        "trigger": np.full(len(by_name), trigger),
    }
    table["key_bytes"] = names.take(by_name)
    for i, column in enumerate(p.columns):
        column_errors = [errors[j][by_name] for j in column.perturbations]
        table[f"c{i}"], table[f"s{i}"] = combine(
            column, [value[by_name] for value in values], column_errors
        )
    return pa.table(table, released_columns(p.columns))
