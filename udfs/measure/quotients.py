"""Averages, variances and standard deviations: what noisy sums of centred values, of their squares and of how many there are allow.

The 95% interval is everything that sums within 1.96 standard errors, taken together, of the noisy ones give: for an average Fieller's interval
(Journal of the Royal Statistical Society B, 1954). It holds the truth however few values there are, and few allow everything between
the bounds: so none is withheld but where there is none. Were few withheld, noise would choose those that are shown.

Guarantee (docs/privacy/histogram.md, theorems 10 and 22): post-processing of numbers each of which has its own noise. Squares are summed less the
middle of what they can be, so that one record moves their sum by half as much; the middle times the noisy count is added here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpsql.udfs.columns import Float

Z95 = 1.959963984540054

QUARTER = ((0.0, 1.0), (0.28, 0.96), (0.6, 0.8), (0.8, 0.6), (0.96, 0.28), (1.0, 0.0))
"""Points of a quarter of the unit circle, of which every machine has the same bits."""

SLIVER = 0.1
"""Of what the count's standard error of rows can move an average by."""

Sum = tuple[Float, Float]
"""Noisy sums in value units, and the standard deviations of their noise."""

Ends = tuple[Float, Float]


def average(total: Sum, count: Sum, bounds: tuple[float, float]) -> tuple[Float, Float]:
    """(average of the centred values, stderr)."""
    ends = (
        ((total[0] - left * total[1]) / n, (total[0] + left * total[1]) / n)
        for n, left in _counts(*count)
    )
    return _middle(*_between(ends, count, *bounds), count)


def variance(
    total: Sum, squares: Sum, count: Sum, offset: float, largest: float, sample: bool, root: bool
) -> tuple[Float, Float]:
    """(variance, stderr); with `root` those of the standard deviation.

    Args:
        total: of the centred values. squares: of their squares, `offset` taken from each.
        offset: the middle of what one square can be. largest: the largest variance that values within their bounds can have.
        sample: divide by count - 1, as for values that stand for others.
    """
    cut = _between(_spreads(total, squares, count), count, -offset, largest - offset)
    cut = cut[0] + offset, cut[1] + offset
    if sample:
        most, fewest = (np.maximum(count[0] + side * Z95 * count[1], 2.0) for side in (1, -1))
        cut = cut[0] * (most / (most - 1)), cut[1] * (fewest / (fewest - 1))
    if root:
        cut = np.sqrt(cut[0]), np.sqrt(cut[1])
    return _middle(*cut, count)


def _counts(count: Float, error: Float) -> Iterator[tuple[Float, float]]:
    """Counts within 1.96 standard errors, 1 at least, and how many standard errors each leaves to the other sums."""
    for part, left in QUARTER:
        for side in (-part, part):
            yield np.maximum(count + side * Z95 * error, 1.0), Z95 * left


def _spreads(total: Sum, squares: Sum, count: Sum) -> Iterator[Ends]:
    size = np.abs(total[0])
    for n, left in _counts(*count):
        for of_total, of_squares in QUARTER:
            moved = left * of_total * total[1]
            error = left * of_squares * squares[1]
            low = (size + moved) / n
            high = np.maximum(size - moved, 0.0) / n
            yield (squares[0] - error) / n - low**2, (squares[0] + error) / n - high**2


def _between(ends: Iterator[Ends], count: Sum, lower: float, upper: float) -> Ends:
    """All between the ends, cut to the bounds; of what lies beyond a bound a sliver is left inside it: no error is 0."""
    low, high = next(ends)
    for left, right in ends:
        low = np.minimum(low, left)
        high = np.maximum(high, right)
    sliver = SLIVER * (upper - lower) * count[1] / np.maximum(count[0] + Z95 * count[1], 1.0)
    return np.clip(np.minimum(low, upper - sliver), lower, upper), np.clip(
        np.maximum(high, lower + sliver), lower, upper
    )


def _middle(low: Float, high: Float, count: Sum) -> Ends:
    """NaN where there is less than one value, by the upper end of the count's interval."""
    some = count[0] + Z95 * count[1] >= 1
    return np.where(some, (low + high) / 2, np.nan), np.where(
        some, (high - low) / (2 * Z95), np.nan
    )
