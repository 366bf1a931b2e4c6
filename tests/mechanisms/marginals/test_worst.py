"""The worst neighbour of a CUBE with spreads: what one unit's rows move, through the real intake, against what the plan is charged for."""

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pytest

from dpsql.mechanisms.marginals.plan import MarginalsPlan
from dpsql.mechanisms.marginals.planner import make_plan
from dpsql.mechanisms.marginals.stages import intake
from dpsql.parsed_query import Aggregate, CounterName
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.keys import encode
from dpsql.udfs.stage import Clock
from tests.checks.test_sensitivity import strategy
from tests.mechanisms.marginals.plans import START, numbered, query, source
from tests.mechanisms.marginals.test_plan import MEAN, SIGNED, SPREAD, sensitivity_of_one_table
from tests.property.plans import COUNT, HOUR, LINE, LINK

LAST = 3
STREAMS = 120


def plan_of(*aggregates: Aggregate, **changes: object) -> MarginalsPlan:
    given = {
        "max_rows_contributed": 2,
        "domains": (numbered(2, False), numbered(2, True)),
        "max_triggers": LAST,
    }
    return make_plan(query(**given | changes, aggregates=aggregates), source())


FEW = {"max_rows_contributed": 4, "max_rows_per_group": 2, "max_groups_contributed": 2}
PLANS = {
    "a spread": plan_of(SPREAD),
    "two values": plan_of(LINE, LINK, MEAN),
    "a mean and a count": plan_of(MEAN, COUNT),
    "all": plan_of(COUNT, SIGNED, MEAN, SPREAD),
    "c and G of one table": plan_of(SPREAD, **FEW, grouping_sets=((0, 1),)),
    "c alone, cells of two": plan_of(
        COUNT, max_rows_contributed=4, max_rows_per_group=1, grouping_sets=((0,),)
    ),
    "G alone": plan_of(COUNT, max_rows_contributed=2, max_groups_contributed=1),
    "one row": plan_of(COUNT, SPREAD, max_rows_contributed=1, privacy_unit=()),
}


def shift(plan: MarginalsPlan, records: pa.Table) -> np.ndarray:
    """What records move, in units of the noise; shape: sums, cells, steps of C."""
    stage = intake(plan)
    given = stage.step(stage.empty(), records, Clock(NO_CLOCK, 1 << 62), bytes(32)).rows
    cell = given["key"].to_numpy()
    trigger = given["trigger"].to_numpy()
    table = np.searchsorted(plan.marginals.first, cell, side="right") - 1
    moved = np.zeros((len(plan.sums), plan.marginals.first[-1], LAST))
    for i, each in enumerate(plan.sums):
        np.add.at(
            moved[i],
            (cell, trigger - 1),
            given[f"v{i}"].to_numpy() * each.grid / np.array(each.sigmas)[table],
        )
    return moved @ strategy(CounterName.BLT, LAST).T


def squared(plan: MarginalsPlan, records: pa.Table) -> float:
    """The square of what the unit of all records moves; where one row is protected, the first one among the others."""
    others = records.slice(records.num_rows if plan.query.privacy_unit else 1)
    return float(np.sum((shift(plan, records) - shift(plan, others)) ** 2))


def stream(pick: np.random.Generator, rows: int) -> pa.Table:
    """Up to six rows more than are admitted, mostly of one cell, time and value."""
    size = int(pick.integers(1, rows + 7))
    drawn = [
        np.where(pick.random(size) < 0.7, one[0], one)
        for one in (pick.integers(0, n, size) for n in (2, 2, LAST, 5))
    ]
    values = np.array([-1e9, 0.0, 30.0, 1e9, math.nan])[drawn[3]]
    keys = pa.array(
        [encode([b"%d" % a, b"%d" % b]) for a, b in zip(*drawn[:2], strict=True)], pa.binary()
    )
    columns = {
        "drop": np.zeros(size, np.int8),
        "user": np.ones(size, np.int64),
        "ts": START + drawn[2] * HOUR,
        "key": np.zeros(size, np.int64),
    }
    return pa.table(columns | {"key_bytes": keys, "a0": values, "a1": values})


def worst(plan: MarginalsPlan) -> float:
    pick = np.random.default_rng(3)
    return max(
        squared(plan, stream(pick, plan.query.asked.max_rows_contributed)) for _ in range(STREAMS)
    )


@pytest.mark.parametrize("name", PLANS)
def test_the_charge_is_reached_and_never_passed(name: str) -> None:
    """All rows in one cell at one time, as far from the centre as bounds allow: then sums, squares and counts move at once."""
    plan = PLANS[name]
    assert worst(plan) / plan.mu**2 == pytest.approx(1, abs=1e-4)


def test_bounds_of_tables_that_cannot_be_met_together_are_not_passed() -> None:
    """Of two cells that agree on one key none agrees on the other. Bounds that the intake forgets are found."""
    plan = plan_of(COUNT, **FEW)
    one = plan_of(COUNT, max_rows_per_group=1, max_groups_contributed=1)
    assert 0.5 < worst(plan) / plan.mu**2 < 1
    for given, name in ((plan, "max_rows_per_group"), (one, "max_groups_contributed")):
        asked = dataclasses.replace(given.query.asked, **{name: 4})
        assert (
            worst(dataclasses.replace(given, query=dataclasses.replace(given.query, asked=asked)))
            > 1.2 * given.mu**2
        )


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_sum_with_less_noise_is_found(at: int) -> None:
    """Catches: of the sums of a spread one that is charged as lower than it is."""
    plan = PLANS["a spread"]
    sums = [
        dataclasses.replace(
            each, sigmas=tuple(sigma / (1 + 0.1 * (i == at)) for sigma in each.sigmas)
        )
        for i, each in enumerate(plan.sums)
    ]
    assert worst(dataclasses.replace(plan, sums=tuple(sums))) > 1.05 * plan.mu**2


def test_a_row_that_is_charged_in_one_table_is_found() -> None:
    """It is in one cell of each of three."""
    assert worst(sensitivity_of_one_table(PLANS["one row"])) / PLANS[
        "one row"
    ].mu ** 2 == pytest.approx(3, abs=1e-4)
