"""What a key bucket remembers of its (window, key) groups, and how rows and ticks meet it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from udfs.columns import Int, match, run_starts, run_sums, sort_order
from udfs.grid import NO_CLOCK, Grid

CLOSED = b"closed_us"
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
        return {"noise": self.selection_width} | {f"p{j}": width for j, width in enumerate(self.path_widths)}

    @property
    def values(self) -> tuple[str, ...]:
        """v0, v1, ...: exact sums per perturbation."""
        return tuple(f"v{j}" for j in range(len(self.path_widths)))


@dataclass(frozen=True)
class ReleaseState:
    """Three tables of plain columns.

    groups: one row per live group: `window, key, key_bytes`, `first` (first trigger with a record), `step` and `paths_step`
        (noise steps done of the selection path and of the perturbation paths), `weight, users` (of the round, over closed
        triggers), `selected_at` (last selection; 0: never), `round`, `wake` (asleep until that trigger), `v0..` (exact sums over
        closed triggers), and the noise states `noise, p0..` (lists of fixed length). Schema metadata: the closed time.
    pending: `window, trigger, key, weight, users, v0..` (rounds: `user`): increments of triggers that have not closed.
    seen: `window, key, round, user`: who counts in a group's current round (empty without rounds).
    """

    groups: pa.Table
    pending: pa.Table
    seen: pa.Table

    @property
    def closed_us(self) -> int:
        """The time up to which the grid is closed."""
        return int((self.groups.schema.metadata or {}).get(CLOSED, NO_CLOCK))

    def tables(self) -> dict[str, pa.Table]:
        """By name, as they are stored."""
        return {"groups": self.groups, "pending": self.pending, "seen": self.seen}


@dataclass(frozen=True)
class Increments:
    """Increments that fall due, sorted by (trigger, group); those of trigger i are at `at(i)`."""

    trigger: Int
    group: Int
    sums: dict[str, Int]
    bounds: Int

    def at(self, trigger: int) -> slice:
        """Where the increments of one trigger are."""
        return slice(self.bounds[trigger], self.bounds[trigger + 1])


@dataclass(frozen=True)
class Closing:
    """One tick at work: the groups as arrays (changed in place), what falls due, and which triggers close.

    before, now: closed triggers of each group's window before and after the tick. last: the largest of `now`.
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


def empty_state(layout: StateLayout) -> ReleaseState:
    """The state of a bucket that has seen nothing."""
    ints = ("window", "trigger", "key", *(["user"] if layout.rounds else []), "weight", "users", *layout.values)
    groups = new_groups(layout, np.zeros(0, np.int64), np.zeros(0, np.int64), pa.array([], pa.binary()), np.zeros(0, np.int64))
    pending = pa.table({name: pa.array([], pa.int64()) for name in ints})
    seen = pa.table({name: pa.array([], pa.int64()) for name in ("window", "key", "round", "user")})
    return ReleaseState(groups.replace_schema_metadata({CLOSED: str(NO_CLOCK)}), pending, seen)


def new_groups(layout: StateLayout, window: Int, key: Int, key_bytes: pa.Array, first: Int) -> pa.Table:
    """Rows for groups that have no state yet."""
    zeros = {name: np.zeros(len(window), np.int64) for name in (*INTS, *layout.values)} | {"first": first}
    paths = {name: to_lists(np.zeros((len(window), width))) for name, width in layout.paths.items()}
    return pa.table({"window": window, "key": key, "key_bytes": key_bytes} | zeros | paths)


def add_rows(state: ReleaseState, rows: pa.Table, layout: StateLayout) -> ReleaseState:
    """Rows become pending increments; keys not seen in their window become groups."""
    if not rows.num_rows:
        return state
    pending = pa.concat_tables([state.pending, rows.select(state.pending.column_names)]).combine_chunks()
    window, key, trigger = (rows.column(n).to_numpy() for n in ("window", "key", "trigger"))
    order = sort_order(window, key, trigger)
    head = order[run_starts(window[order], key[order])]
    groups = state.groups
    at = match([window[head], key[head]], [groups.column("window").to_numpy(), groups.column("key").to_numpy()])
    first = groups.column("first").to_numpy().copy()
    old = at >= 0
    first[at[old]] = np.where(first[at[old]] == 0, trigger[head[old]], np.minimum(first[at[old]], trigger[head[old]]))
    groups = groups.set_column(groups.column_names.index("first"), "first", pa.array(first))
    fresh = head[~old]
    added = new_groups(layout, window[fresh], key[fresh], rows.column("key_bytes").take(pa.array(fresh)), trigger[fresh])
    return ReleaseState(append_groups(groups, added), pending, state.seen)


