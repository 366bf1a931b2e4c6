"""What both kinds of grouping share: windows of panes that were measured together, and how exact such a window is."""

from __future__ import annotations

import numpy as np

from dpsql.udfs.columns import Bool, Float, Int
from dpsql.udfs.sliding.measurement import Bins

UNMEASURED = 0
ALONE = np.iinfo(np.int64).min
"""In `members`: the pane has a noise of its own that is not that of sums. Otherwise the number of panes in its sum, negative in the first."""


FURTHEST = 2.0**63 - 1024.0
"""The largest number that float64 and int64 share."""


def whole(value: Float) -> Int:
    """Rounded. Panes may be as large as int64 is; what is further is the furthest there is, on every machine."""
    return np.clip(np.rint(value), -FURTHEST, FURTHEST).astype(np.int64)


def revise(bins: Bins, rows: Bool, value: Float, size: Int, back: int, pane: int) -> None:
    """Give panes that were measured as one sum their share of it.

    Args:
        bins: with `ring` (values) and `members`.
        rows: of which bins.
        value: what each pane of the sum is worth now.
        size: panes of the sum.
        back: how many panes before this one the last of them is.
        pane: number of this pane.
    """
    ring, members = bins["ring"], bins["members"]
    panes = ring.shape[1]
    for age in range(back, min(panes, pane + 1)):
        hit = rows & (size + back > age)
        if not hit.any():
            break
        at = (pane - age) % panes
        ring[hit, at] = value[hit]
        members[hit, at] = np.where(size + back - 1 == age, -size, size)[hit]


def put(bins: Bins, pane: int, value: Float, members: Int) -> None:
    """Enter the present pane."""
    at = pane % bins["ring"].shape[1]
    bins["ring"][:, at] = value
    bins["members"][:, at] = members


def window_sum(bins: Bins) -> Float:
    """Sum of the panes' values, always in the order of the ring."""
    total = np.zeros(len(bins["ring"]))
    for at in range(bins["ring"].shape[1]):
        total += bins["ring"][:, at]
    return total


def measured(bins: Bins) -> Int:
    """How many panes lie in sums measured so far."""
    return np.count_nonzero(bins["members"], axis=1).astype(np.int64)


def stderr(bins: Bins, pane: int, of_sum: float, alone: float) -> Float:
    """Standard deviation of the noise of the measured sums that a window holds in whole or in part.

    Args:
        bins: with `members`.
        pane: number of the window's last pane.
        of_sum, alone: variances of the noise of a sum, and of a pane that has a noise of its own.
    """
    members = bins["members"]
    panes = members.shape[1]
    total, share = np.zeros(len(members)), np.zeros(len(members))  # share: of the noise of the sum that the last pane looked at lies in
    for age in reversed(range(min(panes, pane + 1))):
        size = members[:, (pane - age) % panes]
        begins = (size < 0) | (size == UNMEASURED)
        total += np.where(begins, share * share * of_sum, 0.0)
        share = np.where(begins, 0.0, share)
        single = size == ALONE
        total += np.where(single, alone, 0.0)
        share += np.where(single | (size == UNMEASURED), 0.0, 1.0 / np.maximum(np.abs(np.where(single, 1, size)), 1))
    return np.asarray(np.sqrt(total + share * share * of_sum))
