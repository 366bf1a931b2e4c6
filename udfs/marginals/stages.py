"""The stages of measured marginals: rows of bounded units to increments of cells, and cells to released rows.

The state is that of a table without windows, a group for each cell: every cell of every table is there from the first trigger on, and its number
stands where other mechanisms have a hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import Int, run_starts, run_sums, sort_order
from dpsql.udfs.contributions import contributions
from dpsql.udfs.intake import user_state
from dpsql.udfs.intake.contribution_bounding import BoundingParameters, admit
from dpsql.udfs.marginals.cells import Marginals
from dpsql.udfs.marginals.domains import Domains
from dpsql.udfs.marginals.release import NoisyTables
from dpsql.udfs.noise.paths import Paths
from dpsql.udfs.noise.randomness import tags
from dpsql.udfs.stage import ADMISSION, NO_RECORD, RELEASE, Clock, Stepped, Tables, Tick
from dpsql.udfs.state_table import Table
from dpsql.udfs.table.grid import TableGrid
from dpsql.udfs.table.release import replay
from dpsql.udfs.table.state import TABLES, Layout, TableState, add_groups, closed, due, empty_state, new_groups, opened

OUTSIDE = "outside_the_domain"
DROP_REASONS = (*NO_RECORD, OUTSIDE, "too_far_ahead", "window_closed", "over_max_rows")


@dataclass(frozen=True)
class CellIntake:
    """Records to increments of cells: each admitted record is in one cell of every table.

    Args:
        parameters: the plan's bounds; rows alone are bounded, keys are not.
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
        """In the place of a key's hash the exact number of its places: records are summed by it, and none may stand for another cell."""
        out = np.zeros(size, np.int64)
        inside = self.marginals.inside(places)
        out[live[inside]] = np.ravel_multi_index(tuple(places[inside].T), self.marginals.sizes)
        return out

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


@dataclass(frozen=True)
class CellRelease:
    """Increments and ticks to released rows: `window, trigger, key_bytes`, per sum `c{i}, s{i}`, and the table's `grouping_id`.

    Args:
        grid: the triggers.
        sums: the numbers of each noisy sum, in order of their mechanism.
        whole: whether a sum is one of whole numbers.
        domains: the values of keys.
        bucket, buckets: whose cells.
    """

    grid: TableGrid
    sums: tuple[NoisyTables, ...]
    whole: tuple[bool, ...]
    domains: Domains
    bucket: int = 0
    buckets: int = 1
    operator: ClassVar[str] = RELEASE
    tables: ClassVar[Mapping[str, Table]] = TABLES

    @property
    def marginals(self) -> Marginals:
        """The tables."""
        return self.sums[0].marginals

    @property
    def layout(self) -> Layout:
        """What the state holds per cell."""
        return Layout(0, tuple(each.counter.width for each in self.sums))

    @property
    def takes(self) -> pa.Schema:
        """Contributions, with the micro-batch that they came in."""
        return contributions(len(self.sums)).append(pa.field("batch", pa.int64()))

    @property
    def gives(self) -> pa.Schema:
        """Released rows."""
        columns = [("window", pa.int64()), ("trigger", pa.int64()), ("key_bytes", pa.binary())]
        for i, whole in enumerate(self.whole):
            columns += [(f"c{i}", pa.int64() if whole else pa.float64()), (f"s{i}", pa.float64())]
        return pa.schema([*columns, ("grouping_id", pa.int64())])

    def empty(self) -> Tables:
        """Nothing is closed."""
        return empty_state(self.layout).tables()

    def for_bucket(self, bucket: int, buckets: int) -> CellRelease:
        """With the cells of one bucket."""
        return replace(self, bucket=bucket, buckets=buckets)

    def step(self, state: Tables, rows: pa.Table, now: Sequence[Tick], noise_key: bytes) -> Stepped:
        """Every trigger releases every cell; counted: `closed_us`, up to when the grid is closed now."""
        done, released = replay(
            TableState(**state), rows, now, self.layout, lambda before, tick: self._close(before, tick.closed_us, noise_key)
        )
        return Stepped(
            done.tables(), pa.concat_tables([self.gives.empty_table(), *released]).combine_chunks(), {"closed_us": done.closed_us}
        )

    def _close(self, state: TableState, closed_us: int, noise_key: bytes) -> tuple[TableState, list[pa.Table]]:
        before, now = self.grid.closed(state.closed_us), self.grid.closed(closed_us)
        groups = self._with_cells(state.groups) if now > before else state.groups
        names, g = groups.column("key_bytes"), opened(groups, self.layout)
        increments, pending = due(state.pending, g["key"], now)
        bounds = np.searchsorted(increments["trigger"], np.arange(before + 1, now + 2))
        tag = tags(noise_key, np.zeros(len(g["key"]), np.int64), g["key"])
        paths = [Paths(each.counter, each.mechanism, noise_key, tag) for each in self.sums]
        order = pc.sort_indices(names).to_numpy()  # their order says nothing about arrival
        table = np.searchsorted(self.marginals.first, g["key"], side="right") - 1
        ids = np.array([self.marginals.grouping_id(t) for t in range(len(self.marginals.tables))], np.int64)[table]
        out = []
        for trigger, low, high in zip(range(before + 1, now + 1), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            changed = increments["group"][low:high]
            for name in self.layout.values:
                g[name][changed] += increments[name][low:high]
            columns: dict[str, np.ndarray] = {}
            step = g["paths_step"].copy()
            for i, (path, each) in enumerate(zip(paths, self.sums, strict=True)):
                step = g["paths_step"].copy()
                path.follow(g[f"p{i}"], step, np.arange(len(step)), trigger)
                columns[f"c{i}"], columns[f"s{i}"] = self._noisy(g, i, table, path, each, trigger)
            g["paths_step"][:] = step
            fixed = {"window": np.full(len(step), self.grid.offset_us), "trigger": np.full(len(step), trigger), "key_bytes": names}
            rows = pa.table(fixed | columns | {"grouping_id": ids}, schema=self.gives)
            if rows.num_rows:
                out.append(rows.take(pa.array(order)))
        return TableState(closed(g, names, closed_us, self.layout), pending), out

    def _noisy(
        self, g: dict[str, np.ndarray], i: int, table: Int, path: Paths, each: NoisyTables, trigger: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Noisy sums of all cells at a trigger, and their standard errors: each table has noise of its own size."""
        values, errors = g[f"v{i}"].copy(), np.sqrt(each.variances(trigger))[table]
        for t, sigma in enumerate(each.sigmas):
            cells = np.flatnonzero(table == t)
            values[cells] += path.rounded(g[f"p{i}"], cells, trigger, sigma / each.grid)
        return (values if self.whole[i] else values * each.grid), errors

    def _with_cells(self, groups: pa.Table) -> pa.Table:
        """All cells of the bucket."""
        mine = np.arange(self.bucket, self.marginals.first[-1], self.buckets)
        fresh = np.setdiff1d(mine, groups.column("key").to_numpy(), assume_unique=True)
        if not len(fresh):
            return groups
        return add_groups(groups, new_groups(self.layout, fresh, self.domains.names(self.marginals, fresh)))
