"""Which versions count, in which slot, and the spells in which a unit is present in a key."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dpsql.udfs.columns import Bool, Int, run_starts, running_count, sort_order
from dpsql.udfs.dynamic.live_rows import Pairs
from dpsql.udfs.dynamic.versions import NO_SLOT, UNCOUNTED, Events, Versions
from dpsql.udfs.stage import BEGIN, END

# Spells: the times at which a unit is present in a key, that is, has versions there that count.


@dataclass(frozen=True)
class Spells:
    """The pairs as they are now; and every begin and end of a spell: its pair, a version of it, `sign`, its trigger and its rank in the unit
    (0: it does not count)."""

    pairs: Pairs
    pair: Int
    version: Int
    sign: Int
    trigger: Int
    rank: Int


def spells(versions: Versions, events: Events, pairs: Pairs, most: int) -> Spells:
    """Follow where units are.

    A spell opens with the first version in a key, not before the end of the spell before; it closes at the largest end of its versions.

    Args:
        versions: with their begins.
        events: of versions that count, at the triggers at which they do.
        pairs: as they were.
        most: S, how many spells of a unit count.
    """
    pair = pairs.of[events.version]
    order = sort_order(pair)
    pair = pair[order]
    sign = events.sign[order]
    trigger = events.trigger[order]
    version = events.version[order]
    starts = run_starts(pair)
    live = pairs.live[pair] + running_count(sign, starts)
    opens = (sign == BEGIN) & (live == 1)
    closes = (sign == END) & (live == 0)
    until = _latest(np.where(opens | (sign == END), trigger, 0), pairs.until[pair], pair)

    in_order = np.zeros(len(order), np.int64)
    in_order[order] = opens
    user = pairs.of_user[pairs.of[events.version]]
    ordinal = (pairs.spells_of_user[user] + running_count(in_order, run_starts(user)))[order]
    # The rank of a spell is its opening's, and of one that was open before, the one that is known of the pair.
    rank = np.where(opens, np.where(ordinal <= most, ordinal, 0), pairs.rank[pair])
    rank = rank[np.maximum.accumulate(np.where(opens | starts, np.arange(len(order)), 0))]

    last = np.append(starts[1:], True) if len(order) else starts
    size = len(pairs.user)
    now = pairs.changed(
        rows=pairs.rows + np.bincount(pair[sign == BEGIN], minlength=size),
        spells=pairs.spells + np.bincount(pair[opens], minlength=size),
        at=pair[last],
        live=live[last],
        rank=rank[last],
        until=until[last],
    )
    turns = opens | closes
    return Spells(now, pair[turns], version[turns], sign[turns], until[turns], rank[turns])


def _latest(trigger: Int, before: Int, pair: Int) -> Int:
    """Of each event, the largest trigger of its pair up to it; pair by pair."""
    times, place = np.unique(np.concatenate([trigger, before]), return_inverse=True)
    place = np.maximum(place[: len(trigger)], place[len(trigger) :])
    apart = pair * max(len(times), 1)
    return times[np.maximum.accumulate(apart + place) - apart] if len(times) else trigger


# Which versions count, and in which slot: decided at their begins from their unit's own versions
# alone, and in triggers.

# Rows of one slot never overlap in triggers, however late an image comes
# (docs/privacy/dynamic.md, theorem 16). Only slots need turns, where a
# unit can have more versions with a key than the key has slots: all units take theirs at once,
# version by version.

NEVER = 1 << 62
"""From when on a slot is free that a version is in."""


@dataclass(frozen=True)
class VersionBounds:
    """Per privacy unit: C, c, G; weights w_1..w_S of its spells in units of 2^-20; sorted keys that may count (None: any); the last trigger."""

    max_rows: int
    max_rows_per_group: int
    max_groups: int
    weights: tuple[int, ...]
    public_keys: tuple[int, ...] | None
    last: int

    @property
    def slots(self) -> bool:
        """Whether a key can be full while the unit still has rows left."""
        return self.max_rows_per_group < self.max_rows


def admitted(
    versions: Versions, events: Events, pairs: Pairs, bounds: VersionBounds, drops: Counter[str]
) -> Versions:
    """Return the versions, with the slot and the begin of those that begin.

    A version over one bound never counts towards another: once a unit's rows or keys are used up they stay so, and what happens in a slot then
    matters to nobody. Hence the bounds can be applied one after the other, as where a table only grows.

    Args:
        versions, events: as they were cut.
        pairs: units and keys of the versions.
        bounds: per unit.
        drops: counts by reason, added to.
    """
    at = np.flatnonzero(events.sign == BEGIN)
    if bounds.public_keys is not None:
        named = np.isin(versions.key[events.version[at]], np.array(bounds.public_keys, np.int64))
        at = _kept(at, named, "not_a_public_group", drops)
    at = _kept(at, events.trigger[at] <= bounds.last, "window_closed", drops)
    within = _within_groups(pairs.of[events.version[at]], pairs, bounds.max_groups)
    slot = versions.slot.copy()
    begin = versions.begin.copy()
    asking = np.zeros(len(events.sign), bool)
    asking[at[within]] = True
    asked = events.version[asking]
    slot[asked], begin[asked] = NO_SLOT, events.trigger[asking]
    if bounds.slots:
        slot, begin = _in_slots(
            replace(versions, slot=slot, begin=begin),
            events,
            asking,
            pairs,
            bounds.max_rows_per_group,
        )
    version = events.version[at]
    found = slot[version] != UNCOUNTED
    user = pairs.of_user[pairs.of[version]]
    ordinal = pairs.rows_of_user[user] + running_count(found, run_starts(user))
    spent = ordinal - found >= bounds.max_rows
    drops["over_max_rows"] += int(spent.sum())
    drops["over_max_groups"] += int((~within & ~spent).sum())
    drops["over_max_rows_per_group"] += int((within & ~found & ~spent).sum())
    slot[version[spent]] = UNCOUNTED
    begin[slot == UNCOUNTED] = 0
    return replace(versions, slot=slot, begin=begin)


def _kept(at: Int, which: Bool, reason: str, drops: Counter[str]) -> Int:
    drops[reason] += int((~which).sum())
    return at[which]


def _within_groups(pair: Int, pairs: Pairs, most: int) -> Bool:
    """Of begins in order: whether the key is among the first so many of its unit."""
    order = sort_order(pair)
    heads = order[run_starts(pair[order])]
    first = np.zeros(len(pair), bool)
    first[heads] = ~pairs.known[pair[heads]]
    user = pairs.of_user[pair]
    rank = np.zeros(len(pairs.user), np.int64)
    rank[pair[first]] = (pairs.keys_of_user[user] + running_count(first, run_starts(user)))[first]
    return rank[pair] <= most


def _in_slots(
    versions: Versions, events: Events, asking: Bool, pairs: Pairs, most: int
) -> tuple[Int, Int]:
    """Slot and begin of every version, where begins that ask for a slot get one while there is one.

    The first versions of a pair take new slots. Later ones take, of those that are free, the one that has been so the longest.
    """
    slot = versions.slot.copy()
    begin = versions.begin.copy()
    pair = pairs.of[events.version]
    asks = np.bincount(pair[asking], minlength=len(pairs.user))
    full = pairs.slots + asks > most
    turn = np.flatnonzero(asking)
    turn = turn[sort_order(pair[turn])]
    slot[events.version[turn]] = (pairs.slots[pair] - 1)[turn] + running_count(
        np.ones(len(turn), bool), run_starts(pair[turn])
    )

    slot[events.version[asking & full[pair]]] = UNCOUNTED
    tells = full[pair] & (
        asking | ((events.sign != BEGIN) & (versions.slot[events.version] != UNCOUNTED))
    )
    turn = np.flatnonzero(tells)
    turn = turn[sort_order(pair[turn])]
    number = running_count(np.ones(len(turn), bool), run_starts(pair[turn]))
    turn = turn[sort_order(number)]
    line = np.cumsum(full) - 1
    free = np.zeros(
        (int(full.sum()), most), np.int64
    )  # a slot that nothing has been in is free from 0 on, before all others
    known = full[pairs.slot_of]
    free[line[pairs.slot_of[known]], pairs.slot[known]] = np.where(
        pairs.taken, NEVER, pairs.free_from
    )[known]
    for low, high in pairwise([0, *np.cumsum(np.bincount(number)[1:]).tolist()]):
        here = turn[low:high]
        beginning = events.sign[here] == BEGIN
        ended = events.version[here[~beginning]]
        inside = slot[ended] != UNCOUNTED
        gone = ended[inside]
        free[line[pairs.of[gone]], slot[gone]] = np.maximum(
            events.trigger[here[~beginning]][inside], begin[gone]
        )
        begun = here[beginning]
        place = free[line[pair[begun]]]
        best = place.argmin(axis=1)
        when = place[np.arange(len(begun)), best]
        there = when < NEVER
        begun = begun[there]
        best = best[there]
        when = when[there]
        free[line[pair[begun]], best] = NEVER
        slot[events.version[begun]], begin[events.version[begun]] = (
            best,
            np.maximum(events.trigger[begun], when),
        )
    return slot, begin
