"""The numbers of measured marginals: one counter per cell, with noise of its own size in each table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.keys import NumberedGroups
from dpsql.udfs.marginals.cells import Marginals
from dpsql.udfs.marginals.domains import Domains
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

    def of(self, keys: Int, trigger: int) -> tuple[Float, Float]:
        """As `dpsql.udfs.table.release.Noise`: each table has its own."""
        kinds = np.searchsorted(self.marginals.first, keys, side="right") - 1
        return (np.array(self.sigmas) / self.grid)[kinds], np.sqrt(self.variances(trigger))[kinds]


def cells(marginals: Marginals, domains: Domains) -> NumberedGroups:
    """All cells of all tables."""
    ids = tuple(marginals.grouping_id(table) for table in range(len(marginals.tables)))
    return NumberedGroups(marginals.first, ids, partial(domains.names, marginals))
