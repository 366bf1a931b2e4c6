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

    def real(self, comparisons: int = 1) -> bool:
        """Tell whether it is more than 95% of its noise; `comparisons`: differences that are looked at together (Bonferroni)."""
        return abs(self.value) > _reach(comparisons) * self.stderr


def difference(
    value: float, stderr: float, baseline: float, baseline_stderr: float, correlation: float | None
) -> Difference:
    """Return one value minus another.

    Args:
        value, stderr, baseline, baseline_stderr: the values and the standard deviations of their noise.
        correlation: of the two noises; None: unknown, so that the error is bounded by the sum of both.
    """
    if correlation is None:
        return Difference(value - baseline, stderr + baseline_stderr, at_most=True)
    variance = stderr**2 + baseline_stderr**2 - 2 * correlation * stderr * baseline_stderr
    return Difference(value - baseline, math.sqrt(max(0.0, variance)))


def between_triggers(
    published: Published, alias: str, trigger: int, other_trigger: int
) -> float | None:
    """Return the correlation of a key's noise at two triggers of one window; None where that is not known, as where the value is made of several sums."""
    from dpsql.udfs.noise.counters import counter
    from dpsql.udfs.noise.exact_paths import coefficients

    noise = _of_windows(published)
    if (
        noise is None
        or noise.horizon is None
        or all(measure.grid is None for measure in published.measures if measure.alias == alias)
    ):
        return None
    chosen = counter(noise.counter, noise.horizon)
    first, second = sorted(
        (coefficients(chosen, step) for step in (trigger, other_trigger)), key=len
    )
    # Draws stand in order of time: those of the earlier trigger come first
    return float(
        first @ second[: len(first)] / math.sqrt(float(first @ first) * float(second @ second))
    )


def between_windows(published: Published) -> float | None:
    """Return the correlation of a key's noise in two windows: 0 where each draws its own; None where that is not known."""
    return None if _of_windows(published) is None else 0.0


def places(values: Float, stderrs: Float, max_keys: int) -> tuple[Int, Int]:
    """Return from which to which place the largest keys can be: each key's interval holds with 95%.

    A key is above another if their difference is more than its error at a confidence of 1 - 5% / (keys - 1) (Bonferroni), so that all of a
    key's comparisons hold together with 95%. Noise of different keys is independent.

    Args:
        values, stderrs: of all keys of a window; NaN is below all.
        max_keys: how many keys, the largest, are asked for.

    Returns:
        (best, worst) place of each, from 1, in the order of `values` from the largest down.
    """
    finite_values = np.where(np.isfinite(values), values, -np.inf)
    order = np.argsort(-finite_values, kind="stable")
    sorted_values = finite_values[order]
    sorted_errors = np.where(np.isfinite(stderrs), stderrs, 0.0)[order]
    z = _reach(len(values) - 1)
    best = np.ones(min(max_keys, len(values)), np.int64)
    worst = np.ones(min(max_keys, len(values)), np.int64)
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
