"""The closed form against dense least squares, cells against plain counting, closed cells against a dense solution of the same system."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from tests.mechanisms.marginals.plans import HOURS, START
from tests.property.plans import HOUR
from udfs.marginals.cells import Marginals
from udfs.marginals.closed_cells import ClockKeys, ClosedCells
from udfs.marginals.least_squares import LeastSquares, energies
from udfs.marginals.unions import covariance

Predicate = dict[int, np.ndarray]


def any_tables(pick: np.random.Generator, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    keys = range(len(sizes))
    every = [some for size in range(len(sizes) + 1) for some in itertools.combinations(keys, size)]
    return tuple(every[i] for i in sorted(pick.choice(len(every), min(int(pick.integers(1, 5)), len(every)), replace=False)))


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
        out.append(np.array([[float(tuple(cell[key] for key in keys) == row) for cell in cells] for row in rows]))
    return out


def dense_estimate(matrices: list[np.ndarray], variances: list[float], f: np.ndarray, y: list[np.ndarray]) -> tuple[float, float]:
    """(estimate, standard error) by pseudo-inverse; (nan, inf) where f is not in the row space."""
    q = np.concatenate([m / math.sqrt(v) for m, v in zip(matrices, variances, strict=True)])
    weights = np.linalg.pinv(q.T, rcond=1e-10) @ f
    if not np.allclose(q.T @ weights, f, atol=1e-7):
        return math.nan, math.inf
    scaled = np.concatenate([values.ravel() / math.sqrt(v) for values, v in zip(y, variances, strict=True)])
    return float(weights @ scaled), float(np.linalg.norm(weights))


def test_the_closed_form_is_dense_least_squares() -> None:
    """Estimate and error, 200 random systems; a part of them does not cover the predicate. Catches: a wrong m_A, P_B, lambda_B."""
    pick, covered = np.random.default_rng(1), 0
    for _ in range(200):
        sizes = tuple(int(n) for n in pick.integers(1, 5, int(pick.integers(1, 5))))
        tables = any_tables(pick, sizes)
        variances = [float(v) for v in np.exp(pick.normal(0, 2, len(tables)))]
        y = [pick.normal(0, 10, [sizes[key] for key in keys]) for keys in tables]
        predicate = any_predicate(pick, sizes)
        fit = LeastSquares(sizes, tables, tuple(variances))
        found = fit.estimate(predicate, y)
        value, stderr = dense_estimate(strategy(sizes, tables), variances, dense(sizes, predicate), y)
        assert found.stderr == pytest.approx(stderr, rel=1e-9, abs=1e-9), (sizes, tables, predicate)
        if math.isfinite(stderr):
            covered += 1
            assert found.value == pytest.approx(value, rel=1e-7, abs=1e-7)
    assert 60 < covered < 190


def test_a_small_part_that_no_table_has_is_not_taken_for_rounding() -> None:
    """All cells but those of one value of each of four keys: the part of all keys is 1e-16 of the whole, and in no table. Weights that are the same
    for all values have no such part, though their sums are rounded. Catches: a share of the whole in the place of one of each key."""
    n, keys = 10_000, range(4)
    pairs = tuple(itertools.combinations(keys, 2))
    known = LeastSquares((n,) * 4, pairs, (1.0,) * len(pairs))
    some = {key: (np.arange(n) > 0).astype(float) for key in keys}
    energy = energies(known.sizes, some)
    assert 0 < energy[0, 1, 2, 3] < 1e-12 * sum(energy.values())
    assert known.variance(some) == math.inf and covariance(known, [some, {0: 1 - some[0]}]) == math.inf
    flat = {key: np.full(n, 0.1) for key in keys}
    assert math.isfinite(known.variance(flat | {0: some[0], 3: some[3]}))


def test_a_planted_multiplicity_is_told_from_the_closed_form() -> None:
    """What lambda_B would be with the cells of a table in the place of those outside it is not the dense solution."""
    sizes, tables, variances = (3, 4, 2), ((0, 1), (1, 2), (0,)), [1.0, 2.0, 0.5]
    predicate = {0: np.array([1.0, 0, 1]), 1: np.array([1.0, 1, 0, 0])}
    _, stderr = dense_estimate(
        strategy(sizes, tables), variances, dense(sizes, predicate), [np.zeros((3, 4)), np.zeros((4, 2)), np.zeros(3)]
    )
    planted = 0.0
    for part, squared in energies(sizes, predicate).items():
        within = [(keys, v) for keys, v in zip(tables, variances, strict=True) if {*part} <= {*keys}]
        planted += squared / sum(math.prod(sizes[key] for key in keys) / v for keys, v in within)
    assert abs(math.sqrt(planted) / stderr - 1) > 0.05


def test_energies_are_those_of_the_projections() -> None:
    sizes, pick = (3, 4, 2), np.random.default_rng(2)
    for _ in range(50):
        predicate = any_predicate(pick, sizes)
        for part, squared in energies(sizes, predicate).items():
            projection = np.ones((1, 1))
            for key, n in enumerate(sizes):
                mean = np.full((n, n), 1 / n)
                projection = np.kron(projection, np.eye(n) - mean if key in part else mean)
            assert squared == pytest.approx(float(np.sum((projection @ dense(sizes, predicate)) ** 2)), abs=1e-9)


def test_parts_of_a_predicate_add_up_and_more_tables_never_raise_an_error() -> None:
    pick, sizes = np.random.default_rng(3), (4, 3, 5)
    for _ in range(100):
        tables = (*any_tables(pick, sizes),)
        tables = tables if (0, 1, 2) in tables else (*tables, (0, 1, 2))
        variances = tuple(float(v) for v in np.exp(pick.normal(0, 2, len(tables))))
        y = [pick.normal(0, 10, [sizes[key] for key in keys]) for keys in tables]
        fit = LeastSquares(sizes, tables, variances)
        predicate = any_predicate(pick, sizes) | {0: np.array([1.0, 1, 0, 1])}
        pieces = [{**predicate, 0: one} for one in np.eye(4)[[0, 1, 3]]]
        assert fit.estimate(predicate, y).value == pytest.approx(sum(fit.estimate(each, y).value for each in pieces), abs=1e-6)
        if len(tables) > 1:
            fewer = LeastSquares(sizes, tables[1:], variances[1:])
            assert fit.variance(predicate) <= fewer.variance(predicate) * (1 + 1e-9)


def test_cells_are_those_of_plain_counting() -> None:
    """Catches: strides in the wrong order, a table's offset, a grouping id from the wrong end."""
    pick, sizes = np.random.default_rng(4), (3, 2, 4)
    tables = ((), (0,), (0, 2), (0, 1, 2), (1, 2))
    marginals = Marginals(sizes, tables)
    values = np.column_stack([pick.integers(0, n, 200) for n in sizes])
    amounts = pick.integers(-5, 9, 200)
    for t, (keys, table) in enumerate(zip(tables, marginals.split(marginals.sums(values, amounts)), strict=True)):
        expected = np.zeros([sizes[key] for key in keys], np.int64)
        for row, amount in zip(values.tolist(), amounts.tolist(), strict=True):
            expected[tuple(row[key] for key in keys)] += amount
        assert np.array_equal(table, expected)
        assert all(
            np.array_equal(np.unravel_index(np.arange(expected.size), expected.shape)[keys.index(k)], v)
            for k, v in marginals.values(t).items()
        )
    # Spark and DuckDB: GROUPING_ID(a, b, c) of (a, c) is 2, of () is 7.
    assert [marginals.grouping_id(t) for t in range(len(tables))] == [7, 3, 2, 0, 4]


