"""Estimates and their intervals: the law of an error read off the cells, covered as often as it says; joint estimates where values collide."""

from itertools import product

import numpy as np
import pytest

from dpsql.udfs.sketch.estimates import estimate, joint, margins
from dpsql.udfs.sketch.hashing import Shape, hash_key
from tests.mechanisms.sketch.sketch_runs import ROOT

KEY = hash_key(ROOT, None)


def zipf(skew: float, records: int, seed: int, universe: int = 20_000) -> np.ndarray:
    weights = np.arange(1, universe + 1.0) ** -skew
    return np.random.default_rng(seed).multinomial(records, weights / weights.sum())


def sketch(shape: Shape, counts: np.ndarray, sd: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(cells, fields) of values with these counts."""
    g = np.random.default_rng([seed, 1])
    fields = shape.fields(KEY, g.integers(-(1 << 63), 1 << 63, (len(counts), 4)))
    cells = np.rint(g.normal(0, sd, (shape.depth, shape.width))).astype(np.int64)
    for row in range(shape.depth):
        cells[row] += shape.sums(fields[row], counts)
    return cells, fields


@pytest.mark.parametrize(
    ("depth", "width", "sd", "skew"), [(5, 256, 50.0, 1.3), (9, 2048, 50.0, 1.05), (3, 1024, 10.0, 1.05), (5, 512, 500.0, 1.3)]
)
@pytest.mark.parametrize("signed", [True, False])
def test_intervals_cover_as_often_as_they_say(depth: int, width: int, sd: float, skew: float, signed: bool) -> None:
    """Of the 300 largest values and of random ones, over hash functions; noise alone would be too short wherever values collide."""
    shape, inside = Shape(depth, width, signed), []
    for seed in range(6):
        counts = zipf(skew, 200_000, seed)
        cells, fields = sketch(shape, counts, sd, seed)
        below, above = margins(shape, cells)
        off = counts - estimate(shape, shape.read(cells, fields))
        inside.append([np.mean((off >= -below) & (off <= above)) for off in (off[:300], off)])
    top, every = np.mean(inside, axis=0)
    assert 0.93 <= every <= 0.98
    assert 0.92 <= top <= 0.98


def test_margins_are_those_of_all_places() -> None:
    """The median, and the minimum, over every column and sign of every row, written out."""
    g = np.random.default_rng(2)
    for signed in (True, False):
        shape, cells = Shape(3, 8, signed), g.integers(-50, 200, (3, 8))
        signs = (1, -1) if signed else (1,)
        errors = np.array([
            sorted(sign * cells[row, column] for row, (column, sign) in enumerate(places))[1 if signed else 0]
            for places in product(product(range(8), signs), repeat=3)
        ])  # fmt: skip
        below, above = margins(shape, cells)
        assert np.mean(errors > below) <= 0.025 < np.mean(errors > below - 1)
        if signed:
            assert above == below
        else:
            assert np.mean(errors > -above) <= 0.975 < np.mean(errors > -above - 1)


def test_joint_estimates_take_collisions_among_listed_values_out() -> None:
    shape, counts = Shape(5, 64), zipf(1.1, 100_000, 1, universe=40)
    cells, fields = sketch(shape, counts, 5.0, 1)
    alone = np.abs(estimate(shape, shape.read(cells, fields)) - counts)
    assert np.abs(joint(shape, cells, fields) - counts).mean() < 0.2 * alone.mean()
    # One value in an empty sketch: nothing to take out.
    one, at = sketch(shape, np.array([700]), 0.0, 2)
    assert joint(shape, one, at).tolist() == [700.0]
    order = np.random.default_rng(3).permutation(40)
    assert joint(shape, cells, fields[:, order]) == pytest.approx(joint(shape, cells, fields)[order])


def test_the_median_is_unbiased_and_the_minimum_is_not() -> None:
    """Noise alone, d = 9: the mean of the minimum lies 1.48 standard deviations of a cell below 0."""
    means = []
    for signed in (True, False):
        shape = Shape(9, 4096, signed)
        cells, fields = sketch(shape, np.zeros(4000, np.int64), 1000.0, 4)
        means.append(np.mean(estimate(shape, shape.read(cells, fields))) / 1000)
    assert abs(means[0]) < 0.03
    assert means[1] == pytest.approx(-1.485, abs=0.05)
