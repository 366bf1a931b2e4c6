"""Numbers of the release step of the histogram."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pyarrow as pa

from dpsql.udfs.grid import Grid
from dpsql.udfs.histogram.figures import FigureNoise
from dpsql.udfs.histogram.group_state import StateLayout
from dpsql.udfs.histogram.key_selection import SelectionParameters
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.measure.output_columns import OutputColumn, released_columns
from dpsql.udfs.noise.perturbation import PerturbationParameters
from dpsql.udfs.stage import LEFT_OUT
from dpsql.udfs.table.leaves import QuantileTree


@dataclass(frozen=True)
class ReleaseParameters:
    """Concrete numbers of the step; it holds no secret. Either `selection` or `public` is given; `figures`: of what the limits leave out."""

    grid: Grid
    selection: SelectionParameters | None
    perturbations: tuple[PerturbationParameters, ...]
    columns: tuple[OutputColumn, ...]
    public: PublicGroups | None = None
    quantiles: tuple[QuantileTree, ...] = ()
    figures: FigureNoise | None = None

    @property
    def layout(self) -> StateLayout:
        """Layout of the state per group."""
        width = self.selection.counter.width if self.selection else 1
        rounds = self.selection is not None and self.selection.rounds
        return StateLayout(width, tuple(q.width for q in self.perturbations), rounds)

    @property
    def carries(self) -> bool:
        """Whether windows prove keys together."""
        return self.selection is not None and self.selection.window_tests is not None

    @property
    def of_groups(self) -> pa.Schema:
        """Columns of released rows of groups."""
        return released_columns(self.columns)

    @property
    def gives(self) -> pa.Schema:
        """Columns of released rows: of groups, and where they are told figures of what is left out."""
        return self.of_groups.append(LEFT_OUT) if self.figures else self.of_groups

    def for_bucket(self, bucket: int, buckets: int) -> ReleaseParameters:
        """Return the parameters with the public groups of one bucket only, and figures of windows without records in the one that has all figures."""
        public = self.public and self.public.for_bucket(bucket, buckets)
        figures = self.figures and self.figures.for_bucket(bucket, buckets)
        return dataclasses.replace(self, public=public, figures=figures)
