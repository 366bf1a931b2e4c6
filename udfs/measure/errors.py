"""What is released of a value and its error, and when nothing is said."""

from __future__ import annotations

import numpy as np

from dpsql.udfs.columns import Float

Z95 = 1.959963984540054

Sum = tuple[Float, Float]
"""Noisy sums in value units, and the standard deviations of their noise."""


def released(
    value: Float, error: Float, bounds: tuple[float, float], count: Sum
) -> tuple[Float, Float]:
    """Return value and stderr: of an error of half the bounds or more, their middle and all between them; NaN where there is less than one value, by
    the upper end of the count's interval."""
    largest = (bounds[1] - bounds[0]) / 2
    value = np.where(error < largest, value, bounds[0] + largest)
    has_values = (count[0] + Z95 * count[1] >= 1) & ~np.isnan(error)
    return np.where(has_values, value, np.nan), np.where(
        has_values, np.minimum(error, largest) / Z95, np.nan
    )
