"""From a plan to its two stages: plain numbers, no budget and no secret."""

from __future__ import annotations

import itertools
from dataclasses import replace

from dpsql.mechanisms.sliding.plan import MeasurementPlan, PaneGrouping, SlidingPlan
from dpsql.parsed_query import ContributionPeriod, CounterName, PrivacyLevel
from dpsql.parts.increments import sums_of
from dpsql.parts.sums import bare, output_column
from dpsql.schedule import Schedule, by_window
from dpsql.udfs.grid import Grid
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.measure.output_columns import OutputColumn
from dpsql.udfs.sliding.intake import (
    EventParameters,
    PaneBounding,
    PaneEvents,
    PaneGrid,
    UnitIntake,
)
from dpsql.udfs.sliding.panes import EveryPane, Measurement, Panes
from dpsql.udfs.sliding.release import PaneRelease, SlidingParameters
from dpsql.udfs.sliding.retroactive import Retroactive
from dpsql.udfs.sliding.smoothing import LimitedTranslation
from dpsql.udfs.sliding.window_sqrt import WindowSqrt


def stages(plan: SlidingPlan, public: PublicGroups) -> tuple[PaneEvents | UnitIntake, PaneRelease]:
    """Return both, for the groups that the run lists."""
    return intake(plan, public), PaneRelease(parameters(plan, public))


def pane_grid(plan: SlidingPlan) -> PaneGrid:
    """Return panes as windows that close once."""
    window = plan.query.windows
    slide = window.slide_us
    return PaneGrid(
        slide, slide, window.offset_us, slide, 1 + plan.lateness_us // slide, window.size_us
    )


def schedule(plan: SlidingPlan) -> Schedule:
    """Return the schedule: a window is released once, when its last pane closes; contributions are
    of panes."""
    window = plan.query.windows
    panes = pane_grid(plan)
    grid = Grid(
        window.size_us, window.slide_us, window.offset_us, window.size_us + plan.lateness_us, 1
    )
    return replace(
        by_window(panes),
        grid=grid,
        offset_us=window.offset_us + plan.lateness_us % window.slide_us,
        replayed=True,
    )


def intake(plan: SlidingPlan, public: PublicGroups) -> PaneEvents | UnitIntake:
    """Return an intake of single events, or of what a unit's bounds admit."""
    choices = plan.query.asked
    keys = tuple(sorted(public.keys))
    first = public.first_window_us
    increments = bare(plan.measurements)
    if choices.privacy_level is PrivacyLevel.EVENT:
        return PaneEvents(
            EventParameters(pane_grid(plan), keys, increments, first), len(plan.arguments)
        )
    if (
        choices.max_rows_contributed is None
        or choices.max_rows_per_group is None
        or choices.max_groups_contributed is None
    ):
        raise ValueError("a plan without bounds of a unit")
    bounding = PaneBounding(
        grid=pane_grid(plan),
        renews=plan.query.contribution_period is ContributionPeriod.WINDOW,
        max_rows=choices.max_rows_contributed,
        max_rows_per_group=choices.max_rows_per_group,
        max_groups=choices.max_groups_contributed,
        weights=(0,) * choices.max_groups_contributed,
        increments=increments,
        public_keys=keys,
        first_window_us=first,
    )
    return UnitIntake(bounding, len(plan.arguments))


def parameters(plan: SlidingPlan, public: PublicGroups) -> SlidingParameters:
    """Return parameters of the release."""
    panes = Panes(plan.query.windows.slide_us, plan.panes, public.first_window_us, plan.lateness_us)
    bits = tuple(m.bits for m in plan.measurements)
    return SlidingParameters(
        panes, measurements(plan), bits, output_columns(plan), public.keys, public.key_bytes
    )


def parts(plan: SlidingPlan) -> tuple[tuple[MeasurementPlan, ...], ...]:
    """Return what each aggregate is made of, in their order."""
    left = iter(plan.measurements)
    return tuple(
        tuple(itertools.islice(left, sums_of(aggregate.function)))
        for aggregate in plan.query.aggregates
    )


def output_columns(plan: SlidingPlan) -> tuple[OutputColumn, ...]:
    """Return the released columns, in order of the aggregates."""
    return tuple(map(output_column, plan.query.aggregates, parts(plan)))


def measurements(plan: SlidingPlan) -> tuple[Measurement, ...]:
    """Return how every sum is measured."""
    return tuple(_measurement(plan, m, len(each) > 1) for each in parts(plan) for m in each)


def _measurement(plan: SlidingPlan, m: MeasurementPlan, of_several: bool) -> Measurement:
    if plan.counter is CounterName.WINDOW_SQRT:
        return WindowSqrt(plan.panes, plan.coefficients, m.sigma, plan.sd)
    if plan.query.asked.grouping is PaneGrouping.RETROACTIVE and m.monitor and m.together:
        return Retroactive(plan.panes, m.monitor, m.together)
    if m.fine is None:
        raise ValueError("a plan without noise")
    smoother = (
        LimitedTranslation(plan.panes, m.fine.variance, m.floor)
        if plan.smooths and not of_several
        else None
    )
    return EveryPane(plan.panes, m.fine, smoother)
