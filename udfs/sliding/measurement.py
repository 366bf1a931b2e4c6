"""What every way of measuring has in common: the bins' numbers, one pane at a time, and what a window shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.sliding.panes import Cells

Bins = dict[str, npt.NDArray[Any]]
"""Numbers per bin by name, of shape (bins,) or (bins, width); a pane changes them in place."""


@dataclass(frozen=True)
class Window:
    """The window that ends with the pane just closed, for every bin, in steps of the grid.

    Args:
        value: its sum, unbiased where every pane is measured by itself.
        stderr: standard deviation of the noise of what was measured.
        smoothed: a better guess, or None.
        measured: how many panes of the window lie in sums measured so far, or None: all of them.
    """

    value: Int | Float
    stderr: Float
    smoothed: Float | None = None
    measured: Int | None = None


class Measurement(Protocol):
    """One aggregate's sums over panes, measured."""

    @property
    def columns(self) -> Mapping[str, tuple[type, int]]:
        """Numbers per bin: name -> (int or float, width; 0: one number). They begin as zeros."""

    def close(self, bins: Bins, exact: Int, pane: int, cells: Cells) -> Window:
        """Measure pane number `pane`, whose exact sums are given, in steps."""


def new_bins(columns: Mapping[str, tuple[type, int]], size: int) -> Bins:
    """The numbers of bins of which nothing has been measured."""
    return {
        name: np.zeros((size, width) if width else size, np.int64 if kind is int else np.float64)
        for name, (kind, width) in columns.items()
    }
