"""What explanations and ledger lines say of n contribution periods, against the worst unit that a search finds on the real steps.
`benchmarks/checks.py` searches more plans."""

import dataclasses
import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from dpsql.errors import AccountingError
from dpsql.mechanisms.histogram import accounting
from dpsql.mechanisms.histogram.accounting import check, cost
from dpsql.mechanisms.histogram.explain import explanation
from dpsql.mechanisms.histogram.plan import PrivacyPlan, ReleaseRule
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.mechanisms.histogram.stages import bounding_parameters, release_parameters
from dpsql.parsed_query import (
    Aggregate,
    AggregateFunction,
    ContributionPeriod,
    CounterName,
    PerGroup,
    WindowSpec,
)
from dpsql.udfs.histogram.release import release
from dpsql.udfs.intake.contribution_bounding import BoundingParameters
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.measure import quantiles
from dpsql.udfs.stage import Tick
from dpsql.udfs.table.leaves import QuantileTree
from tests.checks.several_periods import admitted, candidates, search
from tests.mechanisms.histogram.contract_cases import QUARTILES
from tests.property.plans import CAPPED, COUNT, FEW, USERS, query, source
from tests.sweeps import sweep

SIZE = 1200
PLANS = 50
SUM = Aggregate("total", AggregateFunction.SUM, "x", (-3.0, 2.0))
AVG = Aggregate("mean", AggregateFunction.AVG, "x", (-3.0, 2.0))
SELECTED = {"public_groups": None}
SLIDES = {
    1200: (300, 400, 600),
    600: (100, 200, 300),
    400: (100, 200),
    300: (100, 150),
    500: (100, 250),
}
AGGREGATES = (
    (COUNT,),
    (USERS,),
    (SUM,),
    (AVG,),
    (FEW, CAPPED),
    (CAPPED, USERS),
    (COUNT, USERS, SUM),
)


def random_plan(pick: random.Random) -> PrivacyPlan:
    """Tumbling and sliding windows with lateness, STREAM, rounds, public groups and no key."""
    slide = pick.choice([1200, 600, 400, 300, 500])
    rows = pick.choice([1, 2, 4])
    keys = pick.random() > 0.15
    public = keys and pick.random() < 0.25
    selects = keys and not public
    rule = (
        pick.choice([ReleaseRule.EVERY_TRIGGER, ReleaseRule.EVERY_TRIGGER, ReleaseRule.RESELECT])
        if selects
        else ReleaseRule.EVERY_TRIGGER
    )
    aggregates = pick.choice(AGGREGATES)
    held = all(isinstance(each, PerGroup) or each is USERS for each in aggregates)
    uncounted = keys and held and rule is ReleaseRule.EVERY_TRIGGER and pick.random() < 0.5
    return make_plan(
        query(
            epsilon=pick.choice([0.5, 2.0, 6.0, 10.0]),
            delta=1e-6,
            max_rows_contributed=math.inf if uncounted else rows,
            max_rows_per_group=math.inf if uncounted else pick.randint(1, rows),
            max_groups_contributed=pick.randint(1, rows) if keys else 1,
            contribution_period=pick.choice(
                [ContributionPeriod.WINDOW] * 5 + [ContributionPeriod.STREAM]
            ),
            window=WindowSpec(SIZE, slide, pick.choice([0, 70])),
            trigger_interval_us=pick.choice(SLIDES[slide]),
            allowed_lateness_us=pick.choice([0, 300, 1200]),
            min_privacy_units_per_group=pick.choice([1, 1, 3]) if selects else 1,
            public_groups="SELECT page FROM pages" if public else None,
            release=rule,
            carry_windows=4
            if selects and slide == SIZE and rule is ReleaseRule.EVERY_TRIGGER
            else 1,
            counter=pick.choice([CounterName.BLT, CounterName.HONAKER]),
            keys=query().keys if keys else (),
            aggregates=aggregates,
        ),
        source(),
        share=pick.choice([None, 0.99]),
        decay=pick.choice([0.0, 0.5, 1.0]),
    )


@cache
def plans(count: int = PLANS) -> tuple[PrivacyPlan, ...]:
    pick = random.Random(25)
    return tuple(random_plan(pick) for _ in range(count))


def stated(plan: PrivacyPlan, n: int) -> tuple[float, float]:
    """(mu, failure) of n periods, as a ledger line says and, the same, the cost in `explain --json`."""
    protects = explanation(plan, source()).protects
    line = cost(plan, source()).periods(n)
    renews = plan.query.contribution_period is ContributionPeriod.WINDOW
    assert bool(protects.totals) is renews
    shared = "_shared" if renews and n > 1 else ""
    periods = n if renews else 1
    mu = math.sqrt(periods * protects.cost[f"mu2{shared}"])
    failure = periods * protects.cost[f"failure{shared}"]
    assert (mu, failure) == pytest.approx((line.mu, line.failure))
    for total in protects.totals:
        several = cost(plan, source()).periods(total.count)
        if total.epsilon is not None:
            assert several.delta(total.epsilon) == pytest.approx(total.delta, rel=1e-3)
    return mu, failure


