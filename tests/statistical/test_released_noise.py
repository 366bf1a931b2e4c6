"""The noise in released rows: as large as stderr says, correlated over time as the counter says, and otherwise independent. Every claim
uses the testers of sampling.py (flake 1e-6, power against 10%), and every independence claim is also shown to fail on a planted bug."""

from functools import cache
from unittest import mock

import numpy as np
import pytest

from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.udfs.noise.counters import Blt
from dpsql.udfs.noise.randomness import normals, tags
from tests.property.noise_paths import noise_matrix
from tests.property.plans import DAY, query, source
from tests.statistical.noise import Noise, group_keys, measure, noise_key
from tests.statistical.sampling import (
    NORMALS,
    PAIRS,
    covers,
    has_covariance,
    has_sd,
    independent,
    standard_normal,
)

T = 24
POINTS = (0, T // 2, T - 1)
"""First, middle and last trigger."""


@cache
def plan() -> PrivacyPlan:
    return make_plan(query(), source())


ON_SELECTION = (0, 1)
"""Columns that the sum which chooses keys is a part of: COUNT(*) and COUNT(DISTINCT unit)."""


def selection_sigma() -> float:
    chosen = plan().selection
    assert chosen is not None
    return chosen.sigma


def selection_steps(step: int) -> np.ndarray:
    """The strategy noise of the sums that choose keys, at one step."""
    tag = tags(noise_key(1), np.zeros(PAIRS, np.int64), np.sort(group_keys(PAIRS)))
    return selection_sigma() * normals(noise_key(1), tag, 0, 0, step)


@cache
def measured(seed: int = 1, window: int = 0) -> Noise:
    return measure(plan(), PAIRS, seed, window)


@pytest.mark.parametrize("column", range(3))
@pytest.mark.parametrize("point", POINTS)
def test_the_noise_is_as_large_as_stderr_says(column: int, point: int) -> None:
    """Catches: sigma without the sensitivity or grid, stderr of another trigger or column."""
    m = measured()
    assert has_sd(m.noise[column][:, point], m.stderr[column][point])


@pytest.mark.parametrize("column", range(3))
@pytest.mark.parametrize("point", POINTS)
def test_95_percent_intervals_cover(column: int, point: int) -> None:
    m = measured()
    inside = np.abs(m.noise[column][:, point]) <= 1.959964 * m.stderr[column][point]
    assert covers(int(inside.sum()), PAIRS, 0.95)


@pytest.mark.parametrize("column", range(3))
def test_covariance_over_time_is_that_of_the_counter(column: int) -> None:
    """Catches: fresh noise at every trigger (averages away), a path restarted, the wrong constants, a step done twice."""
    b = noise_matrix(Blt.for_horizon(T))
    perturbation = plan().perturbations[column]
    variance = perturbation.sigma**2 + selection_sigma() ** 2 * (column in ON_SELECTION)
    rounding = perturbation.grid**2 / 12 * np.eye(T)
    assert has_covariance(measured().noise[column], variance * b @ b.T + rounding)
    assert not has_covariance(
        measured().noise[column], variance * np.diag(np.diag(b @ b.T)) + rounding
    )


def steps(m: Noise, column: int) -> np.ndarray:
    """The strategy noise z (up to scale) behind a column's path, flattened: C times the path's increments undoes B."""
    return np.linalg.solve(noise_matrix(Blt.for_horizon(T)), m.noise[column].T).T


def test_columns_keys_windows_runs_and_steps_are_independent() -> None:
    """At every step the noise of two columns, of neighbouring keys, of one key in two windows, of two runs; and step t of step t + 1."""
    m = measured()
    other_window = measured(window=DAY)
    other_run = measured(seed=2)
    for i in (0, 11, 23):
        for a, b in ((0, 2), (1, 2)):
            assert independent(steps(m, a)[:, i], steps(m, b)[:, i])
        for column in range(3):
            z = steps(m, column)
            assert independent(z[:, i], steps(other_window, column)[:, i])
            assert independent(z[:, i], steps(other_run, column)[:, i])
            assert independent(z[:, i], np.roll(z[:, i], 1))
            assert independent(z[:, i], z[:, i - 1])


@pytest.mark.parametrize("step", [1, 24])
def test_counts_have_the_noise_that_chose_their_key_and_noise_of_their_own(step: int) -> None:
    """Catches: a fresh path in the place of the one that was tested, and mechanism numbers that coincide."""
    m = measured()
    chosen = selection_steps(step)
    own = {column: steps(m, column)[:, step - 1] - chosen for column in ON_SELECTION}
    assert plan().perturbations[0].on_selection and plan().perturbations[1].on_selection
    for column in ON_SELECTION:
        assert independent(own[column], chosen)
        assert not independent(steps(m, column)[:, step - 1], chosen)
        assert has_sd(own[column], plan().perturbations[column].sigma)
    assert independent(own[0], own[1])
    assert independent(steps(m, 2)[:, step - 1], chosen)


def test_planted_one_noise_for_two_columns_is_rejected() -> None:
    def without_mechanism(
        key: bytes, tag: np.ndarray, mechanism: int, round_: int, step: int, number: int
    ) -> np.ndarray:
        return normals(key, tag, min(mechanism, 1), round_, step, number)

    with mock.patch("dpsql.udfs.noise.randomness.normals", without_mechanism):
        m = measure(plan(), PAIRS)
    assert not independent(steps(m, 1)[:, 0], steps(m, 2)[:, 0])


def test_planted_noise_reused_across_windows_is_rejected() -> None:
    def without_window(key: bytes, window: np.ndarray, group: np.ndarray) -> np.ndarray:
        return tags(key, np.zeros_like(window), group)

    with mock.patch("dpsql.udfs.histogram.release.tags", without_window):
        one = measure(plan(), PAIRS)
        two = measure(plan(), PAIRS, window=DAY)
    assert not independent(steps(one, 0)[:, 0], steps(two, 0)[:, 0])


def test_the_same_cell_asked_twice_is_the_same_and_a_planted_generator_is_not() -> None:
    """A retried micro-batch must not draw again: the average of two releases would be more accurate than promised."""

    def same(groups: int = 50) -> bool:
        one = measure(plan(), groups)
        two = measure(plan(), groups)
        return all(np.array_equal(a, b) for a, b in zip(one.noise, two.noise, strict=True))

    assert same()
    generator = np.random.default_rng(1)
    with mock.patch(
        "dpsql.udfs.noise.randomness.normals",
        lambda _key, tag, *_: generator.standard_normal(len(tag)),
    ):
        assert not same()


@pytest.mark.parametrize("mechanism", range(3))
def test_normals_are_normal(mechanism: int) -> None:
    """Catches: a wrong quantile function, too few bits, uniforms that are not centred."""
    keys = group_keys(NORMALS)
    z = normals(noise_key(3), tags(noise_key(3), keys >> 3, keys), mechanism, 0, 5)
    assert standard_normal(z)
    assert has_sd(z, 1.0)
    assert covers(int(np.sum(z > 0)), NORMALS, 0.5)
