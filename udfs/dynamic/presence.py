"""Spells: the times at which a unit is present in a key, that is, has versions there that count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Int, run_starts, running_count, sort_order
from dpsql.udfs.dynamic.live_rows import Pairs
from dpsql.udfs.dynamic.versions import Events, Versions
from dpsql.udfs.stage import BEGIN, END


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
