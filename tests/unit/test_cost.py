"""Cost: how the parts of a promise add up, over mechanisms and over contribution periods."""

import math
from dataclasses import replace

import pytest
from scipy.stats import norm

from dpsql.privacy.cost import Cost, Overlap, PrivacyLevel, gaussian_delta, total

ALONE = Cost(PrivacyLevel.USER, 0.25, 0.0, 1e-9, Overlap.NONE, 0.25, 1e-9)
SLIDING = Cost(PrivacyLevel.USER, 0.25, 0.0, 1e-9, Overlap.WINDOWS, 0.5, 7e-9)
STREAM = replace(ALONE, overlap=Overlap.STREAM)


def test_periods_that_share_no_group_cost_n_times_as_much() -> None:
    seven = ALONE.periods(7)
    assert (seven.mu2, seven.overlap) == (1.75, Overlap.SUM)
    assert seven.failure == pytest.approx(7e-9)
    assert seven.mu == math.sqrt(7) * ALONE.mu


def test_periods_that_meet_in_a_window_cost_more_from_the_second_on() -> None:
    assert (SLIDING.periods(1).mu2, SLIDING.periods(1).failure) == (0.25, 1e-9)
    assert (SLIDING.periods(2).mu2, SLIDING.periods(2).failure) == (1.0, 1.4e-8)
    assert SLIDING.periods(2).mu == 2 * SLIDING.mu
    assert SLIDING.periods(365).mu2 == pytest.approx(365 * 0.5)


def test_a_stream_has_one_period() -> None:
    assert STREAM.periods(365) == STREAM.periods(1) == replace(STREAM, overlap=Overlap.SUM)


def test_a_sum_knows_nothing_of_further_periods() -> None:
    with pytest.raises(ValueError, match="further"):
        ALONE.periods(2).periods(3)
    assert ALONE.periods(2).periods(1) == ALONE.periods(2)
    with pytest.raises(ValueError, match="0 periods"):
        ALONE.periods(0)


def test_pure_parts_add_up_by_themselves() -> None:
    pure = replace(ALONE, mu2=0.0, mu2_shared=0.0, epsilon=0.5)
    assert pure.periods(3).epsilon == 1.5
    assert pure.delta(0.4) == 1.0
    assert pure.delta(0.5) == 1e-9
    both = replace(ALONE, epsilon=0.5)
    assert both.delta(1.5) == gaussian_delta(0.5, 1.0) + 1e-9


def test_gaussian_noise_never_passes_for_pure() -> None:
    """Its delta here is about 10^-5000, which float64 rounds to 0. Catches: a cap with delta = 0 that accepts it."""
    event = replace(ALONE, protects=PrivacyLevel.EVENT, overlap=Overlap.EVENTS, mu2=1e-4, mu2_shared=1e-4, failure=0.0, failure_shared=0.0)
    assert event.delta(1.0) > 0
    assert replace(event, mu2=0.0, mu2_shared=0.0, epsilon=1.0).delta(1.0) == 0


def test_rows_do_not_add_up_as_periods() -> None:
    """Catches: a cost of one row that says it meets in windows; a cap would charge one row for all that a person has."""
    for overlap in (Overlap.WINDOWS, Overlap.NONE, Overlap.STREAM):
        with pytest.raises(ValueError, match="rows add up as EVENTS"):
            replace(ALONE, protects=PrivacyLevel.EVENT, overlap=overlap)


def test_a_floor_test_of_events_fails_more_often_for_several() -> None:
    """n events shift the noise n times as far and bring n values: Phi(Phi^-1(n a) + n mu), which is more than n times one event's failure."""
    a, mu = 1e-9, 0.5
    failure = float(norm.cdf(norm.ppf(a) + mu))
    one = Cost(PrivacyLevel.EVENT, mu**2, 0.0, failure, Overlap.EVENTS, mu**2, failure, a)
    ten = one.periods(10)
    assert (ten.mu, ten.failure) == (pytest.approx(5.0), pytest.approx(float(norm.cdf(norm.ppf(10 * a) + 10 * mu)), rel=1e-6))
    assert ten.failure > 1000 * failure
    assert one.periods(1).failure == pytest.approx(failure) and total([one, one], PrivacyLevel.EVENT).failure == pytest.approx(2 * failure)
    for wrong in ({"failure": a, "failure_shared": a}, {"floor": 0.0}, {"floor": 2 * a}, {"floor": math.nan}, {"floor": -a}):
        with pytest.raises(ValueError, match=r"cost|failure"):
            replace(one, **wrong)
    with pytest.raises(ValueError, match="by failure alone"):
        replace(ALONE, floor=a)


def test_runs_add_up_and_unlike_levels_do_not() -> None:
    together = total([ALONE.periods(2), SLIDING.periods(2), STREAM.periods(9)])
    assert together.mu2 == pytest.approx(0.5 + 1.0 + 0.25)
    assert together.failure == pytest.approx(2e-9 + 1.4e-8 + 1e-9)
    assert total([]).delta(1.0) == 0.0
    event = replace(ALONE, protects=PrivacyLevel.EVENT, overlap=Overlap.EVENTS, failure=0.0, failure_shared=0.0)
    for costs, level in (([ALONE, event], PrivacyLevel.USER), ([ALONE], PrivacyLevel.EVENT), ([event], PrivacyLevel.USER)):
        with pytest.raises(ValueError, match="not the same thing"):
            total(costs, level)
    assert total([event], PrivacyLevel.EVENT).protects is PrivacyLevel.EVENT


@pytest.mark.parametrize(
    "wrong",
    [
        {"mu2": -1.0}, {"mu2": math.inf}, {"failure": math.nan}, {"epsilon": -0.1}, {"mu2_shared": 0.6}, {"failure_shared": 2e-9},
        {"overlap": Overlap.WINDOWS, "mu2_shared": 0.2}, {"overlap": Overlap.WINDOWS, "mu2_shared": 0.6, "failure_shared": 1e-10},
        {"overlap": Overlap.STREAM, "mu2_shared": 0.5}, {"overlap": Overlap.SUM, "failure_shared": 1e-8},
    ],
)  # fmt: skip
def test_impossible_costs_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cost"):
        replace(ALONE, **wrong)
