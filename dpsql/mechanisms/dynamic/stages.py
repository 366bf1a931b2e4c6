"""From a plan to its two stages: plain numbers, no budget and no secret."""

from __future__ import annotations

from dpsql.mechanisms.dynamic.plan import ChangeChoices, TablePlan, TreePlan
from dpsql.parts.sums import bare, output_column
from dpsql.parts.whole_table import grid
from dpsql.udfs.contributions import Increment
from dpsql.udfs.dynamic.interval_tree import TreeParameters, TreeSum
from dpsql.udfs.dynamic.stages import TreeStage
from dpsql.udfs.intake.changes import FeedParameters
from dpsql.udfs.intake.contribution_bounding import BoundingParameters
from dpsql.udfs.intake.stages import AdmissionStage, FeedStage, RowStage
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.table.leaves import QuantileTree
from dpsql.udfs.table.release import Perturbation, Selection, TableParameters, TableStage


def admission_stage(
    plan: TablePlan, public: PublicGroups | None = None
) -> AdmissionStage | FeedStage:
    """Return the intake; `public` where no key is selected."""
    if plan.changes:
        return FeedStage(feed_parameters(plan, plan.changes, public), len(plan.arguments))
    return (AdmissionStage if plan.query.privacy_unit else RowStage)(
        bounding_parameters(plan, public), len(plan.arguments)
    )


def stages(
    plan: TablePlan, public: PublicGroups | None = None
) -> tuple[AdmissionStage | FeedStage, TableStage | TreeStage]:
    """Return the intake and the release of a plan."""
    if isinstance(plan, TreePlan):
        return admission_stage(plan, public), TreeStage(tree_parameters(plan, public))
    return admission_stage(plan, public), TableStage(table_parameters(plan, public))


def bounding_parameters(plan: TablePlan, public: PublicGroups | None = None) -> BoundingParameters:
    """Return parameters of `dpsql.udfs.intake.contribution_bounding.admit`: the whole stream is one period; `public` where no key is selected."""
    choices = plan.query.asked
    return BoundingParameters(
        grid=grid(plan.query, plan.start_us),
        renews=False,
        max_rows=choices.max_rows_contributed,
        max_rows_per_group=choices.max_rows_per_group,
        max_groups=choices.max_groups_contributed,
        weights=plan.selection.weights if plan.selection else (0,) * plan.max_groups,
        increments=bare(plan.perturbations),
        public_keys=tuple(sorted(public.keys)) if public else None,
    )


def feed_parameters(
    plan: TablePlan, choices: ChangeChoices, public: PublicGroups | None = None
) -> FeedParameters:
    """Return parameters of `dpsql.udfs.intake.changes.admit_changes`; likewise."""
    return FeedParameters(
        grid=grid(plan.query, plan.start_us),
        max_rows=int(choices.max_rows_contributed),
        max_rows_per_group=int(choices.max_rows_per_group),
        max_groups=choices.max_groups_contributed,
        weights=plan.selection.weights if plan.selection else (0,) * choices.max_spells_contributed,
        increments=(
            *((Increment("rows"),) if isinstance(plan, TreePlan) else ()),
            *bare(plan.perturbations),
        ),
        copies=not choices.feed.primary_key,
        public_keys=tuple(sorted(public.keys)) if public else None,
        by_level=isinstance(plan, TreePlan),
        ended_rows_kept_us=choices.feed.ended_rows_kept_us,
        periods=plan.periods,
    )


def table_parameters(plan: TablePlan, public: PublicGroups | None = None) -> TableParameters:
    """Return parameters of `dpsql.udfs.table.release.release`; `public` where the plan has no key selection."""
    if (plan.selection is None) != (public is not None):
        raise ValueError("a plan has either key selection or public groups")
    return TableParameters(
        grid(plan.query, plan.start_us),
        selection(plan),
        _perturbations(plan),
        tuple(output_column(column.aggregate, column.perturbations) for column in plan.columns),
        public,
        quantile_noise(plan),
    )


def quantile_noise(plan: TablePlan) -> tuple[QuantileTree, ...]:
    """Return the columns of quantiles, in the order of their noise."""
    of = {p.noise_stream: i for i, column in enumerate(plan.columns) for p in column.perturbations}
    bounds = [plan.columns[of[p.noise_stream]].aggregate.bounds or (0.0, 0.0) for p in plan.trees]
    return tuple(
        QuantileTree(of[p.noise_stream], p.noise_stream, plan.counter, p.sigma, p.parts, *b)
        for p, b in zip(plan.trees, bounds, strict=True)
    )


def tree_parameters(plan: TreePlan, public: PublicGroups | None) -> TreeParameters:
    """Return parameters of `dpsql.udfs.dynamic.interval_tree.grow`."""
    if public is None:
        raise ValueError("an interval tree has public groups")
    columns = tuple(
        output_column(column.aggregate, column.perturbations) for column in plan.columns
    )
    return TreeParameters(
        grid(plan.query, plan.start_us),
        plan.size,
        plan.gone,
        plan.beta,
        tree_sums(plan),
        columns,
        public,
    )


def tree_sums(plan: TreePlan) -> tuple[TreeSum, ...]:
    """Return the noisy sums, in the order of their noise."""
    return tuple(
        TreeSum(p.noise_stream, p.sigma, removed, p.grid)
        for p, removed in zip(plan.perturbations, plan.removed, strict=True)
    )


def selection(plan: TablePlan) -> Selection | None:
    """Return how keys appear and are shown."""
    if plan.selection is None:
        return None
    s = plan.selection
    least = plan.query.asked.min_privacy_units_per_group
    return Selection(plan.counter, s.sigma, s.first, s.thresholds, s.shown_from, least)


def users_needed(plan: TablePlan, trigger: int) -> int:
    """Count the units (each with this key as first key) that bring the noiseless sum to the
    threshold."""
    chosen = selection(plan)
    if plan.selection is None or chosen is None:
        return 0
    return -(-chosen.thresholds_at(trigger)[0] // plan.selection.weights[0])


def perturbations(plan: TablePlan) -> tuple[Perturbation | TreeSum, ...]:
    """Return the noisy sums, in the order of their noise; of an interval tree with the error where no node has begun a second round."""
    if isinstance(plan, TreePlan):
        return tree_sums(plan)
    return _perturbations(plan)


def _perturbations(plan: TablePlan) -> tuple[Perturbation, ...]:
    plain = [p for p in plan.perturbations if p not in plan.trees]
    return tuple(Perturbation(p.noise_stream, plan.counter, p.sigma, p.grid) for p in plain)
