"""The synthetic table: weights that are not negative, have the noisy total, and fit as well as a general solver finds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from dpsql.udfs.marginals.estimates import LeastSquares
from dpsql.udfs.marginals.synthetic import fit, marginal
from tests.mechanisms.marginals.test_least_squares import strategy

SIZES = (4, 3, 5)
TABLES = ((0,), (0, 1), (1, 2), (0, 1, 2))
VARIANCES = (4.0, 2.0, 9.0, 25.0)
KNOWN = LeastSquares(SIZES, TABLES, VARIANCES)


def noisy(pick: np.random.Generator, scale: float = 1.0) -> tuple[np.ndarray, list[np.ndarray]]:
    """A sparse table, and its tables with noise."""
    truth = pick.poisson(200 * pick.dirichlet(np.full(60, 0.1))).reshape(SIZES)
    exact = [marginal(truth, keys) for keys in TABLES]
    return truth, [
        table + scale * pick.normal(0, np.sqrt(v), table.shape)
        for table, v in zip(exact, VARIANCES, strict=True)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_the_fit_is_near_the_best_that_a_general_solver_finds(seed: int) -> None:
    """Non-negative least squares with the total held by a heavy row. Catches: a table left out, weights of variances upside down,
    a default of too few steps."""
    _, tables = noisy(np.random.default_rng(seed))
    found = fit(KNOWN, tables, steps=2000)
    soon = fit(KNOWN, tables)
    total = KNOWN.estimate({}, tables).value
    assert found.weights.min() >= 0 and found.weights.sum() == pytest.approx(total)
    rows = [m / np.sqrt(v) for m, v in zip(strategy(SIZES, TABLES), VARIANCES, strict=True)]
    goal = [table.ravel() / np.sqrt(v) for table, v in zip(tables, VARIANCES, strict=True)]
    heavy = 1e3
    best, _ = nnls(
        np.concatenate([*rows, np.full((1, 60), heavy)]), np.concatenate([*goal, [heavy * total]])
    )
    least = float(np.sum((np.concatenate(rows) @ best - np.concatenate(goal)) ** 2))
    cells = sum(table.size for table in tables)
    assert least * 0.9999 <= found.misfit * cells <= least * 1.001
    assert found.misfit <= soon.misfit <= found.misfit * 1.1


def test_exact_tables_give_the_table_back() -> None:
    truth, tables = noisy(np.random.default_rng(3), scale=0.0)
    assert np.abs(fit(KNOWN, tables, steps=5000).weights - truth).max() < 0.2
    assert fit(KNOWN, tables).misfit < 0.05


def test_it_is_nearer_the_truth_than_least_squares_on_sparse_tables() -> None:
    pick = np.random.default_rng(4)
    ours = 0.0
    plain = 0.0
    for _ in range(20):
        truth, tables = noisy(pick)
        weights = fit(KNOWN, tables).weights
        for value in range(SIZES[2]):
            for group in range(SIZES[0]):
                predicate = {0: np.eye(SIZES[0])[group], 2: np.eye(SIZES[2])[value]}
                exact = truth[group, :, value].sum()
                ours += (weights[group, :, value].sum() - exact) ** 2
                plain += (KNOWN.estimate(predicate, tables).value - exact) ** 2
    assert ours < 0.5 * plain


def test_a_total_that_is_not_positive_gives_an_empty_table() -> None:
    _, tables = noisy(np.random.default_rng(5))
    found = fit(KNOWN, [-np.abs(table) for table in tables])
    assert found.weights.shape == SIZES and not found.weights.any()


def test_the_fit_repeats_its_bits() -> None:
    _, tables = noisy(np.random.default_rng(6))
    assert np.array_equal(
        fit(KNOWN, tables).weights, fit(KNOWN, [table.copy() for table in tables]).weights
    )