def hold_against_what_is_stated(plan: PrivacyPlan, seed: int) -> None:
    """The truth is at most what is stated, and not much less."""
    for n in (1, 2, 7):
        found, (mu, failure) = search(plan, n, seed), stated(plan, n)
        assert math.sqrt(found.mu2) <= mu * (1 + 1e-9)
        assert found.failure <= failure * (1 + 1e-9)
        mechanisms = len(plan.perturbations) + (plan.selection is not None)
        if n < 7:
            assert math.sqrt(found.mu2) >= mu * (0.7 if n == 1 or mechanisms == 1 else 0.55)


@pytest.mark.parametrize("number", range(sweep(7, PLANS)))
def test_the_worst_unit_of_n_periods_costs_what_is_stated(number: int) -> None:
    hold_against_what_is_stated(plans()[number], number)


def test_the_plans_are_of_every_kind() -> None:
    sliding = [plan for plan in plans() if plan.periods_meet]
    kinds: list[Callable[[PrivacyPlan], bool]] = [
        lambda plan: plan.query.asked.release is ReleaseRule.RESELECT,
        lambda plan: plan.query.public_groups is not None,
        lambda plan: not plan.query.keys,
        lambda plan: plan.query.asked.min_privacy_units_per_group > 1,
        lambda plan: plan.query.allowed_lateness_us > 0,
        lambda plan: any(part.rule == "users" for part in plan.perturbations),
    ]
    assert all(any(kind(plan) for plan in sliding) for kind in kinds)
    assert len({plan.query.windows.slide_us for plan in sliding}) == 4
    assert any(plan.windows_per_record == 1 for plan in plans())
    assert any(plan.query.asked.max_rows_contributed == math.inf for plan in sliding)
    assert any(plan.carries and CAPPED in plan.query.aggregates for plan in plans())
    assert any(plan.query.contribution_period is ContributionPeriod.STREAM for plan in plans())


def sliding_plan(
    share: float | None = None, decay: float | None = None, **changes: Any
) -> PrivacyPlan:
    """Windows of 1,200 that begin every 300; groups are listed unless it is changed."""
    public = {"public_groups": "SELECT page FROM pages"}
    given = {
        "window": WindowSpec(SIZE, 300, 0),
        "trigger_interval_us": 300,
        "allowed_lateness_us": SIZE,
        "max_rows_contributed": 1,
    }
    return make_plan(
        query(**({"delta": 1e-6} | given | public | {"aggregates": (COUNT,)} | changes)),
        source(),
        share,
        decay,
    )


def test_the_old_formula_for_several_periods_is_found() -> None:
    """Up to 27b5d01: mu sqrt(n), as if two periods shared no group."""
    for n in (2, 7):
        assert search(sliding_plan(), n, 0).mu2 > n * cost(sliding_plan(), source()).mu2 * 1.3


def test_the_old_formula_for_thresholds_is_found() -> None:
    """Up to 27b5d01: n times the failure of one period; but two of a unit meet in one key that nobody else has."""
    plan = sliding_plan(epsilon=10.0, **SELECTED, decay=0.0)
    assert search(plan, 1, 0).failure <= cost(plan, source()).failure
    assert search(plan, 2, 0).failure > 2 * cost(plan, source()).failure * 1.3


def test_rounds_that_know_units_but_not_periods_are_found() -> None:
    """Up to 27b5d01: without one period the other one's copies counted in its place."""
    plan = sliding_plan(
        **SELECTED, release=ReleaseRule.RESELECT, max_rows_contributed=8, max_rows_per_group=1, max_groups_contributed=8,
        decay=1.0, share=0.99,
    )  # fmt: skip
    promised = stated(plan, 1)[0]
    assert math.sqrt(search(plan, 1, 0).mu2) <= promised
    with mock.patch.object(BoundingParameters, "periods_meet", False):
        assert math.sqrt(search(plan, 1, 0).mu2) > promised * 1.02


def test_units_counted_once_per_window_need_more_noise_than_once_per_period() -> None:
    """A sensitivity of f sqrt(K) holds for units' periods; for units a 1 that goes may come back elsewhere."""
    plan = sliding_plan(aggregates=(USERS,), trigger_interval_us=100)
    smaller = cost(plan, source()).mu2 / 2
    assert search(plan, 1, 1).mu2 > smaller * 1.1
    with mock.patch.object(BoundingParameters, "periods_meet", False):
        assert search(plan, 1, 0).mu2 <= smaller * (1 + 1e-9)
        assert search(plan, 2, 0).mu2 > 2 * smaller * 1.3


