"""From a budget to noise: the only place that asks dp-accounting, and the numbers the planner chooses by default."""

from __future__ import annotations

import math

import numpy as np

THRESHOLD_DELTA_SHARE = 0.5
"""Part of delta (after the hash charge) kept for the thresholds; thresholds and noise both depend on it only through logarithms."""

LAST_TRIGGER_BETA_SHARE = 0.5
"""Part of the threshold's failure probability spent at the last trigger, where most keys appear."""

SELECTION_SHARE = 0.7
"""Default part of mu^2 for key selection: too little and few keys appear, too much and their counts are noisier."""

WEIGHT_BITS = 20

MU_BITS, NOISE_BITS = 20, 24
"""Significant binary digits of mu and of what shapes noise. Two machines can differ in the last of 53, so all of them would make
every machine's plan another one, with other noise; these differ once in 10^5 plans at most (mu: its search stops at 10^-12)."""


def total_mu(epsilon: float, delta: float) -> float:
    """Gaussian-DP parameter of the most accurate noise that is (epsilon, delta)-private: 1 / (sigma at sensitivity 1)."""
    # One part in 10^12 of room, so that the accountant's own evaluation of the same curve agrees in the last digits.
    from dp_accounting import get_sigma_gaussian  # here, because it is slow to import, and `dpsql status` makes no plan

    return (1 - 1e-12) / float(get_sigma_gaussian(epsilon, delta))


def round_up(value: float, bits: int = NOISE_BITS) -> float:
    """The next number above that has so many significant binary digits; exact.

    >>> round_up(1.0), round_up(5.01, 3)
    (1.0, 6.0)
    """
    fraction, exponent = math.frexp(value)
    return math.ldexp(math.ceil(math.ldexp(fraction, bits)), exponent - bits)


def round_down(value: float, bits: int = MU_BITS) -> float:
    """The next number below that has so many significant binary digits; exact."""
    return -round_up(-value, bits)


def selection_weights(groups: int, decay: float) -> tuple[int, ...]:
    """w_i proportional to i^-decay with sum of squares at most 1, rounded down to multiples of 2^-20; in units of 2^-20."""
    raw = np.arange(1, groups + 1, dtype=np.float64) ** -decay
    scaled = raw / math.sqrt(float(np.sum(raw**2))) * (1 - 1e-12)
    return tuple(int(v) for v in np.floor(scaled * 2.0**WEIGHT_BITS))


def failure_probabilities(total: float, horizon: int) -> tuple[float, ...]:
    """beta_1..beta_T with sum `total`: half at the last trigger, the rest shared equally."""
    if horizon == 1:
        return (total,)
    early = total * (1 - LAST_TRIGGER_BETA_SHARE) / (horizon - 1)
    return (early,) * (horizon - 1) + (total * LAST_TRIGGER_BETA_SHARE,)


def thresholds(weights: tuple[int, ...], sd: tuple[float, ...], betas: tuple[float, ...], min_users: int) -> tuple[int, ...]:
    """tau_i = min_users * w_1 + sd_i * Phi^-1(1 - beta_i), rounded up to multiples of 2^-20; in units of 2^-20."""
    distinct, which = np.unique(np.array(betas), return_inverse=True)
    from scipy.stats import norm  # slow to import

    quantiles = np.array([round_up(float(q) * (1 + 1e-12)) for q in norm.isf(distinct)])
    noise = np.array(sd) * quantiles[which] * (1 + 1e-12)
    return tuple(min_users * weights[0] + int(v) for v in np.ceil(noise * 2.0**WEIGHT_BITS))


def epsilon_of(mu: float, delta: float) -> float:
    """epsilon of a mu-Gaussian-DP mechanism at delta."""
    from dp_accounting import get_epsilon_gaussian  # slow to import

    return float(get_epsilon_gaussian(1 / mu, delta))
