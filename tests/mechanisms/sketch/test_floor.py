"""The floor test: a key that no record has passes with probability at most beta, whatever the cells; and what shorter tests would let through."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from dpsql.udfs.sketch.estimates import estimate
from dpsql.udfs.sketch.hashing import CellShape, hash_key
from dpsql.udfs.sketch.reading import Scale, null_law, passes, scales, threshold
from tests.mechanisms.sketch.sketch_runs import ROOT

SHAPE = CellShape(5, 512)
SD = 40.0
FRESH = 400_000
TABLES = {
    "empty": (0, 0),
    "flat, 10 x w keys": (10 * 512, 300),
    "half of the cells heavy": (300, 5_000),
    "one giant": (1, 10**7),
    "few heavy among many": (40, 60_000),
}


def table(name: str, seed: int = 3) -> np.ndarray:
    """Cells as published: so many keys of so many records, and noise."""
    keys, count = TABLES[name]
    g = np.random.default_rng(seed)
    cells = np.rint(g.normal(0, SD, (SHAPE.depth, SHAPE.width))).astype(np.int64)
    fields = SHAPE.fields(hash_key(ROOT, None), g.integers(-(1 << 63), 1 << 63, (keys, 4)))
    for row in range(SHAPE.depth):
        cells[row] += SHAPE.sums(fields[row], np.full(keys, count))
    return cells


@pytest.mark.parametrize("name", TABLES)
def test_a_key_that_no_record_has_passes_with_probability_at_most_beta(name: str) -> None:
    """99% upper limits of the pass rate, for keys hashed by the product."""
    cells = table(name)
    g = np.random.default_rng(5)
    scores = SHAPE.scores(
        cells, SHAPE.fields(hash_key(ROOT, None), g.integers(-(1 << 63), 1 << 63, (FRESH, 4)))
    )
    for beta in (1e-2, 1e-3, 1e-4):
        passed = int(passes(cells, scores, SD, beta).sum())
        assert stats.beta.ppf(0.99, passed + 1, FRESH - passed) <= beta, beta


@pytest.mark.parametrize("name", ["flat, 10 x w keys", "half of the cells heavy"])
def test_standard_deviations_of_the_noise_are_no_floor(name: str) -> None:
    """Planted: five standard errors of an estimate in the place of the law that the cells give lets over 1% of fresh keys through."""
    cells = table(name)
    values = np.random.default_rng(6).integers(-(1 << 63), 1 << 63, (20_000, 4))
    scores = SHAPE.scores(cells, SHAPE.fields(hash_key(ROOT, None), values))
    assert np.mean(estimate(SHAPE, scores) > 5 * 0.5356 * SD) > 0.01


def test_keys_that_are_there_pass() -> None:
    """A count of nine standard errors passes at 1e-6; in cells that hold nothing else so does one of seven."""
    cells = table("empty")
    values = np.random.default_rng(8).integers(-(1 << 63), 1 << 63, (300, 4))
    fields = SHAPE.fields(hash_key(ROOT, None), values)
    for count, least in ((7 * 0.5356 * SD, 0.6), (9 * 0.5356 * SD, 0.95)):
        scores = SHAPE.scores(cells, fields) + round(count)
        assert np.mean(passes(cells, scores, SD, 1e-6)) > least


def test_the_null_law_is_that_of_all_places() -> None:
    """Every column and sign of every row written out: with bins of one step the law is exact, with coarser ones never too small."""
    cells = np.random.default_rng(1).integers(-300, 300, (3, 4))
    for scale in (Scale(1, 128), Scale(1, 40), Scale(3, 128), Scale(10, 100)):
        law = null_law(cells, scale)
        reach = scale.step * scale.half
        scores = [
            sum(
                min(max(sign * int(cells[row, column]), -reach), reach) // scale.step + scale.half
                for row, (column, sign) in enumerate(places)
            )
            for places in product(product(range(4), (1, -1)), repeat=3)
        ]
        true = np.bincount(scores, minlength=len(law)) / 8**3
        above = np.cumsum(true[::-1])[::-1]
        said = np.cumsum(law[::-1])[::-1]
        assert law.sum() == pytest.approx(1)
        assert np.all(said >= above - 1e-12)
        if scale.step == 1:
            assert said == pytest.approx(above)


def test_thresholds_and_scales() -> None:
    law = np.array([0.5, 0.3, 0.15, 0.05])
    assert [threshold(law, beta) for beta in (1.1, 0.5, 0.2, 0.19, 0.04)] == [0, 2, 3, 3, 4]
    assert scales(np.zeros((3, 4), np.int64), 1.0) == [Scale(1, 3)]
    assert scales(np.full((3, 4), -1000), 100.0) == [Scale(3, 100), Scale(5, 120), Scale(10, 120)]
    assert max(scale.half for scale in scales(np.full((3, 4), 10**9), 33.3)) <= 128
    assert scales(np.zeros((3, 4), np.int64), 0.0) == [Scale(1, 1)]
    for scale in (Scale(1, 3), Scale(7, 5)):
        values = np.arange(-50, 51)
        exact = (
            np.clip(values, -scale.step * scale.half, scale.step * scale.half) / scale.step
            + scale.half
        )
        assert np.array_equal(scale.bins(values), np.floor(exact))
        assert np.array_equal(scale.bins_above(values), np.ceil(exact))


def test_a_heavy_value_does_not_hide_a_light_one() -> None:
    """Noise of eight steps: a scale of three times that clips the heavy cells. Scales in multiples of 128 steps would be 15 times the noise."""
    shape = CellShape(9, 512)
    g = np.random.default_rng(8)
    fields = shape.fields(hash_key(ROOT, None), g.integers(-(1 << 63), 1 << 63, (60, 4)))
    cells = np.rint(g.normal(0, 8.0, (9, 512))).astype(np.int64)
    for row in range(9):
        cells[row] += shape.sums(fields[row], np.array([5_000] * 20 + [40] * 40))
    passed = passes(cells, shape.scores(cells, fields), 8.0, 1e-6)
    assert np.mean(passed[:20]) > 0.9
    assert np.mean(passed[20:]) > 0.7
