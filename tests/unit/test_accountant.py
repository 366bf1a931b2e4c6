"""Budget to noise, each number against its definition; and the accountant against an outside library, the planner, and planted mistakes."""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian, get_sigma_gaussian
from scipy.stats import norm

from dpsql.errors import AccountingError, ConfigError
from dpsql.mechanisms.histogram.accounting import check, cost, gaussian_delta, recompute
from dpsql.mechanisms.histogram.plan import PerturbationPlan, PrivacyPlan, ReleaseRule
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.parsed_query import (
    Aggregate,
    AggregateFunction,
    ContributionPeriod,
    CounterName,
    WindowSpec,
    changed,
)
from dpsql.parts.key_selection import failure_probabilities, selection_weights, thresholds
from dpsql.privacy.cost import Overlap
from dpsql.privacy.curve import epsilon_of, round_down, round_up, total_mu
from dpsql.privacy.noise_costs import factorisation
from dpsql.sources.config import DEFAULT_MAX_KEYS, DEFAULT_MAX_USERS, Source
from dpsql.udfs.noise.counters import counter
from tests.property.noise_paths import noise_matrix
from tests.property.plans import (
    CAPPED,
    COUNT,
    DAY,
    FEW,
    HOUR,
    LINE,
    LINK,
    SUM,
    USERS,
    VALID,
    query,
    source,
)

AVG = Aggregate("mean", AggregateFunction.AVG, "seconds", (-5.0, 60.0))
STDDEV = Aggregate("spread", AggregateFunction.STDDEV_SAMP, "seconds", (-5.0, 60.0))
Change = Callable[[PrivacyPlan], PrivacyPlan]


@pytest.mark.parametrize("mu", [0.01, 0.1, 0.5, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 1.0, 6.0, 20.0])
def test_gaussian_delta_is_that_of_dp_accounting(mu: float, epsilon: float) -> None:
    """Catches: a sign, a factor 2, digits lost where delta is tiny."""
    delta = gaussian_delta(mu, epsilon)
    assert 0 <= delta <= 1
    if 1e-250 < delta < 0.5 and epsilon > 0:
        assert float(get_epsilon_gaussian(1 / mu, delta)) == pytest.approx(
            epsilon, rel=1e-6, abs=1e-9
        )
        assert float(get_sigma_gaussian(epsilon, delta)) == pytest.approx(1 / mu, rel=1e-6)
    assert gaussian_delta(0.0, epsilon) == 0.0


