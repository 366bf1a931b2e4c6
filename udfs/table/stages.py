"""The release of a table's groups, with quantiles and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dpsql.udfs.contributions import contributions
from dpsql.udfs.stage import Release, Stepped, Tables, Tick
from dpsql.udfs.state_table import Table
from dpsql.udfs.table import leaves
from dpsql.udfs.table.release import TableParameters, empty_table, release
from dpsql.udfs.table.state import TABLES, TableState


@dataclass(frozen=True)
class TableStage(Release):
    """Contributions and ticks to released rows.

    Args:
        parameters: the plan's numbers.
    """

    parameters: TableParameters

    @property
    def tables(self) -> Mapping[str, Table]:
        """Of groups; and of leaves, where columns are quantiles."""
        return tables(bool(self.parameters.quantiles))

    @property
    def takes(self) -> pa.Schema:
        """Contributions, of quantiles also of leaves, with the micro-batch that they came in."""
        p = self.parameters
        return contributions(
            len(p.perturbations) + len(p.quantiles), by_leaf=bool(p.quantiles)
        ).append(pa.field("batch", pa.int64()))

    def empty(self) -> Tables:
        """No key is there, nothing is closed."""
        return empty_table(self.parameters).tables()

    def step(self, state: Tables, rows: pa.Table, now: Sequence[Tick], noise_key: bytes) -> Stepped:
        """As `release`."""
        return release(TableState(**state), rows, now, self.parameters, noise_key).stepped()


def tables(ranks: bool) -> Mapping[str, Table]:
    """What the release keeps; `ranks`: there are quantiles."""
    return leaves.TABLES if ranks else TABLES
