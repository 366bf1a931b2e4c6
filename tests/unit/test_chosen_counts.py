"""Counts that chose their own key: what is said of them holds whatever the count is, by exact integrals."""

import numpy as np
import pytest
from scipy.stats import norm

from dpsql.udfs.histogram.chosen_counts import Excess, interval_of

STEPS = np.linspace(-9, 9, 20_001)
"""Errors of the count, in its deviations."""
FINE = 2**20


def coverage(distance: float, sd: float) -> float:
    """The share of keys whose true count is inside, of those with a count so many deviations over the least that passes.

    Given what is independent of the noisy count, its key passes where the count is at least V, and d = (count - V) / sd.
    """
    true = round(100 * sd)
    passed = -distance <= STEPS
    sums = np.rint((true + STEPS[passed] * sd) * FINE).astype(np.int64)
    surplus = (STEPS[passed] + distance) * sd
    excess = Excess(np.zeros(passed.sum(), np.int64), surplus, sd, 1)
    middle, stderr = interval_of(sums, sd, excess)
    inside = np.abs(middle - true) <= 1.959963984540054 * stderr * (1 + 1e-9)
    mass = norm.pdf(STEPS[passed])
    return float(mass[inside].sum() / mass.sum())


def test_the_truth_is_inside_as_often_as_said() -> None:
    """Catches: intervals of a key near its threshold that know nothing of its having passed, or too little."""
    found = [coverage(distance, 1000.0) for distance in np.arange(-8, 6.05, 0.05)]
    assert min(found) >= 0.9495 and max(found) <= 0.976


@pytest.mark.parametrize("sd", [0.9, 1.04, 1.5, 3.2])
def test_whole_numbers_are_inside_as_often_where_noise_is_small(sd: float) -> None:
    """Of keys that luck has lifted, which are all near their threshold. Catches: ends of a count that was rounded first."""
    assert min(coverage(distance, sd) for distance in np.arange(-8, -0.5, 0.05)) >= 0.9495


def test_an_interval_that_ignores_the_threshold_is_found() -> None:
    passed = STEPS >= 1.5
    mass = norm.pdf(STEPS[passed])
    assert mass[np.abs(STEPS[passed]) <= 1.96].sum() / mass.sum() < 0.7


def test_far_from_the_threshold_a_count_is_told_as_it_is() -> None:
    """Catches: a bar that is wide where nothing is left of the choice."""
    excess = Excess(np.zeros(2, np.int64), np.array([2.1, 50.0]), 1.0, 1)
    middle, stderr = interval_of(np.array([40, 90]) << 20, 1.0, excess)
    assert middle.tolist() == [40, 90] and stderr.tolist() == [1.0, 1.0]


def test_a_key_below_its_threshold_has_the_units_that_were_counted_exactly() -> None:
    """Shown since an earlier trigger: its lower end is the least number of units, which is no secret."""
    excess = Excess(np.zeros(1, np.int64), np.array([-3.0]), 2.0, 5)
    middle, stderr = interval_of(np.array([30]) << 20, 4.0, excess)
    low, high = middle - 1.959963984540054 * stderr, middle + 1.959963984540054 * stderr
    assert low[0] <= 5 and high[0] == pytest.approx(30 + 1.96 * 4, abs=1)


def test_no_error_is_zero() -> None:
    excess = Excess(np.zeros(1, np.int64), np.array([0.01]), 2.0, 3)
    middle, stderr = interval_of(np.array([-50]) << 20, 2.0, excess)
    assert middle[0] == 4 and 0 < stderr[0] <= 1
