"""Sliding windows for ever as a mechanism."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dpsql.description import MEASURED, SMOOTHED, NoiseKind, Role
from dpsql.mechanisms.protocol import (
    Argument,
    Mechanism,
    PublicColumn,
    RunFacts,
    Shape,
    TableFacts,
    value_and_error,
)
from dpsql.mechanisms.sliding import accounting, planner, query, stages
from dpsql.mechanisms.sliding.explain import explanation, missing
from dpsql.mechanisms.sliding.plan import PaneChoices, PaneGrouping, SlidingPlan, document
from dpsql.parsed_query import Aggregate, PrivacyLevel
from dpsql.parts.increments import sums_of
from dpsql.udfs.intake import user_state
from dpsql.udfs.intake.contribution_bounding import DROP_REASONS
from dpsql.udfs.sliding import release
from dpsql.udfs.sliding.intake import pane_sums
from dpsql.udfs.stage import ADMISSION, RELEASE, Clock, Stage, Tick

if TYPE_CHECKING:
    pass


def shape(plan: SlidingPlan) -> Shape:
    """Return windows that are released once; each aggregate, its error bar, and what is shown beside it."""
    choices = plan.query.asked
    of_unit = choices.privacy_level is PrivacyLevel.USER
    return Shape(
        schedule=stages.schedule(plan),
        arguments=tuple(map(Argument, plan.arguments, plan.presence_only)),
        listed=True,
        contributions=pane_sums(len(plan.measurements)),
        state={ADMISSION: user_state.TABLES if of_unit else {}, RELEASE: release.TABLES},
        columns=tuple(
            made
            for i, aggregate in enumerate(plan.query.aggregates)
            for made in _columns(plan, aggregate, i)
        ),
        facts=TableFacts(
            noise=NoiseKind(str(plan.counter), None, choices.grouping is not PaneGrouping.NONE),
            bounds=(
                choices.max_rows_contributed,
                choices.max_rows_per_group,
                choices.max_groups_contributed,
            ),
            sums=len(plan.measurements),
            grids={
                a.alias: s.grids[0]
                for a, s in zip(plan.query.aggregates, stages.output_columns(plan), strict=True)
                if len(s.grids) == 1
            },
        ),
        drops=DROP_REASONS,
        forgets_us=None,  # noise paths, running means and groups go on for ever
    )


def make_stages(plan: SlidingPlan, run: RunFacts) -> tuple[Stage[Clock], Stage[Sequence[Tick]]]:
    """Return sums by pane; noise, windows."""
    if run.public is None:
        raise ValueError("keys are listed")
    return stages.stages(plan, run.public)


def _columns(plan: SlidingPlan, aggregate: Aggregate, i: int) -> Iterator[PublicColumn]:
    alias = aggregate.alias
    asked = plan.query.asked
    yield from value_and_error(aggregate, i)
    if plan.smooths and sums_of(aggregate.function) == 1:
        yield PublicColumn(alias, f"{alias}_{SMOOTHED}", "DOUBLE", f"smoothed{i}", Role.BESIDE)
    if asked.grouping is not PaneGrouping.NONE:
        yield PublicColumn(alias, f"{alias}_{MEASURED}", "INT", f"measured{i}", Role.BESIDE)


SLIDING = Mechanism[PaneChoices, SlidingPlan](
    name=SlidingPlan.mechanism,
    takes="windows of listed keys that slide, with privacy_level = EVENT, delta = 0, or no trigger_interval",
    options=query.OPTIONS,
    rules=query.RULES,
    claims=query.claims,
    read=query.read_choices,
    plan=planner.make_plan,
    account=accounting.account,
    document=document,
    explanation=explanation,
    missing=missing,
    shape=shape,
    stages=make_stages,
)
"""One row per listed key for the last size of time, at every slide, for ever (docs/privacy/sliding.md)."""
