"""Variances and standard deviations from three noisy sums: centred values, their centred squares, and how many values there are.

Guarantee (docs/privacy/histogram.md, theorem 22): post-processing of the three numbers, each of which has its own noise. Squares are summed
less the middle of what they can be, so that one record moves their sum by half as much; the middle times the noisy count is added here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsql.udfs.columns import Bool, Float

FEWEST = 5.0
"""A quotient of a noisy count of fewer than so many of its own standard errors says nothing: its error of first order is none."""

Z95 = 1.959963984540054


def enough(count: npt.NDArray[Any], error: Float | float, least: int = 1) -> Bool:
    """Whether a noisy count may divide: it is `least` at least, and stands out of its own noise."""
    return count >= np.maximum(least, FEWEST * np.asarray(error))


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
        """(variance, stderr): NaN where there are not `enough`; the error is that of first order in the three noises.

        Args:
            sample: divide by count - 1, as for values that stand for others.
        """
        least = 2 if sample else 1
        divides = enough(self.count, self.count_error, least)
        n = np.where(divides, self.count, float(least))
        mean, square = self.total / n, self.squares / n
        of_all = np.clip(square + self.offset - mean**2, 0.0, self.largest)
        divisor = n - 1 if sample else n
        by_count = 2 * mean**2 - square - (of_all / divisor if sample else 0.0)
        error = np.sqrt((2 * mean * self.total_error) ** 2 + self.squares_error**2 + (by_count * self.count_error) ** 2) / divisor
        return np.where(divides, of_all * (n / divisor), np.nan), np.where(divides, error, np.nan)

    def deviation(self, sample: bool) -> tuple[Float, Float]:
        """(standard deviation, stderr): the root of the variance, and so much that its 95% interval holds the roots of the variance's."""
        variance, error = self.variance(sample)
        root, half = np.sqrt(variance), Z95 * error
        up, down = np.sqrt(variance + half) - root, root - np.sqrt(np.maximum(variance - half, 0.0))
        return root, np.maximum(up, down) / Z95
