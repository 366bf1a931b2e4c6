"""The two stages of measured marginals: rows of bounded units to increments of cells, and one counter per cell."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Bool, Float, Int, mix, run_sums, sort_runs
from dpsql.udfs.grid import Grid
from dpsql.udfs.intake.stages import AdmissionStage, FeedStage, RowStage
from dpsql.udfs.keys import NumberedGroups
from dpsql.udfs.marginals.cells import Domains, Keys, MeasuredTables, closes
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter
from dpsql.udfs.noise.paths import standard_deviation
from dpsql.udfs.stage import NO_RECORD, OUTSIDE, Clock, Stepped, Tables

# The numbers of measured marginals: one counter per cell, with noise of its own size in each
# table.


@dataclass(frozen=True)
class NoisyTables:
    """Concrete numbers of one sum over all tables; no secret.

    Args:
        marginals: the tables.
        sigmas: of one step's noise, per table, in value units.
        counter: of every cell that does not close.
        mechanism: numbers the noise, from 1.
        grid: value of one integer unit (a power of two).
        closing: the keys whose cells close; a cell of them has the noise of one step.
    """

    marginals: MeasuredTables
    sigmas: tuple[float, ...]
    counter: Counter | BltInf
    mechanism: int
    grid: float
    closing: Keys = ()

    def variances(self, trigger: int) -> tuple[float, ...]:
        """Return the variance of the noise of one cell of each table at a trigger, the rounding to the grid included."""
        steps = (1 if closes(self.closing, keys) else trigger for keys in self.marginals.tables)
        moving = (standard_deviation(self.counter, step) for step in steps)
        return tuple(
            (sigma * sd) ** 2 + self.grid**2 / 12
            for sigma, sd in zip(self.sigmas, moving, strict=True)
        )

    def scale_and_error(self, keys: Int, trigger: int) -> tuple[Float, Float]:
        """Return the noise of one step and the standard error (`dpsql.udfs.table.release.TableNoise`): each table has its own."""
        kinds = np.searchsorted(self.marginals.first, keys, side="right") - 1
        return (np.array(self.sigmas) / self.grid)[kinds], np.sqrt(self.variances(trigger))[kinds]


@dataclass(frozen=True)
class ClosingKeys:
    """Keys whose values together have records of one trigger alone: from then on their cells do not change, and one measurement tells them.

    Args:
        keys: their places, ascending.
        triggers: of each combination of their values, in the order of cells; 0: none of the run, so that no record has it.
    """

    keys: Keys
    triggers: tuple[int, ...]

    def of_cells(self, marginals: MeasuredTables, cells: Int) -> Int:
        """Return the trigger at which each cell is measured; 0: at every trigger. A cell that no record can be in never is."""
        closing = np.zeros(len(cells), np.int64)
        never = np.iinfo(np.int64).max
        of_values = np.array([trigger or never for trigger in self.triggers], np.int64)
        kinds = np.searchsorted(marginals.first, cells, side="right") - 1
        for table, keys in enumerate(marginals.tables):
            if closes(self.keys, keys):
                within = np.flatnonzero(kinds == table)
                places = np.unravel_index(
                    cells[within] - marginals.first[table], marginals.shape(table)
                )
                of_keys = tuple(places[keys.index(key)] for key in self.keys)
                closing[within] = of_values[self._number(marginals, of_keys)]
        return closing

    def _number(self, marginals: MeasuredTables, places: tuple[Int, ...]) -> Int:
        """Return the number of each combination of values."""
        return np.ravel_multi_index(places, tuple(marginals.sizes[key] for key in self.keys))

    def is_in_time(
        self, marginals: MeasuredTables, places: Int, ts: Int, grid: Grid, closed_us: int
    ) -> Bool:
        """Tell which records come before their cells close, and are of their time: one that says another would be in cells that are told as complete.

        Args:
            marginals: the tables.
            places: of each value of a record (shape: rows, keys), inside the domains.
            ts: event times.
            grid: of the table.
            closed_us: up to when triggers are closed.
        """
        start = np.full(len(ts), grid.offset_us)
        own_trigger = np.maximum(grid.own_trigger(ts, start), 1)
        combination = self._number(marginals, tuple(places[:, key] for key in self.keys))
        closing = np.array(self.triggers, np.int64)[combination]
        is_of_run = (ts >= grid.offset_us) & (own_trigger == closing)
        return is_of_run & (closing > grid.closed_triggers(start, closed_us))


def cells(
    marginals: MeasuredTables, domains: Domains, closing: ClosingKeys | None = None
) -> NumberedGroups:
    """Return all cells of all tables."""
    ids = tuple(marginals.grouping_id(table) for table in range(len(marginals.tables)))
    of_cells = partial(closing.of_cells, marginals) if closing else None
    return NumberedGroups(marginals.first, ids, partial(domains.names, marginals), of_cells)


# The intake of measured marginals: rows of bounded units to increments of cells.

# They are released as a table without windows, a group for each cell: every cell of every table
# is there from the first trigger on, and its number
# stands where other mechanisms have a hash.

CLOSED_CELL = "cell_closed"
NOWHERE = -1
"""The number of a cell that is in no domain."""
DROP_REASONS = (
    *NO_RECORD,
    OUTSIDE,
    CLOSED_CELL,
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
        closing: the keys whose cells close. A record that comes later is dropped before anything is counted: counted in some tables alone, it would
            make their differences false.
        has_exact: count each record in its cell of all keys, too, which no release shows (`dpsql.udfs.marginals.exact`).
    """

    marginals: MeasuredTables
    domains: Domains
    closing: ClosingKeys | None = None
    has_exact: bool = False
    is_numbered: ClassVar[bool] = False

    def step(self, state: Tables, rows: pa.Table, clock: Clock, noise_key: bytes) -> Stepped:
        """Admit by `admit` the records whose values are in their domains; counted: `drops`, how many records were dropped and why."""
        counted_rows = np.flatnonzero(rows["drop"].to_numpy() == 0)
        places = self.domains.places(rows["key_bytes"].take(counted_rows))
        is_inside = self.marginals.is_inside(places)
        outside = counted_rows[~is_inside]
        late = self._late(rows, counted_rows[is_inside], places[is_inside], clock)
        is_kept = np.ones(rows.num_rows, bool)
        is_kept[outside] = False
        is_kept[late] = False
        rows = with_numbers(rows, counted_rows, places, self.marginals)
        admitted = super().step(
            state, rows if is_kept.all() else rows.filter(is_kept), clock, noise_key
        )
        dropped = {OUTSIDE: len(outside), CLOSED_CELL: len(late)}
        drops = {reason: rows for reason, rows in dropped.items() if rows}
        return Stepped(
            admitted.state,
            of_cells(admitted.rows, self.domains, self.marginals, self.has_exact),
            {"drops": drops | admitted.counted["drops"]},
        )

    def _late(self, rows: pa.Table, counted_rows: Int, places: Int, clock: Clock) -> Int:
        """Return the records whose cells have closed, or are of another time than theirs."""
        if self.closing is None:
            return counted_rows[:0]
        ts = rows["ts"].to_numpy()[counted_rows]
        grid = self.parameters.grid
        in_time = self.closing.is_in_time(self.marginals, places, ts, grid, clock.closed_us)
        return counted_rows[~in_time]


