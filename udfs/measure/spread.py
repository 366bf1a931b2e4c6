"""Variances and standard deviations from three noisy sums: centred values, their centred squares, and how many values there are.

Guarantee (docs/privacy/histogram.md, theorem 22): post-processing of the three numbers, each of which has its own noise. Squares are summed
less the middle of what they can be, so that one record moves their sum by half as much; the middle times the noisy count is added here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Float

AT_ZERO = math.sqrt(2 * math.pi) / 4
"""A root of less than so many errors of the variance has the error of a root at 0: E max(0, s Z) = s / sqrt(2 pi)."""


@dataclass(frozen=True)
class Moments:
    """What is known of a group's values: three noisy sums in value units, and the standard deviations of their noise.

    Args:
        total, total_error: of the centred values.
        squares, squares_error: of their squares, `offset` taken from each.
        count, count_error: how many.
        offset: the middle of what one square can be.
        largest: the largest variance that values within their bounds can have.
    """

    total: Float
    total_error: Float | float
    squares: Float
    squares_error: Float | float
    count: Float
    count_error: Float | float
    offset: float
    largest: float

    def variance(self, sample: bool) -> tuple[Float, Float]:
        """(variance, stderr): NaN where the noisy count is below 1, or 2 of a sample; the error is that of first order in the three noises.

        Args:
            sample: divide by count - 1, as for values that stand for others.
        """
        least = 2 if sample else 1
        enough = self.count >= least
        n = np.where(enough, self.count, float(least))
        mean, square = self.total / n, self.squares / n
        of_all = np.clip(square + self.offset - mean**2, 0.0, self.largest)
        divisor = n - 1 if sample else n
        by_count = 2 * mean**2 - square - (of_all / divisor if sample else 0.0)
        error = np.sqrt((2 * mean * self.total_error) ** 2 + self.squares_error**2 + (by_count * self.count_error) ** 2) / divisor
        return np.where(enough, of_all * (n / divisor), np.nan), np.where(enough, error, np.nan)

    def deviation(self, sample: bool) -> tuple[Float, Float]:
        """(standard deviation, stderr): the root of the variance; where that is less than its error, the error of a root at 0."""
        variance, error = self.variance(sample)
        return np.sqrt(variance), error / (2 * np.sqrt(np.maximum(variance, AT_ZERO * error)))
