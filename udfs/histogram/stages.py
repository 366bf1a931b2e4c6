"""The histogram's two stages: contribution bounding by unit, then key selection and perturbation by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dpsql.udfs.contributions import contributions
from dpsql.udfs.histogram import group_state, memory, quantiles
from dpsql.udfs.histogram.group_state import ReleaseState
from dpsql.udfs.histogram.parameters import ReleaseParameters
from dpsql.udfs.histogram.release import empty_release_state, release
from dpsql.udfs.stage import Release, Stepped, Tables, Tick
from dpsql.udfs.state_table import Table


@dataclass(frozen=True)
class ReleaseStage(Release):
    """Contributions and ticks to released rows.

    Args:
        parameters: the plan's numbers.
    """

    parameters: ReleaseParameters

    @property
    def tables(self) -> Mapping[str, Table]:
        """Of groups; and of keys, where windows prove them together."""
        return release_tables(self.parameters.carries, bool(self.parameters.quantiles))

    @property
    def takes(self) -> pa.Schema:
        """Contributions, with the micro-batch that they came in."""
        layout = self.parameters.layout
        of = self.parameters.quantiles
        return contributions(len(layout.values) + len(of), layout.rounds, by_leaf=bool(of)).append(
            pa.field("batch", pa.int64())
        )

    def empty(self) -> Tables:
        """No group is there, nothing is closed."""
        return empty_release_state(self.parameters).tables()

    def step(self, state: Tables, rows: pa.Table, now: Sequence[Tick], noise_key: bytes) -> Stepped:
        """As `release`."""
        return release(ReleaseState(**state), rows, now, self.parameters, noise_key).stepped()


def release_tables(carries: bool, ranks: bool) -> Mapping[str, Table]:
    """What the release keeps; `carries`: windows prove keys together; `ranks`: there are quantiles."""
    return (
        group_state.TABLES
        | (memory.TABLES if carries else {})
        | (quantiles.TABLES if ranks else {})
    )
