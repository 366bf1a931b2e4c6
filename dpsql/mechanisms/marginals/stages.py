"""From a plan to its two stages: plain numbers, no budget and no secret."""

from __future__ import annotations

from dpsql.mechanisms.marginals.plan import MarginalsPlan
from dpsql.schedule import Eras, Schedule
from dpsql.udfs.contributions import Increment
from dpsql.udfs.intake.contribution_bounding import BoundingParameters
from dpsql.udfs.marginals.domains import Domains
from dpsql.udfs.marginals.stages import CellIntake, CellRelease
from dpsql.udfs.table.grid import TableGrid


def grid(plan: MarginalsPlan) -> TableGrid:
    """The trigger grid of a plan."""
    return TableGrid.of(plan.start_us, plan.query.trigger_interval_us, plan.query.asked.max_triggers)


def schedule(plan: MarginalsPlan) -> Schedule:
    """One window that does not end, as of every table without windows."""
    interval_us = plan.query.trigger_interval_us
    eras = Eras("trigger", 0, 1, plan.start_us, interval_us)
    return Schedule(grid(plan), plan.start_us, interval_us, eras, windows=False, replayed=True)


def domains(plan: MarginalsPlan) -> Domains:
    """Their values as bytes."""
    declared = plan.query.asked.domains
    return Domains(
        tuple(tuple(value.encode() for value in domain.values) for domain in declared), tuple(domain.other for domain in declared)
    )


def intake(plan: MarginalsPlan) -> CellIntake:
    """The whole stream is one period, and rows alone are bounded."""
    rows = plan.query.asked.max_rows_contributed
    increments = tuple(Increment(p.rule, p.argument, p.grid, p.lower, p.upper) for p in plan.sums)
    bounds = BoundingParameters(
        grid=grid(plan),
        renews=False,
        max_rows=rows,
        max_rows_per_group=rows,
        max_groups=rows,
        weights=(0,) * rows,
        increments=increments,
    )
    return CellIntake(bounds, len(plan.arguments), plan.marginals, domains(plan))


def release(plan: MarginalsPlan) -> CellRelease:
    """Noise of its own size for every table."""
    whole = tuple(each.rule != "sum" for each in plan.sums)
    return CellRelease(grid(plan), tuple(plan.noisy_tables(each) for each in plan.sums), whole, domains(plan))
