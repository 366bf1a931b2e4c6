"""Noise of an exact sum: what a mechanism's noise is, and the sum with it."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.noise.counters import Counter
from dpsql.udfs.noise.exact_paths import Redraw, rounded
from dpsql.udfs.noise.path_error import trust


@dataclass(frozen=True)
class PerturbationParameters:
    """`mechanism` numbers the noise (from 1); sigma in value units; grid: value of one integer unit (a power of two).

    `stderr_on_selection`: of a count that the sum which chooses keys is a part of, the standard deviation at triggers 1..T of that sum's
    noise and its own together; else nothing. A sigma of 0 there: nothing is left of the count, and it has no path.
    """

    mechanism: int
    counter: Counter
    sigma: float
    grid: float
    stderr_on_selection: tuple[float, ...] = ()

    @property
    def is_on_selection(self) -> bool:
        """Whether the sum that chooses keys is a part of the count."""
        return bool(self.stderr_on_selection)

    @property
    def width(self) -> int:
        """Numbers of the path's state."""
        return self.counter.width if self.sigma else 0


def noisy(sums: Int, path: Float, trigger: int, p: PerturbationParameters, redraw: Redraw) -> Int:
    """Return exact sums (grid units) plus the unit-noise path scaled by sigma and rounded to the grid.

    The rounded noise is that of the exact real path: where the float64 path is too close to half-way between two grid points to tell,
    or NaN, `redraw` computes it from its words.
    """
    scale = p.sigma / p.grid  # exact: the grid is a power of two
    return sums + rounded(path, scale, trigger, trust(p.counter).error[trigger - 1], redraw)
