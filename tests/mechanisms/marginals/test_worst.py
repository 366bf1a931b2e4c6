"""The worst neighbour of a CUBE with spreads: what one unit's rows move, through the real intake, against what the plan is charged for."""

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pytest

from dpsql.mechanisms.marginals.plan import MarginalsPlan
from dpsql.mechanisms.marginals.planner import make_plan
from dpsql.mechanisms.marginals.stages import intake
from dpsql.parsed_query import CounterName
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.keys import encode
from dpsql.udfs.stage import Clock
from tests.checks.test_sensitivity import strategy
from tests.mechanisms.marginals.plans import START, numbered, query, source
from tests.mechanisms.marginals.test_plan import MEAN, SIGNED, SPREAD
from tests.property.plans import COUNT, HOUR

LAST, ROWS, STREAMS = 3, 2, 120
PLANS = {
    name: make_plan(
        query(aggregates=of, domains=(numbered(2, False), numbered(2, True)), max_rows_contributed=ROWS, max_triggers=LAST), source()
    )
    for name, of in {"a spread": (SPREAD,), "a mean and a count": (MEAN, COUNT), "all": (COUNT, SIGNED, MEAN, SPREAD)}.items()
}


def squared(plan: MarginalsPlan, records: pa.Table) -> float:
    """The square of the shift in units of the noise: over sums, cells and steps of C."""
    stage = intake(plan)
    given = stage.step(stage.empty(), records, Clock(NO_CLOCK, 1 << 62), bytes(32)).rows
    cell, trigger = given["key"].to_numpy(), given["trigger"].to_numpy()
    table = np.searchsorted(plan.marginals.first, cell, side="right") - 1
    c, total = strategy(CounterName.BLT, LAST), 0.0
    for i, each in enumerate(plan.sums):
        moved = np.zeros((plan.marginals.first[-1], LAST))
        np.add.at(moved, (cell, trigger - 1), given[f"v{i}"].to_numpy() * each.grid / np.array(each.sigmas)[table])
        total += float(np.sum((moved @ c.T) ** 2))
    return total


def stream(pick: np.random.Generator) -> pa.Table:
    """Up to two rows more than are admitted, mostly of one cell, time and value."""
    size = int(pick.integers(1, ROWS + 3))
    drawn = [np.where(pick.random(size) < 0.7, one[0], one) for one in (pick.integers(0, n, size) for n in (2, 2, LAST, 5))]
    values = np.array([-1e9, 0.0, 30.0, 1e9, math.nan])[drawn[3]]
    keys = pa.array([encode([b"%d" % a, b"%d" % b]) for a, b in zip(*drawn[:2], strict=True)], pa.binary())
    columns = {
        "drop": np.zeros(size, np.int8),
        "user": np.ones(size, np.int64),
        "ts": START + drawn[2] * HOUR,
        "key": np.zeros(size, np.int64),
    }
    return pa.table(columns | {"key_bytes": keys, "a0": values, "a1": values})


def worst(plan: MarginalsPlan) -> float:
    pick = np.random.default_rng(3)
    return max(squared(plan, stream(pick)) for _ in range(STREAMS))


@pytest.mark.parametrize("name", PLANS)
def test_the_charge_is_reached_and_never_passed(name: str) -> None:
    """All rows in one cell at one time, as far from the centre as bounds allow: then sums, squares and counts move at once."""
    plan = PLANS[name]
    assert worst(plan) / plan.mu**2 == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_sum_with_less_noise_is_found(at: int) -> None:
    """Catches: of the sums of a spread one that is charged as lower than it is."""
    plan = PLANS["a spread"]
    sums = [
        dataclasses.replace(each, sigmas=tuple(sigma / (1 + 0.1 * (i == at)) for sigma in each.sigmas)) for i, each in enumerate(plan.sums)
    ]
    assert worst(dataclasses.replace(plan, sums=tuple(sums))) > 1.05 * plan.mu**2