def test_an_exact_test_that_counts_periods_as_units_is_found() -> None:
    """With m = 3 a key needs 5 periods of units, so that 3 units are there; thresholds that start from 3 weights fail too often."""
    plan = sliding_plan(**SELECTED, epsilon=10.0, min_privacy_units_per_group=3)
    assert plan.selection is not None
    assert release_parameters(plan).selection.min_users == 5  # type: ignore[union-attr]
    lower = tuple(tau - 2 * plan.selection.weights[0] for tau in plan.selection.thresholds)
    wrong = dataclasses.replace(
        plan, selection=dataclasses.replace(plan.selection, thresholds=lower)
    )
    assert search(plan, 1, 0).failure <= stated(plan, 1)[1]
    assert search(wrong, 1, 0).failure > stated(plan, 1)[1] * 2
    with pytest.raises(AccountingError, match="delta_threshold"):
        check(wrong, source())


FOUR: dict[str, Any] = {
    "max_rows_contributed": 4,
    "max_rows_per_group": 4,
    "max_groups_contributed": 2,
}
STREAMS = sweep(12, 24)
TENTHS = dataclasses.replace(QUARTILES, alias="tenths", parts=10)
OF_QUANTILES = {
    "periods that meet": sliding_plan(**FOUR, aggregates=(QUARTILES,)),
    "for ever": sliding_plan(
        **FOUR, aggregates=(QUARTILES, TENTHS), contribution_period=ContributionPeriod.STREAM
    ),
    "carried": sliding_plan(
        **FOUR | SELECTED,
        aggregates=(QUARTILES, TENTHS),
        carry_windows=4,
        window=WindowSpec(SIZE, SIZE, 0),
    ),
}


@pytest.mark.parametrize(
    ("name", "n"),
    [
        *(("periods that meet", n) for n in (1, 2, 3)),
        ("for ever", 1),
        ("carried", 1),
        ("carried", 3),
    ],
)
def test_quantiles_cost_no_more_than_is_stated(name: str, n: int) -> None:
    """Every level of every tree over the worst streams of n periods. Catches: one level, copy or column for all; noise that is used twice."""
    plan = OF_QUANTILES[name]
    worst = 0.0
    for made in candidates(plan, n, np.random.default_rng(5), STREAMS):
        made = dataclasses.replace(made, value=(made.stream + 0.5) * 60 / quantiles.LEAVES)
        more, less = (
            at_release(plan, admitted(of, bounding_parameters(plan)))
            for of in (made, made.without(n, name == "for ever"))
        )
        shift = np.zeros(STREAMS)
        for d in (more.get(noise, 0) - less.get(noise, 0) for noise in more.keys() | less.keys()):
            if np.any(d):  # a stream has its own groups, and its own leaf in them
                shift[np.flatnonzero(d)[0]] += d @ d
        worst = max(worst, float(shift.max()))
    selected = (
        n * accounting._selection_ratio(plan.selection, plan, accounting._times_counted(plan)) ** 2
        if plan.selection
        else 0.0
    )
    assert 0.7 < worst / (cost(plan, source()).periods(n).mu2 - selected) <= 1 + 1e-9


def at_release(plan: PrivacyPlan, given: pa.Table) -> dict[bytes, np.ndarray]:
    """What every tree counts, in units of its noise, by the noise that hides it; every group is shown with its first record."""
    p = release_parameters(plan, None if plan.selection else PublicGroups((), (), 0))
    found = dict[bytes, np.ndarray]()
    if p.selection:
        p = dataclasses.replace(
            p, selection=dataclasses.replace(p.selection, thresholds=(-(1 << 50),) * plan.horizon)
        )
    read_off = QuantileTree.read_off

    def seen(
        q: QuantileTree, leaves: np.ndarray, noise: np.ndarray, trigger: int
    ) -> dict[str, np.ndarray]:
        found.update(
            zip(
                map(np.ndarray.tobytes, noise.reshape(len(leaves), -1)),
                quantiles.nodes(leaves) / q.sigma,
                strict=True,
            )
        )
        counted.append(len(leaves))
        return read_off(q, leaves, noise, trigger)

    counted: list[int] = []
    with mock.patch.object(QuantileTree, "read_off", seen):
        rows = given.append_column("batch", pa.array(np.zeros(given.num_rows, np.int64)))
        release(
            None, rows, [Tick(0, 2 * SIZE), Tick(0, 3 * SIZE), Tick(0, 99 * SIZE)], p, bytes(32)
        )
    assert len(found) == sum(counted)
    return found
