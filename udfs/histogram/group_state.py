"""What a key bucket remembers of its (window, key) groups, and how rows and ticks meet it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsql.udfs.columns import (
    Int,
    as_rows,
    find,
    from_lists,
    insert,
    int_fields,
    match,
    places,
    read_columns,
    run_starts,
    run_sums,
    sort_order,
    sort_runs,
    to_lists,
)
from dpsql.udfs.grid import NO_CLOCK, Grid
from dpsql.udfs.stage import CLOSED, State
from dpsql.udfs.state_table import StateTable

TABLES = {
    "groups": StateTable(("window", "key"), "key"),
    "pending": StateTable(("window", "trigger", "key"), "key", order="any"),
    "seen": StateTable(("window", "key", "user"), "key", order="repeated"),
}
"""Groups and seen users are searched, so they must be sorted so; pending increments may come in any order."""

INTS = ("first", "step", "paths_step", "weight", "users", "selected_at", "round", "wake")


@dataclass(frozen=True)
class StateLayout:
    """Widths of the noise states: of the selection path (0: no selection) and of each perturbation path (0: no path); rounds keep users."""

    selection_width: int
    path_widths: tuple[int, ...]
    rounds: bool

    @property
    def paths(self) -> dict[str, int]:
        """Width of each column of paths, by name."""
        return {"noise": self.selection_width} | {
            f"p{j}": width for j, width in enumerate(self.path_widths) if width
        }

    @property
    def values(self) -> tuple[str, ...]:
        """Columns of exact sums, one per perturbation: v0, v1 and so on."""
        return tuple(f"v{j}" for j in range(len(self.path_widths)))


@dataclass(frozen=True)
class ReleaseState(State):
    """Three tables of plain columns.

    groups: one row per live group, sorted by (window, key): `window, key, key_bytes`, `first` (first trigger with a record), `step` and `paths_step`
        (noise steps done of the selection path and of the perturbation paths), `weight, users` (of the round, over closed
        triggers), `selected_at` (last selection; 0: never), `round`, `wake` (asleep until that trigger), `v0..` (exact sums over
        closed triggers), and the noise states `noise, p0..` (lists of fixed length). Schema metadata: the closed time.
    pending: `window, trigger, key, weight, users, v0..` (rounds: `user`): increments of triggers that have not closed.
    seen: `window, key, round, user`: who counts in a group's current round (empty without rounds); sorted by (window, key, user).
    memory, evidence: where windows prove keys together (`dpsql.udfs.histogram.memory`). leaves: of quantiles (`dpsql.udfs.histogram.quantiles`).
    figures: of what the limits leave out (`dpsql.udfs.histogram.figures`).
    """

    groups: pa.Table
    pending: pa.Table
    seen: pa.Table
    memory: pa.Table | None = None
    evidence: pa.Table | None = None
    leaves: pa.Table | None = None
    figures: pa.Table | None = None


@dataclass(frozen=True)
class Increments:
    """Increments that fall due, sorted by (trigger, group); those of trigger i are at `rows_of(i)`."""

    trigger: Int
    group: Int
    sums: dict[str, Int]
    bounds: Int

    def rows_of(self, trigger: int) -> slice:
        """Return where the increments of one trigger are."""
        return slice(self.bounds[trigger], self.bounds[trigger + 1])


@dataclass(frozen=True)
class Closing:
    """One tick at work: the groups as arrays (changed in place), what falls due, and which triggers close.

    closed_before, closed_now: closed triggers of each group's window before and after the tick. last: the largest of `closed_now`.
    members: users seen, as in the state, by (group, user), with the group's position for its window and key.
    due: by (trigger, group), with rounds also by user; sums: by (trigger, group). tag: the groups' noise blocks.
    """

    groups: dict[str, npt.NDArray[Any]]
    members: dict[str, Int]
    due: Increments
    sums: Increments
    closed_before: Int
    closed_now: Int
    tag: npt.NDArray[np.uint64]

    @property
    def last(self) -> int:
        """The newest trigger number that any group has closed."""
        return int(self.closed_now.max(initial=0))

    @property
    def triggers(self) -> list[int]:
        """The trigger numbers that close for some group, ascending: of all others nothing can change."""
        starts = run_starts(self.groups["window"])
        spans = {
            *zip(self.closed_before[starts].tolist(), self.closed_now[starts].tolist(), strict=True)
        }
        due = np.unique(np.concatenate([self.due.trigger, self.sums.trigger]))
        return sorted(
            {
                *due.tolist(),
                *(trigger for low, high in spans for trigger in range(low + 1, high + 1)),
            }
        )


def empty_state(layout: StateLayout) -> ReleaseState:
    """Return the state of a bucket that has seen nothing."""
    ints = (
        "window",
        "trigger",
        "key",
        *(["user"] if layout.rounds else []),
        "weight",
        "users",
        *layout.values,
    )
    no_ints = np.zeros(0, np.int64)
    groups = new_groups(layout, no_ints, no_ints, pa.array([], pa.binary()), no_ints)
    return ReleaseState(
        groups.replace_schema_metadata({CLOSED: str(NO_CLOCK)}),
        pa.schema(int_fields(ints)).empty_table(),
        pa.schema(int_fields(("window", "key", "round", "user"))).empty_table(),
    )


def new_groups(
    layout: StateLayout, window: Int, key: Int, key_bytes: pa.Array, first: Int
) -> pa.Table:
    """Return rows for groups that have no state yet."""
    zeros = {name: np.zeros(len(window), np.int64) for name in (*INTS, *layout.values)} | {
        "first": first
    }
    paths = {name: to_lists(np.zeros((len(window), width))) for name, width in layout.paths.items()}
    return pa.table({"window": window, "key": key, "key_bytes": key_bytes} | zeros | paths)


def add_rows(state: ReleaseState, rows: pa.Table, layout: StateLayout) -> ReleaseState:
    """Add rows to the pending increments, and keys not seen in their window to the groups."""
    if not rows.num_rows:
        return state
    pending = pa.concat_tables(
        [state.pending, rows.select(state.pending.column_names)]
    ).combine_chunks()
    window, key, trigger = read_columns(rows, ("window", "key", "trigger"))
    order = sort_order(window, key, trigger)
    head = order[run_starts(window[order], key[order])]
    groups = state.groups
    state_row = match([window[head], key[head]], read_columns(groups, ("window", "key")))
    is_known = state_row >= 0
    row = state_row[is_known]
    known_trigger = trigger[head[is_known]]
    first = groups["first"].to_numpy()[row]
    is_earlier = (first == 0) | (first > known_trigger)
    if is_earlier.any():
        groups = with_values(groups, "first", row[is_earlier], known_trigger[is_earlier])
    new_heads = head[~is_known]
    if len(new_heads):
        names = rows["key_bytes"].take(new_heads)
        groups = add_groups(
            groups, new_groups(layout, window[new_heads], key[new_heads], names, trigger[new_heads])
        )
    return replace(state, groups=groups, pending=pending)


def with_values(groups: pa.Table, name: str, rows: Int, values: Int | int) -> pa.Table:
    """Return groups with other values of one column in some rows."""
    column = groups[name].to_numpy().copy()
    column[rows] = values
    return groups.set_column(groups.column_names.index(name), name, pa.array(column))


def add_groups(groups: pa.Table, new: pa.Table) -> pa.Table:
    """Merge groups and new groups, each sorted by (window, key), in one sorted table with the metadata of the first."""
    key_columns = ("window", "key")
    positions = places(find(read_columns(new, key_columns), read_columns(groups, key_columns))[0])
    columns: dict[str, Any] = {}
    for name, kind in zip(groups.schema.names, groups.schema.types, strict=True):
        column = groups[name]
        new_column = new[name]
        if pa.types.is_fixed_size_list(kind):
            columns[name] = to_lists(
                insert(
                    as_rows(column, kind.list_size), as_rows(new_column, kind.list_size), positions
                )
            )
        elif pa.types.is_binary(kind):
            order = insert(
                np.arange(len(column)), len(column) + np.arange(len(new_column)), positions
            )
            columns[name] = pa.concat_arrays(
                [pa.array([], kind), *column.chunks, *new_column.cast(kind).chunks]
            ).take(order)
        else:
            columns[name] = insert(column.to_numpy(), new_column.to_numpy(), positions)
    return pa.table(columns).replace_schema_metadata(groups.schema.metadata)


def open_closing(
    state: ReleaseState,
    closed_us: int,
    grid: Grid,
    layout: StateLayout,
    tag: npt.NDArray[np.uint64],
) -> tuple[Closing, pa.Table]:
    """Return arrays for a tick that closes the grid up to closed_us, and the increments that stay pending."""
    groups = {
        n: state.groups[n].to_numpy().copy() for n in ("window", "key", *INTS, *layout.values)
    }
    groups |= {n: from_lists(state.groups[n], width) for n, width in layout.paths.items()}
    starts = run_starts(groups["window"])
    windows = groups["window"][starts]
    sizes = np.diff(np.append(np.flatnonzero(starts), len(starts)))
    closed_now, closed_before = (
        np.repeat(grid.closed_triggers(windows, time), sizes)
        for time in (closed_us, state.closed_us)
    )
    due, pending = _due(state.pending, groups, closed_now)
    by_user = _sum(
        due, ["trigger", "group", *["user"] * layout.rounds], ["weight", "users"], grid.horizon
    )
    sums = _sum(due, ["trigger", "group"], list(layout.values), grid.horizon)
    members = {n: state.seen[n].to_numpy() for n in ("round", "user")}
    members["group"] = match(
        read_columns(state.seen, ("window", "key")), [groups["window"], groups["key"]]
    )
    return Closing(groups, members, by_user, sums, closed_before, closed_now, tag), pending


def close_state(
    c: Closing,
    key_bytes: pa.ChunkedArray,
    pending: pa.Table,
    closed_us: int,
    grid: Grid,
    layout: StateLayout,
) -> ReleaseState:
    """Return the state after a tick: windows whose last trigger has closed are forgotten."""
    g = c.groups
    columns = (
        {n: g[n] for n in ("window", "key")}
        | {"key_bytes": key_bytes}
        | {n: g[n] for n in (*INTS, *layout.values)}
    )
    columns |= {n: to_lists(g[n]) for n in layout.paths}
    is_open = c.closed_now < grid.horizon
    groups = pa.table(columns)
    if not is_open.all():
        groups = groups.filter(is_open).combine_chunks()
    groups = groups.replace_schema_metadata({CLOSED: str(closed_us)})
    member_group = c.members["group"]
    seen_users = pa.table(
        {
            "window": g["window"][member_group],
            "key": g["key"][member_group],
            "round": c.members["round"],
            "user": c.members["user"],
        }
    )
    if not is_open.all():
        seen_users = seen_users.filter(is_open[member_group]).combine_chunks()
    return ReleaseState(groups, pending, seen_users)


def _due(
    pending: pa.Table, groups: dict[str, npt.NDArray[Any]], closed_now: Int
) -> tuple[dict[str, Int], pa.Table]:
    key_columns = ("window", "key")
    group = match(read_columns(pending, key_columns), [groups[n] for n in key_columns])
    trigger = pending["trigger"].to_numpy()
    is_due = trigger <= closed_now[group] if len(group) else np.zeros(0, bool)
    names = [n for n in pending.column_names if n not in ("window", "key", "trigger")]
    columns = {n: pending[n].to_numpy()[is_due] for n in names}
    still_pending = (
        pending.slice(0, 0) if is_due.all() else pending.filter(~is_due).combine_chunks()
    )
    return {"trigger": trigger[is_due], "group": group[is_due]} | columns, still_pending


def _sum(due: dict[str, Int], columns: list[str], names: list[str], horizon: int) -> Increments:
    keys = [due[n] for n in columns]
    order, starts = sort_runs(*keys)
    head = order[starts]
    if "user" in columns and len(head):
        # One user's rows of one trigger from several micro-batches: the earliest record has the largest weight.
        sums = {
            "weight": np.maximum.reduceat(due["weight"][order], np.flatnonzero(starts)),
            "user": due["user"][head],
        }
        sums["users"] = np.ones(len(head), np.int64)
    else:
        sums = {
            n: run_sums(due[n][order], starts)
            for n in (*names, *(["user"] if "user" in columns else []))
        }
    trigger = due["trigger"][head]
    return Increments(
        trigger, due["group"][head], sums, np.searchsorted(trigger, np.arange(horizon + 2))
    )
