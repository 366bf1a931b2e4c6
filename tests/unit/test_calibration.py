"""Budget to noise: each number against its definition."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from scipy.stats import norm

from dpsql.mechanisms.histogram.accounting import gaussian_delta
from dpsql.parts.key_selection import failure_probabilities, selection_weights, thresholds
from dpsql.privacy.curve import epsilon_of, round_down, round_up, total_mu


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("groups", [1, 2, 32, 10_000])
def test_weights_are_a_unit_vector_rounded_down(groups: int, decay: float) -> None:
    """Catches: weights not normalised, rounded up (one user would add more than 1), or in the wrong order."""
    weights = selection_weights(groups, decay)
    assert len(weights) == groups
    total = sum(w * w for w in weights)
    assert total <= 2**40
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
    sd, betas = (3.0, 5.5), (1e-20, 1e-10)
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
    assert epsilon_of(mu, delta) == get_epsilon_gaussian(1 / mu, delta)


def test_seven_windows_cost_what_the_design_says() -> None:
    """epsilon 6 in one window: 17.4 over 7 windows taken together, not 42 (delta times as many)."""
    mu = total_mu(6, 1e-9)
    assert epsilon_of(mu * math.sqrt(7), 7e-9) == pytest.approx(17.4, abs=0.1)


@pytest.mark.parametrize("value", [1.0, 1 + 2.0**-52, math.pi, 1e-300, 1e300, 2.0**24 + 1, 0.0, -math.pi])
def test_rounding_goes_one_way_and_leaves_few_digits(value: float) -> None:
    """Catches: a sigma rounded down, a mu rounded up, digits that another machine would have otherwise."""
    up, down = round_up(value, 24), round_down(value, 20)
    assert down <= value <= up
    assert up - value <= abs(value) * 2.0**-23
    assert value - down <= abs(value) * 2.0**-19
    assert math.ldexp(math.frexp(up)[0], 24).is_integer()
    assert math.ldexp(math.frexp(down)[0], 20).is_integer()
