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


def _whole(value: Float) -> Int:
    """Rounded. Panes may be as large as int64 is; what is further is the furthest there is, on every machine."""
    return np.clip(np.rint(value), -FURTHEST, FURTHEST).astype(np.int64)


def _sum(ring: Float) -> Float:
    """Of the panes, always in the order of the ring."""
    total = np.zeros(len(ring))
    for at in range(ring.shape[1]):
        total += ring[:, at]
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
        """`ring`, `members`: values of the window's panes, and how many were measured with each: the last of a group stands for it, the others
        are predicted and have 0. `previous`, `last`: value of the pane before, and of the last one that was not repeated. `sum`, `open`: exact
        sum and size of the group that waits; `target`: the size it waits for.
        """
        return {
            "ring": (float, self.panes),
            "members": (int, self.panes),
            "previous": (float, 0),
            "last": (float, 0),
        } | {name: (int, 0) for name in ("sum", "open", "target")}

    def close(self, bins: Bins, exact: Int, pane: int, cells: PaneCells) -> Window:
        """Measure a pane, or let it wait."""
        every = np.arange(len(exact))
        if pane:
            apart = bins["previous"] - cells.monitor(self.monitor, every, exact)
            fire = apart * apart >= 2.0 / (self.table.epsilon * self.table.epsilon)
        else:
            fire = np.ones(len(exact), bool)
        bins["sum"] = np.where(fire, 0, bins["sum"] + exact)
        waiting = np.where(fire, 0, bins["open"] + 1)
        done = ~fire & (waiting >= bins["target"])
        value = bins["last"].copy()
        value[fire] = cells.pane(self.table, every[fire], exact[fire]).astype(np.float64)
        average = self._average(bins["sum"], done, cells, waiting - 1, waiting)
        value[done] = average[done]
        at = pane % self.panes
        bins["ring"][:, at] = value
        bins["members"][:, at] = np.where(fire, 1, np.where(done, waiting, 0))
        bins["target"] = np.where(fire, 2, np.where(done, 2 * waiting, bins["target"]))
        bins["last"] = np.where(fire | done, value, bins["last"])
        bins["previous"] = value
        bins["sum"] = np.where(done, 0, bins["sum"])
        bins["open"] = np.where(done, 0, waiting)
        measured = np.count_nonzero(bins["members"], axis=1).astype(np.int64)
        # Nobody knows how far a prediction is off: a window that has one has no standard error. Of the others each pane was measured by itself.
        all_of_them = min(self.panes, pane + 1)
        whole = (measured == all_of_them) & (bins["members"].max(axis=1, initial=0) == 1)
        stderr = np.where(whole, math.sqrt(all_of_them * self.table.variance), np.nan)
        return Window(_whole(_sum(bins["ring"])), stderr, None, measured)

    def _average(self, sums: Int, rows: Bool, cells: PaneCells, back: Int, size: Int) -> Float:
        """Measure the groups of some bins, which began `back` panes ago, and divide by their size; 0 elsewhere."""
        out = np.zeros(len(rows))
        at = np.flatnonzero(rows)
        out[at] = cells.sum(self.table, at, back[at], size[at], sums[at]) / size[at]
        return out
