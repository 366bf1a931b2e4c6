"""Row versions of one privacy unit: cut from its images, and admitted when they begin.

A begin of a row starts a version, its end ends it, whether it counts or not: state knows every live row. Which of them count is decided by
the unit's own versions alone, and in triggers: rows of one slot never overlap there, however late an image comes (docs/privacy/dynamic.md,
theorem 16).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from udfs.stage import BEGIN, NO_SEQUENCE

UNCOUNTED, NO_SLOT = -2, -1
"""Instead of a slot: the version does not count; it counts and needs none, because a key has room for all."""
TAKEN = -1
"""Instead of the trigger from which on a slot is free."""


class Image(NamedTuple):
    """As in `udfs.dynamic.images`; `trigger` is the first that it can have."""

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
