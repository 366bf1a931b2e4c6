"""Estimates and their intervals: the law of an error read off the cells, covered as often as it says; joint estimates where values collide."""

import hashlib
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from dpsql.mechanisms.sketch.plan import SketchLimits, SketchPlan
from dpsql.mechanisms.sketch.planner import make_plan
from dpsql.mechanisms.sketch.stages import intake, reading, release
from dpsql.udfs.keys import encode
from dpsql.udfs.sketch.estimates import estimate, interval, joint, margins
from dpsql.udfs.sketch.hashing import CellShape, digest, hash_key
from dpsql.udfs.stage import Clock, Tick
from tests.mechanisms.sketch.sketch_runs import (
    ROOT,
    START,
    cells_of,
    noise_key,
    public,
    query,
    records,
)
from tests.property.plans import DAY, source

KEY = hash_key(ROOT, None)


def zipf(skew: float, records: int, seed: int, universe: int = 20_000) -> np.ndarray:
    weights = np.arange(1, universe + 1.0) ** -skew
    return np.random.default_rng(seed).multinomial(records, weights / weights.sum())


def sketch(
    shape: CellShape, counts: np.ndarray, sd: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(cells, fields) of values with these counts."""
    g = np.random.default_rng([seed, 1])
    fields = shape.fields(KEY, g.integers(-(1 << 63), 1 << 63, (len(counts), 4)))
    cells = np.rint(g.normal(0, sd, (shape.depth, shape.width))).astype(np.int64)
    for row in range(shape.depth):
        cells[row] += shape.sums(fields[row], counts)
    return cells, fields


@pytest.mark.parametrize(
    ("depth", "width", "sd", "skew"),
    [(5, 256, 50.0, 1.3), (9, 2048, 50.0, 1.05), (3, 1024, 10.0, 1.05), (5, 512, 500.0, 1.3)],
)
@pytest.mark.parametrize("signed", [True, False])
def test_intervals_cover_as_often_as_they_say(
    depth: int, width: int, sd: float, skew: float, signed: bool
) -> None:
    """Of the 300 largest values and of random ones, over hash functions; noise alone would be too short wherever values collide."""
    shape = CellShape(depth, width, signed)
    inside = []
    for seed in range(6):
        counts = zipf(skew, 200_000, seed)
        cells, fields = sketch(shape, counts, sd, seed)
        below, above = margins(shape, cells)
        off = counts - estimate(shape, shape.scores(cells, fields))
        inside.append([np.mean((off >= -below) & (off <= above)) for off in (off[:300], off)])
    top, every = np.mean(inside, axis=0)
    assert 0.93 <= every <= 0.98
    assert 0.92 <= top <= 0.98


def test_margins_are_those_of_all_places() -> None:
    """The median, and the minimum, over every column and sign of every row, written out."""
    g = np.random.default_rng(2)
    for signed in (True, False):
        shape = CellShape(3, 8, signed)
        cells = g.integers(-50, 200, (3, 8))
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
    shape = CellShape(5, 64)
    counts = zipf(1.1, 100_000, 1, universe=40)
    cells, fields = sketch(shape, counts, 5.0, 1)
    alone = np.abs(estimate(shape, shape.scores(cells, fields)) - counts)
    assert np.abs(joint(shape, cells, fields) - counts).mean() < 0.2 * alone.mean()
    # One value in an empty sketch: nothing to take out.
    one, at = sketch(shape, np.array([700]), 0.0, 2)
    assert joint(shape, one, at).tolist() == [700.0]
    order = np.random.default_rng(3).permutation(40)
    assert joint(shape, cells, fields[:, order]) == pytest.approx(
        joint(shape, cells, fields)[order]
    )


def test_the_median_is_unbiased_and_the_minimum_is_not() -> None:
    """Noise alone, d = 9: the mean of the minimum lies 1.48 standard deviations of a cell below 0."""
    means = []
    for signed in (True, False):
        shape = CellShape(9, 4096, signed)
        cells, fields = sketch(shape, np.zeros(4000, np.int64), 1000.0, 4)
        means.append(np.mean(estimate(shape, shape.scores(cells, fields))) / 1000)
    assert abs(means[0]) < 0.03
    assert means[1] == pytest.approx(-1.485, abs=0.05)


VALUES = 16
"""Of every unit: 15 of its own, and one that all have."""
ROOTS = 4
NOISES = 50


def plan_of(depth: int, width: int) -> SketchPlan:
    bounds = SketchLimits(VALUES, 1, VALUES)
    return make_plan(
        public(depth=depth, width=width, bounds=bounds, trigger_interval_us=DAY), source()
    )


def covered(units: int, plan: SketchPlan, at: str, widened: bool = True) -> float:
    """How often the interval of the common value holds the number of units, over hash keys and noise keys.

    Args:
        at: `last`: every unit brings it after its own values; `anywhere`: at a random place.
    """
    inside = []
    p = reading(plan)
    first = START
    common = encode([b"common"])
    for root in range(ROOTS):
        chance = np.random.default_rng(root)
        key = hashlib.sha256(b"root %d" % root).digest()
        place = np.full(units, VALUES - 1) if at == "last" else chance.integers(0, VALUES, units)
        order = np.arange(units * VALUES).reshape(units, VALUES)
        names = [
            common if i == place[user] else encode([b"%d" % order[user, i]])
            for user in range(units)
            for i in range(VALUES)
        ]
        rows = records(
            np.repeat(np.arange(units), VALUES), START + np.tile(np.arange(VALUES), units), names
        )
        stage = intake(plan, first)
        done = stage.step(
            stage.empty(), rows.select(stage.takes.names), Clock(latest_us=1 << 60), key
        )
        given = done.rows.append_column("batch", pa.array(np.zeros(done.rows.num_rows, np.int64)))
        fields = p.shape.fields(
            hash_key(key, None), np.frombuffer(digest(common), "<i8").reshape(1, -1)
        )
        ends = release(plan, first)
        for seed in range(NOISES):
            out = ends.step(
                ends.empty(), given, [Tick(1, START + DAY)], noise_key(1000 * root + seed)
            ).rows
            cells = cells_of(out, plan, 1)
            found = estimate(p.shape, p.shape.scores(cells, fields))
            below, above = margins(p.shape, cells)
            low, high = (
                interval(p.shape, cells, found, p.missed)
                if widened
                else (found - below, found + above)
            )
            inside.append(low[0] <= units <= high[0])
    return float(np.mean(inside))


@pytest.mark.parametrize("at", ["last", "anywhere"])
def test_a_value_of_all_units_is_covered(at: str) -> None:
    """In the narrowest sketch that is accepted a row leaves out 5.7% of the last value, far more than the noise."""
    plan = plan_of(9, 256)
    assert covered(4_000, plan, at) >= 0.93
    assert covered(4_000, plan, "last", widened=False) == 0


def test_the_width_is_a_public_number() -> None:
    """A function of the query alone: `query` has no data."""
    assert reading(plan_of(9, 256)).missed == pytest.approx(1 - (1 - 1 / 256) ** 15)
    assert reading(make_plan(query(bounds=SketchLimits(4, 1, 1)), source())).missed == 0
