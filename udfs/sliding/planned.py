"""PLANNED: how a pane is measured is fixed before the pane begins, from what has been released.

A bin is *fine*: each pane is measured by itself, with the whole budget. Or it is *grouped*: GROUP panes are measured as one sum, and a
monitor watches for bursts. A burst measures the finished part of the group and the present pane, each by itself, and makes the bin fine. A
bin whose windows have agreed with a flat stream for long enough becomes grouped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Bool, Float, Int
from dpsql.udfs.noise.discrete_laplace import DiscreteLaplace
from dpsql.udfs.sliding.grouped import ALONE, UNMEASURED, measured, put, revise, stderr, whole, window_sum
from dpsql.udfs.sliding.measurement import Bins, Window
from dpsql.udfs.sliding.panes import Cells
from dpsql.udfs.sliding.smoothing import MEMORIES, LimitedTranslation, power, weight

GROUP = 8
"""Panes of a group."""

BURST = 6.2
"""A monitor that is further off than this many times its scale is a burst."""

SETTLE = 40
"""Panes that a bin stays fine, at least."""

FLAT = 1.5
"""A window sum may lie this many times further from the running mean, squared, than the noise alone explains."""

UNFIT = 12.0
"""A group whose sum lies further from what was predicted than this many variances ends its bin's grouping."""

MEMORY = 128
"""Memory of the rate that is predicted."""


@dataclass(frozen=True)
class Planned:
    """Groups that are known beforehand.

    Args:
        panes: panes of a window.
        fine: noise of a pane of a fine bin.
        monitor: noise of the monitor.
        table: noise of sums, and of a pane with a burst.
        smoother: its running means are also where rates come from; for the noise of `fine`.
    """

    panes: int
    fine: DiscreteLaplace
    monitor: DiscreteLaplace
    table: DiscreteLaplace
    smoother: LimitedTranslation

    @property
    def columns(self) -> Mapping[str, tuple[type, int]]:
        """`ring`, `members`: as in Retroactive. `means`, `distances`: the smoother's. `rate`: what each pane of the open group is predicted to be.
        `grouped`: 1 or 0. `since`: panes since it became fine. `sum`, `open`: exact sum and size of the open group.
        """
        floats = {"ring": self.panes, "means": len(MEMORIES), "distances": len(MEMORIES), "rate": 0}
        ints = {"members": self.panes, "grouped": 0, "since": 0, "sum": 0, "open": 0}
        return {name: (float, width) for name, width in floats.items()} | {name: (int, width) for name, width in ints.items()}

    def close(self, bins: Bins, exact: Int, pane: int, cells: Cells) -> Window:
        """Measure a pane, or let it wait in its group."""
        every = np.arange(len(exact))
        grouped = bins["grouped"] == 1
        burst = np.zeros(len(exact), bool)
        at = every[grouped]
        apart = np.abs(cells.monitor(self.monitor, at, exact[at]) - bins["rate"][at])
        burst[at] = apart > BURST / self.monitor.epsilon
        self._measure(bins, burst & (bins["open"] > 0), 1, pane, cells)
        bins["open"][burst] = bins["sum"][burst] = bins["since"][burst] = 0
        value = bins["rate"].copy()
        for rows, table in ((~grouped, self.fine), (burst, self.table)):
            value[rows] = cells.pane(table, every[rows], exact[rows]).astype(np.float64)
        put(bins, pane, value, np.where(burst, -1, np.where(grouped, UNMEASURED, ALONE)))
        waits = grouped & ~burst
        bins["sum"][waits] += exact[waits]
        bins["open"][waits] += 1
        smoothed = self.smoother.advance(bins["means"], bins["distances"], value, window_sum(bins), pane)
        full = waits & (bins["open"] >= GROUP)
        misfit = self._unfit(bins, full, self._measure(bins, full, 0, pane, cells), pane)
        bins["open"][full] = bins["sum"][full] = bins["since"][misfit] = 0
        stays = waits & ~misfit
        window = window_sum(bins)
        rate = self.smoother.mean(bins["means"], MEMORY, pane)
        of_rate = min(pane + 1, self.panes) * rate
        smoothed = np.where(stays, np.maximum(of_rate, 0.0) if self.smoother.floor else of_rate, smoothed)
        self._plan_next(bins, stays, waits & ~full, rate, pane)
        error = stderr(bins, pane, self.table.variance, self.fine.variance)
        return Window(whole(window), error, smoothed, measured(bins))

    def _measure(self, bins: Bins, rows: Bool, back: int, pane: int, cells: Cells) -> Float:
        """Measure the open groups of some bins, whose last pane was `back` panes ago; the sums, 0 elsewhere."""
        sums, at, size = np.zeros(len(rows)), np.flatnonzero(rows), bins["open"]
        sums[at] = cells.sum(self.table, at, size[at] + (back - 1), size[at], bins["sum"][at]).astype(np.float64)
        revise(bins, rows, sums / np.maximum(size, 1), size, back, pane)
        off = np.where(rows, sums - size * bins["rate"], 0.0)
        for i, memory in enumerate(MEMORIES):
            bins["means"][:, i] += off * power(1.0 - 1.0 / memory, GROUP // 2)  # as if all of it belonged to the middle of the group
        return sums

    def _unfit(self, bins: Bins, full: Bool, sums: Float, pane: int) -> Bool:
        """Whose full group was not what had been predicted."""
        size, rate, total = bins["open"], bins["rate"], weight(1.0 - 1.0 / MEMORY, pane + 1)
        of_rate = self.fine.variance * weight((1.0 - 1.0 / MEMORY) * (1.0 - 1.0 / MEMORY), pane + 1) / (total * total)
        scale = 1.0 / self.table.epsilon
        expected = 2.0 * scale * scale + size * size * of_rate + size * np.maximum(rate, 0.0)
        off = sums - size * rate
        return np.asarray(full & (off * off > UNFIT * expected))

    def _plan_next(self, bins: Bins, stays: Bool, inside: Bool, rate: Float, pane: int) -> None:
        """Fix the mode of the next pane, and the rate that a new group is held against. Reads nothing exact but how many panes wait."""
        bins["rate"] = np.where(inside, bins["rate"], np.maximum(rate, 0.0) if self.smoother.floor else rate)
        bins["since"] += 1
        _, noise = self.smoother.agreement(MEMORY, pane)
        flat = self.smoother.distance(bins["distances"], MEMORY, pane) <= FLAT * noise
        fresh = ~stays & (bins["since"] >= SETTLE) & flat & (pane >= 2 * self.panes)
        bins["grouped"] = np.asarray(stays | fresh).astype(np.int64)
