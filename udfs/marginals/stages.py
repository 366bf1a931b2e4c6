"""The intake of measured marginals: rows of bounded units to increments of cells.

They are released as a table without windows, a group for each cell: every cell of every table is there from the first trigger on, and its number
stands where other mechanisms have a hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Int, run_starts, run_sums, sort_order
from dpsql.udfs.contributions import contributions
from dpsql.udfs.intake import user_state
from dpsql.udfs.intake.contribution_bounding import BoundingParameters, admit, mix
from dpsql.udfs.marginals.cells import Marginals
from dpsql.udfs.marginals.domains import Domains
from dpsql.udfs.stage import ADMISSION, NO_RECORD, Clock, Stepped, Tables
from dpsql.udfs.state_table import Table

OUTSIDE = "outside_the_domain"
DROP_REASONS = (*NO_RECORD, OUTSIDE, "too_far_ahead", "window_closed", "over_max_groups", "over_max_rows_per_group", "over_max_rows")


@dataclass(frozen=True)
class CellIntake:
    """Records to increments of cells: each admitted record is in one cell of every table.

    Args:
        parameters: the plan's bounds; a group is a cell that has all keys.
        arguments: how many argument columns a record has.
        marginals: the tables.
        domains: the values of keys. A record with another value is dropped before anything is counted.
    """

    parameters: BoundingParameters
    arguments: int
    marginals: Marginals
    domains: Domains
    operator: ClassVar[str] = ADMISSION
    tables: ClassVar[Mapping[str, Table]] = user_state.TABLES

    @property
    def takes(self) -> pa.Schema:
        """Records (docs/architecture.md)."""
        ints = [(name, pa.int64()) for name in ("user", "ts", "key")]
        values = [(f"a{i}", pa.float64()) for i in range(self.arguments)]
        return pa.schema([("drop", pa.int8()), *ints, ("key_bytes", pa.binary()), *values])

    @property
    def gives(self) -> pa.Schema:
        """Contributions; `key` is the number of a cell."""
        return contributions(len(self.parameters.increments))

    def empty(self) -> Tables:
        """No unit has used anything."""
        return {"users": user_state.empty_state()}

    def for_bucket(self, bucket: int, buckets: int) -> CellIntake:
        """It knows nothing of units beforehand."""
        return self

    def step(self, state: Tables, rows: pa.Table, now: Clock, noise_key: bytes) -> Stepped:
        """As `admit`, of records whose values are in their domains; counted: `drops`, how many records were dropped and why."""
        live = np.flatnonzero(rows.column("drop").to_numpy() == 0)
        places = self.domains.places(rows.column("key_bytes").take(pa.array(live)))
        outside = live[~self.marginals.inside(places)]
        kept = np.ones(rows.num_rows, bool)
        kept[outside] = False
        rows = rows.set_column(rows.column_names.index("key"), "key", pa.array(self._places_of(live, places, rows.num_rows)))
        done = admit(state["users"], rows.filter(pa.array(kept)) if len(outside) else rows, now, self.parameters)
        drops = {reason: n for reason, n in ({OUTSIDE: len(outside)} | done.drops).items() if n}
        return Stepped({"users": done.state}, self._of_cells(done.contributions), {"drops": drops})

    def _places_of(self, live: Int, places: Int, size: int) -> Int:
        """In the place of a key's hash the number of its places, mixed without a loss: records are summed by it, none may stand for another cell, and
        its upper bits tell cells apart in what is kept of a unit."""
        out = np.zeros(size, np.int64)
        inside = self.marginals.inside(places)
        out[live[inside]] = np.ravel_multi_index(tuple(places[inside].T), self.marginals.sizes)
        return mix(np.zeros_like(out), out).view(np.int64)

    def _of_cells(self, admitted: pa.Table) -> pa.Table:
        cells = self.marginals.touched(self.domains.places(admitted.column("key_bytes")))
        many = cells.shape[1]
        trigger, cell = np.repeat(admitted.column("trigger").to_numpy(), many), cells.ravel()
        order = sort_order(trigger, cell)
        starts = run_starts(trigger[order], cell[order])
        head = order[starts]
        each, number = np.unique(cell[head], return_inverse=True)
        zeros = np.zeros(len(head), np.int64)
        table = {"window": np.full(len(head), self.parameters.grid.offset_us), "trigger": trigger[head], "key": cell[head]}
        table |= {"key_bytes": self.domains.names(self.marginals, each).take(pa.array(number)), "weight": zeros, "users": zeros}
        sums = [np.repeat(admitted.column(f"v{j}").to_numpy(), many)[order] for j in range(len(self.parameters.increments))]
        return pa.table(table | {f"v{j}": run_sums(values, starts) for j, values in enumerate(sums)}, schema=self.gives)
