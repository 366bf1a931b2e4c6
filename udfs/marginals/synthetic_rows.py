"""Rows drawn from the weights of a synthetic table, by public random words: who has the weights draws the same rows."""

from __future__ import annotations

import numpy as np

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.noise.randomness import tags, words

BITS = 53
"""Of a position within its part: as many as a float64 has."""


def draw(weights: Float, rows: int, seed: bytes) -> Int:
    """The cells of so many rows, ascending.

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
