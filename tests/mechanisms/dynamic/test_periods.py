"""Allowances that renew where rows end: what one period of a unit moves, what several do, how they fail, and that nothing of a closed one is kept."""

import dataclasses
import math
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from dpsql.errors import AccountingError
from dpsql.mechanisms.dynamic.accounting import account
from dpsql.mechanisms.dynamic.planner import make_plan
from dpsql.privacy.cost import Cost, Overlap
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.stage import Clock
from dpsql.udfs.table_grid import Periods, TableGrid
from tests.mechanisms.dynamic.feed_reference import Image, Sums
from tests.mechanisms.dynamic.plans import FEED, query, source
from tests.mechanisms.dynamic.test_changes import Batches, gram, parameters, run, shift
from tests.property.plans import COUNT, HOUR, SUM, USERS
from tests.sweeps import sweep

LATEST = 10**6
PERIOD = 24
PERIODS_OF_A_DAY = {"feed": FEED, "aggregates": (COUNT, SUM), "period_us": 24 * HOUR}


def row_from(begin: int, end: int | None, number: int, key: int = 1) -> list[Image]:
    """A row of unit 1 that is there from one trigger to another: event times are one less."""
    image = Image(1, number, 2 * number, 1, begin - 1, key, (1, 1, 12))
    last = [] if end is None else [image._replace(seq=2 * number + 1, kind=-1, ts=end - 1)]
    return [image, *last]


def taken(some: list[Image], size: int, late: bool) -> Batches:
    """Micro-batches in order of time; where images come late, each three triggers after the clock has passed it."""
    ordered = sorted(some, key=lambda image: (image.ts, image.kind))
    delay = 3 if late else 0
    cuts = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    return [(cut, Clock(min(image.ts for image in cut) + delay, LATEST)) for cut in cuts]


def difference(one: Sums, other: Sums) -> Sums:
    """What one has more than the other."""
    return {
        cell: [a - b for a, b in zip(one.get(cell, [0] * 5), other.get(cell, [0] * 5), strict=True)]
        for cell in one.keys() | other.keys()
    }


