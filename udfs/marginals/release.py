"""The release of measured marginals: exact integer sums of all cells join one counter per cell; a closed cell has one draw and is shown once.

The numbers of cells stand where other mechanisms have hashes of keys. A path is a function of (cell, mechanism, trigger) alone, so it does not
depend on which cells a bucket has, or on when it was last asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from udfs.columns import Float, Int
from udfs.dynamic.paths import Paths, standard_deviation
from udfs.marginals.cells import Marginals
from udfs.marginals.closed_cells import ClockKeys
from udfs.noise.blt_inf import BltInf
from udfs.noise.counters import Counter, counter
from udfs.noise.randomness import tags

ONE_DRAW = counter("BLT", 1)
"""Of a cell that is released once: no sum goes on after it."""


@dataclass(frozen=True)
class NoisyTables:
    """Concrete numbers of one sum over all tables; no secret.

    Args:
        marginals: the tables.
        sigmas: of one step's noise, per table, in value units.
        counter: of every cell that is released at every trigger.
        mechanism: numbers the noise, from 1.
        grid: value of one integer unit (a power of two).
        clock: its tables are released bucket by bucket; None: there is none.
    """

    marginals: Marginals
    sigmas: tuple[float, ...]
    counter: Counter | BltInf
    mechanism: int
    grid: float
    clock: ClockKeys | None = None

    def once(self, table: int) -> bool:
        """Whether the cells of a table are released once."""
        return self.clock is not None and {*self.clock.keys} <= {*self.marginals.tables[table]}

    def variances(self, trigger: int) -> tuple[float, ...]:
        """Of the noise of one cell of each table at a trigger, the rounding to the grid included."""
        moving, still = standard_deviation(self.counter, trigger) ** 2, 1.0
        return tuple(sigma**2 * (still if self.once(t) else moving) + self.grid**2 / 12 for t, sigma in enumerate(self.sigmas))


@dataclass(frozen=True)
class Cells:
    """The state: exact sums of all cells in grid units, and paths up to a trigger."""

    trigger: int
    sums: Int
    paths: Float


def nothing_seen(p: NoisyTables) -> Cells:
    """Before trigger 1."""
    cells = p.marginals.first[-1]
    return Cells(0, np.zeros(cells, np.int64), np.zeros((cells, p.counter.width)))


def release(state: Cells, added: Int, p: NoisyTables, noise_key: bytes) -> tuple[Cells, Int]:
    """The next trigger.

    Args:
        state: of the trigger before; it is not changed.
        added: what the trigger's rows add to every cell, in grid units; nothing to a cell that has been released once.
        p: the plan's numbers.
        noise_key: 32 bytes, the run's.

    Returns:
        New state, and the noisy sum of every cell in grid units. Cells that are released once have it from the trigger on at which their bucket
        closes, always the same number; before that 0, whatever is in them.

    Raises:
        ValueError: a row was added to a cell that has been shown: with the same noise both numbers would tell the row.
    """
    trigger, sums = state.trigger + 1, state.sums + added
    tag = tags(noise_key, np.zeros(len(sums), np.int64), np.arange(len(sums)))
    path, states = Paths(p.counter, p.mechanism, noise_key, tag), state.paths.copy()
    step, once = np.full(len(sums), state.trigger), Paths(ONE_DRAW, p.mechanism, noise_key, tag)
    out = np.zeros(len(sums), np.int64)
    for table, sigma in enumerate(p.sigmas):
        cells = np.arange(p.marginals.first[table], p.marginals.first[table + 1])
        if p.once(table):
            if added[cells[_closed(p, table, trigger - 1)]].any():
                raise ValueError("a row of a bucket that has closed came to the release")
            cells = cells[_closed(p, table, trigger)]
            draws = np.zeros((len(sums), ONE_DRAW.width))
            once.follow(draws, np.zeros(len(sums), np.int64), cells, 1)
            out[cells] = sums[cells] + once.rounded(draws, cells, 1, sigma / p.grid)
        else:
            path.follow(states, step, cells, trigger)
            out[cells] = sums[cells] + path.rounded(states, cells, trigger, sigma / p.grid)
    return Cells(trigger, sums, states), out


def _closed(p: NoisyTables, table: int, trigger: int) -> np.ndarray:
    """Which cells of a clock's table are in buckets that have closed."""
    if p.clock is None:
        raise AssertionError("no clock")
    values, bucket = p.marginals.values(table), np.zeros(p.marginals.cells[table], np.int64)
    for key in p.clock.keys:
        bucket = bucket * p.marginals.sizes[key] + values[key]
    return p.clock.closed(trigger)[bucket]
