"""Expected errors of a release, from the planner's own sigma and tau: no noise is drawn for the released numbers.

With probability p a group is released as m + s Z, m what the bounds left of its true value t, s its standard error; otherwise it
counts as 0. Selection and perturbation have independent noise, so the errors are sums over groups of p E|m + s Z - t| + (1 - p) |t|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.counters import Counter

PATHS = 128
"""Simulated noise paths, for the chance to be selected at an earlier trigger but not at the last; that at the last is exact."""

CERTAIN = 4.5
"""Standard deviations beyond which a group's selection is not simulated: the rest is below 4e-6."""

CHUNK = 4_000_000
_SQRT_2_PI = np.sqrt(2 * np.pi)


@dataclass(frozen=True)
class Outcome:
    """True value, bounded value, standard error and probability of a release, of every group."""

    true: Float
    bounded: Float
    stderr: Float | float
    released: Float
    never_negative: bool
    widest: float = np.inf

    def absolute(self) -> Float:
        """Return E|error| per group."""
        bias = self.bounded - self.true
        s = self.stderr
        error = s * 2 * _density(bias / s) + bias * (1 - 2 * ndtr(-bias / s))
        if self.never_negative:  # a reader takes a negative release as 0
            error += self.bounded * ndtr(-self.bounded / s) - s * _density(self.bounded / s)
        return self.released * np.minimum(error, self.widest) + (1 - self.released) * np.abs(
            self.true
        )

    def squared(self) -> Float:
        """Return E(error^2) per group."""
        m = self.bounded
        s = self.stderr
        t = self.true
        error = (m - t) ** 2 + s**2
        if self.never_negative:
            mass_below = ndtr(-m / s)
            density = s * _density(m / s)
            error -= (m**2 + s**2) * mass_below - m * density - 2 * t * (m * mass_below - density)
        return (
            self.released * np.minimum(np.maximum(error, 0.0), self.widest**2)
            + (1 - self.released) * t**2
        )

    def largest(self) -> float:
        """Return the median of the largest error of all groups."""
        low = 0.0
        high = float(
            np.max(
                np.abs(self.true) + np.abs(self.bounded) + 10 * np.asarray(self.stderr), initial=0.0
            )
        )
        bias = self.bounded - self.true
        s = self.stderr
        for _ in range(40):
            x = (low + high) / 2
            share_within = self.released * (ndtr((x - bias) / s) - ndtr((-x - bias) / s)) + (
                1 - self.released
            ) * (np.abs(self.true) <= x)
            with np.errstate(divide="ignore"):
                low, high = (x, high) if np.log(share_within).sum() < np.log(0.5) else (low, x)
        return min(high, self.widest)


def thinned(horizon: int, limit: int = 48) -> Int:
    """Choose all triggers up to the horizon, or `limit` of them with the last: what the simulation
    of selection looks at."""
    return np.unique(np.linspace(1, horizon, min(horizon, limit)).round().astype(np.int64))


def unit_paths(chosen: Counter, triggers: Int) -> Float:
    """Draw unit-noise paths at the given triggers; shape (PATHS, triggers). The same at every call."""
    key = bytes(32)
    number = np.arange(PATHS, dtype=np.int64)
    tag = randomness.tags(key, number, number)
    state = np.zeros((PATHS, chosen.width))
    samples: list[Float] = []
    for step in range(1, int(triggers[-1]) + 1):

        def draw(number: int, current_step: int = step) -> Float:
            return randomness.normals(key, tag, randomness.SELECTION, 0, current_step, number)

        state = chosen.advance(state, draw, step)
        if step == triggers[len(samples)]:
            samples.append(state[:, 0].copy())
    return np.stack(samples, axis=1)


def selected(
    weight: Float, thresholds: Float, sd: Float, paths: Float, tested: np.ndarray
) -> Float:
    """Return the probability that each group has been selected by the last trigger.

    Args:
        weight: sum of users' weights, (groups, triggers).
        thresholds, sd: tau and the standard deviation of the path, per trigger.
        paths: unit-noise paths times sigma, (paths, triggers).
        tested: whether the group is tested, (groups, triggers).
    """
    margin = np.where(tested, (weight - thresholds) / sd, -np.inf)
    best = margin.max(axis=1)
    probability = ndtr(margin[:, -1])
    probability[best > CERTAIN] = 1.0
    unsure = np.flatnonzero((best > -CERTAIN) & (best <= CERTAIN) & (probability < 1 - 1e-6))
    need = np.where(tested, thresholds - weight, np.inf)
    per = max(1, CHUNK // paths.size)
    for start in range(0, len(unsure), per):
        part = unsure[start : start + per]
        crossed = paths[None, :, :] >= need[part][:, None, :]
        probability[part] += (crossed[:, :, :-1].any(axis=2) & ~crossed[:, :, -1]).mean(axis=1)
    return np.minimum(probability, 1.0)


def _density(x: Float) -> Float:
    return np.exp(-(x**2) / 2) / _SQRT_2_PI
