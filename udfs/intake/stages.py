"""The stage that bounds contributions by unit: of every kind of query whose records only arrive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpsql.udfs.contributions import contributions
from dpsql.udfs.intake import group_sums, user_state
from dpsql.udfs.intake.contribution_bounding import BoundingParameters, admit
from dpsql.udfs.stage import Clock, Intake, Stepped, Tables
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

    @property
    def tables(self) -> Mapping[str, StateTable]:  # type: ignore[override]
        """Of units; and of what they add up to in groups, where that is bounded."""
        return user_state.TABLES | (group_sums.TABLES if self.parameters.per_group else {})

    @property
    def gives(self) -> pa.Schema:
        """Contributions."""
        leaves = any(rule.rule == "leaf" for rule in self.parameters.increments)
        return contributions(
            len(self.parameters.increments), self.parameters.by_user, by_leaf=leaves
        )

    def empty(self) -> Tables:
        """No unit has used anything."""
        rules = len(self.parameters.per_group)
        return {"users": user_state.empty_state()} | (
            {"sums": group_sums.empty_sums(rules)} if rules else {}
        )

    def step(self, state: Tables, rows: pa.Table, now: Clock, noise_key: bytes) -> Stepped:
        """As `admit`; counted: `drops`, how many records were dropped and why."""
        done = admit(state["users"], rows, now, self.parameters, state.get("sums"))
        after = {"users": done.state} | ({} if done.sums is None else {"sums": done.sums})
        return Stepped(
            after,
            done.contributions,
            {"drops": {reason: n for reason, n in done.drops.items() if n}},
        )


@dataclass(frozen=True)
class RowStage(AdmissionStage):
    """Likewise, where one row is protected: each is a unit of its own, which nothing remembers. Its bounds are 1."""

    tables: ClassVar[Mapping[str, StateTable]] = {}
    integers: ClassVar[tuple[str, ...]] = ("ts", "key")

    def empty(self) -> Tables:
        """There is no unit."""
        return {}

    def step(self, state: Tables, rows: pa.Table, now: Clock, noise_key: bytes) -> Stepped:
        """As `admit`, from nothing."""
        of_its_own = rows.select(self.takes.names).append_column(
            "user", pa.array(np.arange(rows.num_rows))
        )
        return replace(super().step(super().empty(), of_its_own, now, noise_key), state={})
