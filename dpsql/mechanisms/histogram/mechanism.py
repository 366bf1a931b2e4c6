"""The histogram as a mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpsql.description import NoiseKind
from dpsql.mechanisms.histogram import accounting, planner, query, stages
from dpsql.mechanisms.histogram.explain import explanation
from dpsql.mechanisms.histogram.missing_keys import missing
from dpsql.mechanisms.histogram.plan import HistogramChoices, PrivacyPlan, document
from dpsql.mechanisms.protocol import (
    Argument,
    Mechanism,
    RunFacts,
    Shape,
    TableFacts,
    bounds_told,
    value_and_error,
)
from dpsql.parsed_query import ContributionPeriod
from dpsql.schedule import by_window
from dpsql.sql.time_rules import made_of_panes
from dpsql.udfs.histogram.release import HistogramRelease, release_tables
from dpsql.udfs.intake.contribution_bounding import DROP_REASONS
from dpsql.udfs.stage import Clock, Stage, Tick

if TYPE_CHECKING:
    from dpsql.sql.draft import Draft


def claims(draft: Draft) -> bool:
    """Tell whether a query is a one-time release of one set of keys, or has a window, unless panes
    make its windows, or it writes an option of another mechanism alone."""
    if draft.once:
        return draft.grouping_sets is None and not draft.sketches
    other_names = {option.name for option in draft.options} - {
        option.name for option in query.OPTIONS
    }
    return (
        bool(draft.window_calls)
        and not draft.sketches
        and not made_of_panes(draft)
        and not any(map(draft.entry, other_names))
    )


def shape(plan: PrivacyPlan) -> Shape:
    """Return windows with their triggers; each aggregate and its error bar."""
    parsed = plan.query
    intake = stages.admission_stage(plan)
    return Shape(
        schedule=by_window(stages.grid(plan), windows=not parsed.once),
        arguments=tuple(map(Argument, plan.arguments, plan.presence_only)),
        listed=plan.selection is None,
        contributions=intake.gives,
        state={
            intake.operator: intake.tables,
            HistogramRelease.operator: release_tables(
                plan.carries, bool(plan.trees), bool(plan.left_out.figures)
            ),
        },
        columns=tuple(
            made
            for i, column in enumerate(plan.columns)
            for made in value_and_error(column.aggregate, i)
        ),
        facts=TableFacts(
            noise=NoiseKind(parsed.asked.counter, plan.horizon),
            bounds=bounds_told(parsed),
            sums=len(plan.perturbations),
            units_needed=None
            if plan.selection is None
            else plan.selection.users_needed(plan.horizon),
            grids={
                c.aggregate.alias: c.perturbations[0].grid
                for c in plan.columns
                if len(c.perturbations) == 1 and c.perturbations[0] not in plan.trees
            },
        ),
        drops=DROP_REASONS,
        # An allowance is for one period, which is one window long.
        forgets_us=parsed.windows.size_us
        if parsed.contribution_period is ContributionPeriod.WINDOW
        else None,
        carries=plan.carries,
        left_out=plan.left_out.figures,
    )


def make_stages(plan: PrivacyPlan, run: RunFacts) -> tuple[Stage[Clock], Stage[Sequence[Tick]]]:
    """Return contribution bounding; key selection and perturbation."""
    return stages.stages(plan, run.public, run.first_window_us)


HISTOGRAM = Mechanism[HistogramChoices, PrivacyPlan](
    name=PrivacyPlan.mechanism,
    takes="queries with a window",
    options=query.OPTIONS,
    rules=query.RULES,
    claims=claims,
    read=query.read_choices,
    plan=planner.make_plan,
    account=accounting.account,
    document=document,
    explanation=explanation,
    missing=missing,
    shape=shape,
    stages=make_stages,
)
"""`GROUP BY window(...)` with keys or none, and one-time releases (docs/privacy/histogram.md)."""
