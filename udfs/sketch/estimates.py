"""Estimates from published cells, and how far they may be off. All of it is post-processing: nothing is spent.

Count-Sketch: the median over rows of sign * cell, unbiased. Count-Min (for comparison): the smallest cell, biased by collisions and by noise.
"""

from __future__ import annotations

import numpy as np

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.sketch.hashing import CellShape, Field

ROUNDS = 30
MISSED = 0.025
"""Probability of an error on each side of an interval."""


def estimate(shape: CellShape, scores: Int) -> Int:
    """Return one number per key from (depth, keys) of sign * cell."""
    return np.sort(scores, axis=0)[shape.depth // 2] if shape.signed else np.min(scores, axis=0)


def joint(shape: CellShape, cells: Int, fields: Field) -> Float:
    """Estimate a set of keys together: collisions among them are taken out, round by round, by the median of what is left in their cells.

    Only for keys that are known to be there: among keys below the floor it fits the noise. Keys in a fixed order give fixed bits.
    """
    columns = (fields >> 1).astype(np.int64)
    signs = 1.0 - 2.0 * (fields & 1)
    estimates = np.zeros(fields.shape[1])
    for number in range(ROUNDS):
        remainders = np.empty(fields.shape)
        for row in range(shape.depth):
            remainder = cells[row] - np.bincount(
                columns[row], weights=estimates * signs[row], minlength=shape.width
            )
            remainders[row] = remainder[columns[row]] * signs[row]
        estimates = (
            estimates
            + (1.0 if number == 0 else 0.5) * np.sort(remainders, axis=0)[shape.depth // 2]
        )
    return estimates


def interval(
    shape: CellShape, cells: Int, estimates: Float | Int, missed: float
) -> tuple[Float, Float]:
    """Return (low, high): they hold the true value of each estimate with probability 0.95, with collisions and what the one-cell rule leaves out.

    Args:
        shape, cells: of one sketch.
        found: estimates of keys named before looking at the cells.
        missed: the largest share of a key's records that a row is expected to leave out. A row then holds (1 - missed) of them or more, so
            an end that is not 0 is divided by that. Of weights of both signs what is left out is taken to be as the rest.
    """
    margin_below, margin_above = margins(shape, cells)
    low = np.asarray(estimates - margin_below, np.float64)
    high = np.asarray(estimates + margin_above, np.float64)
    held_share = 1 - missed
    return np.where(low < 0, low / held_share, low), np.where(high > 0, high / held_share, high)


def margins(shape: CellShape, cells: Int) -> tuple[int, int]:
    """Return (below, above): what the rows hold of a key lies in estimate - below .. estimate + above with probability 0.95, collisions included.

    For keys named before looking at the cells: theirs are then independent of all other keys', and the error of an estimate has the law of
    the estimate of a key that no record has, which the cells give exactly.
    """
    if shape.signed:
        half = _smallest_margin(shape, cells, MISSED)
        return half, half
    values = np.sort(cells, axis=1)
    return _count_min(values, MISSED), -_count_min(values, 1 - MISSED)


def _smallest_margin(shape: CellShape, cells: Int, probability: float) -> int:
    """Return the smallest t >= 0 with P(median of a fresh key > t) at most the probability."""
    sizes = np.sort(np.abs(cells), axis=1)
    low = 0
    high = int(sizes.max(initial=0))
    while low < high:
        middle = (low + high) // 2
        tail_chances = [
            (shape.width - int(np.searchsorted(row, middle, "right"))) / (2 * shape.width)
            for row in sizes
        ]
        if _at_least(tail_chances, shape.depth // 2 + 1) <= probability:
            high = middle
        else:
            low = middle + 1
    return low


def _at_least(chances: list[float], count: int) -> float:
    """Return P(at least so many of independent events), events in order."""
    law = np.zeros(len(chances) + 1)
    law[0] = 1.0
    for chance in chances:
        law[1:] = law[1:] * (1 - chance) + law[:-1] * chance
        law[0] *= 1 - chance
    return float(np.sum(law[count:]))


def _count_min(values: Int, probability: float) -> int:
    """Return the smallest t with P(smallest cell of a fresh key > t) at most the probability."""
    low = int(values.min())
    high = int(values.max())
    while low < high:
        middle = (low + high) // 2
        tail_chance = 1.0
        for row in values:
            tail_chance *= 1 - int(np.searchsorted(row, middle, "right")) / len(row)
        low, high = (low, middle) if tail_chance <= probability else (middle + 1, high)
    return low
