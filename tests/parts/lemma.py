"""The sensitivity lemma (docs/privacy/lemma.md), in numbers: what a plan costs, by the table of its statement alone.

It reads of a plan its bounds, heights and noise, and of a counter its norm; it knows no formula of a planner or of an accountant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dpsql.mechanisms.dynamic.plan import QuantileSum, TablePlan
from dpsql.mechanisms.histogram.plan import PerturbationPlan, PrivacyPlan, QuantilePlan
from dpsql.mechanisms.marginals.plan import MarginalsPlan
from dpsql.mechanisms.sketch.plan import SketchPlan
from dpsql.mechanisms.sliding.plan import SlidingPlan
from dpsql.parsed_query import (
    Aggregate,
    AggregateFunction,
    ContributionPeriod,
    CounterName,
    PerGroup,
)
from dpsql.privacy.cost import gamma
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Counter, column_norm, counter


@dataclass(frozen=True)
class Charge:
    """What one unit (or row) costs: in one period, in each of two or more; and the loss of discrete Laplace noise."""

    mu2: float = 0.0
    meeting: float = 0.0
    epsilon: float = 0.0

    def __add__(self, other: Charge) -> Charge:
        return Charge(
            self.mu2 + other.mu2, self.meeting + other.meeting, self.epsilon + other.epsilon
        )


def rows_that_stay(rows: float, per_key: float, keys: float, height: float) -> float:
    """E of sums over rows: M N, with M of one key and N of all."""
    of_key = per_key * height
    return of_key * min(rows * height, keys * of_key)


def bounded_groups(
    rows: int, per_key: int, keys: int, height: float, lower: float, upper: float
) -> float:
    """E of sums whose rows add up to lower..upper in a group: M_+^2 + M_-^2 in every group, or M h for every row."""
    sides = [min(per_key * height, bound) for bound in (upper, -lower)]
    return min(
        max(sides) * height * min(rows, keys * per_key),
        min(rows, keys) * math.fsum(m * m for m in sides),
    )


def whole_rows(rows: int, per_key: int, height: float) -> float:
    """E of whole rows of one height: keys are filled one after the other."""
    return height**2 * (rows // per_key * per_key**2 + (rows % per_key) ** 2)


def rows_that_end(rows: int, per_key: int, lower: float, upper: float) -> float:
    """E of a sum whose rows end: versions of one sign add up in squares, signs by Cauchy, and so do the slots of a key."""
    return (
        2 * per_key * rows * (lower**2 + upper**2 if lower < 0 < upper else max(lower**2, upper**2))
    )


def measure_that_ends(rows: int, per_key: int, heights: list[float]) -> float:
    """E of a mean (value, count) or a spread (value, square, count) whose rows end, heights in units of their noise: b^2 + eta."""
    a, *squares, s = (height**2 for height in heights)
    b = sum(squares)
    eta = a - s if not b else a**2 / (8 * b) + b - s if a <= 4 * b else a - b - s
    return 2 * per_key * rows * (a + b + s + max(0.0, eta) + 1e-5 * (a + b + s))


def presences(weights: tuple[float, ...], ends: bool) -> float:
    """E of weights that a unit adds while it is there; of one that may go and come back twice that."""
    return (1 + ends) * math.fsum(w * w for w in weights)


def left_over(weights: tuple[float, ...], per_key: float, rows: float) -> float:
    """E of rows beyond the weights of their keys: none is negative, so all of them lie in as few keys as hold them, or in every one."""
    in_every_key = math.fsum((per_key - w) ** 2 for w in weights)
    if rows == math.inf:
        return in_every_key
    first = weights[: math.ceil(rows / per_key)]
    return max(min(in_every_key, (per_key - weights[-1]) * (rows - math.fsum(first))), 0.0)


def values_of(part: Any) -> tuple[float, float]:
    """Least and largest value of what one row adds to a sum."""
    return (
        (part.lower * part.grid, part.upper * part.grid)
        if part.rule in ("sum", "squares", "product", "sum_per_group")
        else (0.0, 1.0)
    )


def stays(part: Any, rows: int, per_key: int, keys: int) -> float:
    """E of one sum of rows that stay."""
    lower = part.lower * part.grid
    upper = part.upper * part.grid
    if "per_group" in part.rule:
        return bounded_groups(
            rows,
            per_key,
            keys,
            max(-lower, upper) if part.rule.startswith("sum") else 1.0,
            lower,
            upper,
        )
    return rows_that_stay(rows, per_key, keys, max(map(abs, values_of(part))))


def measures(plan: Any) -> list[tuple[Aggregate, tuple[Any, ...]]]:
    """Aggregates with their sums; those that share some are one measure."""
    found: list[tuple[Aggregate, dict[Any, None]]] = []
    for column in plan.columns:
        parts = dict.fromkeys(column.perturbations)
        apart = [each for each in found if not parts.keys() & each[1].keys()]
        for aggregate, shared in found:
            if (aggregate, shared) not in apart:
                parts = shared | parts
        found = [*apart, (column.aggregate, parts)]
    return [(aggregate, tuple(parts)) for aggregate, parts in found]


def norm(of: Counter | BltInf) -> float:
    """f: of the counter's first column, over as many triggers as it has."""
    return math.sqrt(of.squared_norm()) if isinstance(of, BltInf) else column_norm(of)


