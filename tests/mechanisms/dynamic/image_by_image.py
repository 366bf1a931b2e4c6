"""The intake of a change feed unit by unit and image by image: slow, with the same state and the same sums.

It reads the state that `dpsql.udfs.dynamic` keeps, and shares with it the images and the look-up in sorted tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Int, find, run_starts, run_sums, sort_order
from dpsql.udfs.dynamic.changes import DROP_REASONS, Admission, FeedParameters
from dpsql.udfs.dynamic.images import Images, images
from dpsql.udfs.dynamic.live_rows import TABLES, empty_state
from dpsql.udfs.histogram.stages import contributions
from dpsql.udfs.stage import BEGIN, NO_RECORD, NO_SEQUENCE, Clock, Tables

UNCOUNTED, NO_SLOT = -2, -1
"""Instead of a slot: the version does not count; it counts and needs none, because a key has room for all."""
TAKEN = -1
"""Instead of the trigger from which on a slot is free."""


class Image(NamedTuple):
    """As in `dpsql.udfs.dynamic.images`; `trigger` is the first that it can have."""

    row: int
    seq: int
    kind: int
    trigger: int
    key: int
    key_bytes: bytes
    values: tuple[int, ...]


@dataclass(slots=True)
class Version:
    """A row that is there: since trigger `begin`, in the slot of its key."""

    key: int
    key_bytes: bytes
    slot: int
    begin: int
    seq: int
    values: tuple[int, ...]


@dataclass(slots=True)
class Presence:
    """A unit in a key.

    `rows` versions of it have counted, `live` of them do; it has been present `spells` times, the last time as the unit's `rank`-th (0: too
    often to count); `until`: the last trigger at which one ended; `free_from`: of each slot.
    """

    rows: int = 0
    live: int = 0
    spells: int = 0
    rank: int = 0
    until: int = 0
    free_from: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Used:
    """What a unit has used in all: versions that have counted, keys, spells."""

    rows: int
    keys: int
    spells: int


class Change(NamedTuple):
    """What is added to the sums of a key at a trigger: `sign` times the increments of a version, or of presence."""

    trigger: int
    key: int
    key_bytes: bytes
    weight: int
    users: int
    sign: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Bounds:
    """Per privacy unit: C, c, G; weights w_1..w_S of its spells in units of 2^-20; keys that may count (None: any); the last trigger."""

    max_rows: int
    max_rows_per_group: int
    max_groups: int
    weights: tuple[int, ...]
    public_keys: frozenset[int] | None
    last: int

    @property
    def slots(self) -> bool:
        """Whether a key can be full while the unit still has rows left."""
        return self.max_rows_per_group < self.max_rows


class Unit:
    """What is known of one unit. `live` has the copies of each row, at most one where rows have a primary key.

    Args:
        live: row -> its copies, of all rows that it is asked of; presences: key -> presence, of all keys of these and of what begins; used: in
            all. They are changed.
        bounds: of every unit.
        changes: added to.
        drops: counts by reason, added to.
    """

    def __init__(
        self,
        live: dict[int, list[Version]],
        presences: dict[int, Presence],
        used: Used,
        bounds: Bounds,
        changes: list[Change],
        drops: Counter[str],
    ) -> None:
        self.live, self.presences, self._used = live, presences, used
        self._bounds, self._changes, self._drops = bounds, changes, drops

    def take(self, image: Image, copies: bool) -> None:
        """The next image."""
        there = self.live.get(image.row, [])
        if there and not copies and NO_SEQUENCE < image.seq <= there[-1].seq:
            return  # it has been taken before
        if image.kind != BEGIN:
            if there:
                self._end(image.row, image.trigger)
            else:
                self._drops["unknown_row"] += 1
            return
        if there and not copies:
            if there[-1].key == image.key and there[-1].values == image.values:
                there[-1].seq = max(there[-1].seq, image.seq)
                return
            self._end(image.row, image.trigger)
        self.live.setdefault(image.row, []).append(self._begun(image))

    def _begun(self, image: Image) -> Version:
        """A version, counted if there is room."""
        slot, begin = self._admitted(image)
        version = Version(image.key, image.key_bytes, slot, begin, image.seq, image.values)
        if slot != UNCOUNTED:
            self._used.rows += 1
            presence = self._presence(image.key)
            presence.rows += 1
            presence.live += 1
            self._add(begin, version, 1)
            if presence.live == 1:
                self._used.spells += 1
                presence.spells += 1
                presence.rank = self._used.spells if self._used.spells <= len(self._bounds.weights) else 0
                presence.until = max(begin, presence.until)
                self._appear(presence.until, version, presence.rank, 1)
        return version

    def _admitted(self, image: Image) -> tuple[int, int]:
        """(slot, trigger of the begin)."""
        bounds, presence = self._bounds, self.presences.get(image.key)
        if bounds.public_keys is not None and image.key not in bounds.public_keys:
            return self._left_out("not_a_public_group")
        if image.trigger > bounds.last:
            return self._left_out("window_closed")
        if self._used.rows >= bounds.max_rows:
            return self._left_out("over_max_rows")
        if presence is None and self._used.keys >= bounds.max_groups:
            return self._left_out("over_max_groups")
        if not bounds.slots:
            return NO_SLOT, image.trigger
        presence = self._presence(image.key)
        if len(presence.free_from) < bounds.max_rows_per_group:
            presence.free_from.append(0)
        free, slot = min(((free, slot) for slot, free in enumerate(presence.free_from) if free != TAKEN), default=(0, UNCOUNTED))
        if slot == UNCOUNTED:
            return self._left_out("over_max_rows_per_group")
        presence.free_from[slot] = TAKEN
        return slot, max(image.trigger, free)

    def _presence(self, key: int) -> Presence:
        if key not in self.presences:
            self._used.keys += 1
            self.presences[key] = Presence()
        return self.presences[key]

    def _left_out(self, reason: str) -> tuple[int, int]:
        self._drops[reason] += 1
        return UNCOUNTED, 0

    def _end(self, row: int, trigger: int) -> None:
        """The copy of a row that began last."""
        copies = self.live[row]
        version = copies.pop()
        if not copies:
            del self.live[row]
        if version.slot == UNCOUNTED:
            return
        trigger, presence = max(trigger, version.begin), self.presences[version.key]
        self._add(trigger, version, -1)
        if version.slot != NO_SLOT:
            presence.free_from[version.slot] = trigger
        presence.until = max(presence.until, trigger)
        presence.live -= 1
        if not presence.live:
            self._appear(presence.until, version, presence.rank, -1)

    def _add(self, trigger: int, version: Version, sign: int) -> None:
        if trigger <= self._bounds.last:
            self._changes.append(Change(trigger, version.key, version.key_bytes, 0, 0, sign, version.values))

    def _appear(self, trigger: int, version: Version, rank: int, sign: int) -> None:
        if rank and trigger <= self._bounds.last:
            weight = self._bounds.weights[rank - 1]
            self._changes.append(Change(trigger, version.key, version.key_bytes, sign * weight, sign, 0, ()))


Live = dict[int, list[Version]]
Presences = dict[int, Presence]


def admit_changes(state: Tables | None, rows: pa.Table, clock: Clock, p: FeedParameters) -> Admission:
    """As `dpsql.udfs.dynamic.changes.admit_changes`."""
    state = empty_state(len(p.increments)) if state is None else state
    drops = Counter[str]()
    code = rows.column("drop").to_numpy()
    for number, reason in enumerate(NO_RECORD, start=1):
        drops[reason] = int((code == number).sum())
    rows = rows.filter(pa.array(code == 0)).combine_chunks()
    given, drops["too_far_ahead"] = images(rows, clock, p.increments, p.copies)
    public = None if p.public_keys is None else frozenset(p.public_keys)
    bounds = Bounds(p.max_rows, p.max_rows_per_group, p.max_groups, p.weights, public, p.grid.horizon)
    changes = list[Change]()
    if len(given.user):
        known = opened(state, given.user, given.row, given.key)
        taken = {user: Unit(*unit, bounds, changes, drops) for user, unit in known.units.items()}
        for user, image in zip(given.user.tolist(), _taken(given, rows, clock, p), strict=True):
            taken[user].take(image, p.copies)
        state = closed(state, known)
    return Admission(state, _summed(changes, p), {reason: drops[reason] for reason in DROP_REASONS})


def _taken(given: Images, rows: pa.Table, clock: Clock, p: FeedParameters) -> list[Image]:
    start = np.full(len(given.ts), p.grid.offset_us)
    trigger = np.maximum(p.grid.own_trigger(given.ts, start), p.grid.closed_triggers(start, clock.closed_us) + 1)
    names = rows.column("key_bytes").take(pa.array(given.at)).to_pylist()
    columns = [column.tolist() for column in (given.row, given.seq, given.kind, trigger, given.key)]
    values = zip(*(column.tolist() for column in given.values), strict=True)
    return [Image(*image) for image in zip(*columns, names, values, strict=True)]


def _summed(changes: Sequence[Change], p: FeedParameters) -> pa.Table:
    """One row per (window, trigger, key); the last that a `users` increment is of presence, all others are of versions."""
    trigger, key, weight, users, sign = (
        np.array([change[i] for change in changes], np.int64)
        for i in (Change._fields.index(n) for n in ("trigger", "key", "weight", "users", "sign"))
    )
    order = sort_order(trigger, key)
    starts = run_starts(trigger[order], key[order])
    head = order[starts]
    table = {"window": np.full(len(head), p.grid.offset_us), "trigger": trigger[head], "key": key[head]}
    table["key_bytes"] = pa.array([changes[i].key_bytes for i in head.tolist()], pa.binary())
    table |= {"weight": run_sums(weight[order], starts), "users": run_sums(users[order], starts)}
    zeros = (0,) * len(p.increments)
    values: Int = np.array([change.values or zeros for change in changes], np.int64).reshape(len(changes), len(zeros))
    for j, rule in enumerate(p.increments):
        table[f"v{j}"] = run_sums((users if rule.rule == "users" else sign * values[:, j])[order], starts)
    return pa.table(table, contributions(len(p.increments)))


@dataclass(frozen=True)
class Opened:
    """What a micro-batch can change, as values that may be changed; what of the state it is; what each unit has used in all."""

    units: dict[int, tuple[Live, Presences, Used]]
    at: dict[str, Int]


def opened(state: Tables, user: Int, row: Int, key: Int) -> Opened:
    """The rows that images name, and their units in the keys that they or these rows name."""
    columns = {name: [state[name].column(by).to_numpy() for by in TABLES[name].sorted_by] for name in TABLES}
    at = {"live": _found(_distinct(user, row), columns["live"][:2])}
    theirs = [state["live"].column(name).to_numpy()[at["live"]] for name in ("user", "key")]
    pairs = _distinct(*(np.concatenate(both) for both in zip((user, key), theirs, strict=True)))
    at |= {name: _found(pairs, columns[name][:2]) for name in ("presences", "slots")}
    units = _used(state["presences"], np.unique(user))
    for unit, named, _, its_key, key_bytes, slot, begin, seq, *values in _rows_of(state["live"], at["live"]):
        units[unit][0].setdefault(named, []).append(Version(its_key, key_bytes, slot, begin, seq, tuple(values)))
    for unit, its_key, *used in _rows_of(state["presences"], at["presences"]):
        units[unit][1][its_key] = Presence(*used)
    for unit, its_key, _, free_from in _rows_of(state["slots"], at["slots"]):
        units[unit][1][its_key].free_from.append(free_from)
    return Opened(units, at)


def closed(state: Tables, known: Opened) -> Tables:
    """The tables with what is known now."""
    given: dict[str, Iterable[Any]] = {
        "live": (
            (user, row, copy, v.key, v.key_bytes, v.slot, v.begin, v.seq, *v.values)
            for user, (live, _, _) in known.units.items()
            for row, copies in live.items()
            for copy, v in enumerate(copies)
        ),
        "presences": (
            (user, key, presence.rows, presence.live, presence.spells, presence.rank, presence.until)
            for user, (_, presences, _) in known.units.items()
            for key, presence in presences.items()
        ),
        "slots": (
            (user, key, slot, free_from)
            for user, (_, presences, _) in known.units.items()
            for key, presence in presences.items()
            for slot, free_from in enumerate(presence.free_from)
        ),
    }
    return {name: _sorted(name, _without(state[name], known.at[name]), given[name]) for name in TABLES}


def _used(presences: pa.Table, users: Int) -> dict[int, tuple[Live, Presences, Used]]:
    """Of each unit, over all keys: versions that have counted, keys, spells."""
    low, high = find([users], [presences.column("user").to_numpy()])
    total = {name: np.concatenate([[0], np.cumsum(presences.column(name).to_numpy(), dtype=np.int64)]) for name in ("rows", "spells")}
    sums = [(total[name][high] - total[name][low]).tolist() for name in ("rows", "spells")]
    return {user: ({}, {}, Used(*used)) for user, *used in zip(users.tolist(), sums[0], (high - low).tolist(), sums[1], strict=True)}


def _distinct(*columns: Int) -> list[Int]:
    order = sort_order(*columns)
    ordered = [column[order] for column in columns]
    starts = run_starts(*ordered)
    return [column[starts] for column in ordered]


def _found(wanted: list[Int], table: list[Int]) -> Int:
    """Where a sorted table has the rows of which these are the first columns; ascending."""
    low, high = find(wanted, table)
    size = high - low
    return np.repeat(low - (np.cumsum(size) - size), size) + np.arange(size.sum())


def _without(table: pa.Table, at: Int) -> pa.Table:
    kept = np.ones(table.num_rows, bool)
    kept[at] = False
    return table.filter(pa.array(kept))


def _rows_of(table: pa.Table, at: Int) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.take(pa.array(at)).columns), strict=True)


def _sorted(name: str, others: pa.Table, rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or list(repeat((), others.num_columns))
    mine = pa.Table.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, others.schema.types, strict=True)], schema=others.schema
    )
    whole = pa.concat_tables([others, mine]).combine_chunks()
    return whole.take(pa.array(sort_order(*(whole.column(by).to_numpy() for by in TABLES[name].sorted_by)))).combine_chunks()
