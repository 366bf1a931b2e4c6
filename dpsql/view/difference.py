"""Is it real? The difference of two released values with an error of its own, and the places that keys can have in an order of noisy values.

All of it is read from released rows and what their table says of itself: it spends nothing. An error covers noise alone, as everywhere in a histogram.
So a difference is one of all records only where it is larger than what the limits may have left out, too; else it is one of the records that count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from dpsql.description import Measure, NoiseKind, Published, Rows
from dpsql.parsed_query import AggregateFunction
from dpsql.view.left_out import LeftOut

if TYPE_CHECKING:
    from dpsql.udfs.columns import Float, Int

BLOCK = 256
"""Keys whose places are found at once: memory is that of a block times all keys."""


MOST_SHORTFALL = 0.1
"""Where more of a window's pairs of a unit and a key may be left out, what is left out of two keys may be too unlike to compare all records."""
AMONG_COUNTED = "among the records that count"


class Of(StrEnum):
    """The records that a difference is one of."""

    ALL = "ALL"
    COUNTED = "COUNTED"


def shortfall(left_out: LeftOut | None, measure: Measure, units: bool) -> float | None:
    """Return how much larger than a released number the true one may be, as a share; None where nobody knows, or it may be a tenth or more.

    It is a rule and no bound: a key can lose more than the average key. Measured on crowds with a few per cent of crawlers: docs/accuracy.md.

    Args:
        left_out: of the window.
        measure: the aggregate.
        units: units are protected, and their limits can leave records out.
    """
    if not units:
        return 0.0 if measure.bounds is None else None
    if left_out is None or measure.function is not AggregateFunction.COUNT_DISTINCT_UNIT:
        return None
    share = left_out.shortfall()
    return share if share <= MOST_SHORTFALL else None


def larger_share(shares: Iterable[float | None]) -> float | None:
    """Return the largest of some shares of `shortfall`; None where nobody knows one of them."""
    all_shares = [*shares]
    known_shares = [share for share in all_shares if share is not None]
    return max(known_shares) if known_shares and len(known_shares) == len(all_shares) else None


@dataclass(frozen=True)
class Difference:
    """`value` with its standard deviation; `at_most` where that is only bounded, because how the two noises go together is not known."""

    value: float
    stderr: float
    at_most: bool = False

    def real(self, comparisons: int = 1) -> bool:
        """Tell whether it is more than 95% of its noise; `comparisons`: differences that are looked at together (Bonferroni)."""
        return abs(self.value) > _reach(comparisons) * self.stderr

    def verdict(self, smaller: float, share: float | None, comparisons: int = 1) -> Of | None:
        """Tell of which records it is one; None: it may be noise.

        Args:
            smaller: of the two values.
            share: of `shortfall`, the larger one where these are of two windows.
            comparisons: as of `real`.
        """
        if not self.real(comparisons):
            return None
        reach = _reach(comparisons) * self.stderr
        if share is not None and abs(self.value) > reach + margin(share, smaller):
            return Of.ALL
        return Of.COUNTED


def margin(share: float, smaller: float) -> float:
    """Return how much larger than its noise a difference has to be, to be one of all records."""
    return 2 * share * max(0.0, smaller)


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


def places(values: Float, stderrs: Float, max_keys: int, share: float = 0.0) -> tuple[Int, Int]:
    """Return from which to which place the largest keys can be: each key's interval holds with 95%.

    A key is above another if their difference is more than its error at a confidence of 1 - 5% / (keys - 1) (Bonferroni), so that all of a
    key's comparisons hold together with 95%. Noise of different keys is independent.

    Args:
        values, stderrs: of all keys of a window; NaN is below all.
        max_keys: how many keys, the largest, are asked for.
        share: of `shortfall`; 0: places are those among the records that count.

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
        smaller = np.minimum(sorted_values[block, None], sorted_values[None, :])
        reach += 2 * share * np.maximum(smaller, 0.0)
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
