"""The two public tables of a run that says what its limits left out: the histogram, and beside it one row of figures for each window.

Both get one commit per tick, the figures first: a trigger counts as published once it is in the histogram.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from dpsql.description import DUE, LEFT_OUT_ENDING
from dpsql.errors import ReleaseConflict
from dpsql.files import Place
from dpsql.lake import delta_tables
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import neighbour
from dpsql.lake.sorted_file import sorted_file
from dpsql.published.left_out import left_out_rows, of_left_out
from dpsql.streaming.published_table import PublishedTable, open_files
from dpsql.streaming.released import Pair, ReleasedRows
from dpsql.udfs.stage import LEFT_OUT


@dataclass(frozen=True)
class TablesWithFigures(PublishedTable):
    """The public tables of one run whose limits leave something out."""

    @property
    def figures_path(self) -> Place:
        """Return the place of the table of figures."""
        return neighbour(self.path, LEFT_OUT_ENDING)

    @property
    def paths(self) -> tuple[Place, ...]:
        """The tables of figures and of the histogram."""
        return (self.figures_path, self.path)

    def create(self) -> None:
        """Make the empty tables unless they are there."""
        integers = pa.schema([("window", pa.int64()), ("trigger", pa.int64())])
        nothing = integers.append(LEFT_OUT).empty_table()
        columns = left_out_rows(nothing, (), self.shape.schedule, self.shape.left_out).schema
        description = of_left_out(self.published, self.shape.left_out)
        self._make(self.figures_path, Schema.from_arrow(columns), description)
        open_files(self.figures_path)
        super().create()

    def publish(
        self, released: ReleasedRows, closed_us: int, due: Mapping[Pair, int], has_all: bool
    ) -> None:
        """Append the figures of the windows that end with a tick, then its rows; doing it again changes nothing.

        Raises:
            ReleaseConflict: figures of these windows are published already, and they are others.
        """
        path = self.figures_path
        mark = {self.application: self.triggers(closed_us)}
        if not delta_tables.committed(delta_tables.newest(path), *next(iter(mark.items()))):
            new_rows = self._unpublished(self._figures(released, due))
            files = [sorted_file(path, new_rows)] if new_rows.num_rows else []
            open_files(path, delta_tables.append_files(path, files, mark))
        super().publish(released, closed_us, due, has_all)

    def same(self, released: ReleasedRows, pairs: Collection[Pair]) -> bool:
        """Tell whether the published rows of these triggers, figures and groups, are exactly those that are released."""
        figures = self._figures(released, pairs)
        return figures.equals(self._published_figures(figures)) and super().same(released, pairs)

    def _figures(self, released: ReleasedRows, pairs: Collection[Pair]) -> pa.Table:
        """Return the figures of the windows that end with these triggers, which have rows; those of a one-time release are always told."""
        schedule = self.shape.schedule
        windows = {window for window, trigger in pairs if trigger == schedule.grid.horizon}
        return left_out_rows(released.figures(), windows, schedule, self.shape.left_out)

    def _unpublished(self, figures: pa.Table) -> pa.Table:
        """Return the figures that are not there. A run that was restored between the two commits of a tick publishes it again, under a new mark.

        Raises:
            ReleaseConflict: those that are there are others.
        """
        if not figures.num_rows:  # no window ends: most ticks
            return figures
        published = self._published_figures(figures)
        if not published.num_rows:
            return figures
        is_there = pc.is_in(figures[DUE], published[DUE].combine_chunks())
        if not figures.filter(is_there).equals(published):
            raise ReleaseConflict(
                "what the limits left out of a published window would be told otherwise; nothing was written"
            )
        return figures.filter(pc.invert(is_there))

    def _published_figures(self, figures: pa.Table) -> pa.Table:
        """Return the published figures of the same windows: tumbling windows end one at a time."""
        times = figures[DUE].combine_chunks()
        rows = read_rows(self.figures_path, figures.column_names, pc.field(DUE).isin(times))
        return rows.sort_by(DUE).cast(figures.schema)
