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
    match,
    places,
    run_starts,
    run_sums,
    sort_order,
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
    """Widths of the noise states: of the selection path (0: no selection) and of each perturbation path; rounds keep users."""

    selection_width: int
    path_widths: tuple[int, ...]
    rounds: bool

    @property
    def paths(self) -> dict[str, int]:
        """Column name -> width."""
        return {"noise": self.selection_width} | {
            f"p{j}": width for j, width in enumerate(self.path_widths)
        }

    @property
    def values(self) -> tuple[str, ...]:
        """v0, v1, ...: exact sums per perturbation."""
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
    """

    groups: pa.Table
    pending: pa.Table
    seen: pa.Table
    memory: pa.Table | None = None
    evidence: pa.Table | None = None
    leaves: pa.Table | None = None


@dataclass(frozen=True)
class Increments:
    """Increments that fall due, sorted by (trigger, group); those of trigger i are at `at(i)`."""

    trigger: Int
    group: Int
    sums: dict[str, Int]
    bounds: Int

    def at(self, trigger: int) -> slice:
        """Return where the increments of one trigger are."""
        return slice(self.bounds[trigger], self.bounds[trigger + 1])


@dataclass(frozen=True)
class Closing:
    """One tick at work: the groups as arrays (changed in place), what falls due, and which triggers close.

    before, now: closed triggers of each group's window before and after the tick. last: the largest of `now`.
    seen: as in the state, by (group, user), with the group's position for its window and key.
    due: by (trigger, group), with rounds also by user; sums: by (trigger, group). tag: the groups' noise blocks.
    """

    groups: dict[str, npt.NDArray[Any]]
    seen: dict[str, Int]
    due: Increments
    sums: Increments
    before: Int
    now: Int
    tag: npt.NDArray[np.uint64]

    @property
    def last(self) -> int:
        """The newest trigger number that any group has closed."""
        return int(self.now.max(initial=0))

    @property
    def triggers(self) -> list[int]:
        """The trigger numbers that close for some group, ascending: of all others nothing can change."""
        starts = run_starts(self.groups["window"])
        spans = {*zip(self.before[starts].tolist(), self.now[starts].tolist(), strict=True)}
        due = np.unique(np.concatenate([self.due.trigger, self.sums.trigger]))
        return sorted(
            {
                *due.tolist(),
                *(trigger for before, now in spans for trigger in range(before + 1, now + 1)),
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
    groups = new_groups(
        layout,
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        pa.array([], pa.binary()),
        np.zeros(0, np.int64),
    )
    pending = pa.table({name: pa.array([], pa.int64()) for name in ints})
    seen = pa.table({name: pa.array([], pa.int64()) for name in ("window", "key", "round", "user")})
    return ReleaseState(groups.replace_schema_metadata({CLOSED: str(NO_CLOCK)}), pending, seen)


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
    """Rows become pending increments; keys not seen in their window become groups."""
    if not rows.num_rows:
        return state
    pending = pa.concat_tables(
        [state.pending, rows.select(state.pending.column_names)]
    ).combine_chunks()
    window, key, trigger = (rows.column(n).to_numpy() for n in ("window", "key", "trigger"))
    order = sort_order(window, key, trigger)
    head = order[run_starts(window[order], key[order])]
    groups = state.groups
    at = match(
        [window[head], key[head]],
        [groups.column("window").to_numpy(), groups.column("key").to_numpy()],
    )
    first = groups.column("first").to_numpy()
    old = at >= 0
    earlier = old.copy()
    earlier[old] = (first[at[old]] == 0) | (first[at[old]] > trigger[head[old]])
    if earlier.any():
        first = first.copy()
        first[at[earlier]] = trigger[head[earlier]]
        groups = groups.set_column(groups.column_names.index("first"), "first", pa.array(first))
    fresh = head[~old]
    if len(fresh):
        names = rows.column("key_bytes").take(pa.array(fresh))
        groups = add_groups(
            groups, new_groups(layout, window[fresh], key[fresh], names, trigger[fresh])
        )
    return replace(state, groups=groups, pending=pending)


def add_groups(groups: pa.Table, new: pa.Table) -> pa.Table:
    """Groups and new groups, each sorted by (window, key), in one sorted table with the metadata of the first."""
    by = ("window", "key")
    where = places(
        find([new.column(n).to_numpy() for n in by], [groups.column(n).to_numpy() for n in by])[0]
    )
    columns: dict[str, Any] = {}
    for name, kind in zip(groups.schema.names, groups.schema.types, strict=True):
        old = groups.column(name)
        added = new.column(name)
        if pa.types.is_fixed_size_list(kind):
            columns[name] = to_lists(
                insert(as_rows(old, kind.list_size), as_rows(added, kind.list_size), where)
            )
        elif pa.types.is_binary(kind):
            order = insert(np.arange(len(old)), len(old) + np.arange(len(added)), where)
            columns[name] = pa.concat_arrays(
                [pa.array([], kind), *old.chunks, *added.cast(kind).chunks]
            ).take(pa.array(order))
        else:
            columns[name] = insert(old.to_numpy(), added.to_numpy(), where)
    return pa.table(columns).replace_schema_metadata(groups.schema.metadata)


def open_closing(
    state: ReleaseState,
    closed_us: int,
    grid: Grid,
    layout: StateLayout,
    tag: npt.NDArray[np.uint64],
) -> tuple[Closing, pa.Table]:
    """Arrays for a tick that closes the grid up to closed_us, and the increments that stay pending."""
    groups = {
        n: state.groups.column(n).to_numpy().copy()
        for n in ("window", "key", *INTS, *layout.values)
    }
    groups |= {n: from_lists(state.groups.column(n), width) for n, width in layout.paths.items()}
    starts = run_starts(groups["window"])
    windows = groups["window"][starts]
    sizes = np.diff(np.append(np.flatnonzero(starts), len(starts)))
    now, before = (
        np.repeat(grid.closed_triggers(windows, time), sizes)
        for time in (closed_us, state.closed_us)
    )
    due, pending = _due(state.pending, groups, now)
    user = ["user"] if layout.rounds else []
    by_user = _sum(due, ["trigger", "group", *user], ["weight", "users"], grid.horizon)
    sums = _sum(due, ["trigger", "group"], list(layout.values), grid.horizon)
    seen = {n: state.seen.column(n).to_numpy() for n in ("round", "user")}
    seen["group"] = match(
        [state.seen.column(n).to_numpy() for n in ("window", "key")],
        [groups["window"], groups["key"]],
    )
    return Closing(groups, seen, by_user, sums, before, now, tag), pending


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
    live = c.now < grid.horizon
    groups = pa.table(columns)
    if not live.all():
        groups = groups.filter(pa.array(live)).combine_chunks()
    groups = groups.replace_schema_metadata({CLOSED: str(closed_us)})
    at = c.seen["group"]
    seen = pa.table(
        {
            "window": g["window"][at],
            "key": g["key"][at],
            "round": c.seen["round"],
            "user": c.seen["user"],
        }
    )
    if not live.all():
        seen = seen.filter(pa.array(live[at])).combine_chunks()
    return ReleaseState(groups, pending, seen)


def _due(
    pending: pa.Table, groups: dict[str, npt.NDArray[Any]], now: Int
) -> tuple[dict[str, Int], pa.Table]:
    by = ("window", "key")
    group = match([pending.column(n).to_numpy() for n in by], [groups[n] for n in by])
    trigger = pending.column("trigger").to_numpy()
    due = trigger <= now[group] if len(group) else np.zeros(0, bool)
    names = [n for n in pending.column_names if n not in ("window", "key", "trigger")]
    columns = {n: pending.column(n).to_numpy()[due] for n in names}
    rest = pending.slice(0, 0) if due.all() else pending.filter(pa.array(~due)).combine_chunks()
    return {"trigger": trigger[due], "group": group[due]} | columns, rest


def _sum(due: dict[str, Int], by: list[str], names: list[str], horizon: int) -> Increments:
    keys = [due[n] for n in by]
    order = sort_order(*keys)
    starts = run_starts(*(k[order] for k in keys))
    head = order[starts]
    if "user" in by and len(head):
        # One user's rows of one trigger from several micro-batches: the earliest record has the largest weight.
        sums = {
            "weight": np.maximum.reduceat(due["weight"][order], np.flatnonzero(starts)),
            "user": due["user"][head],
        }
        sums["users"] = np.ones(len(head), np.int64)
    else:
        sums = {
            n: run_sums(due[n][order], starts)
            for n in (*names, *(["user"] if "user" in by else []))
        }
    trigger = due["trigger"][head]
    return Increments(
        trigger, due["group"][head], sums, np.searchsorted(trigger, np.arange(horizon + 2))
    )