@pytest.mark.parametrize("c", [1, 2])
def test_no_period_of_a_unit_is_beyond_the_bound(c: int) -> None:
    """Feeds of long and short rows, with and without the rows that one period begins: C versions of it at most, c at a time, whatever other periods do.
    Catches: slots, or presence, of a unit and not of its period; rows of a period that fill another one's allowance."""
    matrix = gram(5 * PERIOD)
    f2 = matrix[0, 0]
    chance = random.Random(5 + c)
    largest = 0.0
    p = parameters(
        max_rows=4,
        max_rows_per_group=c,
        max_groups=2,
        grid=TableGrid.from_start(0, 1),
        periods=Periods(PERIOD),
    )
    for _ in range(sweep(8, 80)):
        rows = []
        for number in range(24):
            begin = chance.randrange(1, 4 * PERIOD)
            end = begin + chance.choice([1, 2, 30, 5 * PERIOD])
            rows.append(row_from(begin, end if end < 5 * PERIOD else None, number, 1 + number % 2))
        with_all, _, _ = run(taken([i for row in rows for i in row], 7, late=False), p)
        for period in range(4):
            others = [row for row in rows if row[0].ts // PERIOD != period]
            without, _, _ = run(taken([i for row in others for i in row], 7, late=False), p)
            found = difference(with_all, without)
            for which, bound in (
                (2, 2 * c * p.max_rows * f2),
                (0, 2 * sum(w * w for w in p.weights) * f2),
            ):
                assert shift(found, which, matrix) <= bound * (1 + 1e-9), which
            largest = max(largest, shift(found, 2, matrix) / (2 * c * p.max_rows * f2))
    assert largest > 0.3, "the search comes nowhere near the bound"


def test_several_periods_cost_what_is_charged_and_nearly_attain_it() -> None:
    """One row begun in each of n periods, all deleted at one trigger: through the real step, against n^2. Catches: n periods charged n times mu^2."""
    cost = account(make_plan(query(**PERIODS_OF_A_DAY), source()), source())
    assert cost.overlap is Overlap.TOGETHER
    p = parameters(
        max_rows=1,
        max_rows_per_group=1,
        max_groups=1,
        grid=TableGrid.from_start(0, 1),
        periods=Periods(PERIOD),
    )
    size = 3000
    matrix = gram(size)
    for n, least in ((1, 0.82), (2, 0.65), (4, 0.56), (12, 0.48)):
        rows = [row_from(PERIOD * k + PERIOD, size - 1, k) for k in range(n)]
        found, _, drops = run(taken([i for row in rows for i in row], 1, late=False), p)
        attained = shift(found, 2, matrix) / (2 * matrix[0, 0])
        charged = cost.periods(n).mu2 / cost.mu2
        assert least * charged < attained < charged * (1 + 1e-9), (n, attained, charged)
        assert not drops


@pytest.mark.parametrize("late", [False, True])
def test_a_late_begin_is_in_the_period_in_which_it_comes(late: bool) -> None:
    """C = 1: ten begins that all say a time of the first period, one a period. Catches: an allowance of closed periods that nothing remembers, or that is the
    event time's."""
    p = parameters(max_rows=1, grid=TableGrid.from_start(0, 1), periods=Periods(PERIOD))
    batches: Batches = []
    for number in range(10):
        ts = 3 if late else number * PERIOD + 3
        image = Image(1, number, number, 1, ts, 1, (1, 1, 5))
        again = image._replace(row=100 + number)
        batches.append(([image, again], Clock(number * PERIOD + 2, LATEST)))
    found, _, drops = run(batches, p)
    assert {trigger for (trigger, _), row in found.items() if row[2] == 1} == {
        number * PERIOD + (4 if not late or number == 0 else 3) for number in range(10)
    }
    assert drops == {"over_max_rows": 10}


@pytest.mark.parametrize("epsilon", [0.5, 6.0])
def test_several_periods_fail_as_often_as_is_charged(epsilon: float) -> None:
    """Against the sum over the first triggers by definition: a group with what a unit begins in n periods alone. Catches: the failure of one period taken
    n times."""
    plan = make_plan(query(**PERIODS_OF_A_DAY, epsilon=epsilon), source())
    cost = account(plan, source())
    selection = plan.selection
    assert selection is not None
    steps = np.arange(1, 200)
    block = np.searchsorted(selection.first, steps, side="right") - 1
    deviation = np.array([math.sqrt(BltInf().path_variance(int(step))) for step in steps])
    counts = [n for n, _ in cost.failures]
    assert counts[:4] == [2, 3, 4, 6]
    for n, failure in cost.failures:
        weight = np.array(selection.thresholds)[block] - n * selection.weights[0]
        below = ndtr(-weight / 2**20 / (selection.sigma * deviation))
        known = n * plan.max_groups * math.fsum(below)
        assert known <= failure * (1 + 1e-9), n
        assert failure <= 10 * known + 1e-9, n
    assert cost.periods(5).failure == dict(cost.failures)[6]
    assert cost.periods(counts[-1] * 2).failure == 1.0


def test_state_is_of_live_rows_and_open_periods() -> None:
    """A unit that begins and ends rows for a hundred periods. Catches: presences and slots of closed periods that stay, or that go while a row lives."""
    p = parameters(
        max_rows=3,
        max_rows_per_group=1,
        max_groups=3,
        grid=TableGrid.from_start(0, 1),
        periods=Periods(5),
        ended_rows_kept_us=4,
    )
    some = row_from(1, None, 10**6, key=3)
    for number in range(200):
        some += row_from(3 * number + 1, 3 * number + 4, number, key=1 + number % 2)
    found, state, _ = run(taken(some, 4, late=False), p)
    assert state is not None
    assert state["presences"].num_rows <= 4
    assert state["slots"].num_rows <= 3
    assert (1, 0, 3) in set(
        zip(
            *(state["presences"][name].to_pylist() for name in ("user", "period", "key")),
            strict=True,
        )
    )
    there = defaultdict(int)
    for (_, key), row in found.items():
        there[key] += row[2]
    assert there[3] == 1 and sum(there.values()) <= 2


@pytest.mark.parametrize(
    "changes",
    [{"aggregates": (COUNT, USERS)}, {"min_privacy_units_per_group": 2}],
    ids=["a count of units", "two units"],
)
def test_what_is_no_sum_over_periods_is_refused(changes: dict[str, Any]) -> None:
    """By the accountant, whatever the parser let pass."""
    asked = query(**PERIODS_OF_A_DAY | changes)
    with pytest.raises(AccountingError, match="need contribution_period = STREAM"):
        account(make_plan(asked, source()), source())


def test_a_first_period_that_began_before_the_run() -> None:
    """Periods are on the grid of 1970-01-01, moved to the triggers'. Catches: a first period as long as the others, or another one in the ledger."""
    start = source().start_us
    assert start is not None
    asked = query(**PERIODS_OF_A_DAY | {"period_us": 30 * 24 * HOUR})
    plan = make_plan(asked, source(start_us=start + 7))
    length, offset = plan.period or (0, 0)
    assert (length, offset) == (30 * 24 * HOUR, 7)
    triggers = np.arange(1, 2000)
    begins = plan.start_us + (triggers - 1) * HOUR
    expected = (begins - offset) // length - (plan.start_us - offset) // length
    assert plan.periods.numbers(triggers).tolist() == expected.tolist()


def test_a_cost_with_other_periods_is_none() -> None:
    """Catches: a ledger's line that says that more periods fail less."""
    cost = account(make_plan(query(**PERIODS_OF_A_DAY), source()), source())
    for failures in (((2, cost.failure / 2),), ((3, 0.1), (2, 0.2)), ((2, 0.2), (3, 0.1))):
        with pytest.raises(ValueError):
            dataclasses.replace(cost, failures=failures)
    with pytest.raises(ValueError):
        dataclasses.replace(cost, overlap=Overlap.STREAM)
    assert isinstance(cost.periods(2), Cost)
