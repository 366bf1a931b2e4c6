"""Drawn discrete Laplace noise has the probabilities of its formula. Flake rate 1e-6 over the choice of keys (keys are fixed). Power: with
a million draws a scale 2% off is accepted with probability below 1e-6, and so are the planted errors here, each of which a careless sampler
would make."""

import hashlib
import math
from functools import cache

import numpy as np
import pytest
from scipy import stats

from dpsql.udfs.noise.discrete_laplace import discrete_laplace
from dpsql.udfs.noise.randomness import tags
from tests.statistical.sampling import FLAKE

DRAWS = 1_000_000


@cache
def drawn(epsilon: float, seed: int = 1) -> np.ndarray:
    key = hashlib.sha256(b"laplace %d" % seed).digest()
    return discrete_laplace(epsilon).draw(
        key, tags(key, np.zeros(DRAWS, np.int64), np.arange(DRAWS)), 1, 0, 1
    )


def has_probabilities(samples: np.ndarray, epsilon: float) -> bool:
    """Chi-square over every k that is expected at least 50 times, with the rest of either side as one."""
    a = math.exp(-epsilon)
    reach = math.floor(math.log(50 * (1 + a) / (1 - a) / len(samples)) / -epsilon)
    expected = np.array([(1 - a) / (1 + a) * a ** abs(k) for k in range(-reach, reach + 1)])
    beyond = a ** (reach + 1) / (1 + a)
    found = np.bincount(
        np.clip(samples, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3
    )
    return bool(
        stats.chisquare(found, len(samples) * np.array([beyond, *expected, beyond])).pvalue >= FLAKE
    )


@pytest.mark.parametrize("epsilon", (2.0, 0.5, 0.1))
def test_draws_have_the_probabilities_of_the_formula(epsilon: float) -> None:
    assert has_probabilities(drawn(epsilon), epsilon)
    assert not has_probabilities(drawn(epsilon), epsilon * 1.02)
    assert not has_probabilities(drawn(epsilon), epsilon / 1.02)


@pytest.mark.parametrize(
    ("what", "planted"),
    [
        ("rounded continuous noise", lambda g: np.rint(g.laplace(0, 2, DRAWS)).astype(np.int64)),
        (
            "zero drawn with both signs",
            lambda g: (g.geometric(1 - math.exp(-0.5), DRAWS) - 1) * g.choice([-1, 1], DRAWS),
        ),
        ("a tail that is cut off", lambda _: drawn(0.5)[np.abs(drawn(0.5)) <= 10]),
        ("a tail of one sign", lambda _: np.where(drawn(0.5) < -10, -drawn(0.5), drawn(0.5))),
        (
            "a tail that begins again at its start",
            lambda _: np.where(drawn(0.5) > 11, drawn(0.5) - 1, drawn(0.5)),
        ),
    ],
)
def test_planted_errors_are_rejected(what: str, planted: object) -> None:
    assert not has_probabilities(planted(np.random.default_rng(1)), 0.5), what  # type: ignore[operator]


def test_the_tail_goes_on_as_the_middle_does() -> None:
    """Beyond the table's middle (e^-5 of the draws) the excess is geometric too: its mean, within five standard errors."""
    table = discrete_laplace(0.1)
    sizes = np.abs(drawn(0.1))
    excess = sizes[sizes > table.last] - (table.last + 1)
    a = math.exp(-0.1)
    mean = a / (1 - a)
    sd = math.sqrt(a) / (1 - a)
    assert len(excess) > 4000
    assert abs(float(excess.mean()) - mean) < 5 * sd / math.sqrt(len(excess))
    assert excess.max() > table.last  # and some go on for a third word
