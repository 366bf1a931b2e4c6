"""The histogram's two stages: contribution bounding by unit, then key selection and perturbation by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from dpsql.udfs.histogram import group_state, memory, user_state
from dpsql.udfs.histogram.contribution_bounding import BoundingParameters, admit
from dpsql.udfs.histogram.group_state import ReleaseState
from dpsql.udfs.histogram.parameters import ReleaseParameters
from dpsql.udfs.histogram.perturbation import released_columns
from dpsql.udfs.histogram.release import empty_release_state, release
from dpsql.udfs.stage import ADMISSION, RELEASE, Clock, Stepped, Tables, Tick
from dpsql.udfs.state_table import Table


@dataclass(frozen=True)
class AdmissionStage:
    """Records to contributions.

    Args:
        parameters: the plan's numbers.
        arguments: how many argument columns a record has.
    """

    parameters: BoundingParameters
    arguments: int
    operator: ClassVar[str] = ADMISSION
    tables: ClassVar[Mapping[str, Table]] = user_state.TABLES

    @property
    def takes(self) -> pa.Schema:
        """Records (docs/architecture.md)."""
        ints = [(name, pa.int64()) for name in ("user", "ts", "key")]
        return pa.schema(
            [("drop", pa.int8()), *ints, ("key_bytes", pa.binary()), *((f"a{i}", pa.float64()) for i in range(self.arguments))]
        )

    @property
    def gives(self) -> pa.Schema:
        """Contributions."""
        leaves = any(rule.rule == "leaf" for rule in self.parameters.increments)
        return contributions(len(self.parameters.increments), self.parameters.by_user, by_leaf=leaves)

    def empty(self) -> Tables:
        """No unit has used anything."""
        return {"users": user_state.empty_state()}

    def for_bucket(self, bucket: int, buckets: int) -> AdmissionStage:
        """It knows nothing of units beforehand."""
        return self

    def step(self, state: Tables, rows: pa.Table, now: Clock, noise_key: bytes) -> Stepped:
        """As `admit`; counted: `drops`, how many records were dropped and why."""
        done = admit(state["users"], rows, now, self.parameters)
        return Stepped({"users": done.state}, done.contributions, {"drops": {reason: n for reason, n in done.drops.items() if n}})


@dataclass(frozen=True)
class ReleaseStage:
    """Contributions and ticks to released rows.

    Args:
        parameters: the plan's numbers.
    """

    parameters: ReleaseParameters
    operator: ClassVar[str] = RELEASE

    @property
    def tables(self) -> Mapping[str, Table]:
        """Of groups; and of keys, where windows prove them together."""
        return release_tables(self.parameters.carries)

    @property
    def takes(self) -> pa.Schema:
        """Contributions, with the micro-batch that they came in."""
        layout = self.parameters.layout
        return contributions(len(layout.values), layout.rounds).append(pa.field("batch", pa.int64()))

    @property
    def gives(self) -> pa.Schema:
        """Released rows."""
        return released_columns(self.parameters.columns)

    def empty(self) -> Tables:
        """No group is there, nothing is closed."""
        return empty_release_state(self.parameters).tables()

    def for_bucket(self, bucket: int, buckets: int) -> ReleaseStage:
        """With the public groups of one bucket only."""
        return replace(self, parameters=self.parameters.for_bucket(bucket, buckets))

    def step(self, state: Tables, rows: pa.Table, now: Sequence[Tick], noise_key: bytes) -> Stepped:
        """As `release`; counted: `closed_us`, up to when the grid is closed now."""
        done = release(ReleaseState(**state), rows, now, self.parameters, noise_key)
        return Stepped(done.state.tables(), done.rows, {"closed_us": done.state.closed_us})


def release_tables(carries: bool) -> Mapping[str, Table]:
    """What the release keeps; `carries`: windows prove keys together."""
    return group_state.TABLES | memory.TABLES if carries else group_state.TABLES


def contributions(values: int, by_user: bool = False, by_level: bool = False, by_leaf: bool = False) -> pa.Schema:
    """What the intake tells the release: sums of so many increments, per user where rounds of selection want that, per level of an interval tree,
    per leaf of quantiles."""
    ints = ["window", "trigger", "key", *(["user"] if by_user else [])]
    sums = ["weight", "users", *(f"v{j}" for j in range(values)), *(["level"] if by_level else []), *(["leaf"] if by_leaf else [])]
    int64 = pa.int64()
    return pa.schema([*((name, int64) for name in ints), ("key_bytes", pa.binary()), *((name, int64) for name in sums)])
