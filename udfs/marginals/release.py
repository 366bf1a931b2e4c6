"""The numbers of measured marginals: one counter per cell, with noise of its own size in each table."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.udfs.marginals.cells import Marginals
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter
from dpsql.udfs.noise.paths import standard_deviation


@dataclass(frozen=True)
class NoisyTables:
    """Concrete numbers of one sum over all tables; no secret.

    Args:
        marginals: the tables.
        sigmas: of one step's noise, per table, in value units.
        counter: of every cell.
        mechanism: numbers the noise, from 1.
        grid: value of one integer unit (a power of two).
    """

    marginals: Marginals
    sigmas: tuple[float, ...]
    counter: Counter | BltInf
    mechanism: int
    grid: float

    def variances(self, trigger: int) -> tuple[float, ...]:
        """Of the noise of one cell of each table at a trigger, the rounding to the grid included."""
        moving = standard_deviation(self.counter, trigger) ** 2
        return tuple(sigma**2 * moving + self.grid**2 / 12 for sigma in self.sigmas)
