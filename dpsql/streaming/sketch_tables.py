"""The two public tables of a run of sketches: lists, one row per window and trigger, and the cells that they are read from.

Both get one commit per tick, the cells first: a trigger counts as published once it is in the first table. Rows are few and large, so the driver
writes them, some megabytes at a time.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema
from pyspark.sql import types as T

from dpsql.description import SketchShape
from dpsql.errors import ReleaseConflict
from dpsql.files import Place
from dpsql.lake import delta_tables
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import cells_path
from dpsql.lake.sorted_file import sorted_file
from dpsql.mechanisms.protocol import PublicColumn
from dpsql.published.rows import CELLS, cell_rows, of_cells
from dpsql.streaming.published_table import PublishedTable, open_files
from dpsql.streaming.released import Pair, ReleasedRows

AT_ONCE = 64 << 20
"""Bytes of cells that are in the driver at a time."""


@dataclass(frozen=True)
class SketchTables(PublishedTable):
    """The public tables of one run of sketches."""

    @property
    def sketch(self) -> SketchShape:
        """The shape of the plan's sketch."""
        assert self.shape.sketch is not None
        return self.shape.sketch

    @property
    def paths(self) -> tuple[Place, ...]:
        """The tables of cells and of lists."""
        return (cells_path(self.path), self.path)

    def kind_of(self, column: PublicColumn) -> T.DataType:
        """Return the type of a list of values."""
        parts = [
            (key.name.rpartition(".")[2], kind)
            for key, kind in zip(self.query.keys, self.key_types, strict=True)
        ]
        value = (
            parts[0][1]
            if len(parts) == 1
            else T.StructType([T.StructField(name, kind) for name, kind in parts])
        )
        number: tuple[str, T.DataType] = (
            ("count", T.LongType()) if column.kind == "TOP_COUNT" else ("sum", T.DoubleType())
        )
        fields = (
            ("value", value),
            number,
            ("stderr", T.DoubleType()),
            ("low", number[1]),
            ("high", number[1]),
        )
        return T.ArrayType(T.StructType([T.StructField(name, kind) for name, kind in fields]))

    def create(self) -> None:
        """Make the empty tables unless they are there."""
        kinds = [
            (key.name, kind.simpleString())
            for key, kind in zip(self.query.keys, self.key_types, strict=True)
        ]
        cells = cells_path(self.path)
        self._make(cells, Schema.from_arrow(CELLS), of_cells(self.published, self.sketch, kinds))
        open_files(cells)
        super().create()

    def publish(
        self, released: ReleasedRows, closed_us: int, due: Mapping[Pair, int], has_all: bool
    ) -> None:
        """Append what a tick releases: the cells in one commit, then the lists in one; doing it again changes nothing.

        Raises:
            ReleaseConflict: the cells of the tick are published already, and they are others.
        """
        cells = cells_path(self.path)
        mark = {self.application: self.triggers(closed_us)}
        is_published = delta_tables.committed(DeltaTable(str(cells)), *next(iter(mark.items())))
        files = []
        lists = []
        for rows in self._pieces(released, due):
            of_cells = cell_rows(rows, self.shape.schedule, self.sketch)
            if is_published and not self._same_cells(of_cells):
                raise ReleaseConflict(
                    "the cells of a published tick would be others; nothing was written"
                )
            new_cells = of_cells if is_published else unpublished(cells, of_cells)
            if new_cells.num_rows and not is_published:
                files.append(sorted_file(cells, new_cells))
            lists.append(self.public(rows))
        if not is_published:
            open_files(cells, delta_tables.append_files(cells, files, mark))
        # The lists of triggers are in order: the pieces are.
        all_lists = pa.concat_tables(lists)
        self.open_to_readers(
            delta_tables.append_files(
                self.path, [sorted_file(self.path, all_lists)] if all_lists.num_rows else [], mark
            )
        )

    def same(self, released: ReleasedRows, pairs: Collection[Pair]) -> bool:
        """Tell whether the published rows of these triggers, lists and cells, are exactly those that are released."""
        return all(
            self._same_lists(rows)
            and self._same_cells(cell_rows(rows, self.shape.schedule, self.sketch))
            for rows in self._pieces(released, pairs)
        )

    def _pieces(self, released: ReleasedRows, pairs: Collection[Pair]) -> Iterator[pa.Table]:
        """Yield the released rows of some triggers, in order, a few at a time."""
        sketch = self.sketch
        ordered_pairs = sorted(pairs)
        size = max(1, AT_ONCE // (8 * sketch.depth * sketch.width * len(sketch.aliases)))
        for low in range(0, len(ordered_pairs), size):
            rows = released.table(ordered_pairs[low : low + size])
            yield rows.sort_by([("window", "ascending"), ("trigger", "ascending")])

    def _same_lists(self, rows: pa.Table) -> bool:
        lists = self.public(rows)
        return _equal(lists, read_rows(self.path, lists.column_names, _of_triggers(lists)))

    def _same_cells(self, released_cells: pa.Table) -> bool:
        return not released_cells.num_rows or _equal(
            released_cells,
            read_rows(cells_path(self.path), CELLS.names, _of_triggers(released_cells)),
        )


def unpublished(cells: Place, due_cells: pa.Table) -> pa.Table:
    """Return the cells whose triggers are not there. A run that was restored between the two commits of a tick publishes it again, under a new mark.

    Raises:
        ReleaseConflict: those that are there are others.
    """
    if not due_cells.num_rows:
        return due_cells
    published_cells = read_rows(cells, CELLS.names, _of_triggers(due_cells))
    if not published_cells.num_rows:
        return due_cells
    pairs = set(_pairs(published_cells))
    is_there = pa.array([pair in pairs for pair in _pairs(due_cells)])
    if not _equal(due_cells.filter(is_there), published_cells):
        raise ReleaseConflict("the cells of a published tick would be others; nothing was written")
    return due_cells.filter(pc.invert(is_there))


def _pairs(rows: pa.Table) -> list[tuple[object, int]]:
    return list(zip(rows["window_start"].to_pylist(), rows["trigger"].to_pylist(), strict=True))


def _of_triggers(rows: pa.Table) -> pc.Expression:
    """Return the rows of the same windows at the same triggers."""
    kind = rows.schema.field("window_start").type
    pairs = (
        rows.select(["window_start", "trigger"])
        .group_by(["window_start", "trigger"])
        .aggregate([])
        .to_pylist()
    )
    conditions = [
        (pc.field("window_start") == pa.scalar(pair["window_start"], kind))
        & (pc.field("trigger") == pair["trigger"])
        for pair in pairs
    ]
    return functools.reduce(operator.or_, conditions)


def _equal(a: pa.Table, b: pa.Table) -> bool:
    """Tell whether two tables have the same rows, whatever their order."""
    order = [
        (name, "ascending") for name in ("window_start", "trigger", "row") if name in a.column_names
    ]
    return bool(a.sort_by(order).to_pylist() == b.sort_by(order).to_pylist())
