"""The floor test: is a key's score too high for a key that no record has? Decided from the published cells alone, whatever the data.

A key that no record has sees sign * cell at a uniformly random column and sign in every row, rows independent of each other and of the cells. So
the law of its score given the cells is known exactly: nothing is assumed of the data, and no budget is spent.

    s_B(x) = sum over rows of clip(sign * cell, -B, B), in bins of B / 128 or of one step, rounded down; its null law is rounded up

and x passes if, for some scale B, the null tail at s_B(x) is at most beta / (number of scales). A threshold of so many standard deviations
of the noise would not do: cells that hold heavy keys are as far from 0, and a fresh key that meets them would pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Bool, Float, Int

MOST_BINS = 128
"""On each side of 0."""
FIRST = 3
"""The first scale, in standard deviations of the noise; further ones double."""
ROUNDING = 1 + 1e-9
"""What tails are multiplied by: all terms are positive, so float64 is off by less than 10^-11 of them."""


def passes(cells: Int, scores: Int, sd: float, beta: float) -> Bool:
    """Which keys pass.

    Args:
        cells: (depth, width), signed, in steps of the grid.
        scores: (depth, keys): sign * cell of each key in each row.
        sd: standard deviation of a cell's noise; it chooses scales and has no influence on the probability.
        beta: probability with which a key that no record has may pass, at most.
    """
    found = np.zeros(scores.shape[1], bool)
    tried = scales(cells, sd)
    for scale in tried:
        least = threshold(null_law(cells, scale), beta / len(tried))
        found |= np.sum(scale.bins(scores), axis=0) >= least
    return found


@dataclass(frozen=True)
class Scale:
    """B = step * half, in steps of the grid: `half` bins on each side of 0, `step` wide."""

    step: int
    half: int

    def bins(self, values: Int) -> Int:
        """The bin of each clipped value, 0 to 2 * half, rounded down."""
        return (
            np.clip(values, -self.step * self.half, self.step * self.half) // self.step + self.half
        )

    def bins_above(self, values: Int) -> Int:
        """The same, rounded up."""
        return 2 * self.half - self.bins(-values)


def scales(cells: Int, sd: float) -> list[Scale]:
    """B = sd * 3, 6, 12, .. up to twice the largest cell, rounded up so that bins are whole steps; the first in any case."""
    largest = int(np.max(np.abs(cells), initial=0))
    out = list[Scale]()
    factor = FIRST
    while not out or factor * sd < 2 * largest:
        reach = max(int(np.ceil(factor * sd)), 1)
        step = -(-reach // MOST_BINS)
        out.append(Scale(step, -(-reach // step)))
        factor *= 2
    return out


def null_law(cells: Int, scale: Scale) -> Float:
    """P(score of a fresh key = k) for k = 0 .. 2 * half * depth; never too small in the tail."""
    law = np.ones(1)
    for row in cells:
        size = 2 * scale.half + 1
        bins = np.bincount(scale.bins_above(row), minlength=size) + np.bincount(
            scale.bins_above(-row), minlength=size
        )
        out = np.zeros(len(law) + size - 1)
        for k in np.flatnonzero(
            bins
        ).tolist():  # in this order on every machine: no library's convolution
            out[k : k + len(law)] += law * (bins[k] / (2 * len(row)))
        law = out
    return law


def threshold(law: Float, beta: float) -> int:
    """The smallest score whose tail is at most beta; beyond the law's end if there is none."""
    tail = np.cumsum(law[::-1])[::-1] * ROUNDING
    return int(np.count_nonzero(tail > beta))
