"""The accountant of tables without windows: what their numbers really cost, from the counter's recurrence and the definitions.

It shares no formula with calibration and planner. The counter's response is measured, C is found from it by long division, path variances
come from the recurrence's covariance by doubling (not from its poles), and thresholds are taken as they stand. What the proofs ask of a
counter (docs/privacy/dynamic.md) is checked, not believed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np

from dpsql.errors import AccountingError
from dpsql.mechanisms.dynamic.plan import (
    NoisySum,
    QuantileSum,
    TableColumnPlan,
    TablePlan,
    TableSelectionPlan,
    TreePlan,
)
from dpsql.parsed_query import Aggregate, AggregateFunction, ContributionPeriod, CounterName, Paired
from dpsql.privacy.cost import (
    Cost,
    Overlap,
    PrivacyLevel,
    check_promise,
    gaussian_delta,
    of_periods_together,
)
from dpsql.privacy.noise_costs import (
    VALUES,
    check_that_rows_may_end,
    column_norm,
    factorisation,
    levels,
    longest_vector,
    path_deviations,
)
from dpsql.sources.config import Source
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.table_grid import LAST_STEP


def account(plan: TablePlan, source: Source) -> Cost:
    """Return what a plan costs one privacy unit in one contribution period, which usually is for ever, and in several.

    Raises:
        AccountingError: the recomputed mu or delta is larger than what the plan or the query says.
    """
    query = plan.query
    choices = query.asked
    _check_numbering(plan)
    finite = (
        None
        if choices.max_triggers is None
        else factorisation(CounterName.BLT, choices.max_triggers)
    )
    norm, path_sd = (column_norm(BltInf()), None) if finite is None else finite
    if plan.changes and finite is not None:
        check_that_rows_may_end(choices.max_triggers or 0)
    groups = int(min(choices.max_rows_contributed, choices.max_groups_contributed))
    counts = plan.changes.max_spells_contributed if plan.changes else groups
    ratios = (
        _tree_ratios(plan, norm)
        if isinstance(plan, TreePlan)
        else [_ratio(measure, plan, norm, counts) for measure in _measures(plan)]
    )
    threshold = 0.0
    if plan.selection is not None:
        ratios.append(_selection_ratio(plan.selection, counts, plan.changes is not None, norm))
        threshold = groups * _threshold_failure(plan, plan.selection, path_sd, 1)
    mu = math.sqrt(math.fsum(ratio**2 for ratio in ratios))
    noise = gaussian_delta(mu, plan.epsilon)
    ids = _id_failure(plan, source, groups)
    recomputed = {
        "mu": mu,
        "delta_noise": noise,
        "delta_threshold": threshold,
        "delta_hash": ids,
        "delta": noise + threshold + ids,
    }
    check_promise(plan, recomputed)
    if not query.privacy_unit:
        return Cost(PrivacyLevel.EVENT, mu**2, 0.0, 0.0, Overlap.EVENTS, mu**2, 0.0)
    if plan.period is None:
        return Cost(
            PrivacyLevel.USER, mu**2, 0.0, threshold + ids, Overlap.STREAM, mu**2, threshold + ids
        )

    def failure_of(periods: int) -> float:
        if plan.selection is None:
            return periods * ids
        one = _threshold_failure(plan, plan.selection, path_sd, periods)
        return periods * ids + periods * groups * one

    return of_periods_together(mu**2, failure_of)


def _check_numbering(plan: TablePlan) -> None:
    """Refuse a plan of periods that do not add up, of sums that share noise, or of keys that nothing selects.

    Raises:
        AccountingError: the plan is one of these.
    """
    is_stream = plan.query.contribution_period is ContributionPeriod.STREAM
    if is_stream != (plan.period is None) or plan.periods.length < 1:
        raise AccountingError("a table without windows has one contribution period, or a length")
    if plan.period and (isinstance(plan, TreePlan) or _counts_units(plan)):
        raise AccountingError(
            "units, and rounds of an interval tree, need contribution_period = STREAM"
        )
    if [p.noise_stream for p in plan.perturbations] != list(range(1, len(plan.perturbations) + 1)):
        raise AccountingError(
            "perturbations must be mechanisms 1, 2, ...: equal numbers share their noise, and 0 is key selection"
        )
    if plan.selection is None and plan.query.selects:
        raise AccountingError("the plan releases unknown keys without selecting them")


def _counts_units(plan: TablePlan) -> bool:
    """Tell whether a number depends on how many units are present: what one does in two periods is not the sum of what it does in each."""
    functions = {column.aggregate.function for column in plan.columns}
    is_asked = AggregateFunction.COUNT_DISTINCT_UNIT in functions
    return is_asked or plan.query.asked.min_privacy_units_per_group > 1


def _selection_ratio(selection: TableSelectionPlan, counts: int, ends: bool, norm: float) -> float:
    """Return the sensitivity over sigma of key selection, for a unit that can begin to count so many times."""
    if len(selection.weights) != counts:
        raise AccountingError(
            f"{len(selection.weights)} selection weights for a unit that can begin to count {counts} times"
        )
    weights = [weight / 2.0**20 for weight in selection.weights]
    return presence_ratio(weights, ends, norm, selection.sigma)


def _threshold_failure(
    plan: TablePlan, selection: TableSelectionPlan, path_sd: Sequence[float] | None, periods: int
) -> float:
    """Return the probability that a group of one unit, with what it began in so many periods, is ever selected; `path_sd` is None without a last
    trigger."""
    choices = plan.query.asked
    end = _ends(selection.first, selection.thresholds, choices.max_triggers or LAST_STEP)
    deviations = (
        path_deviations(BltInf(), end)
        if path_sd is None
        else [path_sd[trigger - 1] for trigger in end]
    )
    min_weight = choices.min_privacy_units_per_group * periods * selection.weights[0]
    return _failures(
        selection.sigma, selection.first, end, deviations, selection.thresholds, min_weight
    )


def _id_failure(plan: TablePlan, source: Source, groups: int) -> float:
    """Return the probability that 64-bit ids collide; 0 where one row is protected, and no id is asked."""
    choices = plan.query.asked
    if plan.query.privacy_unit:
        keys = groups + groups * source.max_keys / 2.0**32
        return (source.max_users + keys * source.max_keys) / 2.0**64
    if (
        plan.changes is not None
        or plan.selection is not None
        or {
            choices.max_rows_contributed,
            choices.max_rows_per_group,
            choices.max_groups_contributed,
        }
        != {1}
    ):
        raise AccountingError(
            "one row has no unit: it stays, is one row, of one key, and proves none"
        )
    return 0.0


def _measures(plan: TablePlan) -> list[TableColumnPlan]:
    """Return the columns, and as one those that share noisy sums: of the same two values."""
    sums: dict[Hashable, dict[NoisySum, None]] = {}
    first: dict[Hashable, Aggregate] = {}
    for i, column in enumerate(plan.columns):
        aggregate = column.aggregate
        key: Hashable = i
        if isinstance(aggregate, Paired):
            key = (aggregate.argument, aggregate.x, aggregate.bounds, aggregate.x_bounds)
        first.setdefault(key, aggregate)
        sums.setdefault(key, {}).update(dict.fromkeys(column.perturbations))
    return [
        TableColumnPlan(aggregate=first[key], perturbations=tuple(parts))
        for key, parts in sums.items()
    ]


def _ratio(column: TableColumnPlan, plan: TablePlan, norm: float, counts: int) -> float:
    """Return the sensitivity over sigma of all noisy sums of an aggregate: sum by sum, or as one vector where rows end and that is less."""
    separate = math.hypot(
        *(_ratio_of_sum(p, column, plan, norm, counts) for p in column.perturbations)
    )
    choices = plan.query.asked
    if (
        plan.changes is None
        or (
            squared := longest_vector(column.perturbations, [p.sigma for p in column.perturbations])
        )
        is None
    ):
        return separate
    return min(
        separate,
        norm * math.sqrt(2 * choices.max_rows_per_group * choices.max_rows_contributed * squared),
    )


def _ratio_of_sum(
    p: NoisySum, column: TableColumnPlan, plan: TablePlan, norm: float, counts: int
) -> float:
    """Return the ratio of one sum, from the query's bounds; a unit can begin to count so many
    times."""
    choices = plan.query.asked
    ends = plan.changes is not None
    bounds = (
        choices.max_rows_contributed,
        choices.max_rows_per_group,
        choices.max_groups_contributed,
    )
    if isinstance(p, QuantileSum):
        return math.sqrt(levels(p)) * row_ratio(*bounds, ends, (0.0, 1.0), norm, p.sigma)
    rule, _, per_group = p.rule.partition("_per_")
    if rule not in ("rows", "valid", "users", *VALUES) or (per_group and ends):
        raise AccountingError(f"rule {p.rule} is unknown to the accountant")
    if p.rule == "users" and column.aggregate.function is AggregateFunction.COUNT_DISTINCT_UNIT:
        return presence_ratio((1.0,) * counts, ends, norm, p.sigma)
    values = (
        (p.lower * p.grid, p.upper * p.grid) if rule in VALUES else (0.0, 1.0)
    )  # other rules add 0 or 1 whatever the clamp
    if per_group:
        return group_ratio(*bounds, values, (p.lower * p.grid, p.upper * p.grid), norm, p.sigma)
    return row_ratio(*bounds, ends, values, norm, p.sigma)


def _tree_ratios(plan: TreePlan, norm: float) -> list[float]:
    """Return the sensitivity over sigma of all that an interval tree tells, over all levels and rounds.

    A version is in at most one node of a level at a time, and goes from it once. So in one round of one level a unit changes what nodes
    release by vectors whose lengths add up to C at most, and the increments of their counters likewise, whatever was told before.

    Raises:
        AccountingError: the plan has keys to select, an end, or sums that are no sums of versions.
    """
    choices = plan.query.asked
    if (
        plan.changes is None
        or plan.selection is not None
        or choices.max_triggers is not None
        or len(plan.removed) != len(plan.perturbations)
    ):
        raise AccountingError(
            "an interval tree is for listed keys of a table whose rows end, without a last trigger"
        )
    ratios = [
        choices.max_rows_contributed / plan.size,
        norm * choices.max_rows_contributed / plan.gone,
    ]
    for p, removed in zip(plan.perturbations, plan.removed, strict=True):
        if p.rule not in ("rows", "valid", "sum"):
            raise AccountingError(f"an interval tree has no sums of {p.rule}")
        height = max(abs(p.lower), abs(p.upper)) * p.grid if p.rule == "sum" else 1.0
        ratios += [
            choices.max_rows_contributed * height / p.sigma,
            norm * choices.max_rows_contributed * height / removed,
        ]
    # Sigmas grow with level times round: the squares add up to those of level 1 and round 1, times the sum of 1 / k^2 for each of the two.
    return [ratio * math.pi**2 / 6 for ratio in ratios]


def row_ratio(
    max_rows: float,
    per_group: float,
    max_groups: int,
    ends: bool,
    values: tuple[float, float],
    norm: float,
    sigma: float,
) -> float:
    """Return the sensitivity over sigma of a sum of rows' values, for all that one unit ever begins.

    Args:
        max_rows, per_group, max_groups: C, c, G.
        ends: rows can end.
        values: least and largest value of one row.
        norm: f.
        sigma: of one step's noise.
    """
    lower, upper = values
    if not ends:
        # n_g rows of group g shift its noise by at most f L n_g; n_g <= c and all together at most min(C, G c).
        return (
            norm
            * max(-lower, upper, 0.0)
            * math.sqrt(per_group * min(max_rows, max_groups * per_group))
            / sigma
        )
    # A version is at most |C e_s - C e_t| = sqrt(2) f high, those of a slot add up in squares, slots by Cauchy; signs apart, then by Cauchy again.
    one_sign = [abs(v) for v in values if v] or [0.0]
    height2 = sum(v * v for v in one_sign) if lower < 0 < upper else max(one_sign) ** 2
    return math.sqrt(per_group * max_rows * 2 * norm**2 * height2) / sigma


def group_ratio(
    max_rows: float,
    per_group: float,
    max_groups: int,
    values: tuple[float, float],
    sums: tuple[float, float],
    norm: float,
    sigma: float,
) -> float:
    """Return the ratio of a sum where what a unit's rows add up to in a group lies in `sums`, above
    zero and below each for itself; no entry of C is negative.

    Raises:
        AccountingError: zero is not in `sums`.
    """
    if not sums[0] <= 0 <= sums[1]:
        raise AccountingError(
            "bounds per group without zero: a unit that is not there would be outside"
        )
    row = max(-values[0], values[1])
    positive = min(sums[1], per_group * row)
    negative = min(-sums[0], per_group * row)
    # Of two paths without a negative inner product the squares add up: in min(C, G) groups; or those of min(C, G c) rows of one side.
    all_rows = min(max_rows, max_groups * per_group) * row
    return (
        norm
        * math.sqrt(
            min(
                min(max_rows, max_groups) * (positive**2 + negative**2),
                all_rows * max(positive, negative),
            )
        )
        / sigma
    )


def presence_ratio(weights: Sequence[float], ends: bool, norm: float, sigma: float) -> float:
    """Return the sensitivity over sigma of a sum to which a unit adds weights[i] from the time on that it counts for the i-th time; with ends: until it ends.

    Raises:
        AccountingError: weights grow or are negative.
    """
    if any(w < 0 for w in weights) or any(b > a for a, b in pairwise(weights)):
        raise AccountingError("selection weights must not increase and not be negative")
    return norm * math.hypot(*weights) * (math.sqrt(2) if ends else 1.0) / sigma


def _ends(first: tuple[int, ...], thresholds: Sequence[int], last: int) -> tuple[int, ...]:
    """Return the last trigger of every block."""
    if (
        first[0] != 1
        or any(b <= a for a, b in pairwise(first))
        or len(first) != len(thresholds)
        or first[-1] > last
    ):
        raise AccountingError("blocks of thresholds do not cover every trigger")
    return (*(begin - 1 for begin in first[1:]), last)


def _failures(
    sigma: float,
    first: tuple[int, ...],
    end: tuple[int, ...],
    deviations: Sequence[float],
    thresholds: Sequence[int],
    min_weight: int,
) -> float:
    """Add up the failures of all triggers. Within a block tau is one number and the deviation
    grows: the last trigger, whose `deviations` are, is the worst."""
    from scipy.special import ndtr  # slow to import

    margin = (np.array(thresholds, dtype=np.float64) - min_weight) / 2.0**20
    failures = ndtr(-margin / (sigma * np.array(deviations)))
    return math.fsum(
        (last - begin + 1) * float(q) for begin, last, q in zip(first, end, failures, strict=True)
    )
