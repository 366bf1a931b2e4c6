"""A measurement over a whole stream of exact pane sums, one bin per column."""

import hashlib
from collections.abc import Iterator

import numpy as np

from dpsql.udfs.noise.discrete_laplace import discrete_laplace
from dpsql.udfs.sliding.panes import Bins, EveryPane, Measurement, PaneCells, Window, new_bins
from dpsql.udfs.sliding.retroactive import Retroactive
from dpsql.udfs.sliding.smoothing import LimitedTranslation

SLIDE = 60_000_000


def noise_key(seed: int) -> bytes:
    return hashlib.sha256(b"sliding %d" % seed).digest()


def cells(seed: int, bins: int, pane: int) -> PaneCells:
    """Of the second sum of a query: noise that were always the first one's would be seen."""
    return PaneCells(noise_key(seed), np.arange(bins) * 7919 + 1, pane * SLIDE, SLIDE, 2)


def windows(
    m: Measurement, exact: np.ndarray, seed: int = 1, bins: Bins | None = None
) -> Iterator[Window]:
    """What the windows that end with pane 0, 1, .. show; exact: (panes, bins)."""
    state = new_bins(m.columns, exact.shape[1]) if bins is None else bins
    for pane, row in enumerate(exact):
        yield m.close(state, row.astype(np.int64), pane, cells(seed, exact.shape[1], pane))


def plain(w: int, epsilon: float) -> EveryPane:
    table = discrete_laplace(epsilon)
    return EveryPane(w, table, LimitedTranslation(w, table.variance, True))


def retroactive(w: int, epsilon: float, share: float = 0.1) -> Retroactive:
    return Retroactive(
        w, discrete_laplace(share * epsilon), discrete_laplace((1 - share) * epsilon)
    )
