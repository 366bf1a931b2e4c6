"""WINDOW_SQRT: correlated Gaussian noise for sliding windows, for ever, from a factorisation A = B C of the window operator.

A is the Toeplitz operator (1 - z^w) / (1 - z); C is Toeplitz with the first 2 w coefficients of its square root, B = A C^-1. Released is
A x + sigma B z, which is C x + sigma z after a linear map: sensitivity is that of C, whose columns all have one norm, however long the
stream. u = C^-1 z obeys u_t = z_t - sum of c_k u_(t-k), and a window's noise is the sum of its last w u.

Noise is rounded to the grid before it meets data. What is rounded is the exact real number that the random words define; where float64
cannot tell how, it is computed again from the words, in integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.exact_normal import quantile
from dpsql.udfs.noise.path_error import ABSOLUTE, RELATIVE, ROOM, UNIT
from dpsql.udfs.noise.randomness import MAX_NORMAL
from dpsql.udfs.noise.window_sqrt import response
from dpsql.udfs.sliding.panes import PANE, Bins, PaneCells, Window

GUARD = 64
"""Binary places beyond those asked for: roundings of a recursion that forgets add up to far less."""

MOST_BITS = 1 << 12
"""No path is closer to a boundary: that has a probability of 2^-4000."""


@dataclass(frozen=True)
class WindowSqrt:
    """The measurement.

    Args:
        panes: panes of a window.
        c: first column of C.
        sigma: standard deviation of z, in steps of the grid.
        sd: standard deviation of a window's noise for sigma = 1, by pane number; the last one holds for all later panes.
    """

    panes: int
    c: tuple[float, ...]
    sigma: float
    sd: tuple[float, ...]

    @property
    def columns(self) -> Mapping[str, tuple[type, int]]:
        """Numbers of each bin. `ring`: exact panes of the window, `window`: their sum; `path`: the last u. Pane i is at i modulo the width."""
        return {"ring": (int, self.panes), "window": (int, 0), "path": (float, len(self.c) - 1)}

    @cached_property
    def error(self) -> float:
        """Bound on how far a window's noise in float64, sigma = 1, can be from the exact one."""
        kernel = response(self.panes, self.c)
        width = len(self.c)
        largest = MAX_NORMAL * ROOM * float(np.abs(kernel.inverse).sum())
        fed_back = largest * float(np.abs(np.array(self.c[1:])).sum())
        # Of one u: the draw itself; a product and a difference per coefficient, each a rounding of at most the sizes that meet there.
        of_u = UNIT * (
            RELATIVE * MAX_NORMAL + ABSOLUTE + fed_back + width * (MAX_NORMAL + fed_back)
        )
        of_sum = UNIT * self.panes * self.panes * largest
        return ROOM * (
            of_u * float(np.abs(kernel.window).sum()) + of_sum + UNIT * self.panes * largest
        )

    def close(self, bins: Bins, sums: Int, pane: int, cells: PaneCells) -> Window:
        """Take in a pane; the noise of its window is added to the window's exact sum."""
        path = bins["path"]
        width = len(self.c) - 1
        u = cells.normal()
        for k in range(1, min(width, pane) + 1):
            u -= self.c[k] * path[:, (pane - k) % width]
        path[:, pane % width] = u
        unit = np.zeros(len(sums))
        for age in range(min(self.panes, pane + 1)):
            unit += path[:, (pane - age) % width]
        slot = pane % self.panes
        bins["window"] += sums - bins["ring"][:, slot]
        bins["ring"][:, slot] = sums
        sd = self.sigma * self.sd[min(pane, len(self.sd) - 1)]
        return Window(
            bins["window"] + self._rounded(unit, pane, cells),
            np.full(len(sums), math.sqrt(sd * sd + 1.0 / 12.0)),
        )

    def _rounded(self, unit: Float, pane: int, cells: PaneCells) -> Int:
        scaled = unit * self.sigma
        noise = np.rint(scaled)
        doubt = np.flatnonzero(~(np.abs(scaled - noise) < 0.5 - self.error * self.sigma))
        noise[doubt] = 0.0
        rounded = noise.astype(np.int64)
        for row in doubt:
            rounded[row] = exact_noise(self, int(row), pane, cells)
        return rounded


def exact_noise(m: WindowSqrt, row: int, pane: int, cells: PaneCells) -> int:
    """Return the exact noise of a window, rounded to the grid: floor(sigma * path + 1/2).

    Raises:
        ArithmeticError: no precision decides (a broken library, never a matter of data).
    """
    older_reach = response(m.panes, m.c).older_reach
    bits = 64
    while bits <= MOST_BITS:
        reach = int(np.searchsorted(-older_reach, -(2.0**-bits))) + 1 if bits <= 256 else pane + 1
        draws = _draws(row, min(reach, pane + 1), cells, bits + GUARD)
        path = _exact_path(m, draws, bits + GUARD) >> GUARD
        low, high = (
            math.floor(Fraction(m.sigma) * Fraction(path + off, 1 << bits) + Fraction(1, 2))
            for off in (-2, 3)
        )
        if low == high:
            return low
        bits *= 2
    raise ArithmeticError("the noise of a window lies half-way between two grid points")


def _draws(row: int, count: int, cells: PaneCells, bits: int) -> list[int]:
    """Return the last `count` draws of a bin, oldest first, times 2^bits."""
    start = cells.start_us - cells.slide_us * np.arange(count - 1, -1, -1, dtype=np.int64)
    tag = randomness.tags(cells.noise_key, start, np.full(count, cells.key[row]))
    z = randomness.normals(cells.noise_key, tag, cells.mechanism, PANE, 1).tolist()
    words = randomness.words(cells.noise_key, tag, cells.mechanism, PANE, 1).tolist()
    return [
        quantile(high, low, start_value, bits)
        for (high, low), start_value in zip(words, z, strict=True)
    ]


def _exact_path(m: WindowSqrt, draws: list[int], width: int) -> int:
    """Return the sum of the last w u, with c read as exact; all over 2^width."""
    c = [
        (numerator << width) // denominator
        for numerator, denominator in (value.as_integer_ratio() for value in m.c)
    ]
    u: list[int] = []
    for draw in draws:
        recent = u[: -len(c) : -1]
        u.append(draw - (sum(a * b for a, b in zip(c[1:], recent, strict=False)) >> width))
    return sum(u[-m.panes :])