def of_windows(plan: PrivacyPlan) -> Charge:
    """Copies of rows, one a window; units' periods may meet in one."""
    asked = plan.query.asked
    r = plan.windows_per_record
    total = Charge()
    meet = r > 1 and plan.query.contribution_period is ContributionPeriod.WINDOW
    bounds = asked.max_rows_contributed, asked.max_rows_per_group, asked.max_groups_contributed
    f = {
        name: norm(counter(name, plan.horizon))
        for name in {p.counter for p in plan.perturbations} | {asked.counter}
    }
    weights = tuple(w / 2**20 for w in plan.selection.weights) if plan.selection else ()
    for aggregate, parts in measures(plan):
        for part in parts:
            if isinstance(part, PerturbationPlan) and part.on_selection:
                continue
            units = aggregate.function is AggregateFunction.COUNT_DISTINCT_UNIT
            times = r * min(bounds[0], bounds[2])
            e = presences((1.0,) * times, meet) if units else r * stays(part, *bounds)
            once = isinstance(
                part, QuantilePlan
            )  # each node has one release, and a row moves one node of each level
            mu2 = (
                (1.0 if once else f[part.counter] / part.sigma) ** 2
                * e
                * (part.levels / part.sigma**2 if once else 1.0)
            )
            total += Charge(mu2, mu2 if units or not meet else 2 * mu2)
    on_selection = {
        part.noise_stream: part
        for part in plan.perturbations
        if isinstance(part, PerturbationPlan) and part.on_selection
    }
    for part in on_selection.values():
        e = (
            left_over(weights, 1, math.inf)
            if part.rule == "users"
            else left_over(weights, bounds[1], r * min(bounds[0], bounds[1] * bounds[2]))
        )
        mu2 = (f[part.counter] / part.sigma) ** 2 * e if e else 0.0
        total += Charge(mu2, 2 * mu2 if meet else mu2)
    if plan.selection:
        e = presences(weights, False)
        mu2 = (f[plan.selection.counter] / plan.selection.sigma) ** 2 * e
        total += Charge(mu2, 2 * mu2 if meet else mu2)
    for figure in plan.left_out.figures:
        clamps = {each.aggregate for each in plan.columns if each.aggregate.bounds}
        kinds = {isinstance(each, PerGroup) for each in clamps}
        total += of_figure(figure.name, figure.sigma, *bounds, kinds)
    return total


def of_figure(
    name: str, sigma: float, rows: float, per_key: float, keys: float, kinds: set[bool]
) -> Charge:
    """One sum of a window, released once: 1 for a unit, its pairs or its records, and twice as many of those left out; values that are clamped are
    of records, of pairs (`kinds`: per group), or of both."""
    what = name.removesuffix("_left_out")
    pairs = min(rows, keys)
    records = min(rows, keys * per_key)
    clamped = {False: records, True: pairs}
    most = {"pairs": pairs, "values_clamped": sum(clamped[kind] for kind in kinds)}
    most = most.get(what, records)
    bound = 1.0 if what.startswith("units") else most * (1 if what == name else 2)
    return Charge((bound / sigma) ** 2, (bound / sigma) ** 2)


def of_table(plan: TablePlan) -> Charge:
    """For ever; rows may end."""
    asked = plan.query.asked
    total = 0.0
    f = norm(plan.counter)
    ends = plan.changes
    bounds = asked.max_rows_contributed, asked.max_rows_per_group, asked.max_groups_contributed
    times = ends.max_spells_contributed if ends else min(bounds[0], bounds[2])
    for aggregate, sums in measures(plan):
        units = aggregate.function is AggregateFunction.COUNT_DISTINCT_UNIT
        apart = 0.0
        for part in sums:
            paths = part.levels if isinstance(part, QuantileSum) else 1
            lower, upper = values_of(part)
            rows = rows_that_end(*bounds[:2], lower, upper) if ends else stays(part, *bounds)
            apart += (
                paths
                * (presences((1.0,) * times, ends is not None) if units else rows)
                / part.sigma**2
            )
        heights = [max(map(abs, values_of(part))) / part.sigma for part in sums]
        total += (
            min(apart, measure_that_ends(*bounds[:2], heights))
            if ends and len(heights) > 1
            else apart
        )
    if plan.selection:
        total += (
            presences(tuple(w / 2**20 for w in plan.selection.weights), ends is not None)
            / plan.selection.sigma**2
        )
    return Charge(f * f * total, f * f * total)


