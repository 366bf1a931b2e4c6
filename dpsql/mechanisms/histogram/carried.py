"""Thresholds of key selection over several windows: the planner's numbers for theorem 29.

A test of length d whose range has k windows, in each of which at most m units count, one of them the unit u, crosses with probability at
most beta_d; with K groups of u, K d ranges of length d hold one of them, so all lengths together fail with probability at most
K * sum_d d * beta_d, which is the `delta` given.
"""

from __future__ import annotations

import math

import numpy as np

from dpsql.mechanisms.histogram.plan import CarriedPlan
from dpsql.privacy.curve import round_up

MOST_WINDOWS = 64

KEPT_Z = 3.0
"""A known key is dropped when its sum is so many deviations below that of the weakest key that is ever selected."""

KEPT_FROM = 4
"""Over fewer windows than these no key is dropped: noise alone would do it."""


def lengths(windows: int) -> tuple[int, ...]:
    """2, 4, 8, ... below L, and L."""
    return (*(2**i for i in range(1, windows.bit_length()) if 2**i < windows), windows)


def carried_plan(
    windows: int, weight: int, sd: float, least: int, groups: int, delta: float
) -> CarriedPlan:
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
    weakest = taus[-1][-1] / windows
    kept = tuple(
        (d, math.floor(d * weakest - KEPT_Z * sd * math.sqrt(d) * 2.0**20))
        for d in tested
        if d >= KEPT_FROM or (d == windows < KEPT_FROM)
    )
    return CarriedPlan(
        windows=windows, lengths=tested, betas=betas, thresholds=tuple(taus), kept=kept
    )
