"""What a key bucket remembers of a table: its keys, for ever, and the increments of triggers that have not closed.

Nothing in it grows with the number of triggers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.udfs.columns import (
    Int,
    find,
    from_lists,
    insert,
    int_fields,
    match,
    places,
    run_starts,
    run_sums,
    sort_order,
    sort_runs,
    to_lists,
)
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.stage import CLOSED, State
from dpsql.udfs.state_table import StateTable

TABLES = {
    "groups": StateTable(("key",), "key"),
    "pending": StateTable(("trigger", "key"), "key", order="any"),
}
"""Groups are searched, so they must be sorted so; pending increments may come in any order."""

INTS = ("step", "weight", "users", "selected_at")

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Layout:
    """Widths of the noise states: of the selection path (0: no selection) and of each perturbation path."""

    selection_width: int
    path_widths: tuple[int, ...]

    @property
    def paths(self) -> dict[str, int]:
        """Width of each column of paths, by name."""
        return ({"noise": self.selection_width} if self.selection_width else {}) | {
            f"p{j}": n for j, n in enumerate(self.path_widths)
        }

    @property
    def ints(self) -> tuple[str, ...]:
        """Integer columns of a group: also steps done of each perturbation path, and exact sums."""
        return (*INTS, "paths_step", *self.values)

    @property
    def values(self) -> tuple[str, ...]:
        """Columns of exact sums, one per perturbation: v0, v1 and so on."""
        return tuple(f"v{j}" for j in range(len(self.path_widths)))


@dataclass(frozen=True)
class TableState(State):
    """Tables of plain columns.

    groups: one row per key that has ever had a row, sorted by key: `key, key_bytes`, `step` and `paths_step` (noise steps done of the
        selection path and of the perturbation paths), `weight, users` (of closed triggers), `selected_at` (0: never), `v0..` (exact sums
        of closed triggers), and the noise states `noise, p0..` (lists of fixed length). Schema metadata: the closed time.
    pending: `trigger, key, weight, users, v0..`: signed increments of triggers that have not closed.
    waiting, leaves, nodes: of quantiles (`dpsql.udfs.table.leaves`).
    """

    groups: pa.Table
    pending: pa.Table
    waiting: pa.Table | None = None
    leaves: pa.Table | None = None
    nodes: pa.Table | None = None


def empty_state(layout: Layout) -> TableState:
    """Return the state of a bucket that has seen nothing."""
    groups = new_groups(layout, np.zeros(0, np.int64), pa.array([], pa.binary()))
    pending = pa.schema(int_fields(("trigger", "key", "weight", "users", *layout.values)))
    return TableState(
        groups.replace_schema_metadata({CLOSED: str(NO_CLOCK)}), pending.empty_table()
    )


def new_groups(layout: Layout, key: Int, key_bytes: pa.Array) -> pa.Table:
    """Return rows for keys that have no state yet."""
    zeros = {name: np.zeros(len(key), np.int64) for name in layout.ints}
    paths = {name: to_lists(np.zeros((len(key), width))) for name, width in layout.paths.items()}
    return pa.table({"key": key, "key_bytes": key_bytes} | zeros | paths)


def add_groups(groups: pa.Table, new: pa.Table) -> pa.Table:
    """Insert rows of keys that are not there yet, sorted by key."""
    old_key = groups["key"].to_numpy()
    new_key = new["key"].to_numpy()
    positions = places(find([new_key], [old_key])[0])
    order = insert(np.arange(len(old_key)), len(old_key) + np.arange(len(new_key)), positions)
    all_groups = pa.concat_tables(
        [
            groups,
            new.cast(groups.schema.remove_metadata()).replace_schema_metadata(
                groups.schema.metadata
            ),
        ]
    )
    return all_groups.take(order).combine_chunks()


def add_rows(state: TableState, rows: pa.Table, layout: Layout) -> TableState:
    """Add rows to the pending increments, and keys not seen before to the groups."""
    if not rows.num_rows:
        return state
    pending = pa.concat_tables(
        [state.pending, rows.select(state.pending.column_names)]
    ).combine_chunks()
    key = rows["key"].to_numpy()
    order = sort_order(key)
    head = order[run_starts(key[order])]
    new_heads = head[match([key[head]], [state.groups["key"].to_numpy()]) < 0]
    groups = state.groups
    if len(new_heads):
        groups = add_groups(
            groups,
            new_groups(layout, key[new_heads], rows["key_bytes"].take(new_heads).combine_chunks()),
        )
    return replace(state, groups=groups, pending=pending)


def as_arrays(groups: pa.Table, layout: Layout) -> Arrays:
    """Return the groups as arrays that may be changed."""
    arrays: Arrays = {name: groups[name].to_numpy().copy() for name in ("key", *layout.ints)}
    return arrays | {name: from_lists(groups[name], width) for name, width in layout.paths.items()}


def as_table(
    arrays: Arrays, key_bytes: pa.ChunkedArray, closed_us: int, layout: Layout
) -> pa.Table:
    """Return the groups as a table again."""
    columns = {"key": arrays["key"], "key_bytes": key_bytes} | {
        name: arrays[name] for name in layout.ints
    }
    table = pa.table(columns | {name: to_lists(arrays[name]) for name in layout.paths})
    return table.replace_schema_metadata({CLOSED: str(closed_us)})


def due(pending: pa.Table, key: Int, trigger: int) -> tuple[Arrays, pa.Table]:
    """Return (increments up to a trigger, summed by (trigger, group) and sorted so; what stays pending)."""
    is_due = pending["trigger"].to_numpy() <= trigger
    still_pending = pending.filter(~is_due).combine_chunks()
    columns: Arrays = {name: pending[name].to_numpy()[is_due] for name in pending.column_names}
    columns["group"] = match([columns.pop("key")], [key])
    order, starts = sort_runs(columns["trigger"], columns["group"])
    head = order[starts]
    sums = {
        name: run_sums(column[order], starts)
        for name, column in columns.items()
        if name not in ("trigger", "group")
    }
    return sums | {
        "trigger": columns["trigger"][head],
        "group": columns["group"][head],
    }, still_pending
