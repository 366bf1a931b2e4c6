"""Explain a plan of sketches: from the plan alone, no data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from dpsql.allowance import Limits
from dpsql.explanation import BudgetShares, ExplainedColumn, Explanation, Keys, Notes, gaussian
from dpsql.mechanisms.explanations import column, protects, times
from dpsql.mechanisms.sketch.accounting import account
from dpsql.mechanisms.sketch.plan import CellsPlan, SketchPlan
from dpsql.mechanisms.sketch.planner import collisions
from dpsql.mechanisms.sketch.stages import grid, missed_by_a_row
from dpsql.parsed_query import Aggregate, CounterName
from dpsql.schedule import by_window
from dpsql.sources.config import Source
from dpsql.text import number, percent
from dpsql.udfs.noise.counters import counter
from dpsql.udfs.sketch.reading import null_law, scales, threshold


def explanation(plan: SketchPlan, source: Source) -> Explanation:
    """Return all that is said of a plan."""
    query = plan.query
    choices = query.asked
    overlap = query.windows.slide_us < query.windows.size_us
    return Explanation(
        protects=protects(plan, account(plan, source), overlap),
        when=times(query, by_window(grid(plan)), plan.triggers),
        limits=Limits(
            *choices.limits,
            max_users=source.max_users,
            max_keys=source.max_keys,
            no_figures="a sketch counts values that no key names",
        ),
        keys=Keys(
            how="selected" if plan.unknown_keys else "public" if choices.lists else "none",
            names=(choices.value,),
            listed=max(sketch.number for sketch in choices.wanted),
            cells=choices.depth * choices.width * len(plan.cells),
        ),
        columns=tuple(
            _column(plan, aggregate, cells)
            for aggregate, cells in zip(query.aggregates, plan.cells, strict=True)
        ),
        budget=BudgetShares(
            mu=plan.mu,
            noisy_numbers=len(plan.cells),
            delta_noise=plan.delta_noise,
            delta_threshold=plan.delta_floor,
            delta_hash=plan.delta_hash,
        ),
        identity=plan.identity,
        notes=Notes(keys=tuple(_key_notes(plan, source)), columns=tuple(_cell_notes(plan))),
    )


def _column(plan: SketchPlan, aggregate: Aggregate, cells: CellsPlan) -> ExplainedColumn:
    """Return a column with the errors of an estimate."""
    errors = {1: cells.sd[0], plan.triggers: cells.sd[-1]}
    return column(
        aggregate, [gaussian(trigger, "value", sd * plan.stderr) for trigger, sd in errors.items()]
    )


def _key_notes(plan: SketchPlan, source: Source) -> Iterator[str]:
    choices = plan.query.asked
    for sketch in choices.wanted:
        sums = "counts" if sketch.weight is None else f"sums of {sketch.weight}"
        listed = f"the {sketch.number:,} largest {sums} by {choices.value}"
        yield f"{sketch.alias}: {listed if sketch.number else 'no list'}."
    if plan.beta is not None:
        yield (
            f"A value is listed once it stands out of the noise: with {math.ceil(least_listed(plan)):,} records in an empty sketch, "
            "more in a full one."
        )
        yield "Hash key and cells of a window are published when it closes; until then only its list is."
    else:
        yield "The hash key is public from the first release: anyone who knows it can make values that collide with a chosen one."
    parts = "Rows" if plan.unknown_keys else "Rows and cells"
    yield f"{parts} are released at every trigger of every window from the declared start of the stream on, with or without records."
    # Of one sketch: a histogram, too, has as many counters as there are columns.
    if choices.depth * choices.width > 2 * source.max_keys:
        yield "A histogram with GROUP BY is smaller and more accurate here."


def _cell_notes(plan: SketchPlan) -> Iterator[str]:
    choices = plan.query.asked
    cells = choices.depth * choices.width * len(plan.cells)
    state = 8 * cells * (1 + counter(CounterName.BLT, plan.triggers).width)
    yield "Collisions with other values come on top."
    yield (
        f"Each sketch has {choices.depth} rows of {choices.width} cells: state {number(state / 1e6)} MB per open window, whatever the "
        f"number of values; {number(8 * cells / 1e6)} MB published per trigger, before compression."
    )
    if choices.bounds is not None:
        left_out = percent(collisions(choices.bounds.keys, choices.width))
        yield (
            f"The one-cell rule leaves out up to {left_out} of a unit's values in each row, and up to {percent(missed_by_a_row(plan))} of one "
            "value's count; intervals reach further by the latter."
        )


def missing(plan: SketchPlan) -> tuple[str, dict[str, Any]]:
    """Return why a value may be missing."""
    ask = "It can be asked for all the same: dpsql ask NAME VALUE."
    lines = ["Why is my value missing?"]
    if plan.unknown_keys:
        lines += [
            "  A value is listed once its cells stand out of what a value without any record would find in them; `dpsql explain` says how many",
            "  records that takes in an empty sketch. In a full one it takes more.",
            "  When its window has closed: " + ask[0].lower() + ask[1:],
        ]
    elif plan.query.asked.lists:
        lines += [
            "  Listed are the largest of the declared values that stand out of the noise.",
            f"  {ask}",
        ]
    else:
        lines += [f"  COUNT_SKETCH lists none. {ask}"]
    return "\n".join(lines) + "\n", {"unknown": plan.unknown_keys, "beta": plan.beta}


def least_listed(plan: SketchPlan) -> float:
    """Return the count whose cells, all rows exact, reach the threshold at the last trigger of a sketch that has only noise in it."""
    import numpy as np
    from scipy.special import ndtri

    choices = plan.query.asked
    first = plan.cells[0]
    # Quantiles in the place of noise: an empty sketch as it is on average.
    row = np.rint(
        ndtri((np.arange(choices.width) + 0.5) / choices.width) * first.sd[-1] / first.grid
    ).astype(np.int64)
    cells = np.tile(row, (choices.depth, 1))
    tried = scales(cells, first.sd[-1] / first.grid)
    counts = []
    for scale in tried:
        floor_sum = threshold(null_law(cells, scale), (plan.beta or 0.0) / len(tried))
        per_row = math.ceil(floor_sum / choices.depth) - scale.half
        if per_row <= scale.half:
            counts.append(per_row * scale.step * first.grid)
    return min(counts, default=math.inf)
