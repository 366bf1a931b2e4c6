"""What a finished plan of sketches costs, from definitions (docs/privacy/sketch.md): it shares no formula with the planner."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsql.errors import AccountingError
from dpsql.mechanisms.sketch.plan import CellsPlan, SketchChoices, SketchKind, SketchPlan
from dpsql.parsed_query import ContributionPeriod, CounterName, ParsedQuery
from dpsql.privacy.cost import Cost, Overlap, PrivacyLevel, check_promise, gaussian_delta, shifted
from dpsql.privacy.noise_costs import factorisation, response_and_column
from dpsql.sources.config import Source


@dataclass(frozen=True)
class SketchSpent:
    """The real cost of a plan: mu of all noise, and the parts of delta at the plan's epsilon.

    `passing`: probability that a key which only the protected unit brings would pass the floor test, in the world without the unit.
    """

    mu: float
    passing: float
    delta_noise: float
    delta_floor: float
    delta_hash: float


def recompute(plan: SketchPlan, source: Source) -> SketchSpent:
    """Recompute the cost of a plan, for one unit in one contribution period, or for one event."""
    mu = math.sqrt(math.fsum(_ratio(cells, plan) ** 2 for cells in plan.cells))
    passing = 0.0 if plan.beta is None else plan.beta * _tests(plan)
    ids = 0.0 if plan.query.asked.level is PrivacyLevel.EVENT else source.max_users / 2.0**64
    return SketchSpent(mu, passing, gaussian_delta(mu, plan.epsilon), shifted(passing, mu), ids)


def account(plan: SketchPlan, source: Source) -> Cost:
    """Return what a plan costs, if that is no more than it says of itself.

    Raises:
        AccountingError: it is, or the plan is none that this module knows.
    """
    recomputed = check(plan, source)
    mu2 = recomputed.mu**2
    failure = recomputed.delta_floor + recomputed.delta_hash
    if plan.query.asked.level is PrivacyLevel.EVENT:
        return Cost(
            PrivacyLevel.EVENT, mu2, 0.0, failure, Overlap.EVENTS, mu2, failure, recomputed.passing
        )
    if plan.query.contribution_period is ContributionPeriod.STREAM:
        return Cost(PrivacyLevel.USER, mu2, 0.0, failure, Overlap.STREAM, mu2, failure)
    if plan.query.windows.slide_us >= plan.query.windows.size_us:
        return Cost(PrivacyLevel.USER, mu2, 0.0, failure, Overlap.NONE, mu2, failure)
    # Two periods meet in a window, each with an ownership of its own: |a + b|^2 <= 2 |a|^2 + 2 |b|^2.
    return Cost(PrivacyLevel.USER, mu2, 0.0, failure, Overlap.WINDOWS, 2 * mu2, failure)


def check(plan: SketchPlan, source: Source) -> SketchSpent:
    """Refuse a plan that exceeds its query's promise.

    Raises:
        AccountingError: the recomputed mu or delta is larger than what the plan or the query says.
    """
    query = plan.query
    choices = plan.query.asked
    if (choices.level is PrivacyLevel.EVENT) != (choices.bounds is None):
        raise AccountingError("one event has no bounds, and a unit needs them")
    if [cells.noise_stream for cells in plan.cells] != list(range(1, len(plan.cells) + 1)) or len(
        plan.cells
    ) != len(choices.wanted):
        raise AccountingError(
            "sketches must be mechanisms 1, 2, ...: equal numbers share their noise"
        )
    if (plan.beta is None) != (not choices.lists or query.public_groups is not None):
        raise AccountingError("unknown values need the floor test, and nothing else has one")
    if plan.beta is not None and (
        query.windows.slide_us < query.windows.size_us
        or choices.kind is not SketchKind.COUNT_SKETCH
    ):
        raise AccountingError(
            "the floor test needs signs, and hash keys that are secret until their window closes"
        )
    if (
        plan.triggers * query.trigger_interval_us
        < query.windows.size_us + query.allowed_lateness_us
    ):
        raise AccountingError("a window has more triggers than the plan")
    recomputed = recompute(plan, source)
    parts = {
        name: getattr(recomputed, name) for name in ("delta_noise", "delta_floor", "delta_hash")
    }
    check_promise(plan, {"mu": recomputed.mu, **parts, "delta": sum(parts.values())})
    return recomputed


def _ratio(cells: CellsPlan, plan: SketchPlan) -> float:
    """Return the sensitivity over sigma of one sketch (theorem 21)."""
    choices = plan.query.asked
    if cells.rule not in ("rows", "sum", "sum_per_group"):
        raise AccountingError(f"rule {cells.rule} is unknown to the accountant")
    largest = 1.0 if cells.rule == "rows" else max(abs(cells.lower), abs(cells.upper)) * cells.grid
    copies = sum(
        1 for k in range(10_000) if k * plan.query.windows.slide_us < plan.query.windows.size_us
    )
    # Per row and window: the owned keys of a unit lie in different cells, n_j <= c records in each, all together at most `rows`.
    squares = copies * _squares(choices) * largest**2
    if cells.rule == "sum_per_group":
        squares = _per_group(cells, plan, copies) * cells.grid**2
    return (
        math.sqrt(choices.depth * squares)
        * factorisation(CounterName.BLT, plan.triggers)[0]
        / cells.sigma
    )


def _per_group(cells: CellsPlan, plan: SketchPlan, copies: int) -> int:
    """Bound the squared shift of a sum with bounds per group: of each value and window what is
    above zero and what is below shift a cell's path by vectors without a negative inner product."""
    bounds = plan.query.asked.bounds
    size = plan.query.windows.size_us
    slide = plan.query.windows.slide_us
    if (
        bounds is None
        or plan.beta is not None
        or plan.query.asked.kind is not SketchKind.COUNT_SKETCH
    ):
        raise AccountingError(
            "bounds per group are of units, and of values that are listed, in cells with signs"
        )
    if (
        cells.lower < 0
        and float(np.min(response_and_column(CounterName.BLT, plan.triggers)[1])) < 0
    ):
        raise AccountingError(
            "the counter has a negative entry: bounds per group of both signs would cost more than accounted for"
        )
    rows = copies * min(bounds.max_rows, bounds.max_keys * bounds.max_rows_per_key)
    # The starts of windows that hold a moment of [0, size); where slides do not divide it they lie otherwise in each period.
    meeting = (
        sum(1 for k in range(-10_000, 10_000) if -size < k * slide < size)
        if size % slide == 0
        else 1 + (2 * size - 2) // slide
    )
    groups = (
        rows
        if plan.query.contribution_period is ContributionPeriod.STREAM
        else meeting * min(bounds.max_rows, bounds.max_keys)
    )
    # At most that in each; or, as all rows add up to `rows` times the largest, in as many as that fills.
    return min(
        rows * max(cells.upper, -cells.lower) ** 2,
        min(rows, groups) * (cells.upper**2 + cells.lower**2),
    )


def _squares(choices: SketchChoices) -> int:
    """Return the largest sum of n_j^2 over whole n_j <= c with sum n_j <= N = min(C, G c): c N,
    less what the one cell that is not full misses."""
    if choices.bounds is None:
        return 1
    c = choices.bounds.max_rows_per_key
    rows = min(choices.bounds.max_rows, choices.bounds.max_keys * c)
    return c * rows - rows % c * (c - rows % c)


def _tests(plan: SketchPlan) -> int:
    """Return how often keys that only the protected unit brings are tested: per (window, key), trigger and sketch."""
    query: ParsedQuery[SketchChoices] = plan.query
    bounds = query.asked.bounds
    pairs = 1
    if bounds is not None:
        pairs = min(bounds.max_rows, bounds.max_keys)
        if query.contribution_period is ContributionPeriod.STREAM:
            # A value counts anew in every window, under another hash key: as often as it has rows.
            pairs = min(bounds.max_rows, bounds.max_keys * bounds.max_rows_per_key)
    return pairs * plan.triggers * len(plan.cells)
