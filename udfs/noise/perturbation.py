"""Noise of an exact sum: what a mechanism's noise is, and the sum with it."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.noise.counters import Counter
from dpsql.udfs.noise.exact_paths import Redraw, rounded
from dpsql.udfs.noise.path_error import trust


@dataclass(frozen=True)
class PerturbationParameters:
    """`mechanism` numbers the noise (from 1); sigma in value units; grid: value of one integer unit (a power of two)."""

    mechanism: int
    counter: Counter
    sigma: float
    grid: float


def noisy(sums: Int, path: Float, trigger: int, p: PerturbationParameters, redraw: Redraw) -> Int:
    """Return exact sums (grid units) plus the unit-noise path scaled by sigma and rounded to the grid.

    The rounded noise is that of the exact real path: where the float64 path is too close to half-way between two grid points to tell,
    or NaN, `redraw` computes it from its words.
    """
    scale = p.sigma / p.grid  # exact: the grid is a power of two
    return sums + rounded(path, scale, trigger, trust(p.counter).error[trigger - 1], redraw)