def test_what_is_outside_a_domain_has_no_cell() -> None:
    marginals = Marginals((3, 2), ((0,), (0, 1)))
    values = np.array([[0, 1], [3, 0], [2, -1], [2, 1]])
    assert marginals.inside(values).tolist() == [True, False, False, True]
    with pytest.raises(ValueError, match="no cell"):
        marginals.touched(values)


@pytest.mark.parametrize("tables", [((0,), (0,)), ((1, 0),), ((0, 0),), ((2,),)])
def test_tables_that_are_none_are_refused(tables: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match=r"marginal is|the keys of a table"):
        Marginals((3, 2), tables)


@pytest.mark.parametrize("seed", range(24))
def test_estimates_over_closed_cells_are_unbiased_and_their_error_is_exact(seed: int) -> None:
    """As linear maps of the noise: exact tables give the exact count, and the noise's coefficients have the stated norm. Catches: open cells that are
    read, the clock's conditions left out where a bucket is open, tables over all values beside those over closed ones."""
    pick = np.random.default_rng(seed)
    two = seed % 2 == 1
    sizes, clock = ((2, 2, 2, 3), (1, 2)) if two else ((2, 4, 3), (1,))
    every = [some for size in range(len(sizes) + 1) for some in itertools.combinations(range(len(sizes)), size)]
    marginals = Marginals(sizes, tuple(every))
    variances = tuple(float(v) for v in np.exp(pick.normal(0, 1, len(every))))
    begun = np.arange(4) < pick.integers(1, 5)
    closed = begun & (np.arange(4) < pick.integers(0, 5))
    cells = np.array([*itertools.product(*map(range, sizes))])
    bucket = cells[:, clock[0]] * 2 + cells[:, clock[1]] if two else cells[:, 1]
    exact = pick.integers(0, 20, len(cells)) * begun[bucket]
    fit = ClosedCells(marginals, variances, clock, closed, begun)

    def shown(tables: list[np.ndarray]) -> list[np.ndarray]:
        """Cells that are not closed are not there."""
        out = []
        for t, table in enumerate(tables):
            values = marginals.values(t)
            if {*clock} <= {*values}:
                at = values[clock[0]] * 2 + values[clock[1]] if two else values[1]
                table = np.where(closed[at].reshape(table.shape), table, np.nan)
            out.append(table.astype(float))
        return out

    truth = marginals.split(marginals.sums(cells, exact))
    predicate = any_predicate(pick, sizes) | ({1: np.array([1.0, 1, 0, 0])} if not two and seed % 3 == 0 else {})
    found = fit.estimate(predicate, shown(truth))
    if found.stderr == math.inf:  # all keys are named, and an open bucket is among those that are asked for
        assert not np.array_equal(begun, closed) and len(predicate) >= len(clock) + 1
        return
    assert found.value == pytest.approx(float(dense(sizes, predicate) @ exact), abs=1e-6)
    total = 0.0
    for t, table in enumerate(truth):
        for cell in range(table.size):
            unit = [np.zeros_like(other, float) for other in truth]
            unit[t].ravel()[cell] = 1.0
            coefficient = fit.estimate(predicate, shown(unit)).value
            total += variances[t] * (0.0 if math.isnan(coefficient) else coefficient) ** 2
    assert math.sqrt(total) == pytest.approx(found.stderr, rel=1e-7, abs=1e-9)


