"""Marginals of tables without windows as a mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpsql.description import GROUPING_ID, NoiseKind, Role, Sets
from dpsql.mechanisms.marginals import accounting, planner, query, stages
from dpsql.mechanisms.marginals.explain import explanation, missing
from dpsql.mechanisms.marginals.plan import CubeChoices, MarginalsPlan
from dpsql.mechanisms.protocol import (
    Argument,
    Mechanism,
    PublicColumn,
    RunFacts,
    Shape,
    TableFacts,
    bounds_told,
    value_and_error,
)
from dpsql.parts.sums import presence_only
from dpsql.parts.whole_table import document, schedule
from dpsql.udfs.intake.changes import OF_CELLS
from dpsql.udfs.marginals.release import DROP_REASONS
from dpsql.udfs.stage import Clock, Stage, Tick

if TYPE_CHECKING:
    from dpsql.sql.draft import Draft


def claims(draft: Draft) -> bool:
    """Tell whether a query has no window and one of the three words in GROUP BY."""
    return draft.windowless and draft.grouping_sets is not None and not draft.sketches


def shape(plan: MarginalsPlan) -> Shape:
    """Return no windows; each aggregate and its error bar; which keys a row has."""
    stage_pair = (stages.intake(plan), stages.release(plan))
    first = plan.query.aggregates[0].alias
    columns = [PublicColumn(first, GROUPING_ID, "BIGINT", GROUPING_ID, Role.SET)]
    for i, aggregate in enumerate(plan.query.aggregates):
        columns += value_and_error(aggregate, i)
    return Shape(
        schedule=schedule(plan.query, plan.start_us),
        arguments=tuple(map(Argument, plan.arguments, presence_only(plan.arguments, plan.sums))),
        listed=False,
        contributions=stage_pair[0].gives,
        state={stage.operator: stage.tables for stage in stage_pair},
        columns=tuple(columns),
        facts=_facts(plan),
        drops=OF_CELLS if plan.changes else DROP_REASONS,
        forgets_us=None,
        feed=plan.changes.feed if plan.changes else None,
    )


def _facts(plan: MarginalsPlan) -> TableFacts:
    """Return what is told of the released table. c and G are of cells with all keys, and hold of no others."""
    last = plan.query.asked.max_triggers
    return TableFacts(
        noise=NoiseKind("BLT" if last else "BLT_INF", last),
        bounds=(bounds_told(plan.query)[0], None, None),
        sums=len(plan.sums),
        grids={
            aggregate.alias: parts[0].grid for aggregate, parts in plan.columns if len(parts) == 1
        },
        sets=Sets(
            tuple(key.name for key in plan.query.keys),
            plan.marginals.sizes,
            tuple(table.grouping_id for table in plan.tables),
            plan.closing_keys,
        ),
    )


def make_stages(plan: MarginalsPlan, run: RunFacts) -> tuple[Stage[Clock], Stage[Sequence[Tick]]]:
    """Return contribution bounding for ever; cells and their noise."""
    return stages.intake(plan), stages.release(plan)


MARGINALS = Mechanism[CubeChoices, MarginalsPlan](
    name=MarginalsPlan.mechanism,
    takes="queries with CUBE, ROLLUP or GROUPING SETS",
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
"""Several sets of keys over declared domains, at every trigger (docs/privacy/marginals.md)."""
