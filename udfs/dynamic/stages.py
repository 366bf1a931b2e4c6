"""The stage of an interval tree. Other tables without windows have the stages of `dpsql.udfs.intake` and `dpsql.udfs.table`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from dpsql.udfs.contributions import contributions
from dpsql.udfs.dynamic import interval_tree
from dpsql.udfs.dynamic.interval_tree import TreeParameters, grow
from dpsql.udfs.measure.output_columns import released_columns
from dpsql.udfs.stage import BATCH, Release, Stepped, Tables, Tick
from dpsql.udfs.state_table import StateTable


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
