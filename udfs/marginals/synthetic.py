"""A table of weights that are not negative and fit noisy marginals, and rows drawn from it by public random words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.marginals.cells import Keys
from dpsql.udfs.marginals.estimates import LeastSquares
from dpsql.udfs.noise.randomness import tags, words

# A table of weights that are not negative and fit noisy marginals: what may be queried as if it
# were data (docs/privacy/marginals.md).

# A function of what is released, so it costs nothing. It is biased, without a bound, and nearly
# always nearer the truth than unbiased estimates.

STEPS = 150
HALVINGS = 30
LONGER = 1.6
"""How much longer the next step is tried."""
LEAST = 1e-300
"""A weight is not smaller before the logarithm is taken."""


@dataclass(frozen=True)
class Fitted:
    """Weights of all cells, an axis for each key, and the misfit per cell of the tables: about 1 where they fit as well as the truth would."""

    weights: Float
    misfit: float


def fit(noise: LeastSquares, released: Sequence[np.ndarray], steps: int = STEPS) -> Fitted:
    """Fit weights by entropic mirror descent from the uniform table, along sum_A |Q_A x - y_A|^2 / v_A; a step that does not lower it is halved.

    Args:
        noise: what is known of it.
        released: the noisy tables, an axis for each key.
        steps: at most; few leave out what fits noise only.

    Returns:
        Weights whose total is the best estimate of the total; all 0 where that is not positive.
    """
    tables = [np.asarray(table, np.float64) for table in released]
    cells = sum(table.size for table in tables)
    total = noise.estimate({}, released).value
    weights = np.full(noise.sizes, max(total, 0.0) / np.prod(noise.sizes))
    loss, residuals = _misfit(weights, noise, tables)
    if not total > 0:
        return Fitted(weights, loss / cells)
    step = 0.0
    for _ in range(steps):
        gradient = np.zeros(noise.sizes)
        for keys, variance, table in zip(noise.tables, noise.variances, residuals, strict=True):
            gradient += _spread(table / variance, keys, noise.sizes)
        step = step * LONGER or 1 / max(float(np.abs(gradient).max()), LEAST)
        for _ in range(HALVINGS):
            exponent = np.log(np.maximum(weights, LEAST)) - step * gradient
            tried = np.exp(exponent - exponent.max())
            tried *= total / tried.sum()
            lower, new_residuals = _misfit(tried, noise, tables)
            if lower < loss:
                break
            step /= 2
        else:
            break
        weights = tried
        loss = lower
        residuals = new_residuals
    return Fitted(weights, loss / cells)


def _misfit(
    weights: Float, noise: LeastSquares, tables: Sequence[Float]
) -> tuple[float, list[Float]]:
    """Return the weighted sum of squares, and what each table is off by."""
    residuals = [
        marginal(weights, keys) - table for keys, table in zip(noise.tables, tables, strict=True)
    ]
    return float(
        sum(np.sum(off * off) / v for off, v in zip(residuals, noise.variances, strict=True))
    ), residuals


def marginal(weights: np.ndarray, keys: Keys) -> np.ndarray:
    """Return the sums over all other keys."""
    return weights.sum(axis=tuple(key for key in range(weights.ndim) if key not in keys))


def _spread(table: Float, keys: Keys, sizes: Sequence[int]) -> Float:
    return table.reshape([n if key in keys else 1 for key, n in enumerate(sizes)])


# Rows drawn from the weights of a synthetic table, by public random words: who has the weights
# draws the same rows.

BITS = 53
"""Bits of a position within its part: as many as a float64 has."""


def draw(weights: Float, rows: int, seed: bytes) -> Int:
    """Return the cells of so many rows, ascending.

    The total is cut into equal parts, a row each, and a row falls anywhere in its part: each cell gets its share on average, and the rows of
    neighbouring cells differ from their shares by less than two, however many cells they are.

    Args:
        weights: of all cells; not negative, and some positive.
        rows: how many.
        seed: 32 bytes; public.
    """
    bounds = np.cumsum(weights.ravel())
    number = np.arange(rows, dtype=np.int64)
    within = (
        words(seed, tags(seed, np.zeros_like(number), number), 1, 0, 0)[:, 0]
        >> np.uint64(64 - BITS)
    ).astype(np.float64)
    places = (number + (within + 0.5) * 2.0**-BITS) / rows * bounds[-1]
    last = int(np.flatnonzero(weights.ravel())[-1])  # a place at the very end is rounded up to it
    return np.minimum(np.searchsorted(bounds, places, side="right"), last).astype(np.int64)
