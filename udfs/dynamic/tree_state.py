"""What a key bucket remembers of an interval tree: one node per binary digit of the newest trigger and key, and increments to come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Float, Int, match, sort_order
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.lists import from_lists, to_lists
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.stage import CLOSED, State
from dpsql.udfs.state_table import Table

TABLES = {
    "nodes": Table(("key", "level"), "key"),
    "pending": Table(("trigger", "key", "level"), "key", order="any"),
}
OF_NODE = ("round", "first", "halted", "size")
WIDTH = BltInf().width


@dataclass(frozen=True)
class Node:
    """The nodes of one level, of all keys; arrays that a trigger changes.

    `round_`, from 1, and `first`, the trigger at which it began; `halted`: answers 0; `size`: noisy, of the round's begin; `live`: what is there, rows and
    then each sum, `gone`: likewise, what has gone in this round; `told`: each sum as released at the round's begin; `noise` and `removed`: paths of the
    counts of what has gone.
    """

    level: int
    round_: Int
    first: Int
    halted: Int
    size: Int
    live: Int
    gone: Int
    told: Int
    noise: Float
    removed: tuple[Float, ...]

    @classmethod
    def new(cls, level: int, live: Int, sums: int, width: int) -> Node:
        """A node of every key, in its first round."""
        keys = len(live)
        round_, first, halted, size = (np.full(keys, value) for value in (1, 0, 0, 0))
        counts = live, np.zeros_like(live), np.zeros((keys, sums), np.int64)
        noise, *removed = (np.zeros((keys, width)) for _ in range(1 + sums))
        return cls(level, round_, first, halted, size, *counts, noise, tuple(removed))


@dataclass(frozen=True)
class TreeState(State):
    """`nodes`: key and level, with the columns of `Node`; schema metadata: the closed time. `pending`: increments of triggers that have not closed."""

    nodes: pa.Table
    pending: pa.Table

    def with_rows(self, rows: pa.Table) -> TreeState:
        """With more increments."""
        if not rows.num_rows:
            return self
        more = rows.select(self.pending.column_names).cast(self.pending.schema)
        return TreeState(self.nodes, pa.concat_tables([self.pending, more]).combine_chunks())

    def due(self, now: int) -> tuple[pa.Table, pa.Table]:
        """Increments up to a trigger, and the others."""
        is_due = pa.array(self.pending.column("trigger").to_numpy() <= now)
        return self.pending.filter(is_due), self.pending.filter(
            pa.array(~is_due.to_numpy(zero_copy_only=False))
        ).combine_chunks()


def empty_state(sums: int) -> TreeState:
    """Nothing is closed, no node is there."""
    pending = pa.table(
        {
            name: pa.array([], pa.int64())
            for name in ("trigger", "key", "level", *(f"v{j}" for j in range(1 + sums)))
        }
    )
    return TreeState(table_of({}, np.zeros(0, np.int64), NO_CLOCK, sums), pending)


def table_of(nodes: dict[int, Node], key: Int, closed_us: int, sums: int) -> pa.Table:
    """Nodes as a table, sorted by key and level."""
    of_level = [node for _, node in sorted(nodes.items())]

    def whole(columns: list[np.ndarray], empty: np.ndarray) -> np.ndarray:
        return np.concatenate([empty, *columns])

    none = np.zeros(0, np.int64)
    nothing = np.zeros((0, WIDTH))
    columns = {
        "key": whole([key for _ in of_level], none),
        "level": whole([np.full(len(key), node.level) for node in of_level], none),
    }
    for name, field in zip(OF_NODE, ("round_", "first", "halted", "size"), strict=True):
        columns[name] = whole([getattr(node, field) for node in of_level], none)
    for j in range(1 + sums):
        columns[f"live{j}"] = whole([node.live[:, j] for node in of_level], none)
        columns[f"gone{j}"] = whole([node.gone[:, j] for node in of_level], none)
    for j in range(sums):
        columns[f"told{j}"] = whole([node.told[:, j] for node in of_level], none)
    lists = {"noise": whole([node.noise for node in of_level], nothing)}
    lists |= {f"p{j}": whole([node.removed[j] for node in of_level], nothing) for j in range(sums)}
    order = sort_order(columns["key"], columns["level"])
    table = {name: column[order] for name, column in columns.items()} | {
        name: to_lists(column[order]) for name, column in lists.items()
    }
    return pa.table(table).replace_schema_metadata({CLOSED: str(closed_us)})


def nodes_of(table: pa.Table, key: Int, sums: int) -> dict[int, Node]:
    """The nodes of sorted keys, by level."""
    ints = {
        name: table.column(name).to_numpy()
        for name in table.column_names
        if name != "noise" and not name.startswith("p")
    }
    paths = {
        name: from_lists(table.column(name), WIDTH)
        for name in ("noise", *(f"p{j}" for j in range(sums)))
    }
    out = dict[int, Node]()
    for level in np.unique(ints["level"]).tolist():
        of_level = np.flatnonzero(ints["level"] == level)
        at = of_level[match([key], [ints["key"][of_level]])]

        def beside(name: str, many: int, at: Int = at) -> Int:
            return np.stack([ints[f"{name}{j}"][at] for j in range(many)], axis=1)

        counts = beside("live", 1 + sums), beside("gone", 1 + sums), beside("told", sums)
        noise, *removed = (path[at] for path in paths.values())
        round_, first, halted, size = (ints[name][at].copy() for name in OF_NODE)
        out[level] = Node(level, round_, first, halted, size, *counts, noise, tuple(removed))
    return out
