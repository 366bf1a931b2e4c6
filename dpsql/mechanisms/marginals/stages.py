"""From a plan to its two stages: plain numbers, no budget and no secret."""

from __future__ import annotations

import numpy as np

from dpsql.mechanisms.marginals.plan import ChangingCubeChoices, MarginalsPlan
from dpsql.parts.sums import bare, output_column
from dpsql.parts.whole_table import grid
from dpsql.udfs.intake.changes import FeedParameters
from dpsql.udfs.intake.contribution_bounding import BoundingParameters
from dpsql.udfs.marginals.cells import Domains
from dpsql.udfs.marginals.exact import SessionStage
from dpsql.udfs.marginals.release import NOWHERE, CellFeed, CellIntake, CellRowIntake, cells, key_of
from dpsql.udfs.table.release import TableParameters, TableStage


def domains(plan: MarginalsPlan) -> Domains:
    """Return the values of all domains as bytes."""
    declared = plan.query.asked.domains
    return Domains(
        tuple(tuple(value.encode() for value in domain.values) for domain in declared),
        tuple(domain.other for domain in declared),
    )


def intake(plan: MarginalsPlan) -> CellIntake | CellFeed:
    """Return the intake; groups are the cells that have all keys. Where rows stay the whole stream is one period."""
    choices = plan.query.asked
    if plan.changes:
        images = feed_parameters(plan, plan.changes)
        return CellFeed(images, len(plan.arguments), plan.marginals, domains(plan))
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
    return intake_class(
        bounds,
        len(plan.arguments),
        plan.marginals,
        domains(plan),
        plan.closing,
        has_exact=plan.session_share > 0,
    )


def feed_parameters(plan: MarginalsPlan, choices: ChangingCubeChoices) -> FeedParameters:
    """Return parameters of `dpsql.udfs.intake.changes.admit_changes`: units are not counted, so spells have no weights."""
    return FeedParameters(
        grid=grid(plan.query, plan.start_us),
        max_rows=choices.max_rows_contributed,
        max_rows_per_group=choices.max_rows_per_group,
        max_groups=choices.max_groups_contributed,
        weights=(),
        increments=bare(plan.sums),
        copies=not choices.feed.primary_key,
        no_key=int(key_of(np.array([NOWHERE]))[0]),
        ended_rows_kept_us=choices.feed.ended_rows_kept_us,
        periods=plan.periods,
    )


def release(plan: MarginalsPlan) -> TableStage:
    """Return the release, with noise of its own size for every table."""
    noise = tuple(plan.noisy_tables(each) for each in plan.sums)
    columns = tuple(output_column(*column) for column in plan.columns)
    parameters = TableParameters(
        grid(plan.query, plan.start_us),
        None,
        noise,
        columns,
        cells(plan.marginals, domains(plan), plan.closing),
    )
    if plan.session_share:
        count = [each.rule for each in plan.sums].index("rows")
        return SessionStage(parameters, plan.marginals.first[-1], count)
    return TableStage(parameters)
