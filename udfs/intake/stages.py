"""The stages that bound contributions by unit: of records that only arrive, and of images of a change feed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpsql.udfs.contributions import contributions
from dpsql.udfs.intake import group_sums, live_rows, user_state
from dpsql.udfs.intake.changes import FeedParameters, admit_changes
from dpsql.udfs.intake.contribution_bounding import BoundingParameters, admit
from dpsql.udfs.intake.left_out import figure_contributions
from dpsql.udfs.stage import Clock, Intake, Stepped, Tables, counted_drops
from dpsql.udfs.state_table import StateTable


@dataclass(frozen=True)
class AdmissionStage(Intake):
    """Records to contributions.

    Args:
        parameters: the plan's numbers.
        arguments: how many argument columns a record has.
    """

    parameters: BoundingParameters
    arguments: int
    is_numbered: ClassVar[bool] = True

    @property
    def tables(self) -> Mapping[str, StateTable]:  # type: ignore[override]
        """State of units, and of their sums in groups where those have bounds."""
        return user_state.TABLES | (group_sums.TABLES if self.parameters.per_group else {})

    @property
    def gives(self) -> pa.Schema:
        """Columns of the contributions that go on."""
        leaves = any(rule.rule == "leaf" for rule in self.parameters.increments)
        return contributions(
            len(self.parameters.increments), self.parameters.by_user, by_leaf=leaves
        )

    def empty(self) -> Tables:
        """Return the state in which no unit has used anything."""
        rules = len(self.parameters.per_group)
        return {"users": user_state.empty_state()} | (
            {"sums": group_sums.empty_sums(rules)} if rules else {}
        )

    def step(self, state: Tables, rows: pa.Table, clock: Clock, noise_key: bytes) -> Stepped:
        """Admit records by `admit`; counted: `drops`, how many records were dropped and why."""
        admission = admit(state["users"], rows, clock, self.parameters, state.get("sums"))
        sums = {} if admission.sums is None else {"sums": admission.sums}
        rows = admission.contributions
        if admission.left_out is not None:
            rows = pa.concat_tables([rows, figure_contributions(admission.left_out, rows.schema)])
        return Stepped(
            state if clock.is_last else {"users": admission.state} | sums,
            rows,
            counted_drops(admission.drops),
        )


@dataclass(frozen=True)
class RowStage(AdmissionStage):
    """Records to contributions where one row is protected: each is a unit that nothing remembers. Its bounds are 1."""

    tables: ClassVar[Mapping[str, StateTable]] = {}
    integers: ClassVar[tuple[str, ...]] = ("ts", "key")

    def empty(self) -> Tables:
        """Return no table, because there is no unit."""
        return {}

    def step(self, state: Tables, rows: pa.Table, clock: Clock, noise_key: bytes) -> Stepped:
        """Admit records by `admit`, from nothing."""
        records = rows.select(self.takes.names)
        records = records.append_column("user", pa.array(np.arange(rows.num_rows)))
        return replace(super().step(super().empty(), records, clock, noise_key), state={})


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