def of_cube(plan: MarginalsPlan) -> Charge:
    """Every table of the lattice for itself; of cells that close one step of noise."""
    asked = plan.query.asked
    f = norm(
        BltInf() if asked.max_triggers is None else counter(CounterName.BLT, asked.max_triggers)
    )
    rows = asked.max_rows_contributed
    per_cell = asked.max_rows_per_group
    cells = asked.max_groups_contributed
    total = 0.0
    for i, table in enumerate(plan.tables):
        finest = math.prod(
            domain.size for key, domain in enumerate(asked.domains) if key not in table.keys
        )
        in_a_cell = min(rows, per_cell * min(cells, finest))
        steps = 1.0 if plan.closing and {*plan.closing.keys} <= {*table.keys} else f * f
        for _, sums in plan.columns if plan.changes else ():
            apart = sum(
                rows_that_end(rows, in_a_cell, *values_of(part)) / part.sigmas[i] ** 2
                for part in sums
            )
            heights = [max(map(abs, values_of(part))) / part.sigmas[i] for part in sums]
            together = measure_that_ends(rows, in_a_cell, heights) if len(sums) > 1 else apart
            total += steps * min(apart, together)
        for part in () if plan.changes else plan.sums:
            height = max(map(abs, values_of(part))) / part.sigmas[i]
            total += steps * in_a_cell * min(rows, cells * per_cell) * height**2
    # What is asked is chosen later: of it only the filter is known.
    total += getattr(asked, "session_share", 0.0) * plan.mu**2
    return Charge(total, total)


def of_panes(plan: SlidingPlan) -> Charge:
    """Panes of rows that do not overlap, in whole steps of the noise."""
    asked = plan.query.asked
    total = Charge()
    rows, per_key, keys = (
        bound or 1
        for bound in (
            asked.max_rows_contributed,
            asked.max_rows_per_group,
            asked.max_groups_contributed,
        )
    )
    f2 = math.fsum(c * c for c in plan.coefficients)
    together = gamma(plan.coefficients, plan.panes) if plan.coefficients else 1.0
    for part in plan.measurements:
        height = math.ceil(max(map(abs, values_of(part))) / part.step)
        if part.sigma:
            mu2 = f2 * rows_that_stay(rows, per_key, keys, height) / part.sigma**2
            total += Charge(
                mu2,
                mu2 * together
                if plan.query.contribution_period is ContributionPeriod.WINDOW
                else mu2,
            )
        else:
            losses = (part.fine,) if part.fine else (part.monitor, part.together)
            loss = math.fsum(table.epsilon for table in losses if table)
            total += Charge(epsilon=loss * min(rows * height, keys * per_key * height))
    return total


def of_sketch(plan: SketchPlan) -> Charge:
    """One cell of each row of the sketch, in every window."""
    asked = plan.query.asked
    windows = plan.query.windows
    total = Charge()
    r = -(-windows.size_us // windows.slide_us)
    f = norm(counter(CounterName.BLT, plan.triggers))
    meet = (
        r > 1
        and plan.query.contribution_period is ContributionPeriod.WINDOW
        and asked.bounds is not None
    )
    for part in plan.cells:
        b = asked.bounds
        height = max(map(abs, values_of(part)))
        e = (
            height**2
            if b is None
            else whole_rows(
                min(b.max_rows, b.max_keys * b.max_rows_per_key), b.max_rows_per_key, height
            )
        )
        e *= r
        if (
            b is not None and "per_group" in part.rule
        ):  # windows that meet a period, and periods begin with a window where slides divide it
            meeting = -(-2 * windows.size_us // windows.slide_us) - (
                windows.size_us % windows.slide_us == 0
            )
            rows = r * min(b.max_rows, b.max_keys * b.max_rows_per_key)
            keys = meeting * min(b.max_rows, b.max_keys)
            keys = rows if plan.query.contribution_period is ContributionPeriod.STREAM else keys
            e = bounded_groups(
                rows,
                b.max_rows_per_key,
                keys,
                height,
                part.lower * part.grid,
                part.upper * part.grid,
            )
        mu2 = asked.depth * f * f * e / part.sigma**2
        total += Charge(mu2, 2 * mu2 if meet else mu2)
    return total


CHARGES: Mapping[type, Callable[[Any], Charge]] = {
    PrivacyPlan: of_windows,
    TablePlan: of_table,
    MarginalsPlan: of_cube,
    SlidingPlan: of_panes,
    SketchPlan: of_sketch,
}
"""An interval tree (`TreePlan`) has a clock per level: theorem 28, not the lemma."""
