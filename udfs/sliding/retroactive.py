"""RETROACTIVE: Retroactive Grouping (Chen, Shen and Jin, CIKM 2015) with a private monitor at rate 1, repaired where a repair is free.

A pane that differs from the pane before, as a noisy monitor sees it, is measured by itself; others wait until their group is large enough and
are measured as one sum. `revise`: a measured group's average is the value of all its members in later windows, not of the last
alone. `rescue`: a group cut short by a change is measured too. Both use what is released anyway; without both this is the paper's
algorithm. It is worse than EveryPane on every stream that was tried (docs/privacy/sliding.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Bool, Float, Int
from dpsql.udfs.noise.discrete_laplace import DiscreteLaplace
from dpsql.udfs.sliding.grouped import UNMEASURED, measured, put, stderr, whole, window_sum
from dpsql.udfs.sliding.grouped import revise as revise_panes
from dpsql.udfs.sliding.measurement import Bins, Window
from dpsql.udfs.sliding.panes import Cells


@dataclass(frozen=True)
class Retroactive:
    """Groups that are known only afterwards.

    Args:
        panes: panes of a window.
        monitor: noise of the monitor.
        table: noise of what is measured.
        revise, rescue: see above.
    """

    panes: int
    monitor: DiscreteLaplace
    table: DiscreteLaplace
    revise: bool = True
    rescue: bool = True

    @property
    def columns(self) -> Mapping[str, tuple[type, int]]:
        """`ring`, `members`: values of the window's panes and how they were measured. `previous`, `last`: value of the pane before, and of the
        last one that was not repeated. `sum`, `open`: exact sum and size of the group that waits; `target`: the size it waits for.
        """
        return {"ring": (float, self.panes), "members": (int, self.panes), "previous": (float, 0), "last": (float, 0)} | {
            name: (int, 0) for name in ("sum", "open", "target")
        }

    def close(self, bins: Bins, exact: Int, pane: int, cells: Cells) -> Window:
        """Measure a pane, or let it wait."""
        every = np.arange(len(exact))
        if pane:
            apart = bins["previous"] - cells.monitor(self.monitor, every, exact)
            fire = apart * apart >= 2.0 / (self.table.epsilon * self.table.epsilon)
        else:
            fire = np.ones(len(exact), bool)
        waiting = bins["open"].copy()
        if self.rescue:
            cut = fire & (waiting > 0)
            revise_panes(bins, cut, self._average(bins["sum"], cut, cells, waiting, waiting), waiting, 1, pane)
        bins["sum"] = np.where(fire, 0, bins["sum"] + exact)
        waiting = np.where(fire, 0, waiting + 1)
        done = ~fire & (waiting >= bins["target"])
        value = bins["last"].copy()
        value[fire] = cells.pane(self.table, every[fire], exact[fire]).astype(np.float64)
        average = self._average(bins["sum"], done, cells, waiting - 1, waiting)
        value[done] = average[done]
        # Without revision the last member stands for its group: a share of the noise of a sum of that many, by itself.
        put(bins, pane, value, np.where(fire, -1, np.where(done, -waiting, UNMEASURED)))
        if self.revise:
            revise_panes(bins, done, average, waiting, 0, pane)
        bins["target"] = np.where(fire, 2, np.where(done, 2 * waiting, bins["target"]))
        bins["last"] = np.where(fire | done, value, bins["last"])
        bins["previous"] = value
        bins["sum"] = np.where(done, 0, bins["sum"])
        bins["open"] = np.where(done, 0, waiting)
        window = window_sum(bins)
        of_sum = self.table.variance
        return Window(whole(window), stderr(bins, pane, of_sum, of_sum), None, measured(bins))

    def _average(self, sums: Int, rows: Bool, cells: Cells, back: Int, size: Int) -> Float:
        """Measure the groups of some bins, which began `back` panes ago, and divide by their size; 0 elsewhere."""
        out, at = np.zeros(len(rows)), np.flatnonzero(rows)
        out[at] = cells.sum(self.table, at, back[at], size[at], sums[at]) / size[at]
        return out
