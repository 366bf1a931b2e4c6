"""Errors planted into the intake of a change feed: the plain reading finds each of them on random feeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.mechanisms.dynamic.feed_reference import Image, histories, sums
from tests.mechanisms.dynamic.test_changes import LATEST, Batches, cut, parameters, run
from udfs.dynamic import images
from udfs.dynamic.versions import UNCOUNTED, Change, Unit
from udfs.stage import END

FEEDS = 120
admitted, appear, take, in_order = Unit._admitted, Unit._appear, Unit.take, images._in_order


def slots_by_arrival(unit: Unit, image: Any) -> tuple[int, int]:
    slot, begin = admitted(unit, image)
    return slot, begin if slot == UNCOUNTED else image.trigger


def spells_by_arrival(unit: Unit, trigger: int, version: Any, rank: int, sign: int) -> None:
    appear(unit, version.begin if sign > 0 else trigger, version, rank, sign)


def uncounted_rows_forgotten(unit: Unit, image: Any, copies: bool) -> None:
    """Versions cut after admission: an update of a row that does not count is then a begin."""
    take(unit, image, copies)
    if image.row in unit.live:
        unit.live[image.row] = [version for version in unit.live[image.row] if version.slot != UNCOUNTED]


def unknown_end_counted(unit: Unit, image: Any, copies: bool) -> None:
    if image.kind == END and not unit.live.get(image.row):
        unit._changes.append(Change(image.trigger, image.key, image.key_bytes, 0, 0, -1, image.values))
    take(unit, image, copies)


def old_version_stays_unless_the_new_one_counts(unit: Unit, image: Any, copies: bool) -> None:
    before = list(unit.live.get(image.row, []))
    count = len(unit._changes)
    take(unit, image, copies)
    now = unit.live.get(image.row, [])
    if before and image.kind != END and now and now[-1] is not before[-1] and now[-1].slot == UNCOUNTED:
        unit.live[image.row] = before
        del unit._changes[count:]


def by_the_feeds_order(given: images.Images, content: np.ndarray) -> images.Images:
    """Commit versions order rows of one unit, and so everybody's changes do."""
    ordered = in_order(given, content)
    return ordered.take(np.lexsort((ordered.kind, ordered.seq, ordered.user)))


PLANTED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "slots by arrival": (Unit, "_admitted", slots_by_arrival),
    "spells by arrival": (Unit, "_appear", spells_by_arrival),
    "cut after admission": (Unit, "take", uncounted_rows_forgotten),
    "unknown end": (Unit, "take", unknown_end_counted),
    "old version stays": (Unit, "take", old_version_stays_unless_the_new_one_counts),
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
    return cut(some, [chance.randint(0, 6) for _ in range(4)])


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
