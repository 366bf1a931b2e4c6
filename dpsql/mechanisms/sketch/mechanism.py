"""Sketches as a mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpsql.description import NoiseKind, Role, SketchShape
from dpsql.mechanisms.protocol import Argument, Mechanism, PublicColumn, RunFacts, Shape, TableFacts
from dpsql.mechanisms.sketch import accounting, planner, query, stages
from dpsql.mechanisms.sketch.explain import explanation, missing
from dpsql.mechanisms.sketch.plan import SketchChoices, SketchKind, SketchPlan, document
from dpsql.schedule import by_window
from dpsql.udfs.sketch.intake import REASONS
from dpsql.udfs.sketch.partial import SCHEMA
from dpsql.udfs.sketch.release import SketchRelease
from dpsql.udfs.stage import ADMISSION, RELEASE, Clock, Stage, Tick

if TYPE_CHECKING:
    from dpsql.sql.draft import Draft


def claims(draft: Draft) -> bool:
    """Tell whether a query calls a sketch."""
    return bool(draft.sketches)


def shape(plan: SketchPlan) -> Shape:
    """Return windows with their triggers; a list for each sketch that has one, and the second table."""
    choices = plan.query.asked
    return Shape(
        schedule=by_window(stages.grid(plan)),
        arguments=tuple(map(Argument, plan.arguments)),
        listed=True,  # every window from the declared start on, with the values that are listed, if any
        contributions=SCHEMA,
        state={ADMISSION: stages.intake(plan, 0).tables, RELEASE: SketchRelease.tables},
        columns=tuple(
            PublicColumn(
                sketch.alias,
                sketch.alias,
                "TOP_COUNT" if sketch.weight is None else "TOP_SUM",
                f"c{i}",
                Role.LIST,
            )
            for i, sketch in enumerate(choices.wanted)
            if sketch.number
        ),
        facts=TableFacts(
            noise=NoiseKind("BLT", plan.triggers),
            bounds=choices.limits,
            sums=len(plan.cells),
            grids={
                sketch.alias: cells.grid
                for sketch, cells in zip(choices.wanted, plan.cells, strict=True)
            },
        ),
        drops=REASONS,
        forgets_us=None,
        sketch=_table_of_cells(plan),
    )


def make_stages(plan: SketchPlan, run: RunFacts) -> tuple[Stage[Clock], Stage[Sequence[Tick]]]:
    """Return partial sketches; cells with noise, and lists."""
    if run.public is None:
        raise ValueError("a sketch begins at the declared start of its stream")
    return stages.stages(plan, run.public)


def _table_of_cells(plan: SketchPlan) -> SketchShape:
    """Return what readers of the second public table must know."""
    choices = plan.query.asked
    return SketchShape(
        depth=choices.depth,
        width=choices.width,
        signed=choices.kind is SketchKind.COUNT_SKETCH,
        hash_scheme=plan.hash_scheme,
        aliases=tuple(sketch.alias for sketch in choices.wanted),
        counts=tuple(cells.rule == "rows" for cells in plan.cells),
        grids=tuple(cells.grid for cells in plan.cells),
        sd=tuple(cells.sd for cells in plan.cells),
        stderr=plan.stderr,
        by_window=plan.unknown_keys,
        missed=stages.missed_by_a_row(plan),
    )


SKETCH = Mechanism[SketchChoices, SketchPlan](
    name=SketchPlan.mechanism,
    takes="queries with APPROX_TOP_COUNT, APPROX_TOP_SUM or COUNT_SKETCH",
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
"""The largest values of an expression, and a public sketch that answers for any value (docs/privacy/sketch.md)."""
