"""From a budget to mu and back. Planners use it; accountants have an own reading of the curve (`dpsql.privacy.cost`)."""

from __future__ import annotations

import math
from collections.abc import Callable

MU_BITS = 20
NOISE_BITS = 24
"""Significant binary digits of mu and of what shapes noise. Two machines can differ in the last of 53, so all of them would make
every machine's plan another one, with other noise; these differ once in 10^5 plans at most (mu: its search stops at 10^-12)."""


LEAST_MU = 1e-12
HALVINGS = 120
"""Of an interval of any float64 they leave nothing."""


def total_mu(epsilon: float, delta: float) -> float:
    """Return the Gaussian-DP parameter of the most accurate noise that is (epsilon, delta)-private:
    1 / (sigma at sensitivity 1)."""
    # One part in 10^12 of room, so that the accountant's own evaluation of the same curve agrees in the last digits.
    log_delta = math.log(delta)
    most_mu = 2 * math.sqrt(2 * epsilon) + 80  # with delta above 1 - 10^-300
    mu = _last(LEAST_MU, most_mu, lambda mu: _log_delta(mu, epsilon) <= log_delta)
    return (1 - 1e-12) * mu


def epsilon_of(mu: float, delta: float) -> float:
    """Return epsilon of a mu-Gaussian-DP mechanism at delta."""
    log_delta = math.log(delta)
    if _log_delta(mu, 0.0) <= log_delta:
        return 0.0
    most_epsilon = mu * (mu / 2 + math.sqrt(-2 * log_delta) + 1)
    return _last(0.0, most_epsilon, lambda epsilon: _log_delta(mu, epsilon) >= log_delta)


def _log_delta(mu: float, epsilon: float) -> float:
    """Return ln(Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)).

    Source: Balle and Wang 2018 (arXiv 1805.06530), theorem 8.
    """
    from scipy.special import log_ndtr  # slow to import, and `dpsql status` makes no plan

    larger = float(log_ndtr(mu / 2 - epsilon / mu))
    smaller = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return larger + math.log(-math.expm1(smaller - larger)) if smaller < larger else -math.inf


def _last(low: float, high: float, holds: Callable[[float], bool]) -> float:
    """Return the largest number for which something holds, where it holds for all smaller ones."""
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def round_up(value: float, bits: int = NOISE_BITS) -> float:
    """Return the next number above that has so many significant binary digits; exact.

    >>> round_up(1.0), round_up(5.01, 3)
    (1.0, 6.0)
    """
    fraction, exponent = math.frexp(value)
    return math.ldexp(math.ceil(math.ldexp(fraction, bits)), exponent - bits)


def round_down(value: float, bits: int = MU_BITS) -> float:
    """Return the next number below that has so many significant binary digits; exact."""
    return -round_up(-value, bits)
