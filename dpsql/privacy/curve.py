"""From a budget to mu and back: the only place that asks dp-accounting. Planners use it; accountants do not (`dpsql.privacy.cost`)."""

from __future__ import annotations

import math

MU_BITS = 20
NOISE_BITS = 24
"""Significant binary digits of mu and of what shapes noise. Two machines can differ in the last of 53, so all of them would make
every machine's plan another one, with other noise; these differ once in 10^5 plans at most (mu: its search stops at 10^-12)."""


def total_mu(epsilon: float, delta: float) -> float:
    """Return the Gaussian-DP parameter of the most accurate noise that is (epsilon, delta)-private:
    1 / (sigma at sensitivity 1)."""
    # One part in 10^12 of room, so that the accountant's own evaluation of the same curve agrees in the last digits.
    from dp_accounting import (
        get_sigma_gaussian,
    )  # here, because it is slow to import, and `dpsql status` makes no plan

    return (1 - 1e-12) / float(get_sigma_gaussian(epsilon, delta))


def epsilon_of(mu: float, delta: float) -> float:
    """Return epsilon of a mu-Gaussian-DP mechanism at delta."""
    from dp_accounting import get_epsilon_gaussian  # slow to import

    return float(get_epsilon_gaussian(1 / mu, delta))


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