def append_groups(groups: pa.Table, added: pa.Table) -> pa.Table:
    """Groups and new groups in one table, with the metadata of the first."""
    return pa.concat_tables(
        [groups, added.cast(groups.schema.remove_metadata()).replace_schema_metadata(groups.schema.metadata)]
    ).combine_chunks()


def open_closing(
    state: ReleaseState, closed_us: int, grid: Grid, layout: StateLayout, tag: npt.NDArray[np.uint64]
) -> tuple[Closing, pa.Table]:
    """Arrays for a tick that closes the grid up to closed_us, and the increments that stay pending."""
    groups = {n: state.groups.column(n).to_numpy().copy() for n in ("window", "key", *INTS, *layout.values)}
    groups |= {n: from_lists(state.groups.column(n), width) for n, width in layout.paths.items()}
    now = grid.closed_triggers(groups["window"], closed_us)
    due, pending = _due(state.pending, groups, now)
    user = ["user"] if layout.rounds else []
    by_user = _sum(due, ["trigger", "group", *user], ["weight", "users"], grid.horizon)
    sums = _sum(due, ["trigger", "group"], list(layout.values), grid.horizon)
    seen = {n: state.seen.column(n).to_numpy() for n in ("round", "user")}
    seen["group"] = match_many(state.seen, groups)
    before = grid.closed_triggers(groups["window"], state.closed_us)
    return Closing(groups, seen, by_user, sums, before, now, tag), pending


def close_state(c: Closing, key_bytes: pa.ChunkedArray, pending: pa.Table, closed_us: int, grid: Grid, layout: StateLayout) -> ReleaseState:
    """The state after a tick: windows whose last trigger has closed are forgotten."""
    g = c.groups
    columns = {n: g[n] for n in ("window", "key")} | {"key_bytes": key_bytes} | {n: g[n] for n in (*INTS, *layout.values)}
    columns |= {n: to_lists(g[n]) for n in layout.paths}
    live = c.now < grid.horizon
    groups = pa.table(columns).filter(pa.array(live)).combine_chunks().replace_schema_metadata({CLOSED: str(closed_us)})
    at = c.seen["group"]
    current = live[at] & (g["round"][at] == c.seen["round"]) if len(at) else np.zeros(0, bool)
    seen = {"window": g["window"][at], "key": g["key"][at], "round": c.seen["round"], "user": c.seen["user"]}
    return ReleaseState(groups, pending, pa.table(seen).filter(pa.array(current)).combine_chunks())


def match_many(rows: pa.Table, groups: dict[str, npt.NDArray[Any]]) -> Int:
    """Position of every row's (window, key) among the groups; rows may repeat."""
    window, key = rows.column("window").to_numpy(), rows.column("key").to_numpy()
    order = sort_order(window, key)
    starts = run_starts(window[order], key[order])
    head = order[starts]
    position = np.empty(len(order), np.int64)
    found = match([window[head], key[head]], [groups["window"], groups["key"]])
    position[order] = found[np.cumsum(starts) - 1] if len(order) else found
    return position


def _due(pending: pa.Table, groups: dict[str, npt.NDArray[Any]], now: Int) -> tuple[dict[str, Int], pa.Table]:
    group = match_many(pending, groups)
    trigger = pending.column("trigger").to_numpy()
    due = trigger <= now[group] if len(group) else np.zeros(0, bool)
    names = [n for n in pending.column_names if n not in ("window", "key", "trigger")]
    columns = {n: pending.column(n).to_numpy()[due] for n in names}
    return {"trigger": trigger[due], "group": group[due]} | columns, pending.filter(pa.array(~due)).combine_chunks()


def _sum(due: dict[str, Int], by: list[str], names: list[str], horizon: int) -> Increments:
    keys = [due[n] for n in by]
    order = sort_order(*keys)
    starts = run_starts(*(k[order] for k in keys))
    head = order[starts]
    if "user" in by and len(head):
        # One user's rows of one trigger from several micro-batches: the earliest record has the largest weight.
        sums = {"weight": np.maximum.reduceat(due["weight"][order], np.flatnonzero(starts)), "user": due["user"][head]}
        sums["users"] = np.ones(len(head), np.int64)
    else:
        sums = {n: run_sums(due[n][order], starts) for n in (*names, *(["user"] if "user" in by else []))}
    trigger = due["trigger"][head]
    return Increments(trigger, due["group"][head], sums, np.searchsorted(trigger, np.arange(horizon + 2)))


def to_lists(values: npt.NDArray[np.float64]) -> pa.FixedSizeListArray:
    """A (rows, width) array as a column of fixed-size lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def from_lists(column: pa.ChunkedArray, width: int) -> npt.NDArray[np.float64]:
    """The (rows, width) array of a column of fixed-size lists; a copy."""
    chunk = column.combine_chunks()
    return np.array(chunk.flatten().to_numpy(), dtype=np.float64).reshape(len(column), width)
