"""Tables without windows as a mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpsql.description import NoiseKind
from dpsql.mechanisms.dynamic import accounting, planner, query, stages
from dpsql.mechanisms.dynamic.explain import explanation, missing
from dpsql.mechanisms.dynamic.plan import TableChoices, TablePlan, TreeChoices, TreePlan
from dpsql.mechanisms.protocol import (
    Argument,
    Mechanism,
    RunFacts,
    Shape,
    TableFacts,
    bounds_told,
    value_and_error,
)
from dpsql.parsed_query import Quantiles
from dpsql.parts.whole_table import document, schedule
from dpsql.udfs.dynamic.stages import TreeStage
from dpsql.udfs.intake.changes import DROP_REASONS as OF_CHANGES
from dpsql.udfs.intake.contribution_bounding import DROP_REASONS
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.stage import RELEASE, Clock, Stage, Tick
from dpsql.udfs.table.release import tables

if TYPE_CHECKING:
    from dpsql.sql.draft import Draft


def claims(draft: Draft) -> bool:
    """Tell whether a query has no window, says when to release, and has one set of keys."""
    is_table = draft.windowless and not draft.once
    return is_table and not draft.sketches and draft.grouping_sets is None


def shape(plan: TablePlan) -> Shape:
    """Return no windows; each aggregate and its error bar."""
    choices = plan.query.asked
    tree = plan.query.asked.release if isinstance(plan.query.asked, TreeChoices) else ""
    nobody = PublicGroups((), (), plan.start_us) if plan.selection is None else None
    intake = stages.admission_stage(plan, nobody)
    return Shape(
        schedule=schedule(plan.query, plan.start_us),
        arguments=tuple(map(Argument, plan.arguments, plan.presence_only)),
        listed=plan.selection is None,
        contributions=intake.gives,
        state={
            intake.operator: intake.tables,
            RELEASE: TreeStage.tables if isinstance(plan, TreePlan) else tables(bool(plan.trees)),
        },
        columns=tuple(
            made
            for i, column in enumerate(plan.columns)
            for made in value_and_error(column.aggregate, i)
        ),
        facts=TableFacts(
            noise=NoiseKind(
                tree or ("BLT" if choices.max_triggers else "BLT_INF"), choices.max_triggers
            ),
            bounds=bounds_told(plan.query),
            sums=len(plan.perturbations),
            units_needed=None
            if plan.selection is None
            else stages.users_needed(plan, choices.max_triggers or 1),
            grids={
                column.aggregate.alias: column.perturbations[0].grid
                for column in plan.columns
                if len(column.perturbations) == 1 and not isinstance(column.aggregate, Quantiles)
            },
        ),
        drops=OF_CHANGES if plan.changes else DROP_REASONS,
        forgets_us=None,
        feed=plan.changes.feed if plan.changes else None,
    )


def make_stages(plan: TablePlan, run: RunFacts) -> tuple[Stage[Clock], Stage[Sequence[Tick]]]:
    """Return contribution bounding for ever; key selection and perturbation."""
    return stages.stages(plan, run.public)


DYNAMIC = Mechanism[TableChoices, TablePlan](
    name=TablePlan.mechanism,
    takes="queries without a window",
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
"""No window: a table that only grows, at every trigger, for ever (docs/privacy/dynamic.md)."""
