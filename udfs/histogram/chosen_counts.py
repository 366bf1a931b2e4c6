"""Counts of keys that appear because they are large: what a noisy count allows, given that it brought its key over the threshold.

Guarantee (docs/privacy/histogram.md, theorem 30): post-processing of two noisy sums that are paid for. Of all keys with N people that
are shown at a trigger at least 95% have N inside the interval where windows have one trigger, 92.5% at any trigger of any window. A plain
value +- 1.96 deviations holds N for hardly any key that luck has lifted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.contributions import WEIGHT_UNIT
from dpsql.udfs.measure.errors import Z95

WEIGHT_BITS = 20
FAR = 2.1
"""Deviations over the threshold from which on it changes nothing: 3 / d + d / 4 is below 1.96 there."""


@dataclass(frozen=True)
class Excess:
    """The noisy sums that chose some keys, beside their threshold at one trigger.

    Args:
        noise: of the sums, rounded to multiples of 2^-20, in units of 2^-20.
        surplus: the noisy sums less the threshold, in people.
        sd: standard deviation of the noise, in people.
        min_users: that a shown key has for certain.
    """

    noise: Int
    surplus: Float
    sd: float
    min_users: int


def interval_of(sums: Int, sd: float, excess: Excess) -> tuple[Int, Float]:
    """Return (middle of the 95% interval, half of it over 1.96), or the count and its deviation far from the threshold.

    The upper end is 1.96 sd above the noisy sum, the lower one 3 / d + d / 4 below it, at least 1.96; only + - * / and rint, so that all
    machines have the same bits. Ends of a sum that was rounded first would miss too often where sd is about 1.

    Args:
        sums: noisy counts, in units of 2^-20.
        sd: standard deviation of their noise, in people.
        excess: of the sums that are a part of them.
    """
    distance = excess.surplus * (sd / (excess.sd * excess.sd))
    is_near = distance < FAR
    is_over = distance > 0
    d = np.where(is_near & is_over, distance, 1.0)
    min_users = float(excess.min_users)
    noisy_sum = sums.astype(np.float64) * WEIGHT_UNIT
    low = np.where(is_over, np.maximum(noisy_sum - sd * (3 / d + d / 4), min_users), min_users)
    high = np.maximum(noisy_sum + sd * Z95, low + sd)  # no error is 0
    counts = (sums + (1 << WEIGHT_BITS - 1)) >> WEIGHT_BITS
    middle = np.where(is_near, np.rint((low + high) / 2), counts).astype(np.int64)
    half = np.maximum(middle - low, high - middle) / Z95
    return middle, np.where(is_near, half, sd)
