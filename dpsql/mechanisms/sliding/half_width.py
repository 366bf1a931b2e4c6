"""The exact 95% interval of a sum of discrete Laplace noises: smaller or larger than 1.96 standard deviations, which is for normal noise."""

from __future__ import annotations

import math

import numpy as np

COVERAGE = 0.95
FINEST = 2.0**-10
"""Epsilon per step below which steps are taken together, for speed: the interval may then be wider than needed by 2^-12 of itself, never narrower."""


def half_width(epsilon: float, panes: int) -> int:
    """The smallest h for which the sum of `panes` noises lies within -h .. h with probability 0.95 at least, in steps of the grid."""
    together = 1 << max(0, math.ceil(math.log2(FINEST / epsilon))) if epsilon < FINEST else 1
    found = _exact(epsilon * together, panes)
    return found if together == 1 else math.ceil(found * together * (1 + 2.0**-12))


def _exact(epsilon: float, panes: int) -> int:
    p = _probabilities(epsilon, panes)
    inside = p[0] + 2.0 * np.concatenate([[0.0], np.cumsum(p[1 : len(p) // 2])])
    return int(np.argmax(inside >= COVERAGE * (1 + 1e-12)))


def _probabilities(epsilon: float, panes: int) -> np.ndarray:
    """P(sum = k) at index k modulo their number, from the characteristic function; what wraps around is below 1e-15."""
    a = math.exp(-epsilon)
    reach = 10 * math.sqrt(2 * panes) / epsilon + 80 / epsilon + 16
    size = 1 << math.ceil(math.log2(2 * reach))
    cosine = np.cos(2 * math.pi * np.arange(size // 2 + 1) / size)
    return np.fft.irfft(((1 - a) ** 2 / (1 - 2 * a * cosine + a * a)) ** panes, size)
