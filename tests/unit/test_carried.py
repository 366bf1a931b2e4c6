"""Key selection over several windows: thresholds against their definition, and how often they fail."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from dpsql.mechanisms.histogram.carried import carried_failure, carried_plan, lengths


def test_lengths_are_powers_of_two_and_the_last() -> None:
    assert {n: lengths(n) for n in (2, 3, 4, 5, 28, 64)} == {
        2: (2,),
        3: (2, 3),
        4: (2, 4),
        5: (2, 4, 5),
        28: (2, 4, 8, 16, 28),
        64: (2, 4, 8, 16, 32, 64),
    }


def test_200_random_plans_fail_as_they_may_and_no_less() -> None:
    """Catches: beta not divided by d or by K, sums of k windows with one window's noise, and thresholds 0.1% of the noise too small."""
    pick = random.Random(15)
    for _ in range(200):
        given = (pick.randint(1, 2**20), 10 ** pick.uniform(-1, 2), pick.choice([1, 1, 3, 50]), pick.randint(1, 1000))
        delta, windows = 10 ** pick.uniform(-14, -6), pick.randint(2, 64)
        plan = carried_plan(windows, *given, delta)
        found = carried_failure(plan, *given)
        assert 0.999 * delta <= found <= delta
        weight, _, least, _ = given
        small = tuple(
            tuple(k * least * weight + int((tau - k * least * weight) * 0.999) for k, tau in enumerate(taus, 1)) for taus in plan.thresholds
        )
        assert carried_failure(dataclasses.replace(plan, thresholds=small), *given) > delta


@pytest.mark.parametrize(("alone", "weight"), [(1, 0.01), (1, 1.0), (2, 1.0), (4, 1.0), (8, 1.0)])
def test_a_unit_alone_in_n_windows_is_found_no_oftener_than_n_times(alone: int, weight: float) -> None:
    """Failures made frequent, by simulation of the tests alone. Catches: thresholds that start from w_1, as if u were in one window of a range."""
    delta, windows, paths = 0.02, 8, 200_000
    plan = carried_plan(windows, int(weight * 2**20), 1.0, 1, 1, delta)
    q = np.random.default_rng(alone).standard_normal((paths, alone + 2 * windows))
    q[:, windows : windows + alone] += weight
    q = np.concatenate([np.zeros((paths, 1)), np.cumsum(q, axis=1)], axis=1)
    known, wrong = np.zeros(paths, bool), np.zeros(paths, bool)
    for v in range(windows + 1, q.shape[1]):  # v windows have closed; u is in some of the windows + 1 .. windows + alone
        for d, taus in zip(plan.lengths, plan.thresholds, strict=True):
            if v - d < windows + alone:  # m = 1: some window of the range has the unit
                sums = q[:, v] - q[:, v - d]
                known |= sums >= taus[-1] / 2**20
                wrong |= sums >= taus[-1] / 2**20 - (d - 1) * weight
    promised = alone * delta
    assert known.mean() <= promised
    if weight < 0.1:
        assert known.mean() >= 0.4 * promised
    if alone == 8:
        assert wrong.mean() > 1.2 * promised
