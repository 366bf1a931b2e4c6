"""RETROACTIVE: Retroactive Grouping (Chen, Shen and Jin, CIKM 2015) with a private monitor at rate 1.

A pane that differs from the pane before, as a noisy monitor sees it, is measured by itself; others wait until their group is large enough and
are measured as one sum. It is worse than EveryPane on every stream that was tried (docs/privacy/sliding.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Bool, Float, Int
from dpsql.udfs.noise.discrete_laplace import DiscreteLaplace
from dpsql.udfs.sliding.panes import Bins, PaneCells, Window

FURTHEST = 2.0**63 - 1024.0
"""The largest number that float64 and int64 share."""


def _rounded(value: Float) -> Int:
    """Round to integers of 64 bits. Panes may be as large as int64 is; what is further is the furthest there is, on every machine."""
    return np.clip(np.rint(value), -FURTHEST, FURTHEST).astype(np.int64)


def _sum(ring: Float) -> Float:
    """Add up the panes, always in the order of the ring."""
    total = np.zeros(len(ring))
    for slot in range(ring.shape[1]):
        total += ring[:, slot]
    return total


@dataclass(frozen=True)
class Retroactive:
    """Groups that are known only afterwards.

    Args:
        panes: panes of a window.
        monitor: noise of the monitor.
        table: noise of what is measured.
    """

    panes: int
    monitor: DiscreteLaplace
    table: DiscreteLaplace

    @property
    def columns(self) -> Mapping[str, tuple[type, int]]:
        """Numbers of each bin.

        `ring`, `members`: values of the window's panes, and how many were measured with each: the last of a group stands for it, the others
        are predicted and have 0. `previous`, `last`: value of the pane before, and of the last one that was not repeated. `sum`, `open`: exact
        sum and size of the group that waits; `target`: the size it waits for.
        """
        return {
            "ring": (float, self.panes),
            "members": (int, self.panes),
            "previous": (float, 0),
            "last": (float, 0),
        } | dict.fromkeys(("sum", "open", "target"), (int, 0))

    def close(self, bins: Bins, sums: Int, pane: int, cells: PaneCells) -> Window:
        """Measure a pane, or let it wait."""
        all_bins = np.arange(len(sums))
        if pane:
            difference = bins["previous"] - cells.monitor(self.monitor, all_bins, sums)
            fire = difference * difference >= 2.0 / (self.table.epsilon * self.table.epsilon)
        else:
            fire = np.ones(len(sums), bool)
        bins["sum"] = np.where(fire, 0, bins["sum"] + sums)
        waiting = np.where(fire, 0, bins["open"] + 1)
        is_complete = ~fire & (waiting >= bins["target"])
        value = bins["last"].copy()
        value[fire] = cells.pane(self.table, all_bins[fire], sums[fire]).astype(np.float64)
        average = self._average(bins["sum"], is_complete, cells, waiting - 1, waiting)
        value[is_complete] = average[is_complete]
        slot = pane % self.panes
        bins["ring"][:, slot] = value
        bins["members"][:, slot] = np.where(fire, 1, np.where(is_complete, waiting, 0))
        bins["target"] = np.where(fire, 2, np.where(is_complete, 2 * waiting, bins["target"]))
        bins["last"] = np.where(fire | is_complete, value, bins["last"])
        bins["previous"] = value
        bins["sum"] = np.where(is_complete, 0, bins["sum"])
        bins["open"] = np.where(is_complete, 0, waiting)
        measured = np.count_nonzero(bins["members"], axis=1).astype(np.int64)
        # Nobody knows how far a prediction is off: a window that has one has no standard error. Of the others each pane was measured by itself.
        pane_count = min(self.panes, pane + 1)
        is_measured = (measured == pane_count) & (bins["members"].max(axis=1, initial=0) == 1)
        stderr = np.where(is_measured, math.sqrt(pane_count * self.table.variance), np.nan)
        return Window(_rounded(_sum(bins["ring"])), stderr, None, measured)

    def _average(self, sums: Int, rows: Bool, cells: PaneCells, back: Int, size: Int) -> Float:
        """Measure the groups of some bins, which began `back` panes ago, and divide by their size; 0 elsewhere."""
        averages = np.zeros(len(rows))
        bins_measured = np.flatnonzero(rows)
        averages[bins_measured] = (
            cells.sum(
                self.table,
                bins_measured,
                back[bins_measured],
                size[bins_measured],
                sums[bins_measured],
            )
            / size[bins_measured]
        )
        return averages
