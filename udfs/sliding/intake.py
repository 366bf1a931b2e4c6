"""Records become exact sums per pane and bin. Where events are protected it knows no unit and keeps no state; a unit's rows are bounded first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Bool, Int, run_starts, run_sums, sort_order
from dpsql.udfs.contributions import Increment
from dpsql.udfs.grid import Grid
from dpsql.udfs.intake import user_state
from dpsql.udfs.intake.contribution_bounding import DROP_REASONS, BoundingParameters, admit, timely
from dpsql.udfs.stage import ADMISSION, Clock, Stepped, Tables
from dpsql.udfs.state_table import Table


@dataclass(frozen=True)
class PaneGrid(Grid):
    """Panes are its windows, each of which closes once; a contribution period of a unit is longer: as long as a window of panes."""

    period_us: int

    def period(self, ts: Int) -> Int:
        """Start of the contribution period of each event time."""
        return (ts - self.offset_us) // self.period_us * self.period_us + self.offset_us

    def period_is_over(self, period: Int, closed_us: int) -> Bool:
        """Whether its last pane is closed: no record of it is admitted any more."""
        return np.asarray(self.closed_triggers(period + self.period_us - self.slide_us, closed_us) == self.horizon)


@dataclass(frozen=True)
class PaneBounding(BoundingParameters):
    """Bounds of a unit's rows in a period. A row is in one pane and copied nowhere, so a unit's keys are all that is counted of it."""

    @property
    def groups_are_keys(self) -> bool:
        """Nothing is copied."""
        return True

    @property
    def periods_meet(self) -> bool:
        """No pane holds rows of two periods."""
        return False


@dataclass(frozen=True)
class EventParameters:
    """Concrete numbers of the intake of events: panes, the ids of the listed keys in ascending order, what is summed, where the source begins."""

    grid: PaneGrid
    public_keys: tuple[int, ...]
    increments: tuple[Increment, ...]
    first_window_us: int


@dataclass(frozen=True)
class EventIntake:
    """Records to sums, where one row is protected.

    Args:
        parameters: the plan's numbers.
        arguments: how many argument columns a record has.
    """

    parameters: EventParameters
    arguments: int
    operator: ClassVar[str] = ADMISSION
    tables: ClassVar[Mapping[str, Table]] = {}

    @property
    def takes(self) -> pa.Schema:
        """Records; whose they are it does not ask."""
        return _records(("ts", "key"), self.arguments)

    @property
    def gives(self) -> pa.Schema:
        """Sums."""
        return pane_sums(len(self.parameters.increments))

    def empty(self) -> Tables:
        """There is no state."""
        return {}

    def for_bucket(self, bucket: int, buckets: int) -> EventIntake:
        """It knows nothing of buckets."""
        return self

    def step(self, state: Tables, rows: pa.Table, now: Clock, noise_key: bytes) -> Stepped:
        """Sum the records of one micro-batch; counted: `drops`, how many records were dropped and why. A record is in one pane or in none."""
        drops, p = dict.fromkeys(DROP_REASONS, 0), self.parameters
        taken = rows.filter(pa.array(timely(rows, now, p, drops)))
        window, key = p.grid.latest_window(taken.column("ts").to_numpy()), taken.column("key").to_numpy()
        order = sort_order(window, key)
        starts = run_starts(window[order], key[order])
        columns = {"window": window[order][starts], "key": key[order][starts]}
        sums = {f"v{j}": run_sums(each.of(taken)[order], starts) for j, each in enumerate(p.increments)}
        return Stepped({}, pa.table(columns | sums, schema=self.gives), {"drops": {reason: n for reason, n in drops.items() if n}})


@dataclass(frozen=True)
class UnitIntake:
    """Records to sums, where a unit's contribution period is protected: as the histogram bounds them, and nothing is copied.

    Args:
        parameters: the plan's numbers.
        arguments: how many argument columns a record has.
    """

    parameters: PaneBounding
    arguments: int
    operator: ClassVar[str] = ADMISSION
    tables: ClassVar[Mapping[str, Table]] = user_state.TABLES

    @property
    def takes(self) -> pa.Schema:
        """Records."""
        return _records(("user", "ts", "key"), self.arguments)

    @property
    def gives(self) -> pa.Schema:
        """Sums."""
        return pane_sums(len(self.parameters.increments))

    def empty(self) -> Tables:
        """No unit has used anything."""
        return {"users": user_state.empty_state()}

    def for_bucket(self, bucket: int, buckets: int) -> UnitIntake:
        """It knows nothing of units beforehand."""
        return self

    def step(self, state: Tables, rows: pa.Table, now: Clock, noise_key: bytes) -> Stepped:
        """As `admit`; counted: `drops`."""
        done = admit(state["users"], rows, now, self.parameters)
        counted = {"drops": {reason: n for reason, n in done.drops.items() if n}}
        return Stepped({"users": done.state}, done.contributions.select(self.gives.names), counted)


def pane_sums(measurements: int) -> pa.Schema:
    """What the intake gives: exact sums by pane (`window` is its start) and key."""
    return pa.schema([(name, pa.int64()) for name in ("window", "key", *(f"v{j}" for j in range(measurements)))])


def _records(ints: tuple[str, ...], arguments: int) -> pa.Schema:
    values = [(f"a{i}", pa.float64()) for i in range(arguments)]
    return pa.schema([("drop", pa.int8()), *((name, pa.int64()) for name in ints), ("key_bytes", pa.binary()), *values])
