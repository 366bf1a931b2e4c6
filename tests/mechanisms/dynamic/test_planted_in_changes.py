"""Errors planted into the intake of a change feed: the plain reading finds each of them on random feeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql.udfs.columns import Int
from dpsql.udfs.dynamic import admission, changes, images, live_rows, presence, versions
from dpsql.udfs.dynamic.changes import counted
from dpsql.udfs.dynamic.versions import NO_SLOT, UNCOUNTED, Events, Versions
from dpsql.udfs.stage import BEGIN, END, Tables
from tests.mechanisms.dynamic.feed_reference import Image, histories, sums
from tests.mechanisms.dynamic.test_changes import LATEST, Batches, cut, parameters, run

FEEDS = 120
in_order = images._in_order


def slots_by_arrival(versions: Versions, events: Events, *others: Any) -> Versions:
    found = admission.admitted(versions, events, *others)
    begin, begins = found.begin.copy(), events.take(events.sign == BEGIN)
    begin[begins.version] = np.where(found.slot[begins.version] == UNCOUNTED, 0, begins.trigger)
    return replace(found, begin=begin)


def uncounted_rows_forgotten(state: Tables, at: Int, left: Versions, *others: Any) -> Tables:
    """Versions cut after admission: an update of a row that does not count is then a begin."""
    return live_rows.closed(state, at, left.take(np.flatnonzero(left.slot != UNCOUNTED)), *others)


def unknown_end_counted(given: images.Images, trigger: Int, names: pa.ChunkedArray, there: Versions, copies: bool) -> versions.Cut:
    """Ends of rows of which nothing else is known take away what was never added."""
    found = versions.cut(given, trigger, names, there, copies)
    known = {*zip(there.user, there.row, strict=True), *zip(given.user[given.kind == BEGIN], given.row[given.kind == BEGIN], strict=True)}
    ghost = np.array([i for i, row in enumerate(zip(given.user, given.row, strict=True)) if row not in known], np.int64)
    size, one = len(ghost), given.take(ghost)
    whole = versions._with(found.versions, versions._new(one, np.zeros(size, np.int64), names.take(pa.array(ghost))))
    slot = np.where(np.arange(len(whole.user)) < len(found.versions.user), whole.slot, NO_SLOT)
    events = found.events
    version = np.concatenate([events.version, len(found.versions.user) + np.arange(size)])
    order = np.argsort(whole.user[version], kind="stable")
    sign, when = np.concatenate([events.sign, np.full(size, END)]), np.concatenate([events.trigger, trigger[ghost]])
    return versions.Cut(replace(whole, slot=slot), Events(version[order], sign[order], when[order]), found.unknown)


def old_version_stays_unless_the_new_one_counts(whole: Versions, events: Events) -> Events:
    user, row, slot = (column[events.version] for column in (whole.user, whole.row, whole.slot))
    follows = (events.sign[1:] == BEGIN) & (slot[1:] == UNCOUNTED) & (user[1:] == user[:-1]) & (row[1:] == row[:-1])
    return counted(whole, events.take(~np.append(follows & (events.sign[:-1] == END), np.zeros(min(len(user), 1), bool))))


def by_the_feeds_order(given: images.Images, content: np.ndarray) -> images.Images:
    """Commit versions order rows of one unit, and so everybody's changes do."""
    ordered = in_order(given, content)
    return ordered.take(np.lexsort((ordered.kind, ordered.seq, ordered.user)))


PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "slots by arrival": (changes, "admitted", slots_by_arrival),
    "spells by arrival": (presence, "_latest", lambda trigger, before, pair: trigger),
    "cut after admission": (changes, "closed", uncounted_rows_forgotten),
    "unknown end": (changes, "cut", unknown_end_counted),
    "old version stays": (changes, "counted", old_version_stays_unless_the_new_one_counts),
    "not folded": (images, "_folded", lambda given, content: np.arange(len(given.user))),
    "order of commits": (images, "_in_order", by_the_feeds_order),
}


def feed(number: int) -> Batches:
    """Times that fall and rise, rows that are updated at one place of the feed, units that share numbers of rows."""
    chance, some = random.Random(number), list[Image]()
    for seq in range(12):
        row, ts = (chance.randint(1, 2), chance.randint(1, 3)), chance.choice([3 * seq, chance.randint(0, LATEST)])
        some += [
            Image(*row, seq, kind, ts, chance.randint(1, 2), (1, 1, chance.choice([1, 1, 3])))
            for kind in chance.choice([(1,), (-1,), (-1, 1)])
        ]
    return cut(some, [chance.randint(0, 4) for _ in range(8)])


def differs(number: int) -> bool:
    most = random.Random(number).choice([3, 6])
    p = parameters(max_rows=most, max_rows_per_group=(1, most)[number % 2])
    batches = feed(number)
    return run(batches, p)[0] != sums(histories(batches, p).values(), p)


def test_nothing_is_found_where_nothing_is_planted() -> None:
    assert not any(differs(number) for number in range(FEEDS // 3))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[name])
    assert any(differs(number) for number in range(FEEDS))