def random_plan(pick: random.Random, stream: Source) -> PrivacyPlan:
    rows = pick.choice([1, 2, 5, 32, 100])
    trigger = pick.choice([DAY, 6 * HOUR, HOUR, HOUR // 4])
    slide = pick.choice([d for d in (DAY, DAY, 12 * HOUR, 10 * HOUR) if d % trigger == 0])
    asked: dict[str, Any] = {
        "epsilon": 10 ** pick.uniform(-2, 1.3),
        "delta": 10 ** pick.uniform(-8, -5.1),
        "max_rows_contributed": rows,
    }
    asked |= {
        "max_rows_per_group": pick.randint(1, rows),
        "max_groups_contributed": pick.randint(1, rows),
    }
    asked |= {
        "contribution_period": pick.choice([ContributionPeriod.WINDOW, ContributionPeriod.STREAM]),
        "window": WindowSpec(DAY, slide, 0),
    }
    asked |= {"trigger_interval_us": trigger, "allowed_lateness_us": pick.choice([0, HOUR])}
    asked |= {"min_privacy_units_per_group": pick.choice([1, 1, 7])}
    asked |= {"public_groups": pick.choice([None] * 3 + ["SELECT page FROM pages"])}
    share = pick.choice([None, 0.3])
    decay = pick.choice([0.0, 0.5, 1.0])
    asked |= dict(
        release=pick.choice(list(ReleaseRule)),
        counter=pick.choice([CounterName.BLT, CounterName.HONAKER]),
        aggregates=tuple(
            a for a in (COUNT, VALID, USERS, SUM, AVG, STDDEV, CAPPED, FEW) if pick.random() < 0.5
        )
        + (LINE, LINK)[: rows % 4]
        or (COUNT,),
    )
    if pick.random() < 0.2:
        asked |= {"aggregates": (CAPPED, USERS), "release": ReleaseRule.EVERY_TRIGGER}
        asked |= {"max_rows_contributed": math.inf, "max_rows_per_group": math.inf}
    return make_plan(query(**asked), stream, share, decay)


def test_200_random_plans_keep_their_promise_and_waste_nothing() -> None:
    """Catches: any planner formula that is too small (refused) or too large by 0.1% (noise nobody asked for)."""
    pick = random.Random(20)
    stream = source(max_keys=1000)
    for _ in range(200):
        plan = random_plan(pick, stream)
        cost = check(plan, stream)
        assert cost.delta <= plan.query.delta
        assert plan.mu * 0.999 <= cost.mu <= plan.mu * (1 + 1e-9)
        assert (
            gaussian_delta(cost.mu, plan.query.epsilon) + cost.delta_threshold + cost.delta_hash
            <= plan.query.delta
        )


def test_the_cost_of_several_periods_is_that_of_theorem_4() -> None:
    """By the plan's own numbers: users once, all else twice where periods meet; thresholds with one weight more, for half of the times."""
    pick = random.Random(4)
    stream = source(max_keys=1000)
    seen = set()
    for _ in range(100):
        plan = random_plan(pick, stream)
        one = cost(plan, stream)
        seen.add(one.overlap)
        assert one.mu2 == pytest.approx(plan.mu**2, rel=2e-5) and one.mu2 <= plan.mu**2 * (1 + 1e-9)
        assert one.failure <= (plan.delta_threshold + plan.delta_hash) * (1 + 1e-9)
        if not plan.periods_meet:
            renews = plan.query.contribution_period is ContributionPeriod.WINDOW
            assert one.overlap is (Overlap.NONE if renews else Overlap.STREAM)
            continue
        users = sum((p.sensitivity / p.sigma) ** 2 for p in plan.perturbations if p.rule == "users")
        assert one.mu2_shared == pytest.approx(2 * plan.mu**2 - users, rel=2e-5)
        met = 0.0
        if plan.selection is not None:
            most = (plan.min_counted + 1) * plan.selection.weights[0]
            margins = (
                (np.array(plan.selection.thresholds) - most) / 2**20 / np.array(plan.selection.sd)
            )
            met = len(plan.selection.weights) * float(norm.sf(margins).sum()) / 2
        assert one.failure_shared == pytest.approx(
            max(met, one.failure - plan.delta_hash) + plan.delta_hash, rel=1e-6
        )
        assert plan.min_counted == 2 * plan.query.asked.min_privacy_units_per_group - 1
    assert seen == {Overlap.NONE, Overlap.WINDOWS, Overlap.STREAM}


@pytest.mark.parametrize("name", [CounterName.BLT, CounterName.HONAKER])
@pytest.mark.parametrize("horizon", [1, 2, 5, 24, 100])
def test_factorisation_is_that_of_dense_matrices(name: CounterName, horizon: int) -> None:
    """Solving B C = A densely; for the tree every node that a leaf lies under is a row of C."""
    b = noise_matrix(counter(name, horizon))
    norm_of_column, sd = factorisation(name, horizon)
    np.testing.assert_allclose(sd, np.linalg.norm(b, axis=1), rtol=1e-12)
    if name is CounterName.HONAKER:
        ends = [(s, k) for s in range(1, horizon + 1) for k in range((s & -s).bit_length())]
        c = np.array(
            [[float(s - 2**k < leaf <= s) for leaf in range(1, horizon + 1)] for s, k in ends]
        )
        np.testing.assert_allclose(b @ c, np.tril(np.ones((horizon, horizon))), rtol=0, atol=1e-12)
    else:
        c = np.linalg.solve(b, np.tril(np.ones((horizon, horizon))))
    assert norm_of_column == pytest.approx(float(np.linalg.norm(c, axis=0).max()), rel=1e-12)


@cache
def good() -> PrivacyPlan:
    return make_plan(query(max_rows_per_group=2), source())


def selection(plan: PrivacyPlan, **changes: Any) -> PrivacyPlan:
    assert plan.selection is not None
    return dataclasses.replace(plan, selection=dataclasses.replace(plan.selection, **changes))


def perturbation(plan: PrivacyPlan, column: int, **changes: Any) -> PrivacyPlan:
    old = plan.columns[column]
    new = dataclasses.replace(
        old,
        perturbations=(
            dataclasses.replace(old.perturbations[0], **changes),
            *old.perturbations[1:],
        ),
    )
    return dataclasses.replace(
        plan, columns=(*plan.columns[:column], new, *plan.columns[column + 1 :])
    )


def blt_norm(plan: PrivacyPlan) -> float:
    return factorisation(CounterName.BLT, plan.horizon)[0]


def without_union(plan: PrivacyPlan) -> PrivacyPlan:
    assert plan.selection is not None
    beta = plan.delta_threshold / plan.max_groups
    taus = [
        plan.selection.weights[0] + math.ceil(sd * float(norm.isf(beta)) * 2**20)
        for sd in plan.selection.sd
    ]
    return selection(plan, thresholds=tuple(taus))


def users_forgotten(plan: PrivacyPlan) -> PrivacyPlan:
    assert plan.selection is not None
    betas = failure_probabilities(plan.delta_threshold / plan.max_groups, plan.horizon)
    return selection(
        plan,
        thresholds=tuple(
            math.ceil(sd * float(norm.isf(b)) * 2**20)
            for sd, b in zip(plan.selection.sd, betas, strict=True)
        ),
    )


WRONG: dict[str, Change] = {
    "sensitivity without the column norm": lambda p: perturbation(
        p, 0, sigma=p.perturbations[0].sigma / blt_norm(p)
    ),
    "selection without the column norm": lambda p: selection(
        p, sigma=p.selection.sigma / blt_norm(p)
    ),
    "threshold without the union over triggers": without_union,
    "threshold without the union over groups": lambda p: selection(
        p, thresholds=tuple(t - 2**20 for t in p.selection.thresholds)
    ),
    "threshold without the user's own weight": users_forgotten,
    "weights not normalised": lambda p: selection(p, weights=(2**20,) * len(p.selection.weights)),
    "weights increase": lambda p: selection(p, weights=p.selection.weights[::-1]),
    "a weight too many": lambda p: selection(p, weights=(*p.selection.weights, 1)),
    "a negative weight": lambda p: selection(p, weights=(*p.selection.weights[:-1], -5)),
    "sigma a part in ten thousand too small": lambda p: perturbation(
        p, 2, sigma=p.perturbations[2].sigma * (1 - 1e-4)
    ),
    "sigma is zero or NaN": lambda p: perturbation(p, 0, sigma=math.nan),
    "selection sigma negative": lambda p: selection(p, sigma=-p.selection.sigma),
    "a wider clamp": lambda p: perturbation(p, 2, upper=p.perturbations[2].upper * 2),
    "a lower clamp": lambda p: perturbation(p, 2, lower=-10 * p.perturbations[2].upper),
    "a coarser grid": lambda p: perturbation(p, 2, grid=p.perturbations[2].grid * 2),
    "users' noise for rows": lambda p: perturbation(p, 1, rule="rows"),
    "the noise of another counter": lambda p: perturbation(p, 0, counter=CounterName.HONAKER),
    "no selection of unknown keys": lambda p: dataclasses.replace(p, selection=None),
    "two numbers with one noise": lambda p: perturbation(p, 1, noise_stream=1),
    "a first key that counts less than 1": lambda p: selection(
        p, weights=tuple(w // 2 for w in p.selection.weights), sigma=p.selection.sigma / 2
    ),
    "what weights leave, with less noise": lambda p: perturbation(
        p, 1, sigma=p.perturbations[1].sigma * (1 - 1e-4)
    ),
    "what weights leave, without noise": lambda p: perturbation(p, 1, sigma=0.0),
    "another epsilon": lambda p: dataclasses.replace(p, epsilon=p.epsilon * 2),
    "another delta": lambda p: dataclasses.replace(p, delta=p.delta * 2),
    "hash charge left out": lambda p: dataclasses.replace(p, delta_hash=0.0),
    "more windows than the query": lambda p: dataclasses.replace(p, windows_per_record=0),
    "C raised behind the plan's back": lambda p: dataclasses.replace(
        p, query=changed(p.query, max_rows_contributed=8)
    ),
    "c raised": lambda p: dataclasses.replace(p, query=changed(p.query, max_rows_per_group=4)),
    "mu larger than the noise": lambda p: dataclasses.replace(p, mu=p.mu / 2),
}


def test_the_untouched_plan_is_accepted() -> None:
    check(good(), source())


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_refused(name: str) -> None:
    """One planted mistake each: a planner with this bug would never release anything."""
    with pytest.raises(AccountingError):
        check(WRONG[name](good()), source())


SLIDING = query(window=WindowSpec(DAY, HOUR, 0))
UNSUITED: dict[str, Change] = {
    "people where periods meet": lambda _: on_selection(make_plan(SLIDING, source()), 1),
    "people in rounds": lambda _: on_selection(
        make_plan(query(release=ReleaseRule.RESELECT), source()), 1
    ),
    "rows over several windows": lambda _: on_selection(
        make_plan(query(carry_windows=5), source()), 0
    ),
    "a sum": lambda p: on_selection(p, 2),
}


def on_selection(plan: PrivacyPlan, i: int) -> PrivacyPlan:
    assert isinstance(plan.perturbations[i], PerturbationPlan)
    assert not plan.perturbations[i].on_selection
    return perturbation(plan, i, on_selection=True)


@pytest.mark.parametrize("name", UNSUITED)
def test_counts_unlike_the_sum_of_weights_are_refused(name: str) -> None:
    """Catches: noise of what is left of a count, where the sum that chooses keys is no part of it."""
    with pytest.raises(AccountingError, match="does not count the same"):
        check(UNSUITED[name](good()), source())


def test_rounds_cost_more_selections_than_groups() -> None:
    """RESELECT counts a unit once per round. Catches: weights and thresholds for K groups where C records can each start a round."""
    rounds = make_plan(
        query(release=ReleaseRule.RESELECT, max_rows_contributed=8, max_groups_contributed=2),
        source(),
    )
    assert rounds.selection is not None
    assert len(rounds.selection.weights) == 8
    for weights in (rounds.selection.weights[:2], (1 << 19,) * 2):
        with pytest.raises(AccountingError):
            check(selection(rounds, weights=weights), source())


# The accountant must know every mechanism it adds up; what follows breaks a step's guarantee without changing its mu.
UNKNOWN: dict[str, Change] = {
    "two columns share their noise": lambda p: perturbation(
        p, 1, noise_stream=p.perturbations[0].noise_stream
    ),
    "a column has the noise of selection": lambda p: perturbation(p, 0, noise_stream=0),
    "a count clamped to nothing on paper": lambda p: perturbation(
        p, 0, upper=0, sigma=p.perturbations[0].sigma / 10
    ),
    "a rule that nobody knows": lambda p: perturbation(p, 0, rule="median"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_step_is_refused(name: str) -> None:
    """Joint accounting holds for independent noise and for rules whose sensitivity is known, and for nothing else."""
    with pytest.raises(AccountingError):
        check(UNKNOWN[name](good()), source())


def test_the_default_declarations_allow_a_delta_of_a_billionth() -> None:
    """What people write first: 32 groups, delta = 1e-9, nothing declared of users and keys."""
    stream = source(max_users=DEFAULT_MAX_USERS, max_keys=DEFAULT_MAX_KEYS)
    plan = make_plan(
        query(
            delta=1e-9, max_rows_contributed=32, max_groups_contributed=32, max_rows_per_group=32
        ),
        stream,
    )
    assert 0.01 < plan.delta_hash / 1e-9 < 0.02 and check(plan, stream).delta <= 1e-9
    roomy = make_plan(
        query(
            delta=1e-9, max_rows_contributed=32, max_groups_contributed=32, max_rows_per_group=32
        ),
        source(max_keys=1000),
    )
    assert plan.perturbations[0].sigma < 1.005 * roomy.perturbations[0].sigma


def test_the_hash_charge_is_refused_above_a_tenth() -> None:
    """Catches: collisions of ids that are not in delta."""
    with pytest.raises(ConfigError, match=r"max_users"):
        make_plan(query(), source(max_users=10**11))
    cost = recompute(good(), source())
    assert cost.delta_hash == pytest.approx(
        (10**6 + 4 * (1 + 10**4 / 2**32) * 10**4) / 2**64, rel=1e-12
    )
    with pytest.raises(AccountingError, match="delta_hash"):
        check(good(), Source("visits", "parquet", max_users=10**9))


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("groups", [1, 2, 32, 10_000])
def test_weights_are_a_unit_vector_rounded_down(groups: int, decay: float) -> None:
    """Catches: weights not normalised, rounded up (one user would add more than 1), or in the wrong order."""
    weights = selection_weights(groups, decay)
    assert len(weights) == groups
    assert sum(w * w for w in weights) <= 2**40
    assert all(a >= b >= 0 for a, b in itertools.pairwise(weights))
    exact = np.arange(1, groups + 1) ** -decay
    exact /= np.linalg.norm(exact)
    assert np.all(np.abs(np.array(weights) / 2**20 - exact) <= 2.0**-20 + 1e-9)
    if groups == 1:
        assert weights[0] in (2**20, 2**20 - 1)


@pytest.mark.parametrize("horizon", [1, 2, 24, 10_000])
def test_failure_probabilities_add_up(horizon: int) -> None:
    """Catches: beta spent at every trigger in full (no union bound)."""
    betas = failure_probabilities(5e-10, horizon)
    assert len(betas) == horizon
    assert math.fsum(betas) == pytest.approx(5e-10, rel=1e-12)
    assert min(betas) > 0
    assert betas[-1] == max(betas)


def test_thresholds_are_the_quantile_rounded_up() -> None:
    """Catches: 1 - beta in float64 (a beta of 1e-20 would be lost), rounding down, users beyond the first left out."""
    sd = (3.0, 5.5)
    betas = (1e-20, 1e-10)
    found = thresholds((700_000, 500_000), sd, betas, 3)
    for tau, s, beta in zip(found, sd, betas, strict=True):
        exact = 3 * 700_000 + s * float(norm.isf(beta)) * 2**20
        assert exact <= tau <= exact * (1 + 2.0**-23) + 1.01
        assert float(norm.sf((tau - 3 * 700_000) / 2**20 / s)) <= beta


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 6.0, 20.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-9, 1e-14])
def test_mu_spends_the_budget_and_no_more(epsilon: float, delta: float) -> None:
    """By the accountant's own curve and by dp-accounting's inverse."""
    mu = total_mu(epsilon, delta)
    assert delta * (1 - 1e-6) <= gaussian_delta(mu, epsilon) <= delta
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)
    assert epsilon_of(mu, delta) == pytest.approx(get_epsilon_gaussian(1 / mu, delta), rel=1e-7)
    assert mu == pytest.approx(1 / get_sigma_gaussian(epsilon, delta), rel=1e-9)


@pytest.mark.parametrize(
    "value", [1.0, 1 + 2.0**-52, math.pi, 1e-300, 1e300, 2.0**24 + 1, 0.0, -math.pi]
)
def test_rounding_goes_one_way_and_leaves_few_digits(value: float) -> None:
    """Catches: a sigma rounded down, a mu rounded up, digits that another machine would have otherwise."""
    up = round_up(value, 24)
    down = round_down(value, 20)
    assert down <= value <= up
    assert up - value <= abs(value) * 2.0**-23
    assert value - down <= abs(value) * 2.0**-19
    assert math.ldexp(math.frexp(up)[0], 24).is_integer()
    assert math.ldexp(math.frexp(down)[0], 20).is_integer()
