"""The closed form against dense least squares and cells against plain counting."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpsql.udfs.marginals.cells import MeasuredTables
from dpsql.udfs.marginals.estimates import LeastSquares, covariance, energies
from tests.mechanisms.marginals.dense import split, sums

Predicate = dict[int, np.ndarray]


def any_tables(pick: np.random.Generator, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    keys = range(len(sizes))
    every = [some for size in range(len(sizes) + 1) for some in itertools.combinations(keys, size)]
    return tuple(
        every[i]
        for i in sorted(
            pick.choice(len(every), min(int(pick.integers(1, 5)), len(every)), replace=False)
        )
    )


def any_predicate(pick: np.random.Generator, sizes: tuple[int, ...]) -> Predicate:
    named = [key for key in range(len(sizes)) if pick.random() < 0.6]
    kinds = (lambda n: (pick.random(n) < 0.5).astype(float), lambda n: pick.normal(size=n), np.ones)
    return {key: kinds[int(pick.integers(3))](sizes[key]) for key in named}


def dense(sizes: tuple[int, ...], predicate: Predicate) -> np.ndarray:
    out = np.ones(1)
    for key, n in enumerate(sizes):
        out = np.multiply.outer(out, predicate.get(key, np.ones(n))).ravel()
    return out


def strategy(sizes: tuple[int, ...], tables: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
    """Of each table the 0/1 matrix from all cells to its own, counted by plain loops."""
    cells = [*itertools.product(*map(range, sizes))]
    out = []
    for keys in tables:
        rows = [*itertools.product(*(range(sizes[key]) for key in keys))]
        out.append(
            np.array(
                [[float(tuple(cell[key] for key in keys) == row) for cell in cells] for row in rows]
            )
        )
    return out


def dense_estimate(
    matrices: list[np.ndarray], variances: list[float], f: np.ndarray, y: list[np.ndarray]
) -> tuple[float, float]:
    """(estimate, standard error) by pseudo-inverse; (nan, inf) where f is not in the row space."""
    q = np.concatenate([m / math.sqrt(v) for m, v in zip(matrices, variances, strict=True)])
    weights = np.linalg.pinv(q.T, rcond=1e-10) @ f
    if not np.allclose(q.T @ weights, f, atol=1e-7):
        return math.nan, math.inf
    scaled = np.concatenate(
        [values.ravel() / math.sqrt(v) for values, v in zip(y, variances, strict=True)]
    )
    return float(weights @ scaled), float(np.linalg.norm(weights))


def test_the_closed_form_is_dense_least_squares() -> None:
    """Estimate and error, 200 random systems; a part of them does not cover the predicate. Catches: a wrong m_A, P_B, lambda_B."""
    pick = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        sizes = tuple(int(n) for n in pick.integers(1, 5, int(pick.integers(1, 5))))
        tables = any_tables(pick, sizes)
        variances = [float(v) for v in np.exp(pick.normal(0, 2, len(tables)))]
        y = [pick.normal(0, 10, [sizes[key] for key in keys]) for keys in tables]
        predicate = any_predicate(pick, sizes)
        fit = LeastSquares(sizes, tables, tuple(variances))
        found = fit.estimate(predicate, y)
        value, stderr = dense_estimate(
            strategy(sizes, tables), variances, dense(sizes, predicate), y
        )
        assert found.stderr == pytest.approx(stderr, rel=1e-9, abs=1e-9), (sizes, tables, predicate)
        if math.isfinite(stderr):
            covered += 1
            assert found.value == pytest.approx(value, rel=1e-7, abs=1e-7)
    assert 60 < covered < 190


def test_a_small_part_that_no_table_has_is_not_taken_for_rounding() -> None:
    """All cells but those of one value of each of four keys: the part of all keys is 1e-16 of the whole, and in no table. Weights that are the same
    for all values have no such part, though their sums are rounded. Catches: a share of the whole in the place of one of each key."""
    n = 10_000
    keys = range(4)
    pairs = tuple(itertools.combinations(keys, 2))
    known = LeastSquares((n,) * 4, pairs, (1.0,) * len(pairs))
    some = {key: (np.arange(n) > 0).astype(float) for key in keys}
    energy = energies(known.sizes, some)
    assert 0 < energy[0, 1, 2, 3] < 1e-12 * sum(energy.values())
    assert (
        known.variance(some) == math.inf and covariance(known, [some, {0: 1 - some[0]}]) == math.inf
    )
    flat = {key: np.full(n, 0.1) for key in keys}
    assert math.isfinite(known.variance(flat | {0: some[0], 3: some[3]}))


def test_a_planted_multiplicity_is_told_from_the_closed_form() -> None:
    """What lambda_B would be with the cells of a table in the place of those outside it is not the dense solution."""
    sizes = (3, 4, 2)
    tables = ((0, 1), (1, 2), (0,))
    variances = [1.0, 2.0, 0.5]
    predicate = {0: np.array([1.0, 0, 1]), 1: np.array([1.0, 1, 0, 0])}
    _, stderr = dense_estimate(
        strategy(sizes, tables),
        variances,
        dense(sizes, predicate),
        [np.zeros((3, 4)), np.zeros((4, 2)), np.zeros(3)],
    )
    planted = 0.0
    for part, squared in energies(sizes, predicate).items():
        within = [
            (keys, v) for keys, v in zip(tables, variances, strict=True) if {*part} <= {*keys}
        ]
        planted += squared / sum(math.prod(sizes[key] for key in keys) / v for keys, v in within)
    assert abs(math.sqrt(planted) / stderr - 1) > 0.05


def test_energies_are_those_of_the_projections() -> None:
    sizes = (3, 4, 2)
    pick = np.random.default_rng(2)
    for _ in range(50):
        predicate = any_predicate(pick, sizes)
        for part, squared in energies(sizes, predicate).items():
            projection = np.ones((1, 1))
            for key, n in enumerate(sizes):
                mean = np.full((n, n), 1 / n)
                projection = np.kron(projection, np.eye(n) - mean if key in part else mean)
            assert squared == pytest.approx(
                float(np.sum((projection @ dense(sizes, predicate)) ** 2)), abs=1e-9
            )


def test_parts_of_a_predicate_add_up_and_more_tables_never_raise_an_error() -> None:
    pick = np.random.default_rng(3)
    sizes = (4, 3, 5)
    for _ in range(100):
        tables = (*any_tables(pick, sizes),)
        tables = tables if (0, 1, 2) in tables else (*tables, (0, 1, 2))
        variances = tuple(float(v) for v in np.exp(pick.normal(0, 2, len(tables))))
        y = [pick.normal(0, 10, [sizes[key] for key in keys]) for keys in tables]
        fit = LeastSquares(sizes, tables, variances)
        predicate = any_predicate(pick, sizes) | {0: np.array([1.0, 1, 0, 1])}
        pieces = [{**predicate, 0: one} for one in np.eye(4)[[0, 1, 3]]]
        assert fit.estimate(predicate, y).value == pytest.approx(
            sum(fit.estimate(each, y).value for each in pieces), abs=1e-6
        )
        if len(tables) > 1:
            fewer = LeastSquares(sizes, tables[1:], variances[1:])
            assert fit.variance(predicate) <= fewer.variance(predicate) * (1 + 1e-9)


def test_cells_are_those_of_plain_counting() -> None:
    """Catches: strides in the wrong order, a table's offset, a grouping id from the wrong end."""
    pick = np.random.default_rng(4)
    sizes = (3, 2, 4)
    tables = ((), (0,), (0, 2), (0, 1, 2), (1, 2))
    marginals = MeasuredTables(sizes, tables)
    values = np.column_stack([pick.integers(0, n, 200) for n in sizes])
    amounts = pick.integers(-5, 9, 200)
    for keys, table in zip(tables, split(marginals, sums(marginals, values, amounts)), strict=True):
        expected = np.zeros([sizes[key] for key in keys], np.int64)
        for row, amount in zip(values.tolist(), amounts.tolist(), strict=True):
            expected[tuple(row[key] for key in keys)] += amount
        assert np.array_equal(table, expected)
    # Spark and DuckDB: GROUPING_ID(a, b, c) of (a, c) is 2, of () is 7.
    assert [marginals.grouping_id(t) for t in range(len(tables))] == [7, 3, 2, 0, 4]


def test_what_is_outside_a_domain_has_no_cell() -> None:
    marginals = MeasuredTables((3, 2), ((0,), (0, 1)))
    values = np.array([[0, 1], [3, 0], [2, -1], [2, 1]])
    assert marginals.is_inside(values).tolist() == [True, False, False, True]
    with pytest.raises(ValueError, match="no cell"):
        marginals.touched(values)


@pytest.mark.parametrize("tables", [((0,), (0,)), ((1, 0),), ((0, 0),), ((2,),)])
def test_tables_that_are_none_are_refused(tables: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match=r"marginal is|the keys of a table"):
        MeasuredTables((3, 2), tables)
