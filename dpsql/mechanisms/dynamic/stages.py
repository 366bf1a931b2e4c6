"""From a plan to the parameters of the two steps: plain numbers, no budget and no secret."""

from __future__ import annotations

from dpsql.mechanisms.dynamic.plan import ColumnPlan, TablePlan
from dpsql.parsed_query import AggregateFunction
from udfs.dynamic.grid import TableGrid
from udfs.dynamic.release import Perturbation, PublicKeys, Selection, TableParameters
from udfs.histogram.contribution_bounding import BoundingParameters, Increment
from udfs.histogram.perturbation import OutputColumn

KINDS = {AggregateFunction.SUM: "sum", AggregateFunction.AVG: "avg"}


def grid(plan: TablePlan, start_us: int) -> TableGrid:
    """The trigger grid of a plan; triggers count from the start."""
    return TableGrid.of(start_us, plan.query.trigger_interval_us, plan.query.asked.max_triggers)


def bounding_parameters(plan: TablePlan, start_us: int, public: PublicKeys | None = None) -> BoundingParameters:
    """Parameters of `udfs.histogram.contribution_bounding.admit`: the whole stream is one period; `public` where no key is selected."""
    asked = plan.query.asked
    return BoundingParameters(
        grid=grid(plan, start_us),
        renews=False,
        max_rows=asked.max_rows_contributed,
        max_rows_per_group=asked.max_rows_per_group,
        max_groups=asked.max_groups_contributed,
        weights=plan.selection.weights if plan.selection else (0,) * plan.max_groups,
        increments=tuple(Increment(p.rule, p.argument, p.grid, p.lower, p.upper, p.centre) for p in plan.perturbations),
        public_keys=tuple(sorted(public.keys)) if public else None,
    )


def table_parameters(plan: TablePlan, start_us: int, public: PublicKeys | None = None) -> TableParameters:
    """Parameters of `udfs.dynamic.release.release`; `public` where the plan has no key selection."""
    if (plan.selection is None) != (public is not None):
        raise ValueError("a plan has either key selection or public groups")
    chosen, selection = plan.counter, None
    if plan.selection:
        s, least = plan.selection, plan.query.asked.min_privacy_units_per_group
        selection = Selection(chosen, s.sigma, s.first, s.thresholds, s.shown_from, least)
    perturbations = tuple(Perturbation(p.mechanism, chosen, p.sigma, p.grid) for p in plan.perturbations)
    return TableParameters(grid(plan, start_us), selection, perturbations, tuple(_output(column) for column in plan.columns), public)


def _output(column: ColumnPlan) -> OutputColumn:
    parts = column.perturbations
    return OutputColumn(
        kind=KINDS.get(column.aggregate.function, "count"),
        perturbations=tuple(p.mechanism - 1 for p in parts),
        grids=tuple(p.grid for p in parts),
        stderr=(),
        bounds=column.aggregate.bounds or (0.0, 0.0),
        centre=parts[0].centre,
    )
