"""Is it real? The difference of two released values with an error of its own, and the places that keys can have in an order of noisy values.

All of it is read from released rows and what their table says of itself: it spends nothing. An error covers noise alone, as everywhere in a histogram.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpsql.description import NoiseKind, Published, Rows

if TYPE_CHECKING:
    from dpsql.udfs.columns import Float, Int

BLOCK = 256
"""Keys whose places are found at once: memory is that of a block times all keys."""


@dataclass(frozen=True)
class Difference:
    """`value` with its standard deviation; `at_most` where that is only bounded, because how the two noises go together is not known."""

    value: float
    stderr: float
    at_most: bool = False

    def real(self, others: int = 1) -> bool:
        """More than 95% of its noise; of so many differences that are looked at together (Bonferroni)."""
        return abs(self.value) > _reach(others) * self.stderr


def difference(
    one: float, stderr: float, other: float, other_stderr: float, correlation: float | None
) -> Difference:
    """Return one value minus another.

    Args:
        one, stderr, other, other_stderr: the values and the standard deviations of their noise.
        correlation: of the two noises; None: unknown, so that the error is bounded by the sum of both.
    """
    if correlation is None:
        return Difference(one - other, stderr + other_stderr, at_most=True)
    variance = stderr**2 + other_stderr**2 - 2 * correlation * stderr * other_stderr
    return Difference(one - other, math.sqrt(max(0.0, variance)))


def between_triggers(published: Published, alias: str, one: int, other: int) -> float | None:
    """Return the correlation of a key's noise at two triggers of one window; None where that is not known, as where the value is made of several sums."""
    from dpsql.udfs.noise.counters import counter
    from dpsql.udfs.noise.exact_paths import coefficients

    noise = _of_windows(published)
    if (
        noise is None
        or noise.horizon is None
        or all(each.grid is None for each in published.measures if each.alias == alias)
    ):
        return None
    chosen = counter(noise.counter, noise.horizon)
    first, second = sorted((coefficients(chosen, step) for step in (one, other)), key=len)
    # Draws stand in order of time: those of the earlier trigger come first
    return float(
        first @ second[: len(first)] / math.sqrt(float(first @ first) * float(second @ second))
    )


def between_windows(published: Published) -> float | None:
    """Return the correlation of a key's noise in two windows: 0 where each draws its own; None where that is not known."""
    return None if _of_windows(published) is None else 0.0


def places(values: Float, stderrs: Float, shown: int) -> tuple[Int, Int]:
    """From which to which place the largest keys can be: each key's interval holds with 95%.

    A key is above another if their difference is more than its error at a confidence of 1 - 5% / (keys - 1) (Bonferroni), so that all of a
    key's comparisons hold together with 95%. Noise of different keys is independent.

    Args:
        values, stderrs: of all keys of a window; NaN is below all.
        shown: how many keys, the largest, are asked for.

    Returns:
        (best, worst) place of each, from 1, in the order of `values` from the largest down.
    """
    known = np.where(np.isfinite(values), values, -np.inf)
    order = np.argsort(-known, kind="stable")
    sorted_values = known[order]
    sorted_errors = np.where(np.isfinite(stderrs), stderrs, 0.0)[order]
    z = _reach(len(values) - 1)
    best = np.ones(min(shown, len(values)), np.int64)
    worst = np.ones(min(shown, len(values)), np.int64)
    for start in range(0, len(best), BLOCK):
        block = slice(start, min(start + BLOCK, len(best)))
        reach = z * np.hypot(sorted_errors[block, None], sorted_errors[None, :])
        with np.errstate(invalid="ignore"):  # -inf less -inf: neither is above
            gap = sorted_values[None, :] - sorted_values[block, None]
        best[block] = 1 + np.sum(gap > reach, axis=1)
        worst[block] = len(values) - np.sum(gap < -reach, axis=1)
    return best, worst


def _reach(differences: int) -> float:
    """Return how many standard deviations none of so many differences leaves, with 95%, where all are noise."""
    from scipy.special import ndtri

    return float(-ndtri(0.025 / max(1, differences)))


def _of_windows(published: Published) -> NoiseKind | None:
    """Return the noise of windows that each have their own; None of others."""
    noise = published.noise
    return (
        noise
        if published.rows is Rows.HISTOGRAM and published.windows and noise and noise.horizon
        else None
    )
