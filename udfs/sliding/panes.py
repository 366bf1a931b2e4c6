"""Panes: the slides of a sliding window. A window is the last `count` of them; each is closed once, measured once, and never opened again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.noise.discrete_laplace import DiscreteLaplace
from dpsql.udfs.noise.randomness import Blocks, normals, tags

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
        """The pane of each event time; negative before the first."""
        return (ts - self.first_us) // self.slide_us

    def start(self, number: int) -> int:
        """Where a pane begins."""
        return self.first_us + number * self.slide_us

    def closed(self, closed_us: int) -> int:
        """How many panes are closed when the clock stands at closed_us: panes 0 up to that number, without it."""
        return (
            0
            if closed_us == NO_CLOCK
            else max((closed_us - self.lateness_us - self.first_us) // self.slide_us, 0)
        )


@dataclass(frozen=True)
class Cells:
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
        """A pane's sum in steps, half up. To even would not do: round(1.5) - round(0.5) = 2, where one step is charged."""
        return (units + (1 << self.bits >> 1)) >> self.bits

    def pane(self, table: DiscreteLaplace, rows: Int, exact: Int) -> Int:
        """This pane's own measurement, for some of the bins."""
        return self._noisy(table, rows, 0, PANE, 1, exact)

    def monitor(self, table: DiscreteLaplace, rows: Int, exact: Int) -> Int:
        """What the question whether this pane differs is answered from."""
        return self._noisy(table, rows, 0, MONITOR, 1, exact)

    def sum(self, table: DiscreteLaplace, rows: Int, back: Int, members: Int, exact: Int) -> Int:
        """The sum of `members` panes, the first of which lies `back` panes before this one."""
        return self._noisy(table, rows, back, SUM, members, exact)

    def normal(self) -> Float:
        """A standard normal for this pane, for every bin."""
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
        exact: Int,
    ) -> Int:
        noise = table.draw(self.noise_key, self._tag(rows, back), self.mechanism, round_, members)
        return (exact + noise) << self.bits >> self.bits

    def _tag(self, rows: Int, back: Int | int) -> Blocks:
        return tags(
            self.noise_key,
            self.start_us - self.slide_us * np.broadcast_to(np.asarray(back, np.int64), rows.shape),
            self.key[rows],
        )
