"""Plans of sketches: the accountant passes them and little is wasted, and it finds every number that is too small."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dpsql.errors import AccountingError, ConfigError
from dpsql.explanation import Explanation
from dpsql.mechanisms.sketch.accounting import account, check, recompute
from dpsql.mechanisms.sketch.explain import explanation
from dpsql.mechanisms.sketch.plan import SketchKind, SketchLimits, Wanted, WantedPerGroup, document
from dpsql.mechanisms.sketch.planner import MEDIAN, SMALLEST, identity, make_plan
from dpsql.parsed_query import Aggregate, AggregateFunction, ContributionPeriod, WindowSpec
from dpsql.privacy.cost import Overlap, gaussian_delta
from dpsql.sources.config import Source
from tests.mechanisms.sketch.sketch_runs import COUNT, ONLY_ASKED, event, public, query
from tests.property.plans import DAY, HOUR, source

SUM = Wanted("spent", 3, "seconds", (-3.0, 9.0))
BOUNDED = WantedPerGroup("in_all", 3, "seconds", (-30.0, 90.0))
SLIDING = {"window": WindowSpec(DAY, 8 * HOUR, 0)}
UNEVEN = {"window": WindowSpec(DAY, 7 * HOUR, 0)}


def any_query(pick: np.random.Generator) -> Any:
    rows = int(pick.integers(1, 5))
    bounds = SketchLimits(rows, int(pick.integers(1, rows + 1)), int(pick.integers(1, rows + 1)))
    changes: dict[str, Any] = {
        "epsilon": float(pick.choice([0.3, 1.0, 6.0, 20.0])),
        "delta": float(pick.choice([1e-6, 1e-9])),
    }
    changes |= {"depth": int(pick.choice([3, 9, 31])), "width": int(pick.choice([64, 8192]))}
    changes |= {"wanted": (COUNT, SUM) if pick.random() < 0.4 else (COUNT,), "bounds": bounds}
    changes |= {"contribution_period": [*ContributionPeriod][int(pick.integers(2))]}
    changes |= {"trigger_interval_us": int(pick.choice([HOUR, 3 * HOUR]))}
    if pick.random() < 0.4:
        changes |= {"wanted": (COUNT, BOUNDED)} if pick.random() < 0.5 else {}
        return public(**changes, **([{}, SLIDING, UNEVEN][int(pick.integers(3))]))
    return query(**changes)


def test_200_random_plans_keep_their_promise_and_waste_nothing() -> None:
    pick = np.random.default_rng(4)
    for _ in range(200):
        plan = make_plan(any_query(pick), source())
        found = check(plan, source())
        cost = account(plan, source())
        delta = found.delta_noise + found.delta_floor + found.delta_hash
        assert 0.98 * plan.delta < delta <= plan.delta * (1 + 1e-9)
        assert found.mu > 0.9999 * plan.mu
        assert cost.delta(plan.epsilon) == pytest.approx(delta)
        assert json.loads(json.dumps(document(plan)))["mu"] == plan.mu
        assert (
            plan.identity
            == identity(plan)
            != identity(dataclasses.replace(plan, triggers=plan.triggers + 1))
        )


@pytest.mark.parametrize("asked", [query(), public(**SLIDING), event(), query(wanted=(COUNT, SUM))])
def test_every_number_that_is_a_thousandth_too_small_is_refused(asked: Any) -> None:
    plan = make_plan(asked, source())
    wrong = []
    if plan.beta is not None:
        wrong.append(dataclasses.replace(plan, beta=plan.beta * 1.001))
    if asked.asked.bounds:
        wrong.append(dataclasses.replace(plan, delta_hash=plan.delta_hash * 0.999))
    for each in wrong:
        with pytest.raises(AccountingError, match="it promises"):
            check(each, source())
    with pytest.raises(AccountingError, match="more triggers than the plan"):
        check(dataclasses.replace(plan, triggers=plan.triggers - 1), source())
    with pytest.raises(AccountingError, match="share their noise"):
        check(dataclasses.replace(plan, cells=plan.cells * 2), source())
    if plan.beta is not None:
        with pytest.raises(AccountingError, match="floor test"):
            check(dataclasses.replace(plan, beta=None), source())


def test_the_floor_is_phi_of_the_shift_and_holds_at_every_epsilon() -> None:
    """Cost.failure added to the Gaussian curve stays below the true delta of "list or not" only because of mu: a alone does not."""
    plan = make_plan(query(), source())
    found = recompute(plan, source())
    cost = account(plan, source())
    assert found.delta_floor == pytest.approx(norm.cdf(norm.ppf(found.passing) + found.mu))
    assert found.delta_floor > 2 * found.passing
    for epsilon in (0.1, 2.0, 20.0):
        assert cost.delta(epsilon) == pytest.approx(
            gaussian_delta(found.mu, epsilon) + found.delta_floor + found.delta_hash
        )


def test_with_stream_a_value_is_tested_anew_in_every_window() -> None:
    """C = c = 4, G = 1: one value in four windows is four tests, each under a hash key of its own."""
    bounds = SketchLimits(4, 4, 1)
    once, often = (
        make_plan(query(bounds=bounds, contribution_period=period), source())
        for period in (ContributionPeriod.WINDOW, ContributionPeriod.STREAM)
    )
    assert once.beta is not None and often.beta is not None
    assert once.beta / often.beta == pytest.approx(4, rel=1e-5)
    wrong = dataclasses.replace(often, beta=once.beta)  # min(C, G) in the place of min(C, G c)
    with pytest.raises(AccountingError, match="delta_floor"):
        check(wrong, source())


def test_periods_and_events() -> None:
    one = account(make_plan(query(), source()), source())
    assert (one.overlap, one.periods(7).mu2, one.periods(7).failure) == (
        Overlap.NONE,
        7 * one.mu2,
        pytest.approx(7 * one.failure),
    )
    meeting = account(make_plan(public(**SLIDING), source()), source())
    assert meeting.periods(7).mu2 == pytest.approx(14 * meeting.mu2)
    stream = account(
        make_plan(query(contribution_period=ContributionPeriod.STREAM), source()), source()
    )
    assert stream.periods(7).mu2 == stream.mu2
    events = account(make_plan(public(level=event().asked.level, bounds=None), source()), source())
    assert events.periods(10).mu == pytest.approx(10 * events.mu)
    assert events.failure == 0
    unknown_plan = make_plan(event(), source())
    unknown = account(unknown_plan, source())
    a = (unknown_plan.beta or 0) * unknown_plan.triggers
    assert unknown.floor == pytest.approx(a)
    assert unknown.periods(3).failure == pytest.approx(
        float(norm.cdf(norm.ppf(3 * a) + 3 * unknown.mu))
    )
    assert unknown.delta(unknown_plan.epsilon) <= unknown_plan.delta


def test_the_one_cell_rule_saves_the_square_root_of_c() -> None:
    def cell(**changes: Any) -> float:
        return make_plan(query(trigger_interval_us=DAY // 100, **changes), source()).cells[0].sd[-1]

    assert cell(bounds=SketchLimits(16, 1, 16), width=256) / cell(
        bounds=SketchLimits(1, 1, 1)
    ) == pytest.approx(4, rel=1e-5)


def test_standard_deviations_of_medians_and_minima() -> None:
    x = np.linspace(-9, 9, 20_001)
    below = norm.cdf(x)
    above = norm.sf(x)
    weight = norm.pdf(x) * (x[1] - x[0])
    for depth in MEDIAN:
        half = depth // 2
        ways = math.factorial(depth) / math.factorial(half) ** 2
        assert (
            MEDIAN[depth] - 1.1e-5
            < math.sqrt(np.sum(x * x * ways * (below * above) ** half * weight))
            < MEDIAN[depth] + 1e-9
        )
        smallest = depth * above ** (depth - 1) * weight
        sd = math.sqrt(np.sum(x * x * smallest) - np.sum(x * smallest) ** 2)
        assert SMALLEST[depth] - 1.1e-5 < sd < SMALLEST[depth] + 1e-9


REFUSED = [
    (query(depth=4), "a sketch has 3, 5, 9, 17, 31 rows"),
    (query(width=100), "power of two"),
    (query(width=1 << 24, depth=31, trigger_interval_us=HOUR // 60), "draws"),
    (query(wanted=(Wanted("top", 10_001),)), "10,000 values"),
    (query(bounds=SketchLimits(16, 1, 16)), "sketch_width = 256"),
    (query(**SLIDING), "slide = size, or public_groups"),
    (query(kind=SketchKind.COUNT_MIN), "told from others: public_groups"),
    (public(kind=SketchKind.COUNT_MIN, wanted=(SUM,)), "negative"),
    (query(delta=0.0, bounds=None, level=event().asked.level, wanted=(ONLY_ASKED,)), "above 0"),
    (query(bounds=None), "takes no bounds"),
    (query(delta=1e-14), "64-bit ids"),
]


@pytest.mark.parametrize(("asked", "said"), REFUSED)
def test_what_the_planner_refuses(asked: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_plan(asked, source())


def explained(asked: Any, declared: Source) -> Explanation:
    aggregates = [
        Aggregate(each.alias, AggregateFunction.APPROX_TOP_COUNT) for each in asked.asked.wanted
    ]
    asked = dataclasses.replace(asked, aggregates=tuple(aggregates))
    return explanation(make_plan(asked, declared), declared)


def said(asked: Any, declared: Source) -> str:
    return " ".join(explained(asked, declared).text().split())


def test_explanation_of_a_sketch() -> None:
    """Catches: the advice to use a histogram where a sketch is smaller, a cell's error told as an estimate's."""
    text = said(query(), source(max_keys=100))
    assert "everything that one user_id does in 1 day" in text
    assert "GROUP BY is smaller" in text
    assert "published when it closes" in text
    for max_keys, wanted, advised in (
        (159, (COUNT,), True),
        (160, (COUNT,), False),
        (160, (COUNT, SUM), False),
        (159, (COUNT, SUM), True),
    ):
        declared = source(max_keys=max_keys)  # 5 x 64 cells, whatever the number of sketches
        assert ("GROUP BY" in said(query(wanted=wanted), declared)) == advised
    text = said(event(wanted=(ONLY_ASKED,), privacy_unit=()), source())
    assert "in 10 events" in text and "not one person" in text
    assert "GROUP BY" not in text
    large = query(depth=9, width=8192, bounds=SketchLimits(16, 1, 16), trigger_interval_us=HOUR)
    error = explained(large, source()).columns[0].last
    assert error.stderr == pytest.approx(22.8, abs=0.3)  # the page's figure
    assert "leaves out up to 0.0915% of a unit's values" in said(large, source())