def test_a_question_about_closed_buckets_is_answered_from_them_beside_an_open_one() -> None:
    """Catches: a closed bucket that counts as open, so that the counters alone are asked."""
    marginals = Marginals((2, 4), ((0,), (0, 1)))
    closed, begun = np.array([True, True, False, False]), np.array([True, True, True, False])
    fit = ClosedCells(marginals, (1.0, 1.0), (1,), closed, begun)
    tables = [np.array([30, 9]), np.arange(8).reshape(2, 4)]
    one = {0: np.array([1.0, 0]), 1: np.array([1.0, 0, 0, 0])}
    found = fit.estimate(one, tables)
    assert (found.value, found.stderr) == pytest.approx((0.0, 1.0), abs=1e-9)
    rest = fit.estimate(one | {1: np.array([0.0, 0, 1, 0])}, tables)  # all of it less what is closed
    assert (rest.value, rest.stderr) == pytest.approx((29.0, math.sqrt(3)))


def test_buckets_close_with_the_clock() -> None:
    """At the first trigger at or after end and lateness; what would join later is not in time."""
    assert HOURS.closes_at().tolist() == [1, 2, 3, 4]
    late = replace(HOURS, lateness_us=HOUR + 1, ends_us=tuple(end - 1 for end in HOURS.ends_us))
    assert late.closes_at().tolist() == [2, 3, 4, 5]
    assert replace(late, lateness_us=HOUR + 2).closes_at().tolist() == [3, 4, 5, 6]
    assert late.closed(3).tolist() == [True, True, False, False] and late.begun(3).tolist() == [True, True, True, False]
    assert late.in_time(np.array([0, 0, 3]), np.array([2, 3, 3])).tolist() == [True, False, True]
    old = replace(HOURS, start_us=START + 10 * HOUR)
    assert old.closed(1).all() and not old.closed(0).any()


def test_a_clock_that_comes_round_again_is_refused() -> None:
    """An hour of the day in a table of two days."""
    with pytest.raises(ValueError, match="came round again"):
        ClockKeys((0,), (0, HOUR), (25 * HOUR, 2 * HOUR), 0, 0, HOUR)
