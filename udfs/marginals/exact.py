"""Exact counts of the cells of all keys, which paid answers are computed from: state of the release that no released row shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.columns import int_fields, run_sums, sort_runs
from dpsql.udfs.stage import CLOSED, Stepped, Tables, Tick, closed_us
from dpsql.udfs.state_table import StateTable
from dpsql.udfs.table.release import TableStage
from dpsql.udfs.table.state import TABLES

EXACT = "exact"
PENDING = "exact_pending"
MOST_DENSE = 2**22
"""So many cells are an array of 32 MB."""


@dataclass(frozen=True)
class SessionStage(TableStage):
    """The release of measured marginals, with the rows of all cells up to the closed trigger as private state.

    Args:
        parameters: the plan's numbers.
        first_exact: number of the first cell of all keys, after those of all measured tables.
        count: which of the sums counts rows. No other is kept: a paid answer costs what a unit's rows can add to a count.
    """

    first_exact: int
    count: int

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """Tables of groups, and of exact counts: of closed triggers, and of those that are still open."""
        exact_tables = {
            EXACT: StateTable(("key",), "key"),
            PENDING: StateTable(("trigger", "key"), "key", order="any"),
        }
        return {**super().tables, **exact_tables}

    def empty(self) -> Tables:
        """Return the state in which no cell has a row."""
        exact = pa.schema(int_fields(("key", "rows"))).empty_table()
        pending = pa.schema(int_fields(("trigger", "key", "rows"))).empty_table()
        return {**super().empty(), EXACT: exact, PENDING: pending}

    def step(
        self, state: Tables, rows: pa.Table, ticks: Sequence[Tick], noise_key: bytes
    ) -> Stepped:
        """Release the rows of measured cells, and count those of cells of all keys."""
        is_exact = pc.greater_equal(rows["key"], self.first_exact)
        measured_state = {name: state[name] for name in TABLES}
        released = super().step(measured_state, rows.filter(pc.invert(is_exact)), ticks, noise_key)
        exact_rows = rows.filter(is_exact).select(["trigger", "key", f"v{self.count}"])
        pending = pa.concat_tables(
            [state[PENDING], exact_rows.rename_columns(["trigger", "key", "rows"])]
        )
        closed = closed_us(released.state)
        is_closed = pc.less_equal(pending["trigger"], self.parameters.grid.closed(closed))
        counts = _add(state[EXACT], pending.filter(is_closed))
        exact_state = {
            EXACT: counts.replace_schema_metadata({CLOSED: str(closed)}),
            PENDING: pending.filter(pc.invert(is_closed)).combine_chunks(),
        }
        return Stepped({**released.state, **exact_state}, released.rows, released.counted)


def _add(counts: pa.Table, increments: pa.Table) -> pa.Table:
    """Return counts of cells with further ones, sorted by cell."""
    columns = ["key", "rows"]
    summands = pa.concat_tables(
        [counts.select(columns).replace_schema_metadata(None), increments.select(columns)]
    )
    key = summands["key"].to_numpy()
    order, starts = sort_runs(key)
    totals = run_sums(summands["rows"].to_numpy()[order], starts)
    return pa.table({"key": key[order][starts], "rows": totals})


@dataclass(frozen=True, eq=False)
class ExactCounts:
    """The counted rows of the cells of all keys.

    Args:
        places: the place of each cell that has rows, a key after the other.
        counts: its rows.
        dense: the rows of all cells, an axis for each key; None: there are too many cells.
    """

    places: tuple[np.ndarray, ...]
    counts: np.ndarray
    dense: np.ndarray | None

    @classmethod
    def of_tables(
        cls, tables: Sequence[pa.Table], first_exact: int, sizes: Sequence[int]
    ) -> ExactCounts:
        """Take the counts of all buckets together.

        Args:
            tables: of every bucket.
            first_exact: number of the first cell of all keys.
            sizes: number of values of each key.
        """
        summed = pa.concat_tables([table.select(["key", "rows"]) for table in tables])
        places = np.unravel_index(summed["key"].to_numpy() - first_exact, tuple(sizes))
        counts = summed["rows"].to_numpy()
        dense = None
        if math.prod(sizes) <= MOST_DENSE:
            dense = np.zeros(tuple(sizes), np.int64)
            np.add.at(dense, places, counts)
        return cls(places, counts, dense)

    def count(self, products: Sequence[Mapping[int, np.ndarray]]) -> int:
        """Return how many rows are in the cells of products: key -> weights 0 and 1 of its values; no two share a cell."""
        of_one = self._scan if self.dense is None else self._slice
        return sum(of_one(product) for product in products)

    def _slice(self, product: Mapping[int, np.ndarray]) -> int:
        """Add up the cells of a product and no others."""
        if self.dense is None:
            raise AssertionError("there are too many cells")
        axes = [
            np.flatnonzero(product[key]) if key in product else np.arange(size)
            for key, size in enumerate(self.dense.shape)
        ]
        return int(self.dense[np.ix_(*axes)].sum())

    def _scan(self, product: Mapping[int, np.ndarray]) -> int:
        """Look at all cells that have rows."""
        is_chosen = np.ones(len(self.counts), bool)
        for key, weights in product.items():
            is_chosen &= weights[self.places[key]] > 0
        return int(self.counts[is_chosen].sum())
