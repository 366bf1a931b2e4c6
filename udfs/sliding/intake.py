"""Records become exact sums per pane and bin. Where events are protected it knows no unit and keeps no state; a unit's rows are bounded first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Bool, Int, int_fields, run_sums, sort_runs
from dpsql.udfs.contributions import Increment
from dpsql.udfs.grid import Grid
from dpsql.udfs.intake.contribution_bounding import DROP_REASONS, BoundingParameters
from dpsql.udfs.intake.stages import AdmissionStage
from dpsql.udfs.intake.timeliness import timely
from dpsql.udfs.stage import Clock, Intake, Stepped, Tables, counted_drops


@dataclass(frozen=True)
class PaneGrid(Grid):
    """Panes are its windows, each of which closes once; a contribution period of a unit is longer: as long as a window of panes."""

    period_us: int

    def period(self, ts: Int) -> Int:
        """Return the start of the contribution period of each event time."""
        return (ts - self.offset_us) // self.period_us * self.period_us + self.offset_us

    def period_is_over(self, period: Int, closed_us: int) -> Bool:
        """Tell whether its last pane is closed: no record of it is admitted any more."""
        return np.asarray(
            self.closed_triggers(period + self.period_us - self.slide_us, closed_us) == self.horizon
        )


@dataclass(frozen=True)
class PaneBounding(BoundingParameters):
    """Bounds of a unit's rows in a period. A row is in one pane and copied nowhere, so a unit's keys are all that is counted of it."""

    @property
    def groups_are_keys(self) -> bool:
        """Whether groups are keys: nothing is copied, so they are."""
        return True

    @property
    def periods_meet(self) -> bool:
        """Whether periods meet: no pane holds rows of two."""
        return False


@dataclass(frozen=True)
class EventParameters:
    """Concrete numbers of the intake of events: panes, the ids of the listed keys in ascending order, what is summed, where the source begins."""

    grid: PaneGrid
    public_keys: tuple[int, ...]
    increments: tuple[Increment, ...]
    first_window_us: int


@dataclass(frozen=True)
class PaneEvents(Intake):
    """Records to sums, where one row is protected: whose they are it does not ask.

    Args:
        parameters: the plan's numbers.
        arguments: how many argument columns a record has.
    """

    parameters: EventParameters
    arguments: int
    integers: ClassVar[tuple[str, ...]] = ("ts", "key")

    @property
    def gives(self) -> pa.Schema:
        """Columns of sums per pane and bin."""
        return pane_sums(len(self.parameters.increments))

    def step(self, state: Tables, rows: pa.Table, clock: Clock, noise_key: bytes) -> Stepped:
        """Sum the records of one micro-batch; counted: `drops`, how many records were dropped and why. A record is in one pane or in none."""
        drops = dict.fromkeys(DROP_REASONS, 0)
        p = self.parameters
        timely_rows = rows.filter(timely(rows, clock, p, drops))
        window = p.grid.latest_window(timely_rows["ts"].to_numpy())
        key = timely_rows["key"].to_numpy()
        order, starts = sort_runs(window, key)
        columns = {"window": window[order][starts], "key": key[order][starts]}
        sums = {
            f"v{j}": run_sums(each.increments(timely_rows)[order], starts)
            for j, each in enumerate(p.increments)
        }
        return Stepped({}, pa.table(columns | sums, schema=self.gives), counted_drops(drops))


@dataclass(frozen=True)
class UnitIntake(AdmissionStage):
    """Records to sums, where a unit's contribution period is protected: as the histogram bounds them, and nothing is copied."""

    parameters: PaneBounding

    @property
    def gives(self) -> pa.Schema:
        """Columns of sums per pane and bin."""
        return pane_sums(len(self.parameters.increments))

    def step(self, state: Tables, rows: pa.Table, clock: Clock, noise_key: bytes) -> Stepped:
        """Admit a unit's rows as any others, without weights."""
        stepped = super().step(state, rows, clock, noise_key)
        return replace(stepped, rows=stepped.rows.select(self.gives.names))


def pane_sums(measurements: int) -> pa.Schema:
    """Return what the intake gives: exact sums by pane (`window` is its start) and key."""
    sums = (f"v{j}" for j in range(measurements))
    return pa.schema(int_fields(("window", "key", *sums)))
