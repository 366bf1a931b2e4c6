"""A plan as the numbers of the two steps; no budget and no secret."""

from __future__ import annotations

from dpsql.mechanisms.sliding.asked import Asked, PaneGrouping, SlidingCounter, Smoothing
from dpsql.mechanisms.sliding.plan import MeasurementPlan, SlidingPlan
from dpsql.parsed_query import AggregateFunction
from udfs.sliding.intake import Contribution
from udfs.sliding.measurement import Measurement
from udfs.sliding.plain import EveryPane
from udfs.sliding.planned import Planned
from udfs.sliding.release import Shown
from udfs.sliding.retroactive import Retroactive
from udfs.sliding.smoothing import LimitedTranslation
from udfs.sliding.window_sqrt import WindowSqrt

KINDS = {AggregateFunction.SUM: "sum", AggregateFunction.AVG: "avg"}


def contributions(plan: SlidingPlan) -> tuple[Contribution, ...]:
    """What a record adds to each measured sum."""
    return tuple(Contribution(m.rule, m.argument, m.grid, m.lower, m.upper, m.centre) for m in plan.measurements)


def shown(plan: SlidingPlan) -> tuple[Shown, ...]:
    """The released columns, in order of the aggregates."""
    out, at = [], 0
    for aggregate in plan.asked.aggregates:
        count = 2 if aggregate.function is AggregateFunction.AVG else 1
        parts = plan.measurements[at : at + count]
        places = tuple(range(at, at + count))
        kind = KINDS.get(aggregate.function, "count")
        out.append(Shown(kind, places, tuple(m.grid for m in parts), aggregate.bounds or (0.0, 0.0), parts[0].centre))
        at += count
    return tuple(out)


def measurements(plan: SlidingPlan) -> tuple[Measurement, ...]:
    """How every sum is measured."""
    averaged = {place for column in shown(plan) if column.kind == "avg" for place in column.parts}
    return tuple(_measurement(plan, m, place in averaged) for place, m in enumerate(plan.measurements))


def _measurement(plan: SlidingPlan, m: MeasurementPlan, averaged: bool) -> Measurement:
    asked = plan.asked
    if asked.counter is SlidingCounter.WINDOW_SQRT:
        return WindowSqrt(asked.panes, plan.coefficients, m.sigma, plan.sd)
    if asked.grouping is PaneGrouping.RETROACTIVE and m.monitor and m.together:
        return Retroactive(asked.panes, m.monitor, m.together, asked.revise, asked.rescue)
    if m.fine is None:
        raise ValueError("a plan without noise")
    if asked.grouping is PaneGrouping.PLANNED and m.monitor and m.together:
        return Planned(asked.panes, m.fine, m.monitor, m.together, _smoother(asked, m))
    smoothed = asked.smoothing is Smoothing.LIMITED_TRANSLATION and not averaged
    return EveryPane(asked.panes, m.fine, _smoother(asked, m) if smoothed else None)


def _smoother(asked: Asked, m: MeasurementPlan) -> LimitedTranslation:
    if m.fine is None:
        raise ValueError("a smoother needs the noise of single panes")
    return LimitedTranslation(asked.panes, m.fine.variance, m.floor)