@dataclass(frozen=True)
class CellRowIntake(CellIntake, RowStage):
    """Records to increments of cells where one row is protected."""


@dataclass(frozen=True)
class CellFeed(FeedStage):
    """Images of a change feed to signed increments of cells. A group is a cell that has all keys.

    Args:
        marginals: the tables.
        domains: the values of keys. A row with another value is followed as all are, or it could not come back, and never counts.
    """

    marginals: MeasuredTables
    domains: Domains

    def step(self, state: Tables, rows: pa.Table, clock: Clock, noise_key: bytes) -> Stepped:
        """Admit by `admit_changes` the versions whose values are in their domains; counted: `drops`."""
        counted_rows = np.flatnonzero(rows["drop"].to_numpy() == 0)
        places = self.domains.places(rows["key_bytes"].take(counted_rows))
        rows = with_numbers(rows, counted_rows, places, self.marginals)
        admitted = super().step(state, rows, clock, noise_key)
        cells = of_cells(admitted.rows, self.domains, self.marginals)
        return Stepped(admitted.state, cells, admitted.counted)


def with_numbers(
    rows: pa.Table, counted_rows: Int, places: Int, marginals: MeasuredTables
) -> pa.Table:
    """Return rows with the number of their cell in the place of a key's hash, mixed without a loss: records are summed by it, none may stand for another
    cell, and its upper bits tell cells apart in what is kept of a unit.

    Args:
        rows: records.
        counted_rows: those that are any.
        places: of each of these in the domains (shape: rows, keys).
        marginals: the tables.
    """
    numbers = np.full(rows.num_rows, NOWHERE)
    is_inside = marginals.is_inside(places)
    cells = np.ravel_multi_index(tuple(places[is_inside].T), marginals.sizes)
    numbers[counted_rows[is_inside]] = cells
    return rows.set_column(rows.column_names.index("key"), "key", pa.array(key_of(numbers)))


def key_of(numbers: Int) -> Int:
    """Return what stands for cells of all keys where other mechanisms have hashes."""
    return mix(np.zeros_like(numbers), numbers).view(np.int64)


def of_cells(
    admitted: pa.Table, domains: Domains, marginals: MeasuredTables, has_exact: bool = False
) -> pa.Table:
    """Return increments of the cells of every table, from those of cells that have all keys; with `has_exact` these have numbers after all others."""
    places = domains.places(admitted["key_bytes"])
    cells = marginals.touched(places)
    if has_exact:
        of_all_keys = np.ravel_multi_index(tuple(places.T), marginals.sizes)
        cells = np.column_stack([cells, marginals.first[-1] + of_all_keys])
    many = cells.shape[1]
    trigger = np.repeat(admitted["trigger"].to_numpy(), many)
    cell = cells.ravel()
    order, starts = sort_runs(trigger, cell)
    head = order[starts]
    distinct, number = np.unique(cell[head], return_inverse=True)
    zeros = np.zeros(len(head), np.int64)
    table = {
        "window": admitted["window"].to_numpy()[head // many],
        "trigger": trigger[head],
        "key": cell[head],
        "key_bytes": _names(domains, marginals, distinct).take(number),
        "weight": zeros,
        "users": zeros,
    }
    for name in admitted.column_names:
        if name not in table:
            values = np.repeat(admitted[name].to_numpy(), many)[order]
            table[name] = run_sums(values, starts)
    return pa.table(table, schema=admitted.schema)


def _names(domains: Domains, marginals: MeasuredTables, cells: Int) -> pa.Array:
    """Return the keys of cells in order; those after all measured ones have none."""
    names = domains.names(marginals, cells[cells < marginals.first[-1]])
    unnamed = pa.array([b""] * (len(cells) - len(names)), pa.binary())
    return pa.concat_arrays([names, unnamed])
