"""Thresholds of key selection over several windows: numbers of theorem 15, from those of one window.

Not wired: no option asks for it yet. Guarantee: a test of length d whose range has k windows, in each of which at most m units count, one of them
the unit u, crosses with probability at most beta_d; with K groups of u, K d ranges of length d hold one of them, so all lengths together fail
with probability at most K * sum_d d * beta_d, which is the `delta` given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsql.privacy.curve import round_up

MOST_WINDOWS = 64


@dataclass(frozen=True, kw_only=True)
class CarriedPlan:
    """Tests over windows.

    Args:
        windows: L: how many windows, the present one included, may prove a key together.
        lengths: D: over how many windows a sum is tested.
        betas: per length, failure probability of one test.
        thresholds: per length d, tau_(d,k) for k = 1..d windows in the range; in units of 2^-20 (integers).
    """

    windows: int
    lengths: tuple[int, ...]
    betas: tuple[float, ...]
    thresholds: tuple[tuple[int, ...], ...]

    def users_needed(self, place: int, weight: int) -> int:
        """Units in each window, with this key as their first, that bring the noiseless sum of a full range to its threshold."""
        return -(-self.thresholds[place][-1] // (self.lengths[place] * weight))


def lengths(windows: int) -> tuple[int, ...]:
    """2, 4, 8, ... below L, and L."""
    return (*(2**i for i in range(1, windows.bit_length()) if 2**i < windows), windows)


def carried_plan(windows: int, weight: int, sd: float, least: int, groups: int, delta: float) -> CarriedPlan:
    """Plan the tests.

    Args:
        windows: L, 2 to 64.
        weight: w_1 in units of 2^-20.
        sd: standard deviation of the noise of one window's sum at its last trigger, in users' weight.
        least: m.
        groups: K, groups one unit can count in.
        delta: what all of them may fail.
    """
    if not 2 <= windows <= MOST_WINDOWS:
        raise ValueError(f"2 to {MOST_WINDOWS} windows, not {windows}")
    from scipy.stats import norm  # slow to import

    tested = lengths(windows)
    betas = tuple(delta / (groups * len(tested) * d) for d in tested)
    taus = []
    for d, beta in zip(tested, betas, strict=True):
        quantile = round_up(float(norm.isf(beta)) * (1 + 1e-12))
        k = np.arange(1, d + 1)
        noise = np.ceil(np.sqrt(k) * sd * quantile * (1 + 1e-12) * 2.0**20)
        taus.append(tuple(int(n) * least * weight + int(v) for n, v in zip(k, noise, strict=True)))
    return CarriedPlan(windows=windows, lengths=tested, betas=betas, thresholds=tuple(taus))


def carried_failure(carried: CarriedPlan, weight: int, sd: float, least: int, groups: int) -> float:
    """What the tests really fail with, from the thresholds themselves: the accountant's side, which takes no beta from the planner.

    Args:
        carried: the plan.
        weight, sd, least, groups: as in `carried_plan`, measured anew.
    """
    total = []
    for d, taus in zip(carried.lengths, carried.thresholds, strict=True):
        each = [_upper_tail((tau - k * least * weight) / 2.0**20 / (math.sqrt(k) * sd)) for k, tau in enumerate(taus, start=1)]
        total.append(d * max(each))
    return groups * math.fsum(total)


def _upper_tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))
