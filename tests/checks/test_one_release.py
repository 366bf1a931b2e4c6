"""What one-time releases cost, held against the worst unit that a search finds on the real steps: whole queries, written at random."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest

from dpsql.compiled import compile_query
from dpsql.mechanisms.histogram import accounting
from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.histogram.stages import bounding_parameters
from dpsql.parsed_query import ContributionPeriod
from dpsql.privacy.cost import Cost
from dpsql.sources.config import Source, Sources
from dpsql.udfs.grid import NO_CLOCK
from tests.checks.several_periods import Streams, admitted, shifts
from tests.property.plans import DAY
from tests.sweeps import sweep

STREAMS = 60
VISITS = Source(
    "visits",
    format="parquet",
    path="visits",
    schema="user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE",
    privacy_unit=("user_id",),
    max_users=100_000,
    max_keys=100_000,
)
AGGREGATES = (
    "COUNT(*) AS n",
    "COUNT(DISTINCT user_id) AS people",
    "SUM(seconds, contribution_bounds_per_row => (-3, 2)) AS total",
    "AVG(seconds, contribution_bounds_per_row => (-3, 2)) AS mean",
    "SUM(seconds, contribution_bounds_per_group => (-3, 2)) AS capped",
    "COUNT(*, contribution_bounds_per_group => (0, 2)) AS few",
)


def random_query(pick: random.Random) -> str:
    """One-time release: limits written or not, a key or none, one to three aggregates."""
    chosen = pick.sample(AGGREGATES, pick.choice([1, 1, 2, 3]))
    key = pick.choice(["page, ", "page, ", ""])
    rows = pick.choice([1, 3, 6])
    limits = {
        "max_rows_contributed": rows,
        "max_rows_per_group": pick.randint(1, rows),
        "max_groups_contributed": pick.randint(1, rows),
        "min_privacy_units_per_group": pick.choice([1, 4]),
    }
    of_keys = ("max_groups_contributed", "min_privacy_units_per_group")
    usable = [name for name in limits if key or name not in of_keys]
    written = [name for name in usable if pick.random() < 0.5]
    if any("per_group" in each for each in chosen):  # beside them rows are counted where C is
        written = sorted({*written, "max_rows_contributed", "max_rows_per_group"})
    options = "".join(f", {name} = {limits[name]}" for name in written)
    group_by = " GROUP BY page" if key else ""
    epsilon = pick.choice([0.5, 2, 6])
    return (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {epsilon}{options}) "
        f"{key}{', '.join(chosen)} FROM visits{group_by}"
    )


def worst(plan: PrivacyPlan, seed: int, between_us: int = 0) -> tuple[float, float]:
    """The largest squared shift and chance of a lone key over units of 1 to 200 rows in one micro-batch.

    Args:
        between_us: from one row of a unit to the next; 0 in the product.
    """
    pick = np.random.default_rng(seed)
    rows = np.concatenate([[1, 2, 3, 200], pick.integers(1, 80, STREAMS - 4)])
    stream = np.repeat(np.arange(STREAMS), rows)
    place = np.concatenate([np.arange(count) for count in rows])
    keys = np.repeat(pick.choice([1, 2, 5, 16, 60], STREAMS), rows)
    key = np.where(stream % 3 == 0, pick.integers(0, keys), place % keys)
    extreme = np.where(stream % 2, -3.0, pick.choice([2.0, -3.0, 0.0], len(stream)))
    made = Streams(
        stream=stream,
        period=np.ones(len(stream), np.int64),
        ts=place % 3 * between_us,
        key=key if plan.query.keys else np.zeros(len(stream), np.int64),
        value=extreme,
        batch=np.zeros(len(stream), np.int64),
        closed=(NO_CLOCK,),
    )
    p = bounding_parameters(plan)
    world = [admitted(streams, p) for streams in (made, made.without(1, everything=True))]
    squared, failure = shifts(plan, *world, STREAMS)
    return float(squared.max()), float(failure.max())


def random_plan(number: int) -> PrivacyPlan:
    """The plan of a random query."""
    return compile_query(random_query(random.Random(number)), Sources((VISITS,))).plan


def costs_more(plan: PrivacyPlan, seed: int, said: Cost, between_us: int = 0) -> bool:
    """Whether some unit costs more than is said of one period."""
    squared, failure = worst(plan, seed, between_us)
    spent = said.periods(1)
    return math.sqrt(squared) > spent.mu * (1 + 1e-9) or failure > spent.failure * (1 + 1e-9)


@pytest.mark.parametrize("number", range(sweep(12, 300)))
def test_no_unit_costs_more_than_one_release_says(number: int) -> None:
    """Catches: a limit that holds per time or key of a unit where it should hold for all its records."""
    plan = random_plan(number)
    said = accounting.cost(plan, VISITS)
    assert not costs_more(plan, number, said)
    assert math.sqrt(worst(plan, number)[0]) >= said.periods(1).mu * 0.6


@pytest.mark.parametrize("number", range(12))
def test_limits_that_hold_per_time_are_found(number: int) -> None:
    """The steps take the event time for what it is: each day has an allowance of its own."""
    plan = random_plan(number)
    daily = dataclasses.replace(plan.query, contribution_period=ContributionPeriod.WINDOW)
    broken = dataclasses.replace(plan, query=daily)
    assert costs_more(broken, number, accounting.cost(plan, VISITS), between_us=DAY)
