"""PANES: every pane is measured once, with the whole budget; a window is the sum of its panes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Int
from dpsql.udfs.noise.discrete_laplace import DiscreteLaplace
from dpsql.udfs.sliding.measurement import Bins, Window
from dpsql.udfs.sliding.panes import Cells
from dpsql.udfs.sliding.smoothing import MEMORIES, LimitedTranslation


@dataclass(frozen=True)
class EveryPane:
    """Noise of its own for every pane.

    Args:
        panes: panes of a window.
        table: the noise.
        smoother: or None.
    """

    panes: int
    table: DiscreteLaplace
    smoother: LimitedTranslation | None

    @property
    def columns(self) -> Mapping[str, tuple[type, int]]:
        """`ring`: the noisy panes of the window, pane i at i mod panes; `window`: their sum."""
        smoothing = (
            {"means": (float, len(MEMORIES)), "distances": (float, len(MEMORIES))}
            if self.smoother
            else {}
        )
        return {"ring": (int, self.panes), "window": (int, 0)} | smoothing

    def close(self, bins: Bins, exact: Int, pane: int, cells: Cells) -> Window:
        """Measure a pane."""
        noisy = cells.pane(self.table, np.arange(len(exact)), exact)
        at = pane % self.panes
        bins["window"] += noisy - bins["ring"][:, at]
        bins["ring"][:, at] = noisy
        window = bins["window"].copy()
        stderr = np.full(len(exact), math.sqrt(min(pane + 1, self.panes) * self.table.variance))
        if self.smoother is None:
            return Window(window, stderr)
        values = noisy.astype(np.float64), window.astype(np.float64)
        return Window(
            window, stderr, self.smoother.advance(bins["means"], bins["distances"], *values, pane)
        )
