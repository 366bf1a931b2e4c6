"""The two stages of a table without windows. The intake is the histogram's: its one window begins with the run and does not end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from udfs.dynamic.release import TableParameters, release
from udfs.dynamic.state import TABLES, TableState, empty_state
from udfs.histogram.perturbation import released_columns
from udfs.histogram.stages import contributions
from udfs.stage import RELEASE, Stepped, Tables, Tick
from udfs.state_table import Table


@dataclass(frozen=True)
class TableStage:
    """Contributions and ticks to released rows.

    Args:
        parameters: the plan's numbers.
    """

    parameters: TableParameters
    operator: ClassVar[str] = RELEASE
    tables: ClassVar[Mapping[str, Table]] = TABLES

    @property
    def takes(self) -> pa.Schema:
        """Contributions, with the micro-batch that they came in."""
        return contributions(len(self.parameters.perturbations)).append(pa.field("batch", pa.int64()))

    @property
    def gives(self) -> pa.Schema:
        """Released rows."""
        return released_columns(self.parameters.columns)

    def empty(self) -> Tables:
        """No key is there, nothing is closed."""
        return empty_state(self.parameters.layout).tables()

    def for_bucket(self, bucket: int, buckets: int) -> TableStage:
        """With the public keys of one bucket only."""
        return replace(self, parameters=self.parameters.for_bucket(bucket, buckets))

    def step(self, state: Tables, rows: pa.Table, now: Sequence[Tick], noise_key: bytes) -> Stepped:
        """As `release`; counted: `closed_us`, up to when the grid is closed now."""
        done = release(TableState(**state), rows, now, self.parameters, noise_key)
        return Stepped(done.state.tables(), done.rows, {"closed_us": done.state.closed_us})
