"""A plan as the numbers of the steps; no budget and no secret."""

from __future__ import annotations

import pyarrow as pa

from dpsql.mechanisms.sketch.plan import SketchKind, SketchPlan
from dpsql.mechanisms.sketch.planner import missed
from dpsql.parsed_query import ContributionPeriod, CounterName
from dpsql.parts.sums import bare
from dpsql.udfs.grid import Grid
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.noise.counters import counter
from dpsql.udfs.noise.perturbation import PerturbationParameters
from dpsql.udfs.sketch.bounds import UnitBounds
from dpsql.udfs.sketch.hashing import DIGEST_BYTES, CellShape, digest, digests
from dpsql.udfs.sketch.intake import IntakeParameters, SketchEvents, UserIntake
from dpsql.udfs.sketch.reading import ListedKeys, ReadParameters, ShownCells
from dpsql.udfs.sketch.release import CellRelease, SketchRelease, SketchReleaseParameters


def stages(
    plan: SketchPlan, public: PublicGroups
) -> tuple[SketchEvents | UserIntake, SketchRelease]:
    """Return both, from the first window of the run on."""
    listed = None
    if plan.query.public_groups is not None:
        words = digests(
            pa.array([digest(name) for name in public.key_bytes], pa.binary(DIGEST_BYTES))
        ).tolist()
        listed = ListedKeys(tuple((a, b, c, d) for a, b, c, d in words), public.key_bytes)
    first = public.first_window_us
    return intake(plan, first), SketchRelease(release(plan, first), reading(plan, listed))


def grid(plan: SketchPlan) -> Grid:
    """Return windows and triggers."""
    window = plan.query.windows
    return Grid(
        window.size_us,
        window.slide_us,
        window.offset_us,
        plan.query.trigger_interval_us,
        plan.triggers,
    )


def shape(plan: SketchPlan) -> CellShape:
    """Return the shape of every sketch."""
    asked = plan.query.asked
    return CellShape(asked.depth, asked.width, asked.kind is SketchKind.COUNT_SKETCH)


def intake(plan: SketchPlan, first_window_us: int) -> SketchEvents | UserIntake:
    """Return the stage of query 1; its key is the root of the run's hash keys."""
    bounds = plan.query.asked.bounds
    p = IntakeParameters(
        grid=grid(plan),
        first_window_us=first_window_us,
        shape=shape(plan),
        contributions=bare(plan.cells),
        unknown_keys=plan.unknown_keys,
        renews=plan.query.contribution_period is ContributionPeriod.WINDOW,
        bounds=UnitBounds(bounds.max_rows, bounds.max_rows_per_key, bounds.max_keys)
        if bounds
        else None,
    )
    return (UserIntake if bounds else SketchEvents)(p, len(plan.arguments))


def release(plan: SketchPlan, first_window_us: int) -> CellRelease:
    """Return the stage of query 2."""
    asked = plan.query.asked
    chosen = counter(CounterName.BLT, plan.triggers)
    noise = tuple(
        PerturbationParameters(c.noise_stream, chosen, c.sigma, c.grid) for c in plan.cells
    )
    return CellRelease(
        SketchReleaseParameters(grid(plan), first_window_us, asked.depth, asked.width, noise)
    )


def missed_by_a_row(plan: SketchPlan) -> float:
    """Return the share of a value's records that a row can miss: by the one-cell rule, where units
    are protected."""
    bounds = plan.query.asked.bounds
    return missed(bounds.keys, plan.query.asked.width) if bounds else 0.0


def reading(plan: SketchPlan, listed: ListedKeys | None = None) -> ReadParameters:
    """Return what makes public tables of released rows."""
    choices = plan.query.asked
    columns = tuple(
        ShownCells(
            w.number, c.grid, c.rule == "rows", tuple(sd / c.grid for sd in c.sd), plan.stderr
        )
        for w, c in zip(choices.wanted, plan.cells, strict=True)
    )
    return ReadParameters(
        shape(plan), plan.triggers, columns, plan.beta, listed, missed_by_a_row(plan)
    )
