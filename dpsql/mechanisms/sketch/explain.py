"""A plan of sketches in sentences, and the figures in them."""

from __future__ import annotations

import math
from typing import Any

from dpsql.mechanisms.sketch.accounting import account
from dpsql.mechanisms.sketch.plan import SketchPlan
from dpsql.mechanisms.sketch.planner import collisions
from dpsql.mechanisms.sketch.stages import grid, missed_by_a_row
from dpsql.parsed_query import ContributionPeriod, CounterName, PrivacyLevel
from dpsql.parts.words import adds_up, clamps, live_runs, of_days, without_infinity, wrapped
from dpsql.privacy.curve import epsilon_of
from dpsql.schedule import by_window
from dpsql.sources.config import Source
from dpsql.text import Z95, in_short, number
from dpsql.times import duration
from dpsql.udfs.noise.counters import counter
from dpsql.udfs.sketch.reading import null_law, scales, threshold

EVENTS = 10


def explain(plan: SketchPlan, source: Source) -> str:
    """Return the whole explanation as plain text."""
    query = plan.query
    choices = plan.query.asked
    first, *later = sentences(plan, source)
    period = (
        "in its whole life"
        if query.contribution_period is ContributionPeriod.STREAM
        else "in one contribution period"
    )
    lines = [
        *_short(plan, source).splitlines(),
        "",
        f"Promise: protects {first}",
        *([later.pop(0)] if choices.bounds is None else []),
    ]
    lines += ["", live_runs(by_window(grid(plan))), ""]
    lines += [
        f"Windows: {duration(query.windows.size_us)}, a new one every {duration(query.windows.slide_us)}, each released {plan.triggers:,} times, "
        f"every {duration(query.trigger_interval_us)}. Every window from the one with the declared start on has its row and its cells at every "
        "trigger, records or not."
    ]
    if choices.bounds is not None:
        b = choices.bounds
        lines += [
            f"Bounds: one {', '.join(query.privacy_unit)} counts with at most {b.max_rows:,} rows {period}, {b.max_rows_per_key:,} per value, "
            f"in at most {b.max_keys:,} values of {choices.value}."
        ]
    lines += ["", "What is published:"]
    for sketch in choices.wanted:
        unit_text = "counts" if sketch.weight is None else f"sums of {sketch.weight}"
        listed = (
            f"the {sketch.number:,} largest {unit_text} by {choices.value}"
            if sketch.number
            else f"no list: what is asked of {choices.value}"
        )
        lines += [f"  {sketch.alias}: {listed}."]
    lines += clamps(query.aggregates)
    lines += [f"  {line}" for line in later]
    lines += ["", f"Query identity: {plan.identity}"]
    return wrapped("\n".join(lines))


def _short(plan: SketchPlan, source: Source) -> str:
    query = plan.query
    choices = plan.query.asked
    unit = ", ".join(plan.query.privacy_unit)
    for_ever = query.contribution_period is ContributionPeriod.STREAM
    event = choices.level is PrivacyLevel.EVENT
    period = "for ever" if for_ever else f"in {duration(query.windows.size_us)}"
    protected = (
        f"one row of {query.stream}, not one person"
        if event
        else f"everything that one {unit} does {period}"
    )
    largest = max((sketch.number for sketch in choices.wanted), default=0)
    bounds = choices.bounds
    left_out = (
        "no row by bounds"
        if bounds is None
        else f"records of one {unit} that count: at most {bounds.max_rows:,}; values: at most {bounds.max_keys:,}"
    )
    noise = Z95 * figures(plan, source)["estimate_stderr"]
    return in_short(
        {
            "Protected": f"{protected}: epsilon {plan.epsilon:g}, delta {plan.delta:g}.",
            **({} if event else {"Adds up to": adds_up(_days(plan, source))}),
            "When": f"windows of {duration(query.windows.size_us)}, released every {duration(query.trigger_interval_us)}.",
            "Keys": f"{f'at most {largest:,} values are listed; ' if largest else ''}dpsql ask gives the count of any value, listed or not.",
            "Noise": f"{choices.wanted[0].alias} ± {number(noise)} at a window's end, 95%, and what collides with the value.",
            "Left out": f"{left_out}. {'Further ones are dropped, and no error bar says so.' if bounds else ''}".strip(),
        }
    )


