"""Tables without windows, which are released as they are: their triggers and counters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpsql.parsed_query import ContributionPeriod, ParsedQuery
from dpsql.parts.sums import as_stored
from dpsql.schedule import Eras, Schedule
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter, column_norm
from dpsql.udfs.table_grid import FOR_EVER, LAST_STEP, Periods, TableGrid

CENTURY_US = 36_525 * 86_400_000_000
STEPS = (1, 10, 100, 1_000, 10_000)


def grid(query: ParsedQuery[Any], start_us: int) -> TableGrid:
    """Return the times at which a plan releases; where allowances renew for a century, so that sums of all periods fit 64 bits."""
    interval_us = query.trigger_interval_us
    last = query.asked.max_triggers
    if last is None and query.contribution_period is ContributionPeriod.DURATION:
        last = min(LAST_STEP, CENTURY_US // interval_us)
    return TableGrid.from_start(start_us, interval_us, last)


def schedule(query: ParsedQuery[Any], start_us: int) -> Schedule:
    """Return one window that does not end; contributions of a trigger are needed until it is due."""
    eras = Eras("trigger", 0, 1, start_us, query.trigger_interval_us)
    return Schedule(
        grid(query, start_us),
        start_us,
        query.trigger_interval_us,
        eras,
        windows=False,
        replayed=True,
    )


class Renewing:
    """Contribution periods of the plan of a table: where its rows end, a unit's allowance may renew. A part of a plan's class."""

    query: ParsedQuery[Any]
    start_us: int

    @property
    def period(self) -> tuple[int, int] | None:
        """Length and offset of the contribution periods: they begin with a trigger; None: one is for ever."""
        length_us = getattr(self.query.asked, "period_us", None)
        return (length_us, self.start_us % self.query.trigger_interval_us) if length_us else None

    @property
    def periods(self) -> Periods:
        """The contribution periods, in triggers; the first may have begun before the run."""
        if self.period is None:
            return FOR_EVER
        length_us, offset_us = self.period
        interval_us = self.query.trigger_interval_us
        before_us = (self.start_us - offset_us) % length_us
        return Periods(length_us // interval_us, before_us // interval_us)


def most_periods(plan: Renewing) -> int:
    """Return how many contribution periods a run can have: of each the rows of a unit may be there at the last trigger."""
    last = np.array([grid(plan.query, plan.start_us).horizon])
    return int(plan.periods.numbers(last)[0]) + 1


def document(plan: Any) -> dict[str, Any]:
    """Return the plan as JSON values: what its identity digests, and what run.json keeps."""
    content = {"mechanism": plan.mechanism} | as_stored(plan)
    content["query"] |= content["query"].pop("asked")
    return content


def triggers(query: ParsedQuery[Any]) -> tuple[int, ...]:
    """Return the triggers of which numbers are told: powers of ten, and the last if there is one."""
    last = query.asked.max_triggers
    return STEPS if last is None else (*(trigger for trigger in STEPS if trigger < last), last)


def norm_of(chosen: Counter | BltInf) -> float:
    """Return the norm of a column of C, with a last trigger or without."""
    return math.sqrt(chosen.squared_norm()) if isinstance(chosen, BltInf) else column_norm(chosen)


def reach_of(chosen: Counter | BltInf) -> float:
    """Return how many times the largest draw a path can be."""
    return chosen.response_sum(LAST_STEP) if isinstance(chosen, BltInf) else float(chosen.horizon)
