"""From a plan to its two stages: plain numbers, no budget and no secret."""

from __future__ import annotations

from dpsql.mechanisms.marginals.plan import MarginalsPlan
from dpsql.parts.sums import bare, output_column
from dpsql.parts.whole_table import grid
from dpsql.udfs.intake.contribution_bounding import BoundingParameters
from dpsql.udfs.marginals.cells import Domains
from dpsql.udfs.marginals.release import CellIntake, CellRowIntake, cells
from dpsql.udfs.table.release import TableParameters, TableStage


def domains(plan: MarginalsPlan) -> Domains:
    """Return the values of all domains as bytes."""
    declared = plan.query.asked.domains
    return Domains(
        tuple(tuple(value.encode() for value in domain.values) for domain in declared),
        tuple(domain.other for domain in declared),
    )


def intake(plan: MarginalsPlan) -> CellIntake:
    """Return the intake: the whole stream is one period; groups are the cells that have all keys."""
    choices = plan.query.asked
    bounds = BoundingParameters(
        grid=grid(plan.query, plan.start_us),
        renews=False,
        max_rows=choices.max_rows_contributed,
        max_rows_per_group=choices.max_rows_per_group,
        max_groups=choices.max_groups_contributed,
        weights=(0,) * choices.max_groups_contributed,
        increments=bare(plan.sums),
    )
    intake_class = CellIntake if plan.query.privacy_unit else CellRowIntake
    return intake_class(bounds, len(plan.arguments), plan.marginals, domains(plan), plan.closing)


def release(plan: MarginalsPlan) -> TableStage:
    """Return the release, with noise of its own size for every table."""
    noise = tuple(plan.noisy_tables(each) for each in plan.sums)
    columns = tuple(output_column(*column) for column in plan.columns)
    return TableStage(
        TableParameters(
            grid(plan.query, plan.start_us),
            None,
            noise,
            columns,
            cells(plan.marginals, domains(plan), plan.closing),
        )
    )
