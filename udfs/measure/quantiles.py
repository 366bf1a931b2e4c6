"""Quantiles from a tree of noisy counts: leaves of equal width between two bounds, and the nodes above them.

Every value is counted in one leaf, so in one node of each level. All nodes of all levels are counters with the same noise. Least squares in a
tree of equal noise are weighted averages, up and down (Hay, Rastogi, Miklau, Suciu, VLDB 2010, section 4.1); with three levels of fan-out 16
and no root the weights are fractions of small integers, so they are taken in integers here: equal counts give equal bits everywhere.

Guarantee: functions of noisy counts alone, so they cost nothing beyond them (docs/privacy/dynamic.md, theorem 27).
"""

from __future__ import annotations

import numpy as np

from dpsql.udfs.columns import Float, Int

FAN_OUT = 16
LEVELS = 3
LEAVES = FAN_OUT**LEVELS
TWIGS = LEAVES // FAN_OUT
BRANCHES = FAN_OUT
"""Nodes of the two levels above the leaves."""
NODES = LEAVES + TWIGS + BRANCHES
"""Nodes of a tree: leaves first, then twigs, then branches."""

WHOLE = 17 * 273 * 16 * 16
"""Size of a count of 1 in estimates: 17 = 1 + 16, 273 = 1 + 16 + 256."""
MOST_ROWS = 1 << 40
"""Sums of noisy counts below it leave room in 64 bits."""


def nodes(leaves: Int) -> Int:
    """Return counts of all nodes, from those of leaves; shape (groups, LEAVES) in, (groups, NODES) out."""
    twigs = leaves.reshape(-1, TWIGS, FAN_OUT).sum(axis=2)
    return np.concatenate([leaves, twigs, twigs.reshape(-1, BRANCHES, FAN_OUT).sum(axis=2)], axis=1)


def cumulated(noisy: Int) -> Int:
    """Return least-squares estimates of how many values are in the first leaf, the first two, ...: in units of 1 / WHOLE.

    Args:
        noisy: counts of all nodes, shape (groups, NODES).
    """
    leaf = noisy[:, :LEAVES].reshape(-1, BRANCHES, FAN_OUT, FAN_OUT)
    twig = noisy[:, LEAVES : LEAVES + TWIGS].reshape(-1, BRANCHES, FAN_OUT)
    branch = noisy[:, LEAVES + TWIGS :]
    leaf_sums = leaf.sum(axis=3)
    # Up: 17 times the mean of a twig and its leaves, 273 times that of a branch and all below it.
    upward = 16 * twig + leaf_sums
    top = 256 * branch + upward.sum(axis=2)
    # Down: what a parent has beyond its children is shared out equally.
    middle = 4368 * upward + (17 * top - 273 * upward.sum(axis=2))[..., None]
    bottom = WHOLE * leaf + (middle - WHOLE // 16 * leaf_sums)[..., None]
    return np.cumsum(bottom.reshape(-1, LEAVES), axis=1)


def places(sums: Int, parts: int) -> Int:
    """Return after how many leaves 1, 2, .., parts - 1 `parts`-ths of the values lie; shape (groups, parts - 1).

    Sums are made ascending by their largest so far and their smallest to come, half of each: one of them alone would pull all values to one side.
    """
    largest = np.maximum.accumulate(sums, axis=1)
    smallest = np.minimum.accumulate(sums[:, ::-1], axis=1)[:, ::-1]
    twice = largest + smallest
    total = 2 * np.maximum(sums[:, -1], 0)
    share = np.arange(1, parts)
    target_ranks = total[:, None] // parts * share + -(-(total[:, None] % parts * share) // parts)
    positions = [np.searchsorted(row, each) for row, each in zip(twice, target_ranks, strict=True)]
    return np.minimum(np.array(positions, np.int64).reshape(-1, parts - 1), LEAVES - 1) + 1


def values(place: Int, sums: Int, lower: float, upper: float) -> Float:
    """Return lower bound, the upper edges of the leaves, upper bound; NaN where there is less than one value, by the noisy count."""
    inner = lower + (upper - lower) * (place / LEAVES)
    ends = np.full((len(place), 1), lower), np.full((len(place), 1), upper)
    return np.where(
        sums[:, -1:] >= WHOLE, np.concatenate([ends[0], inner, ends[1]], axis=1), np.nan
    )


def rank_error(place: Int, sums: Int, deviation: float) -> Float:
    """Return the standard deviation that noise gives to the share of values up to an edge, of the worst of the edges of each group; NaN like `values`.

    Args:
        place, sums: as of `places`.
        deviation: of each node's noise.
    """
    parts = place.shape[1] + 1
    worst = _variance(place, np.arange(1, parts) / parts).max(axis=1, initial=0.0)
    enough = sums[:, -1] >= WHOLE
    return np.where(
        enough, deviation * np.sqrt(worst) / np.where(enough, sums[:, -1] / WHOLE, 1.0), np.nan
    )


def rows_error(parts: int, deviation: float) -> float:
    """Return the standard deviation that noise gives to how many values there are up to an edge, not of
    their share, where values lie evenly: what can be said beforehand."""
    share = np.arange(1, parts) / parts
    return deviation * float(
        np.sqrt(_variance(np.rint(share * LEAVES).astype(np.int64), share).max(initial=0.0))
    )


def _variance(place: Int, share: Float) -> Float:
    """Return the variance of (values up to a place) - share * (all values), for unit noise.

    An estimate is a mean of its branch (variance 256 / 273, of a leaf's share 1 / 256), and deviations of twigs (16 / 17) and leaves (1) from
    the mean of those beside them, all independent of each other.
    """
    branches = place // TWIGS
    remainder = place % TWIGS
    twig = remainder // FAN_OUT
    leaf = remainder % FAN_OUT / FAN_OUT
    fraction = remainder / TWIGS
    of_twigs = 16 / 17 * (twig + leaf**2 - (twig + leaf) ** 2 / FAN_OUT)
    of_leaves = FAN_OUT * leaf * (1 - leaf)
    of_branches = (
        256
        / 273
        * (
            branches * (1 - share) ** 2
            + (fraction - share) ** 2
            + (BRANCHES - 1 - branches) * share**2
        )
    )
    return of_branches + of_twigs + of_leaves