def _days(plan: SketchPlan, source: Source) -> list[dict[str, Any]]:
    """Return what one unit pays in the windows that some days touch; nothing where they are one period, or rows are protected."""
    if (
        plan.query.asked.level is PrivacyLevel.EVENT
        or plan.query.contribution_period is ContributionPeriod.STREAM
    ):
        return []
    cost = account(plan, source)
    return of_days(cost, plan.delta - cost.failure, plan.query.windows)


def facts(plan: SketchPlan, source: Source) -> dict[str, Any]:
    """Return the plan's public numbers under stable names."""
    choices = plan.query.asked
    return {
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "protects": str(choices.level),
        "mu": plan.mu,
        "cost": account(plan, source).document(),
        "days": [without_infinity(day) for day in _days(plan, source)],
        "triggers": plan.triggers,
        "counter": str(CounterName.BLT),
        "sketch": str(choices.kind),
        "sketch_depth": choices.depth,
        "sketch_width": choices.width,
        "query_identity": plan.identity,
        "columns": [
            {
                "alias": sketch.alias,
                "listed": sketch.number,
                "cell_stderr": cells.sd[-1],
                "estimate_stderr": cells.sd[-1] * plan.stderr,
            }
            for sketch, cells in zip(choices.wanted, plan.cells, strict=True)
        ],
        **figures(plan, source),
    }


def missing(plan: SketchPlan) -> tuple[str, dict[str, Any]]:
    """Return why a value may be missing."""
    ask = "It can be asked for all the same: dpsql ask NAME --value VALUE."
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


def figures(plan: SketchPlan, source: Source) -> dict[str, float]:
    """Return numbers under stable names; errors are those at a window's last trigger, of the first sketch."""
    choices = plan.query.asked
    first = plan.cells[0]
    cells = choices.depth * choices.width * len(plan.cells)
    return {
        "cells": float(cells),
        "state_bytes_per_window": float(
            8 * cells * (1 + counter(CounterName.BLT, plan.triggers).width)
        ),
        "published_bytes_per_trigger": float(8 * cells),
        "cell_stderr": first.sd[-1],
        "estimate_stderr": first.sd[-1] * plan.stderr,
        "left_out": collisions(choices.bounds.keys, choices.width) if choices.bounds else 0.0,
        "missed": missed_by_a_row(plan),
        "floor": _floor(plan) if plan.beta is not None else 0.0,
        "max_keys": float(source.max_keys),
    }


def sentences(plan: SketchPlan, source: Source) -> list[str]:
    """Return what is promised and how exact it is, a sentence each; the first ones are the promise."""
    choices = plan.query.asked
    numbers = figures(plan, source)
    promise = f"epsilon {plan.epsilon:g}, delta {plan.delta:g}"
    if choices.level is PrivacyLevel.EVENT:
        ten = account(plan, source).periods(EVENTS)
        many = f"epsilon {epsilon_of(ten.mu, plan.delta):.4g} at the same delta"
        floor = (
            f", and {ten.failure:.2g} of delta more, because the floor test knows single events"
            if plan.beta
            else ""
        )
        lines = [
            f"one event (one row of `{plan.query.stream}`): {promise}.",
            f"Not one person: a person with {EVENTS} events has {many}{floor}.",
        ]
    else:
        lines = [f"everything that one privacy unit does in one contribution period: {promise}."]
    lines.append(
        f"Sketch: {choices.depth} rows of {choices.width} cells; state {numbers['state_bytes_per_window'] / 1e6:.3g} MB per open window, whatever the "
        f"number of values; {numbers['published_bytes_per_trigger'] / 1e6:.3g} MB published per trigger, before compression."
    )
    lines.append(
        f"An estimate's noise has standard deviation {numbers['estimate_stderr']:.4g}; collisions with other values come on top."
    )
    if plan.beta is not None:
        lines.append(
            f"Values appear that stand out of the floor: {math.ceil(numbers['floor']):,} or more in an empty sketch, more in a full one."
        )
        lines.append(
            "Hash key and cells of a window are published when it closes; until then only its list is."
        )
    else:
        lines.append(
            "The hash key is public from the first release: who knows it can make values that collide with one of their choice."
        )
    if choices.bounds is not None:
        lines.append(
            f"The one-cell rule leaves out up to {numbers['left_out']:.2%} of a unit's values in each row; of one value's counts up to "
            f"{numbers['missed']:.2%}, by which intervals reach further."
        )
    if (
        choices.depth * choices.width > 2 * source.max_keys
    ):  # of one sketch: a histogram, too, has as many counters as there are columns
        lines.append("A histogram with GROUP BY is smaller and more accurate here.")
    return lines


def _floor(plan: SketchPlan) -> float:
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
