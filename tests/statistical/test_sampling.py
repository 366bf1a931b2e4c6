"""The testers themselves: each accepts the truth, rejects 10% off on both sides, and rejects broken variants."""

import numpy as np
import pytest

from tests.statistical.sampling import (
    NORMALS,
    PAIRS,
    SAMPLES,
    covers,
    has_covariance,
    has_sd,
    independent,
    standard_normal,
)

SEEDS = range(8)


def gaussian(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_truth_is_accepted_and_ten_percent_off_is_not(seed: int) -> None:
    x = gaussian(seed, SAMPLES)
    assert has_sd(3.0 * x, 3.0)
    assert not has_sd(0.9 * x, 1.0)
    assert not has_sd(1.1 * x, 1.0)
    assert covers(int(np.sum(np.abs(x) <= 1.959964)), SAMPLES, 0.95)
    assert not covers(int(np.sum(np.abs(1.1 * x) <= 1.959964)), SAMPLES, 0.95)
    assert not covers(int(np.sum(np.abs(0.9 * x) <= 1.959964)), SAMPLES, 0.95)


@pytest.mark.parametrize("seed", SEEDS)
def test_correlation_both_ways(seed: int) -> None:
    x, y = gaussian(seed, 2, PAIRS)
    assert independent(x, y)
    for r in (0.1, -0.1):
        assert not independent(x, r * x + np.sqrt(1 - r * r) * y)
    assert not independent(x, x)
    assert not independent(x, -x)


@pytest.mark.parametrize("seed", SEEDS)
def test_covariance_both_ways(seed: int) -> None:
    b = np.tril(np.ones((3, 3)))
    x = gaussian(seed, SAMPLES, 3)
    assert has_covariance(x @ b.T, b @ b.T)
    for scale in (0.9, 1.1):
        assert not has_covariance(scale * x @ b.T, b @ b.T)
    assert not has_covariance(x @ b, b @ b.T)  # time backwards
    assert not has_covariance(
        x * np.linalg.norm(b, axis=1), b @ b.T
    )  # right at every time, but fresh noise each time


@pytest.mark.parametrize("seed", range(3))
def test_normality_both_ways(seed: int) -> None:
    x = gaussian(seed, NORMALS)
    assert standard_normal(x)
    for scale in (0.9, 1.1):
        assert not standard_normal(scale * x)
    generator = np.random.default_rng(seed)
    assert not standard_normal(generator.uniform(-np.sqrt(3), np.sqrt(3), NORMALS))
    assert not standard_normal(generator.standard_t(10, NORMALS) * np.sqrt(0.8))
    assert not standard_normal(np.abs(x))


def test_a_shifted_mean_is_rejected() -> None:
    """has_sd assumes mean 0: noise with a bias of half a standard deviation must not pass as noise."""
    assert not has_sd(gaussian(1, SAMPLES) + 0.5, 1.0)
