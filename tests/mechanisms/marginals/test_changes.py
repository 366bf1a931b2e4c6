"""Grouping sets over a change feed: the intake against a plain reading, what one unit moves against what is charged, and what is kept."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql.mechanisms.marginals.accounting import account
from dpsql.mechanisms.marginals.plan import MarginalsPlan
from dpsql.mechanisms.marginals.planner import make_plan
from dpsql.mechanisms.marginals.stages import feed_parameters, intake
from dpsql.privacy.cost import Overlap
from dpsql.udfs.keys import encode
from dpsql.udfs.marginals.release import key_of
from dpsql.udfs.stage import OUTSIDE, Clock, Tables
from tests.mechanisms.dynamic.feed_reference import Image, histories, sums
from tests.mechanisms.dynamic.plans import FEED
from tests.mechanisms.dynamic.test_changes import Batches, gram
from tests.mechanisms.marginals.plans import START, numbered, query, source
from tests.mechanisms.marginals.test_plan import MEAN, SIGNED, SPREAD, sensitivity_of_one_table
from tests.property.plans import COUNT, HOUR
from tests.sweeps import sweep

SIZES = (2, 3)
LATEST = START + 10**6 * HOUR
LAST = 3000
NOISE_KEY = bytes(32)


def plan_of(*aggregates: Any, **changes: Any) -> MarginalsPlan:
    fields = {
        "feed": FEED,
        "max_rows_contributed": 4,
        "domains": tuple(numbered(n, False) for n in SIZES),
        "grouping_sets": ((), (0,), (1,), (0, 1)),
        "max_triggers": None,
        "trigger_interval_us": HOUR,
        "aggregates": aggregates or (COUNT,),
    }
    return make_plan(query(**fields | changes), source())


def image(kind: int, row: int, trigger: int, cell: tuple[int, int], value: float = 0.0) -> Image:
    """An image of unit 1 whose own trigger is given; its key is the number of its cell, one of no domain is -1."""
    inside = 0 <= cell[0] < SIZES[0] and 0 <= cell[1] < SIZES[1]
    key = int(np.ravel_multi_index(cell, SIZES)) if inside else -1
    return Image(1, row, trigger, kind, START + (trigger - 1) * HOUR, key, (1, int(value)))


def table_of(some: list[Image], arguments: int) -> pa.Table:
    cells = [np.unravel_index(i.key, SIZES) if i.key >= 0 else (7, 0) for i in some]
    names = [encode([b"%d" % a, b"%d" % b]) for a, b in cells]
    columns: dict[str, Any] = {
        name: np.array([getattr(i, name) for i in some], np.int64)
        for name in ("user", "row", "seq", "ts")
    }
    columns |= {
        "drop": np.zeros(len(some), np.int8),
        "kind": np.array([i.kind for i in some], np.int8),
        "key": np.zeros(len(some), np.int64),
        "key_bytes": pa.array(names, pa.binary()),
    }
    values = np.array([i.values[-1] for i in some], np.float64)
    return pa.table(columns | {f"a{i}": values for i in range(arguments)})


def follow(
    plan: MarginalsPlan, batches: Batches
) -> tuple[dict[tuple[int, int], list[int]], Tables, dict[str, int]]:
    """What all cells get: (trigger, cell) -> increments; the state, and what was dropped."""
    stage = intake(plan)
    state = stage.empty()
    out: dict[tuple[int, int], list[int]] = {}
    dropped: dict[str, int] = {}
    for some, clock in batches:
        done = stage.step(state, table_of(some, len(plan.arguments)), clock, NOISE_KEY)
        state = done.state
        for reason, n in done.counted["drops"].items():
            dropped[reason] = dropped.get(reason, 0) + n
        for row in done.rows.to_pylist():
            values = [row[f"v{i}"] for i in range(len(plan.sums))]
            there = out.setdefault((row["trigger"], row["key"]), [0] * len(values))
            out[row["trigger"], row["key"]] = [a + b for a, b in zip(there, values, strict=True)]
    return {cell: row for cell, row in out.items() if any(row)}, state, dropped


def any_feed(chance: random.Random, size: int, cells: list[tuple[int, int]]) -> list[Image]:
    """Begins, ends and moves of few rows, some at one time, most of one cell, for long and short lives; some values in no domain."""
    step = chance.choice([0, 1, 40])
    out = []
    for number in range(size):
        cell = chance.choice([*cells, (9, 9)]) if chance.random() < 0.5 else cells[0]
        row = chance.randrange(6)
        value = chance.choice([-(10**9), 0, 30, 60, 10**9])
        kind = chance.choice([1, 1, 1, -1])
        moment = 1 + number * step + chance.randrange(3)
        out.append(image(kind, row, moment, cell, value)._replace(seq=number))
    return out


def cut(some: list[Image], size: int) -> Batches:
    return [(some[i : i + size], Clock(latest_us=LATEST)) for i in range(0, len(some), size)]


@pytest.mark.parametrize("c", [1, 2, 4])
def test_cells_are_those_of_the_bounded_table(c: int) -> None:
    """Each version that counts by the plain reading of feeds is in one cell of every table, for as long as it counts. Catches: a row of no domain that
    counts, or is forgotten; an end that is taken from another cell, or from one table alone."""
    plan = plan_of(max_rows_per_group=c)
    chance = random.Random(c)
    listed = {int(key_of(np.array([cell]))[0]): cell for cell in range(math.prod(SIZES))}
    p = dataclasses.replace(
        feed_parameters(plan, plan.changes),  # type: ignore[arg-type]
        no_key=None,
        public_keys=tuple(sorted(listed)),
    )
    outside = 0
    for _ in range(sweep(12, 100)):
        batches = cut(any_feed(chance, 30, [(0, 0), (1, 0), (0, 2), (1, 2)]), chance.choice([3, 9]))
        numbered_cells = [
            (
                [
                    i._replace(key=int(key_of(np.array([i.key]))[0]), values=(i.values[0],))
                    for i in some
                ],
                clock,
            )
            for some, clock in batches
        ]
        known = histories(numbered_cells, p)
        expected: dict[tuple[int, int], list[int]] = {}
        for (trigger, key), row in sums(known.values(), p).items():
            places = np.array([np.unravel_index(listed[key], SIZES)])
            for cell in plan.marginals.touched(places)[0].tolist():
                there = expected.get((trigger, cell), [0])
                expected[trigger, cell] = [there[0] + row[2]]
        found, _, dropped = follow(plan, batches)
        assert found == {cell: row for cell, row in expected.items() if any(row)}
        reasons = sum((unit.drops for unit in known.values()), known[1].drops.__class__())
        assert dropped.pop(OUTSIDE, 0) == reasons.pop("not_a_public_group", 0)
        assert dropped == {reason: n for reason, n in reasons.items() if n}
        outside += reasons["over_max_rows"]
    assert outside


def squared(plan: MarginalsPlan, found: dict[tuple[int, int], list[int]]) -> float:
    """|C d|^2 over all sums and cells, in units of the noise."""
    g = gram(LAST)[0]
    total = 0.0
    by_cell: dict[int, list[tuple[int, list[int]]]] = {}
    for (trigger, cell), row in found.items():
        by_cell.setdefault(cell, []).append((trigger - 1, row))
    for cell, events in by_cell.items():
        table = int(np.searchsorted(plan.marginals.first, cell, side="right")) - 1
        at = np.array([trigger for trigger, _ in events])
        products = g[np.abs(at[:, None] - at[None, :])]
        for i, each in enumerate(plan.sums):
            d = np.array([row[i] for _, row in events]) * each.grid / each.sigmas[table]
            total += float(d @ products @ d)
    return total


def worst(plan: MarginalsPlan, *planted: list[Image]) -> float:
    """The most that feeds of one unit move, over what is charged; planted ones, and found ones."""
    chance = random.Random(3)
    feeds = [cut(feed, len(feed)) for feed in planted]
    for _ in range(sweep(25, 300)):
        cells = [(0, 0), (chance.randrange(2), chance.randrange(3)), (chance.randrange(2), 0)]
        feeds.append(cut(any_feed(chance, 24, cells), chance.choice([2, 24])))
    return max(squared(plan, follow(plan, feed)[0]) for feed in feeds) / plan.mu**2


def lives(rows: list[tuple[int, int, tuple[int, int], float]]) -> list[Image]:
    """Rows with their begins, ends, cells and values, in order of time."""
    some = []
    for number, (begin, end, cell, value) in enumerate(rows):
        some.append(image(1, number, begin, cell, value)._replace(seq=2 * number))
        some.append(image(-1, number, end, cell, value)._replace(seq=2 * number + 1))
    return sorted(some, key=lambda i: (i.ts, i.kind))


TOGETHER = lives([(1, LAST, (0, 0), 10**9)] * 4)
"""All rows of a unit in one cell, for long."""
BY_TURNS = lives(
    [(1 + 1400 * k, 1 + 1400 * k + 1300, (number, 0), 10**9) for k in range(2) for number in (0, 1)]
)
"""Two rows at a time in two cells with one value of the second key, two more later in their slots."""
PLANS = {
    "counts": (plan_of(), 0.82),
    "sums of both signs": (plan_of(SIGNED), 0.8),
    "means and spreads": (plan_of(COUNT, MEAN, SPREAD), 0.6),
    "one slot of a cell": (plan_of(max_rows_per_group=1), 0.4),
    "one slot of a cell, in the table of one key": (
        plan_of(max_rows_per_group=1, grouping_sets=((1,),)),
        0.75,
    ),
    "two cells": (plan_of(max_groups_contributed=2, max_rows_per_group=1), 0.5),
}


@pytest.mark.parametrize("name", PLANS)
def test_no_unit_is_beyond_its_charge(name: str) -> None:
    plan, least = PLANS[name]
    assert least < worst(plan, TOGETHER, BY_TURNS) <= 1 + 1e-9


def with_sigmas(plan: MarginalsPlan, factors: list[float]) -> MarginalsPlan:
    """Less noise for each table by a factor."""
    sums_ = tuple(
        dataclasses.replace(
            each, sigmas=tuple(s * f for s, f in zip(each.sigmas, factors, strict=True))
        )
        for each in plan.sums
    )
    return dataclasses.replace(plan, sums=sums_)


def test_a_slot_that_is_charged_in_one_table_only_is_found() -> None:
    """It is in one of every table."""
    plan = PLANS["counts"][0]
    assert worst(sensitivity_of_one_table(plan), TOGETHER) > 2


def test_a_cell_of_few_keys_with_the_slots_of_a_cell_of_all_keys_is_found() -> None:
    """Of two cells with c = 1 that are one cell of a table each has a row at the same time."""
    plan = plan_of(max_rows_per_group=1, grouping_sets=((1,),))
    assert worst(with_sigmas(plan, [math.sqrt(1 / 2)]), BY_TURNS) > 1.5


def test_rows_that_end_at_the_price_of_rows_that_stay_are_found() -> None:
    plan = PLANS["counts"][0]
    assert worst(with_sigmas(plan, [math.sqrt(1 / 2)] * len(plan.tables)), TOGETHER) > 1.5


def test_allowances_that_renew_cost_as_many_periods_do() -> None:
    """What several periods of a unit move meets in the cells, and nothing of a closed one is kept without a row."""
    period = 24 * HOUR
    plan = plan_of(max_rows_contributed=1, period_us=period)
    cost = account(plan, source())
    assert cost.overlap is Overlap.TOGETHER and cost.periods(4).mu2 == 16 * cost.mu2
    assert dict(cost.failures)[4] == pytest.approx(4 * cost.failure)
    rows = [(1 + 24 * k, LAST, (0, 0), 0.0) for k in range(4)]
    found, _, _ = follow(plan, cut(lives(rows), 8))
    assert 0.5 < squared(plan, found) / (16 * cost.mu2) <= 1
    short = lives([(1 + 24 * k, 13 + 24 * k, (k % 2, 0), 0.0) for k in range(60)])
    batches = [([i], Clock(i.ts, LATEST)) for i in short]
    _, state, dropped = follow(plan, batches)
    assert not dropped and state["live"].num_rows == 0 and state["presences"].num_rows <= 1


def test_a_row_that_has_left_the_domains_comes_back() -> None:
    """It does not count while its value is in no domain, and a message that comes again brings it back no sooner."""
    plan = plan_of(max_rows_contributed=9)
    begun = image(1, 1, 1, (0, 0))
    left = [image(-2, 1, 2, (0, 0)), image(2, 1, 2, (9, 9))]
    back = [image(-2, 1, 4, (9, 9)), image(2, 1, 4, (1, 1))]
    moved = [[begun], left, [begun], back]
    found, state, dropped = follow(plan, [(some, Clock(latest_us=LATEST)) for some in moved])
    assert dropped == {OUTSIDE: 1, "replayed": 1} and state["live"].num_rows == 1
    total = plan.marginals.first[plan.marginals.tables.index((0, 1))]
    of_all_keys = {cell: row for cell, row in found.items() if cell[1] >= total}
    there = int(np.ravel_multi_index((1, 1), SIZES))
    assert of_all_keys == {(1, total): [1], (2, total): [-1], (4, total + there): [1]}
