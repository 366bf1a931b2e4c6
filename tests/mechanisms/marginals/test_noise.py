"""The release's noise and the error bars of answers: what is asked of the real steps over many noise keys. Chance of a false alarm: below 10^-4 each."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import kstest

from dpsql.mechanisms.marginals.plan import MarginalsPlan
from dpsql.mechanisms.marginals.planner import make_plan
from dpsql.udfs.marginals.estimates import Estimate, LeastSquares
from tests.mechanisms.marginals.dense import nothing_seen, release, split, sums
from tests.mechanisms.marginals.plans import query, source
from tests.property.plans import COUNT, SUM

KEYS = 500
LAST = 3
PREDICATE = {0: np.array([1.0, 1, 0, 0, 0]), 1: np.array([0.0, 1, 1, 0])}


def rows(seed: int, plan: MarginalsPlan) -> list[np.ndarray]:
    """Of each trigger the values of its rows."""
    pick = np.random.default_rng(seed)
    sizes = plan.marginals.sizes
    return [np.column_stack([pick.integers(0, n, 50) for n in sizes]) for _ in range(LAST)]


def noise_key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def run(plan: MarginalsPlan, given: list[np.ndarray], key: bytes) -> list[np.ndarray]:
    """The noisy tables of the last trigger."""
    noise = plan.noisy_tables(plan.sums[0])
    state = nothing_seen(noise)
    for values in given:
        state, out = release(
            state, sums(plan.marginals, values, np.ones(len(values), np.int64)), noise, key
        )
    return split(plan.marginals, out)


def answer(plan: MarginalsPlan, released: list[np.ndarray]) -> Estimate:
    """To PREDICATE, from the tables of the last trigger."""
    known = LeastSquares(
        plan.marginals.sizes, plan.marginals.tables, plan.noisy_tables(plan.sums[0]).variances(LAST)
    )
    return known.estimate(PREDICATE, released)


def truth(given: list[np.ndarray]) -> int:
    return sum(
        int(((PREDICATE[0][v[:, 0]] > 0) & (PREDICATE[1][v[:, 1]] > 0)).sum()) for v in given
    )


def z_values(plan: MarginalsPlan) -> np.ndarray:
    """Error over standard error of one predicate, a noise key each."""
    given = rows(1, plan)
    exact = truth(given)
    out = []
    for number in range(KEYS):
        found = answer(plan, run(plan, given, noise_key(number)))
        out.append((found.value - exact) / found.stderr)
    return np.array(out)


def is_standard_normal(z: np.ndarray) -> bool:
    """Kolmogorov and Smirnov at 10^-5, and the deviation within 5 of its own errors."""
    return bool(kstest(z, "norm").pvalue > 1e-5 and abs(z.std() - 1) < 5 / math.sqrt(2 * len(z)))


def test_errors_are_standard_normal_in_units_of_the_error_bar() -> None:
    """And an error bar that is 23% too small is told from it."""
    z = z_values(make_plan(query(max_triggers=4), source()))
    assert is_standard_normal(z)
    assert 0.91 < np.mean(np.abs(z) < 1.959964) < 0.985
    assert not is_standard_normal(z * 1.3)


def test_the_release_is_exact_sums_and_noise_that_does_not_depend_on_them() -> None:
    """Sums of rows join the same noise."""
    plan = make_plan(query(max_triggers=4, aggregates=(COUNT, SUM)), source())
    for each in plan.sums:
        noise = plan.noisy_tables(each)
        given = rows(2, plan)
        state = nothing_seen(noise)
        empty = nothing_seen(noise)
        for values in given:
            added = sums(plan.marginals, values, np.arange(len(values)))
            before = state.sums.copy(), state.paths.copy()
            again = release(state, added, noise, noise_key(3))
            state_before = state
            state, out = release(state, added, noise, noise_key(3))
            assert np.array_equal(again[1], out)
            assert np.array_equal(before[0], state_before.sums) and np.array_equal(
                before[1], state_before.paths
            )
            empty, alone = release(empty, np.zeros_like(added), noise, noise_key(3))
            assert np.array_equal(out - alone, state.sums) and alone.any()
