"""The stages of a table without windows. Of one that only grows the intake is the histogram's: its one window does not end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from dpsql.udfs.contributions import contributions
from dpsql.udfs.dynamic import interval_tree, live_rows
from dpsql.udfs.dynamic.changes import FeedParameters, admit_changes
from dpsql.udfs.dynamic.interval_tree import TreeParameters, grow
from dpsql.udfs.measure.output_columns import released_columns
from dpsql.udfs.stage import BATCH, Clock, Intake, Release, Stepped, Tables, Tick, counted_drops
from dpsql.udfs.state_table import StateTable


@dataclass(frozen=True)
class FeedStage(Intake):
    """Images of a change feed to contributions.

    Args:
        parameters: the plan's numbers.
        arguments: how many argument columns a record has.
    """

    parameters: FeedParameters
    arguments: int
    tables: ClassVar[Mapping[str, StateTable]] = live_rows.TABLES
    integers: ClassVar[tuple[str, ...]] = ("user", "row", "seq", "ts", "key")

    @property
    def takes(self) -> pa.Schema:
        """Columns of images: those of records, the row of the table, its place in the feed, and whether it begins or ends."""
        return super().takes.append(pa.field("kind", pa.int8()))

    @property
    def gives(self) -> pa.Schema:
        """Columns of the contributions that go on."""
        return self.parameters.gives

    def empty(self) -> Tables:
        """Return the state in which no row is there, and no unit has used anything."""
        return live_rows.empty_state(len(self.parameters.increments))

    def step(self, state: Tables, rows: pa.Table, clock: Clock, noise_key: bytes) -> Stepped:
        """Admit images by `admit_changes`; counted: `drops`, how many images were dropped, or did not count, and why."""
        admission = admit_changes(state, rows, clock, self.parameters)
        return Stepped(admission.state, admission.contributions, counted_drops(admission.drops))


@dataclass(frozen=True)
class TreeStage(Release):
    """Contributions and ticks to released rows, by an interval tree.

    Args:
        parameters: the plan's numbers.
    """

    parameters: TreeParameters
    tables: ClassVar[Mapping[str, StateTable]] = interval_tree.TABLES

    @property
    def takes(self) -> pa.Schema:
        """Contributions, with the micro-batch that they came in; their first value counts rows."""
        return contributions(1 + len(self.parameters.sums), by_level=True).append(BATCH)

    @property
    def gives(self) -> pa.Schema:
        """Columns of released rows."""
        return released_columns(self.parameters.columns)

    def empty(self) -> Tables:
        """Return the state in which no node is there, and nothing is closed."""
        return interval_tree.empty_state(len(self.parameters.sums)).tables()

    def step(
        self, state: Tables, rows: pa.Table, ticks: Sequence[Tick], noise_key: bytes
    ) -> Stepped:
        """Add rows and close ticks by `grow`."""
        return grow(
            interval_tree.TreeState(**state), rows, ticks, self.parameters, noise_key
        ).stepped()
