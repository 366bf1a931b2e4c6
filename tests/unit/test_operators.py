"""Plan to parameters: every number arrives, and no budget or secret does."""

import dataclasses
import math
import pickle
import re

import pytest

from dpsql.mechanisms.histogram.asked import ReleaseRule
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.mechanisms.histogram.stages import bounding_parameters, grid, release_parameters, stderr
from dpsql.parsed_query import Aggregate, AggregateFunction, ContributionPeriod, CounterName, WindowSpec, changed
from dpsql.udfs.contributions import Increment
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.noise.counters import Honaker
from tests.property.plans import COUNT, DAY, HOUR, SUM, USERS, VALID, query, source

AVG = Aggregate("mean", AggregateFunction.AVG, "pages", (10.0, 60.0))
PUBLIC = PublicGroups((5, 3), (b"5", b"3"), 0)


def test_the_bounding_parameters_are_the_plans() -> None:
    """C, c and G are three different numbers here. Catches: two of them swapped."""
    bounds = {"max_rows_contributed": 9, "max_rows_per_group": 4, "max_groups_contributed": 5}
    q = query(**bounds, allowed_lateness_us=HOUR, aggregates=(COUNT, VALID, USERS, SUM, AVG))
    plan = make_plan(q, source())
    p = bounding_parameters(plan)
    assert (p.max_rows, p.max_rows_per_group, p.max_groups, p.renews) == (9, 4, 5, True)
    assert p.weights == plan.selection.weights
    assert len(p.weights) == p.max_group_copies == 5
    assert (p.grid.horizon, p.grid.window_us, p.grid.slide_us, p.grid.trigger_us) == (25, DAY, DAY, HOUR)
    assert [i.rule for i in p.increments] == ["rows", "valid", "users", "sum", "sum", "valid"]
    assert p.increments[3] == Increment("sum", 0, 2.0**-15, 0, 60 * 2**15, 0.0)
    assert p.increments[4] == Increment("sum", 1, 2.0**-15, -25 * 2**15, 25 * 2**15, 35.0)
    assert (p.by_user, p.public_keys, p.first_window_us) == (False, None, None)
    stream = make_plan(dataclasses.replace(q, contribution_period=ContributionPeriod.STREAM), source())
    assert bounding_parameters(stream).renews is False
    assert bounding_parameters(make_plan(changed(q, release=ReleaseRule.RESELECT), source())).by_user


def test_the_release_parameters_are_the_plans() -> None:
    """Catches: the sigma of one column given to another, the mechanism of selection given to a column."""
    plan = make_plan(
        query(aggregates=(COUNT, SUM, AVG), min_privacy_units_per_group=3, counter=CounterName.HONAKER, release=ReleaseRule.RESELECT),
        source(),
    )
    p = release_parameters(plan)
    assert p.selection is not None
    assert (p.selection.sigma, p.selection.thresholds) == (plan.selection.sigma, plan.selection.thresholds)
    assert (p.selection.min_users, p.selection.rounds) == (3, True)
    assert p.selection.counter == Honaker(24)
    assert [(q.mechanism, q.sigma, q.grid, q.counter) for q in p.perturbations] == [
        (x.mechanism, x.sigma, x.grid, Honaker(24)) for x in plan.perturbations
    ]
    assert len({q.mechanism for q in p.perturbations} | {0}) == 5
    assert [c.kind for c in p.columns] == ["count", "sum", "avg"]
    assert [c.perturbations for c in p.columns] == [(0,), (1,), (2, 3)]
    assert (p.columns[2].bounds, p.columns[2].centre) == ((10.0, 60.0), 35.0)
    assert grid(plan) == p.grid


def test_public_groups_replace_selection() -> None:
    plan = make_plan(query(public_groups="SELECT page FROM pages", window=WindowSpec(DAY, DAY, HOUR)), source())
    p = release_parameters(plan, PUBLIC)
    assert (p.selection, p.public, p.grid.offset_us) == (None, PUBLIC, HOUR)
    assert bounding_parameters(plan, PUBLIC).public_keys == (3, 5)
    assert bounding_parameters(plan, PUBLIC).first_window_us == 0
    with pytest.raises(ValueError, match="either key selection or public groups"):
        release_parameters(plan)
    with pytest.raises(ValueError, match="either key selection or public groups"):
        release_parameters(make_plan(query(), source()), PUBLIC)


def test_stderr_includes_the_rounding() -> None:
    """Uniform on one grid unit: variance grid^2 / 12, independent of the path."""
    count = make_plan(query(), source()).perturbations[0]
    assert stderr(count) == tuple(math.sqrt(v * v + 1 / 12) for v in count.sd)


def test_parameters_are_pickled_without_budget_or_secret() -> None:
    """Workers get numbers. Catches: the plan or the query smuggled into the pickled function."""
    plan = make_plan(query(), source())
    for p in (bounding_parameters(plan), release_parameters(plan)):
        assert pickle.loads(pickle.dumps(p)) == p
        assert b"epsilon" not in pickle.dumps(p)
        assert {*re.findall(rb"dpsql\.(\w+)", pickle.dumps(p))} == {b"udfs"}
