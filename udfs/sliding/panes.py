"""Panes: what a window of them shows, and PANES, which measures each once with the whole budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.noise.discrete_laplace import DiscreteLaplace
from dpsql.udfs.noise.randomness import Blocks, normals, tags
from dpsql.udfs.sliding.smoothing import MEMORIES, LimitedTranslation

# Panes: the slides of a sliding window. A window is the last `count` of them; each is closed
# once, measured once, and never opened again.

PANE = 0
SUM = 1
MONITOR = 2
"""Round numbers of noise cells: a pane's own measurement, the sum of several panes, a question whether a pane differs."""


@dataclass(frozen=True)
class Panes:
    """Pane i is [first_us + i * slide_us, first_us + (i + 1) * slide_us) and closes `lateness_us` after its end.

    Args:
        slide_us: length of a pane.
        count: panes of a window.
        first_us: where the source begins; records before it count nowhere.
        lateness_us: how long a pane stays open after its end; a multiple of the slide, because clocks stop at panes' ends.
    """

    slide_us: int
    count: int
    first_us: int
    lateness_us: int = 0

    @property
    def window_us(self) -> int:
        """Length of a window."""
        return self.slide_us * self.count

    def number(self, ts: Int) -> Int:
        """Return the pane of each event time; negative before the first."""
        return (ts - self.first_us) // self.slide_us

    def start(self, number: int) -> int:
        """Return where a pane begins."""
        return self.first_us + number * self.slide_us

    def closed(self, closed_us: int) -> int:
        """Return how many panes are closed when the clock stands at closed_us: panes 0 up to that number, without it."""
        return (
            0
            if closed_us == NO_CLOCK
            else max((closed_us - self.lateness_us - self.first_us) // self.slide_us, 0)
        )


@dataclass(frozen=True)
class PaneCells:
    """The noise cells of one aggregate in one pane: all bins of a bucket.

    A cell is asked once per run: a pane's own by its start, a sum's by the start of its first pane and the number of its panes. A step of the
    noise is 2^bits units, in which records are added up modulo 2^64: so what is asked for is added to its noise modulo 2^(64 - bits).
    """

    noise_key: bytes
    key: Int
    start_us: int
    slide_us: int
    mechanism: int
    bits: int = 0

    def rounded(self, units: Int) -> Int:
        """Return a pane's sum in steps, half up. To even would not do: round(1.5) - round(0.5) = 2, where one step is charged."""
        return (units + (1 << self.bits >> 1)) >> self.bits

    def pane(self, table: DiscreteLaplace, rows: Int, sums: Int) -> Int:
        """Measure this pane by itself, for some of the bins."""
        return self._noisy(table, rows, 0, PANE, 1, sums)

    def monitor(self, table: DiscreteLaplace, rows: Int, sums: Int) -> Int:
        """Return what the question whether this pane differs is answered from."""
        return self._noisy(table, rows, 0, MONITOR, 1, sums)

    def sum(self, table: DiscreteLaplace, rows: Int, back: Int, members: Int, sums: Int) -> Int:
        """Return the sum of `members` panes, the first of which lies `back` panes before this one."""
        return self._noisy(table, rows, back, SUM, members, sums)

    def normal(self) -> Float:
        """Return a standard normal for this pane, for every bin."""
        return normals(
            self.noise_key, self._tag(np.arange(len(self.key)), 0), self.mechanism, PANE, 1
        )

    def _noisy(
        self,
        table: DiscreteLaplace,
        rows: Int,
        back: Int | int,
        round_: int,
        members: Int | int,
        sums: Int,
    ) -> Int:
        noise = table.draw(self.noise_key, self._tag(rows, back), self.mechanism, round_, members)
        return (sums + noise) << self.bits >> self.bits

    def _tag(self, rows: Int, back: Int | int) -> Blocks:
        return tags(
            self.noise_key,
            self.start_us - self.slide_us * np.broadcast_to(np.asarray(back, np.int64), rows.shape),
            self.key[rows],
        )


# What every way of measuring has in common: the bins' numbers, one pane at a time, and what a
# window shows.

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

    def close(self, bins: Bins, sums: Int, pane: int, cells: PaneCells) -> Window:
        """Measure pane number `pane`, whose exact sums are `sums`, in steps."""


def new_bins(columns: Mapping[str, tuple[type, int]], size: int) -> Bins:
    """Return the numbers of bins of which nothing has been measured."""
    return {
        name: np.zeros((size, width) if width else size, np.int64 if kind is int else np.float64)
        for name, (kind, width) in columns.items()
    }


# PANES: every pane is measured once, with the whole budget; a window is the sum of its panes.


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
        """Numbers of each bin. `ring`: the noisy panes of the window, pane i at i mod panes; `window`: their sum."""
        smoothing = (
            {"means": (float, len(MEMORIES)), "distances": (float, len(MEMORIES))}
            if self.smoother
            else {}
        )
        return {"ring": (int, self.panes), "window": (int, 0)} | smoothing

    def close(self, bins: Bins, sums: Int, pane: int, cells: PaneCells) -> Window:
        """Measure a pane by itself."""
        noisy = cells.pane(self.table, np.arange(len(sums)), sums)
        slot = pane % self.panes
        bins["window"] += noisy - bins["ring"][:, slot]
        bins["ring"][:, slot] = noisy
        window = bins["window"].copy()
        stderr = np.full(len(sums), math.sqrt(min(pane + 1, self.panes) * self.table.variance))
        if self.smoother is None:
            return Window(window, stderr)
        values = noisy.astype(np.float64), window.astype(np.float64)
        return Window(
            window, stderr, self.smoother.advance(bins["means"], bins["distances"], *values, pane)
        )
