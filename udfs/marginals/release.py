"""The two stages of measured marginals: rows of bounded units to increments of cells, and one counter per cell."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Float, Int, mix, run_sums, sort_runs
from dpsql.udfs.intake.stages import AdmissionStage, RowStage
from dpsql.udfs.keys import NumberedGroups
from dpsql.udfs.marginals.cells import Domains, MeasuredTables
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter
from dpsql.udfs.noise.paths import standard_deviation
from dpsql.udfs.stage import NO_RECORD, Clock, Stepped, Tables

# The numbers of measured marginals: one counter per cell, with noise of its own size in each
# table.


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

    marginals: MeasuredTables
    sigmas: tuple[float, ...]
    counter: Counter | BltInf
    mechanism: int
    grid: float

    def variances(self, trigger: int) -> tuple[float, ...]:
        """Return the variance of the noise of one cell of each table at a trigger, the rounding to the grid included."""
        moving = standard_deviation(self.counter, trigger) ** 2
        return tuple(sigma**2 * moving + self.grid**2 / 12 for sigma in self.sigmas)

    def scale_and_error(self, keys: Int, trigger: int) -> tuple[Float, Float]:
        """Return the noise of one step and the standard error (`dpsql.udfs.table.release.TableNoise`): each table has its own."""
        kinds = np.searchsorted(self.marginals.first, keys, side="right") - 1
        return (np.array(self.sigmas) / self.grid)[kinds], np.sqrt(self.variances(trigger))[kinds]


def cells(marginals: MeasuredTables, domains: Domains) -> NumberedGroups:
    """Return all cells of all tables."""
    ids = tuple(marginals.grouping_id(table) for table in range(len(marginals.tables)))
    return NumberedGroups(marginals.first, ids, partial(domains.names, marginals))


# The intake of measured marginals: rows of bounded units to increments of cells.

# They are released as a table without windows, a group for each cell: every cell of every table
# is there from the first trigger on, and its number
# stands where other mechanisms have a hash.

OUTSIDE = "outside_the_domain"
DROP_REASONS = (
    *NO_RECORD,
    OUTSIDE,
    "too_far_ahead",
    "window_closed",
    "over_max_groups",
    "over_max_rows_per_group",
    "over_max_rows",
)


@dataclass(frozen=True)
class CellIntake(AdmissionStage):
    """Records to increments of cells: each admitted record is in one cell of every table. A group is a cell that has all keys.

    Args:
        marginals: the tables.
        domains: the values of keys. A record with another value is dropped before anything is counted.
    """

    marginals: MeasuredTables
    domains: Domains
    is_numbered: ClassVar[bool] = False

    def step(self, state: Tables, rows: pa.Table, clock: Clock, noise_key: bytes) -> Stepped:
        """Admit by `admit` the records whose values are in their domains; counted: `drops`, how many records were dropped and why."""
        counted_rows = np.flatnonzero(rows["drop"].to_numpy() == 0)
        places = self.domains.places(rows["key_bytes"].take(counted_rows))
        outside = counted_rows[~self.marginals.is_inside(places)]
        is_kept = np.ones(rows.num_rows, bool)
        is_kept[outside] = False
        rows = rows.set_column(
            rows.column_names.index("key"),
            "key",
            pa.array(self._places_of(counted_rows, places, rows.num_rows)),
        )
        admitted = super().step(
            state, rows.filter(is_kept) if len(outside) else rows, clock, noise_key
        )
        drops = ({OUTSIDE: len(outside)} if len(outside) else {}) | admitted.counted["drops"]
        return Stepped(admitted.state, self._of_cells(admitted.rows), {"drops": drops})

    def _places_of(self, live: Int, places: Int, size: int) -> Int:
        """Return in the place of a key's hash the number of its places, mixed without a loss: records are summed by it, none may stand for another cell, and
        its upper bits tell cells apart in what is kept of a unit."""
        numbers = np.zeros(size, np.int64)
        is_inside = self.marginals.is_inside(places)
        numbers[live[is_inside]] = np.ravel_multi_index(
            tuple(places[is_inside].T), self.marginals.sizes
        )
        return mix(np.zeros_like(numbers), numbers).view(np.int64)

    def _of_cells(self, admitted: pa.Table) -> pa.Table:
        cells = self.marginals.touched(self.domains.places(admitted["key_bytes"]))
        many = cells.shape[1]
        trigger = np.repeat(admitted["trigger"].to_numpy(), many)
        cell = cells.ravel()
        order, starts = sort_runs(trigger, cell)
        head = order[starts]
        distinct, number = np.unique(cell[head], return_inverse=True)
        zeros = np.zeros(len(head), np.int64)
        table = {
            "window": np.full(len(head), self.parameters.grid.offset_us),
            "trigger": trigger[head],
            "key": cell[head],
        }
        table |= {
            "key_bytes": self.domains.names(self.marginals, distinct).take(number),
            "weight": zeros,
            "users": zeros,
        }
        sums = [
            np.repeat(admitted[f"v{j}"].to_numpy(), many)[order]
            for j in range(len(self.parameters.increments))
        ]
        return pa.table(
            table | {f"v{j}": run_sums(values, starts) for j, values in enumerate(sums)},
            schema=self.gives,
        )


@dataclass(frozen=True)
class CellRowIntake(CellIntake, RowStage):
    """Records to increments of cells where one row is protected."""
