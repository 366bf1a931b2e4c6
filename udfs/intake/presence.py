"""Which versions count, in which slot, and the spells in which a unit is present in a key."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dpsql.udfs.columns import Bool, Int, run_starts, running_count, sort_order, unsort
from dpsql.udfs.intake.live_rows import Pairs
from dpsql.udfs.intake.versions import NO_SLOT, UNCOUNTED, Events, Versions
from dpsql.udfs.stage import BEGIN, END, OUTSIDE

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


def spells(versions: Versions, events: Events, pairs: Pairs, counted_spells: int) -> Spells:
    """Follow where units are.

    A spell opens with the first version in a key, not before the end of the spell before; it closes at the largest end of its versions.

    Args:
        versions: with their begins.
        events: of versions that count, at the triggers at which they do.
        pairs: as they were.
        counted_spells: S, how many spells of a unit count.
    """
    pair = pairs.of_version[events.version]
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

    user = pairs.of_user[pairs.of_version[events.version]]
    # A unit's events are in the order in which they are taken, and of its periods mixed
    by_user = sort_order(user)
    spells_begun = running_count(unsort(order, opens)[by_user], run_starts(user[by_user]))
    ordinal = (pairs.spells_of_user[user] + unsort(by_user, spells_begun))[order]
    # The rank of a spell is its opening's, and of one that was open before, the one that is known of the pair.
    rank = np.where(opens, np.where(ordinal <= counted_spells, ordinal, 0), pairs.rank[pair])
    rank = rank[np.maximum.accumulate(np.where(opens | starts, np.arange(len(order)), 0))]

    last = np.append(starts[1:], True) if len(order) else starts
    size = len(pairs.user)
    new_pairs = pairs.changed(
        rows=pairs.rows + np.bincount(pair[sign == BEGIN], minlength=size),
        spells=pairs.spells + np.bincount(pair[opens], minlength=size),
        position=pair[last],
        live=live[last],
        rank=rank[last],
        until=until[last],
    )
    turns = opens | closes
    return Spells(new_pairs, pair[turns], version[turns], sign[turns], until[turns], rank[turns])


def _latest(trigger: Int, until: Int, pair: Int) -> Int:
    """Return for each event the largest trigger of its pair up to it; pair by pair."""
    times, rank = np.unique(np.concatenate([trigger, until]), return_inverse=True)
    rank = np.maximum(rank[: len(trigger)], rank[len(trigger) :])
    offset = pair * max(len(times), 1)
    return times[np.maximum.accumulate(offset + rank) - offset] if len(times) else trigger


# Which versions count, and in which slot: decided at their begins from their unit's own versions
# alone, and in triggers.

# Rows of one slot never overlap in triggers, however late an image comes
# (docs/privacy/dynamic.md, theorem 16). Only slots need turns, where a
# unit can have more versions with a key than the key has slots: all units take theirs at once,
# version by version.

NEVER = 1 << 62
"""The time from which the slot of a version is free."""


@dataclass(frozen=True)
class VersionBounds:
    """Per privacy unit and contribution period: C, c, G; weights w_1..w_S of its spells in units of 2^-20; sorted keys that may
    count (None: any), and a key that may not; the last trigger."""

    max_rows: int
    max_rows_per_group: int
    max_groups: int
    weights: tuple[int, ...]
    public_keys: tuple[int, ...] | None
    no_key: int | None
    last: int

    @property
    def slots(self) -> bool:
        """Whether a key can be full while the unit still has rows left."""
        return self.max_rows_per_group < self.max_rows


def admit_versions(
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
    begins = np.flatnonzero(events.sign == BEGIN)
    if bounds.public_keys is not None:
        keys = versions.key[events.version[begins]]
        is_public = np.isin(keys, np.array(bounds.public_keys, np.int64))
        begins = _select(begins, is_public, "not_a_public_group", drops)
    if bounds.no_key is not None:
        is_inside = versions.key[events.version[begins]] != bounds.no_key
        begins = _select(begins, is_inside, OUTSIDE, drops)
    is_open = events.trigger[begins] <= bounds.last
    begins = _select(begins, is_open, "window_closed", drops)
    version = events.version[begins]
    within_groups = _within_groups(pairs.of_version[version], pairs, bounds.max_groups)
    is_asking = np.zeros(len(events.sign), bool)
    is_asking[begins[within_groups]] = True
    slot = versions.slot.copy()
    slot[events.version[is_asking]] = NO_SLOT
    begin = versions.begin.copy()
    begin[events.version[is_asking]] = events.trigger[is_asking]
    if bounds.slots:
        asking = replace(versions, slot=slot, begin=begin)
        slot, begin = _assign_slots(asking, events, is_asking, pairs, bounds.max_rows_per_group)
    has_slot = slot[version] != UNCOUNTED
    user = pairs.of_user[pairs.of_version[version]]
    ordinal = pairs.rows_of_user[user] + running_count(has_slot, run_starts(user))
    is_over = ordinal - has_slot >= bounds.max_rows
    drops["over_max_rows"] += int(is_over.sum())
    drops["over_max_groups"] += int((~within_groups & ~is_over).sum())
    drops["over_max_rows_per_group"] += int((within_groups & ~has_slot & ~is_over).sum())
    slot[version[is_over]] = UNCOUNTED
    begin[slot == UNCOUNTED] = 0
    return replace(versions, slot=slot, begin=begin)


def _select(begins: Int, is_selected: Bool, reason: str, drops: Counter[str]) -> Int:
    drops[reason] += int((~is_selected).sum())
    return begins[is_selected]


def _within_groups(pair: Int, pairs: Pairs, max_groups: int) -> Bool:
    """Tell whether the key of each begin, in order, is among the first so many of its unit."""
    order = sort_order(pair)
    heads = order[run_starts(pair[order])]
    first = np.zeros(len(pair), bool)
    first[heads] = ~pairs.is_known[pair[heads]]
    user = pairs.of_user[pair]
    rank = np.zeros(len(pairs.user), np.int64)
    rank[pair[first]] = (pairs.keys_of_user[user] + running_count(first, run_starts(user)))[first]
    return rank[pair] <= max_groups


def _assign_slots(
    versions: Versions, events: Events, is_asking: Bool, pairs: Pairs, slots_per_key: int
) -> tuple[Int, Int]:
    """Return slot and begin of every version, where begins that ask for a slot get one while there is one.

    The first versions of a pair take new slots. Later ones take, of those that are free, the one that has been so the longest.
    """
    pair = pairs.of_version[events.version]
    requests = np.bincount(pair[is_asking], minlength=len(pairs.user))
    is_full = pairs.slots + requests > slots_per_key
    slot = versions.slot.copy()
    begins = np.flatnonzero(is_asking)
    begins = begins[sort_order(pair[begins])]
    ordinal = running_count(np.ones(len(begins), bool), run_starts(pair[begins]))
    slot[events.version[begins]] = pairs.slots[pair[begins]] - 1 + ordinal

    slot[events.version[is_asking & is_full[pair]]] = UNCOUNTED
    has_slot = versions.slot[events.version] != UNCOUNTED
    takes_turn = is_full[pair] & (is_asking | ((events.sign != BEGIN) & has_slot))
    begin = versions.begin.copy()
    _take_turns(slot, begin, events, np.flatnonzero(takes_turn), pairs, is_full, slots_per_key)
    return slot, begin


def _take_turns(
    slot: Int,
    begin: Int,
    events: Events,
    event: Int,
    pairs: Pairs,
    is_full: Bool,
    slots_per_key: int,
) -> None:
    """Let versions of full keys take and leave slots, one event of each pair at a time; changes `slot` and `begin`."""
    pair = pairs.of_version[events.version]
    event = event[sort_order(pair[event])]
    turn = running_count(np.ones(len(event), bool), run_starts(pair[event]))
    event = event[sort_order(turn)]
    # A line per full pair: when each of its slots is free. One that nothing has been in is free from 0 on, before all others.
    line = np.cumsum(is_full) - 1
    free = np.zeros((int(is_full.sum()), slots_per_key), np.int64)
    is_stored = is_full[pairs.slot_of]
    stored = np.where(pairs.is_taken, NEVER, pairs.free_from)
    free[line[pairs.slot_of[is_stored]], pairs.slot[is_stored]] = stored[is_stored]
    for low, high in pairwise([0, *np.cumsum(np.bincount(turn)[1:]).tolist()]):
        ends = event[low:high][events.sign[event[low:high]] != BEGIN]
        ends = ends[slot[events.version[ends]] != UNCOUNTED]
        version = events.version[ends]
        left_at = np.maximum(events.trigger[ends], begin[version])
        free[line[pair[ends]], slot[version]] = left_at

        begins = event[low:high][events.sign[event[low:high]] == BEGIN]
        free_from = free[line[pair[begins]]]
        longest_free = free_from.argmin(axis=1)
        since = free_from[np.arange(len(begins)), longest_free]
        is_free = since < NEVER
        begins = begins[is_free]
        chosen_slot = longest_free[is_free]
        free[line[pair[begins]], chosen_slot] = NEVER
        version = events.version[begins]
        slot[version] = chosen_slot
        begin[version] = np.maximum(events.trigger[begins], since[is_free])
