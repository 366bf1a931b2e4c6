"""From a plan to its two stages: plain numbers, no budget and no secret."""

from __future__ import annotations

import math

from dpsql.mechanisms.histogram.plan import (
    CarriedPlan,
    ColumnPlan,
    PerturbationPlan,
    PrivacyPlan,
    QuantilePlan,
    ReleaseRule,
)
from dpsql.parsed_query import ContributionPeriod, CounterName
from dpsql.parts.sums import bare, output_column
from dpsql.udfs.contributions import WEIGHT_UNIT
from dpsql.udfs.grid import NO_CLOCK, Grid
from dpsql.udfs.histogram.figures import FigureNoise
from dpsql.udfs.histogram.key_selection import SelectionParameters
from dpsql.udfs.histogram.memory import CarriedParameters
from dpsql.udfs.histogram.parameters import ReleaseParameters
from dpsql.udfs.histogram.release import HistogramRelease
from dpsql.udfs.intake.contribution_bounding import BoundingParameters
from dpsql.udfs.intake.left_out import FIGURES
from dpsql.udfs.intake.stages import AdmissionStage, RowStage
from dpsql.udfs.keys import PublicGroups, encode
from dpsql.udfs.noise.counters import counter
from dpsql.udfs.noise.perturbation import PerturbationParameters
from dpsql.udfs.table.leaves import QuantileTree


def grid(plan: PrivacyPlan) -> Grid:
    """Return the trigger grid of a plan."""
    window = plan.query.windows
    return Grid(
        window.size_us,
        window.slide_us,
        window.offset_us,
        plan.query.trigger_interval_us,
        plan.horizon,
    )


def admission_stage(
    plan: PrivacyPlan, public: PublicGroups | None = None, first_window_us: int | None = None
) -> AdmissionStage:
    """Return the intake; arguments as `bounding_parameters`."""
    stage = AdmissionStage if plan.query.privacy_unit else RowStage
    return stage(bounding_parameters(plan, public, first_window_us), len(plan.arguments))


def stages(
    plan: PrivacyPlan, public: PublicGroups | None = None, first_window_us: int | None = None
) -> tuple[AdmissionStage, HistogramRelease]:
    """Return both; arguments as `bounding_parameters`."""
    return admission_stage(plan, public, first_window_us), HistogramRelease(
        release_parameters(plan, public, first_window_us)
    )


def bounding_parameters(
    plan: PrivacyPlan, public: PublicGroups | None = None, first_window_us: int | None = None
) -> BoundingParameters:
    """Return parameters of `dpsql.udfs.intake.contribution_bounding.admit`; `public` where the plan has no key selection.

    `first_window_us`: windows that start earlier are not this run's (public groups know their first window themselves).
    """
    query = plan.query
    return BoundingParameters(
        grid=grid(plan),
        # One window has all records of a one-time release: what it forgets comes in no other.
        renews=query.once or query.contribution_period is ContributionPeriod.WINDOW,
        max_rows=query.asked.max_rows_contributed,
        max_rows_per_group=query.asked.max_rows_per_group,
        max_groups=query.asked.max_groups_contributed,
        weights=plan.selection.weights if plan.selection else (0,) * plan.max_groups,
        increments=bare(plan.perturbations),
        by_user=query.asked.release is ReleaseRule.RESELECT and plan.selection is not None,
        public_keys=tuple(sorted(public.keys)) if public else None,
        first_window_us=public.first_window_us if public else first_window_us,
        figures=plan.left_out.limits,
    )


def release_parameters(
    plan: PrivacyPlan, public: PublicGroups | None = None, first_window_us: int | None = None
) -> ReleaseParameters:
    """Return parameters of `dpsql.udfs.histogram.release.release`; arguments as `bounding_parameters`."""
    if (plan.selection is None) != (public is not None):
        raise ValueError("a plan has either key selection or public groups")
    selection = None
    if plan.selection:
        chosen = counter(plan.selection.counter, plan.horizon)
        rounds = plan.query.asked.release is ReleaseRule.RESELECT
        carried_tests = (
            _carried_parameters(plan.selection.carried, first_window_us)
            if plan.selection.carried
            else None
        )
        selection = SelectionParameters(
            chosen,
            plan.selection.sigma,
            plan.selection.thresholds,
            plan.min_counted,
            rounds,
            carried_tests,
        )
    sums = [p for p in plan.perturbations if isinstance(p, PerturbationPlan)]
    perturbations = tuple(
        PerturbationParameters(
            p.noise_stream,
            counter(p.counter, plan.horizon),
            p.sigma,
            WEIGHT_UNIT if p.on_selection else p.grid,
            stderr(p) if p.on_selection else (),
        )
        for p in sums
    )
    columns = tuple(
        output_column(
            column.aggregate, column.perturbations, tuple(map(stderr, column.perturbations))
        )
        for column in plan.columns
    )
    return ReleaseParameters(
        grid(plan),
        selection,
        perturbations,
        columns,
        public,
        quantile_noise(plan),
        _figure_noise(plan, public),
    )


def _figure_noise(plan: PrivacyPlan, public: PublicGroups | None) -> FigureNoise | None:
    figures = plan.left_out.figures
    if not figures:
        return None
    once = counter(CounterName.BLT, 1)
    every_window_from = plan.query.windows.offset_us if plan.query.once else None
    return FigureNoise(
        tuple(FIGURES.index(figure.name) for figure in figures),
        tuple(
            PerturbationParameters(figure.noise_stream, once, figure.sigma, 1.0)
            for figure in figures
        ),
        public.first_window_us if public else every_window_from,
        plan.query.once,
        encode([None] * len(plan.query.keys)),
    )


def quantile_noise(plan: PrivacyPlan) -> tuple[QuantileTree, ...]:
    """Return the columns of quantiles, in the order of their noise."""
    column_of = {
        p.noise_stream: i for i, column in enumerate(plan.columns) for p in column.perturbations
    }
    return tuple(
        QuantileTree(
            column_of[p.noise_stream],
            p.noise_stream,
            counter(p.counter, p.releases),
            p.sigma,
            p.parts,
            p.centre,
            p.centre + p.grid * p.upper,
        )
        for p in plan.trees
    )


def _carried_parameters(plan: CarriedPlan, first_window_us: int | None) -> CarriedParameters:
    first = NO_CLOCK if first_window_us is None else first_window_us
    return CarriedParameters(plan.windows, plan.lengths, plan.thresholds, plan.kept, first)


def quantiles_of(plan: PrivacyPlan, column: ColumnPlan) -> QuantileTree | None:
    """Return the noise of a column of quantiles."""
    return next(
        (
            each
            for each in quantile_noise(plan)
            if each.mechanism == column.perturbations[0].noise_stream
        ),
        None,
    )


def stderr(perturbation: PerturbationPlan | QuantilePlan) -> tuple[float, ...]:
    """Return the standard deviation of a perturbation's noise at triggers 1..T, the rounding to the grid included."""
    return tuple(math.sqrt(v * v + perturbation.grid**2 / 12) for v in perturbation.sd)
