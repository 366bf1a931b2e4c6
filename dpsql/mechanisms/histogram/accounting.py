"""The accountant: recomputes (epsilon, delta) from a finished plan and refuses one that does not keep its promise.

It shares no formula with the planner: sensitivities come from the bounds and from the counter's measured response, path
deviations from the counter's measured response, threshold failures from the thresholds themselves, and the Gaussian curve is written
out here (the planner's calibration has its own reading of the curve).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from dpsql.errors import AccountingError
from dpsql.mechanisms.histogram.plan import (
    CarriedPlan,
    PerturbationPlan,
    PrivacyPlan,
    QuantilePlan,
    ReleaseRule,
    SelectionPlan,
)
from dpsql.parsed_query import AggregateFunction, ContributionPeriod, CounterName, PerGroup
from dpsql.parts.left_out import FigurePlan
from dpsql.privacy.cost import Cost, Overlap, PrivacyLevel, check_promise, gaussian_delta
from dpsql.privacy.noise_costs import VALUES, factorisation, levels, response_and_column
from dpsql.sources.config import Source
from dpsql.udfs.noise.counters import counter, impulse_response


@dataclass(frozen=True)
class Spent:
    """The cost of a finished plan for one privacy unit: the total Gaussian-DP mu, and delta at the
    plan's epsilon, by part."""

    mu: float
    delta_noise: float
    delta_threshold: float
    delta_hash: float

    @property
    def delta(self) -> float:
        """The sum of all parts of delta."""
        return self.delta_noise + self.delta_threshold + self.delta_hash


def recompute(plan: PrivacyPlan, source: Source) -> Spent:
    """Recompute the cost of a plan.

    Args:
        plan: a finished plan.
        source: the stream's declaration (max_users, max_keys).

    Returns:
        The cost at plan.epsilon.
    """
    mu = math.sqrt(math.fsum(ratio**2 for ratio in _ratios(plan)))
    return Spent(
        mu,
        gaussian_delta(mu, plan.epsilon),
        _threshold_failure(plan, 0),
        _hash_failure(plan, source),
    )


def account(plan: PrivacyPlan, source: Source) -> Cost:
    """Return what a plan costs (`cost`), if that is no more than it says of itself (`check`).

    Raises:
        AccountingError: it is.
    """
    check(plan, source)
    return cost(plan, source)


def cost(plan: PrivacyPlan, source: Source) -> Cost:
    """Return what a plan costs one privacy unit in one contribution period, and in several (docs/privacy/index.md, theorem 4)."""
    recomputed = recompute(plan, source)
    mu2 = recomputed.mu**2
    failure = recomputed.delta_threshold + recomputed.delta_hash
    if plan.query.protects is PrivacyLevel.EVENT:
        return Cost(PrivacyLevel.EVENT, mu2, 0.0, failure, Overlap.EVENTS, mu2, failure)
    if plan.query.contribution_period is ContributionPeriod.STREAM:
        return Cost(PrivacyLevel.USER, mu2, 0.0, failure, Overlap.STREAM, mu2, failure)
    if not _periods_meet(plan):
        return Cost(PrivacyLevel.USER, mu2, 0.0, failure, Overlap.NONE, mu2, failure)
    # What two periods add meets in a group: |a + b|^2 <= 2 |a|^2 + 2 |b|^2. Users count once there whatever the periods.
    shared = math.fsum(ratio**2 for ratio in _ratios(plan)) + math.fsum(
        _ratio(p, plan) ** 2 for p in plan.perturbations if p.rule != "users"
    )
    if plan.selection:
        shared += _selection_ratio(plan.selection, plan, _times_counted(plan)) ** 2
    # And a group that only this unit has takes up two of the times that it counts.
    met = max(recomputed.delta_threshold, _threshold_failure(plan, 1) / 2)
    return Cost(
        PrivacyLevel.USER,
        mu2,
        0.0,
        failure,
        Overlap.WINDOWS,
        max(mu2, shared),
        met + recomputed.delta_hash,
    )


def check(plan: PrivacyPlan, source: Source) -> Spent:
    """Refuse a plan that exceeds its query's promise.

    Raises:
        AccountingError: the recomputed mu or delta is larger than what the plan or the query says.
    """
    _check_carried(plan)
    cost = recompute(plan, source)
    noise_streams = [p.noise_stream for p in plan.perturbations]
    if noise_streams != list(range(1, len(noise_streams) + 1)):
        raise AccountingError(
            "perturbations must be mechanisms 1, 2, ...: equal numbers share their noise, and 0 is key selection"
        )
    figure_streams = [figure.noise_stream for figure in plan.left_out.figures]
    if len({*noise_streams, *figure_streams, 0}) <= len(noise_streams) + len(figure_streams):
        raise AccountingError("a figure shares its noise with another number")
    if plan.windows_per_record != -(-plan.query.windows.size_us // plan.query.windows.slide_us):
        raise AccountingError(
            f"the plan copies a record into {plan.windows_per_record} windows, the query into another number"
        )
    if plan.selection is None and plan.query.selects:
        raise AccountingError("the plan releases unknown keys without selecting them")
    check_promise(plan, dataclasses.asdict(cost) | {"delta": cost.delta})
    return cost


def _ratios(plan: PrivacyPlan) -> list[float]:
    """Return the sensitivity over sigma of every mechanism, for one contribution period."""
    ratios = [_ratio(p, plan) for p in plan.perturbations]
    ratios += [_figure_ratio(figure, plan) for figure in plan.left_out.figures]
    return ratios + (
        [_selection_ratio(plan.selection, plan, _times_counted(plan))] if plan.selection else []
    )


def _threshold_failure(plan: PrivacyPlan, more: int) -> float:
    """Return the probability that a group is selected where `more` periods of a unit count beside
    those that the exact test wants at least."""
    if plan.selection is None:
        return 0.0
    units = plan.query.asked.min_privacy_units_per_group
    # The exact test counts units' periods. Where a window meets two of them, m - 1 units can count 2 (m - 1) times: it wants one more.
    min_periods = (2 * (units - 1) + 1 if _periods_meet(plan) else units) + more
    own_failures = _threshold_failures(plan.selection, plan, min_periods)
    carried_plan = plan.selection.carried
    return _times_counted(plan) * math.fsum(
        own_failures
        + (
            _carried_failures(carried_plan, plan.selection, plan, min_periods)
            if carried_plan
            else []
        )
    )


def _hash_failure(plan: PrivacyPlan, source: Source) -> float:
    if _is_one_row(plan):
        return 0.0  # no id is asked
    groups = _groups(plan)
    # In rounds where periods meet, 63 bits tell units apart: the last one tells the periods.
    ids = source.max_users * (
        2 if _periods_meet(plan) and plan.query.asked.release is ReleaseRule.RESELECT else 1
    )
    return (ids + (groups + groups * source.max_keys / 2.0**32) * source.max_keys) / 2.0**64


def _is_one_row(plan: PrivacyPlan) -> bool:
    """Tell whether one row is protected.

    Raises:
        AccountingError: with bounds of a unit, or with keys that units are to prove.
    """
    choices = plan.query.asked
    if plan.query.privacy_unit:
        return False
    if plan.selection is not None or {
        choices.max_rows_contributed,
        choices.max_rows_per_group,
        choices.max_groups_contributed,
    } != {1}:
        raise AccountingError("one row has no unit: it is one row, of one key, and proves none")
    return True


def _periods_meet(plan: PrivacyPlan) -> bool:
    """Tell whether a window can hold records of two contribution periods: windows that are as long and begin more often."""
    query = plan.query
    return (
        query.contribution_period is ContributionPeriod.WINDOW
        and query.windows.slide_us < query.windows.size_us
    )


def _groups(plan: PrivacyPlan) -> int:
    """Return K: groups one privacy unit can be in, from the bounds."""
    query = plan.query
    return plan.windows_per_record * int(
        min(query.asked.max_rows_contributed, query.asked.max_groups_contributed)
    )


def _times_counted(plan: PrivacyPlan) -> int:
    """Return how often one unit counts in key selection: per group, or in rounds per copy of an admitted record."""
    query = plan.query
    if query.asked.release is ReleaseRule.RESELECT:
        rows = min(
            query.asked.max_rows_contributed,
            query.asked.max_groups_contributed * query.asked.max_rows_per_group,
        )
        if rows == math.inf:
            raise AccountingError(
                "in rounds a unit counts with every row, and rows are not counted"
            )
        return plan.windows_per_record * int(rows)
    return _groups(plan)


def _ratio(p: PerturbationPlan | QuantilePlan, plan: PrivacyPlan) -> float:
    """Return the sensitivity over sigma of one perturbation, from the query's bounds."""
    query = plan.query
    steps = p.releases if isinstance(p, QuantilePlan) else plan.horizon
    c = query.asked.max_rows_per_group
    rows = min(
        query.asked.max_rows_contributed,
        query.asked.max_groups_contributed * query.asked.max_rows_per_group,
    )
    column = next(column for column in plan.columns if p in column.perturbations)
    if isinstance(p, PerturbationPlan) and p.on_selection:
        return _left_over_ratio(p, plan)
    if isinstance(p, QuantilePlan):
        if query.asked.release is ReleaseRule.RESELECT:
            raise AccountingError("in rounds a leaf would count as a user")
        return (
            math.sqrt(levels(p) * plan.windows_per_record * c * rows)
            * factorisation(p.counter, steps)[0]
            / p.sigma
        )
    rule, _, per_group = p.rule.partition("_per_")
    if rule not in ("rows", "valid", "users", *VALUES):
        raise AccountingError(f"rule {p.rule} is unknown to the accountant")
    largest = (
        max(abs(p.lower), abs(p.upper)) * p.grid if rule in VALUES else 1.0
    )  # other rules add 0 or 1 whatever the clamp
    if p.rule == "users" and column.aggregate.function is AggregateFunction.COUNT_DISTINCT_UNIT:
        # One 1 in each of K groups; where periods meet it may come back elsewhere when this period is gone, for the other one.
        per_user = math.sqrt(_groups(plan) * (1 + _periods_meet(plan)))
    elif per_group:
        per_user = math.sqrt(
            _per_group(p, largest, c, plan.windows_per_record * rows, _groups(plan), plan.horizon)
        )
    else:
        # c records of every group, in as many groups as the rows allow: sum of n_g^2 <= c * sum of n_g.
        per_user = math.sqrt(plan.windows_per_record * c * rows) * largest
    return per_user * factorisation(p.counter, steps)[0] / p.sigma


def _figure_ratio(figure: FigurePlan, plan: PrivacyPlan) -> float:
    """Return what one unit adds to a figure of what the limits leave out, over sigma.

    Raises:
        AccountingError: a unit would add to it in several windows, or more than is known of.
    """
    query = plan.query
    choices = query.asked
    renews = query.once or query.contribution_period is ContributionPeriod.WINDOW
    if not query.privacy_unit or not renews or plan.windows_per_record > 1:
        raise AccountingError("figures of what is left out are for a unit that is in one window")
    keys = _groups(plan)
    rows = min(
        choices.max_rows_contributed, choices.max_groups_contributed * choices.max_rows_per_group
    )
    # Whether it counts, whether it is over; what counts of it; what does not, up to twice as many
    bounds = {"units": 1.0, "units_over": 1.0, "pairs": keys, "pairs_left_out": 2 * keys}
    bounds |= {"rows": rows, "rows_left_out": 2 * rows}
    # Records whose value is moved to a bound, and groups whose sum is cut
    bounded = [aggregate for aggregate in query.aggregates if aggregate.bounds]
    of_groups = [isinstance(aggregate, PerGroup) for aggregate in bounded]
    if of_groups:
        clamped_rows = 0.0 if all(of_groups) else rows
        bounds["values_clamped"] = clamped_rows + keys * any(of_groups)
    return bounds.get(figure.name, math.inf) / figure.sigma


def _left_over_ratio(p: PerturbationPlan, plan: PrivacyPlan) -> float:
    """Return what a unit's weights leave of a count in all its groups, over sigma; the noisy sum of weights itself is paid for as key selection.

    Raises:
        AccountingError: weights count something else than the column: then their sum is no part of it.
    """
    choices = plan.query.asked
    selection = plan.selection
    of_people = p.rule == "users"
    if (
        selection is None
        or p.rule not in ("users", "rows")
        or (of_people and _periods_meet(plan))
        or selection.carried is not None
        or choices.release is ReleaseRule.RESELECT
        or p.counter is not selection.counter
    ):
        raise AccountingError(
            f"number {p.noise_stream} is planned on the sum that chooses keys, which does not count the same"
        )
    if selection.weights[0] != 2**20 or len(selection.weights) != _groups(plan):
        raise AccountingError(
            "where the sum that chooses keys is published, a unit's first key must count 1, and each of its groups once"
        )
    per_group = 1 if of_people else choices.max_rows_per_group
    rests = per_group - np.array(selection.weights) / 2.0**20
    # No entry of what is left is negative: a unit has n - w in a group of its n rows, from its first one there on
    squares = float(rests @ rests)
    if not of_people:
        rows = plan.windows_per_record * min(
            choices.max_rows_contributed, choices.max_groups_contributed * per_group
        )
        full_groups = math.ceil(rows / per_group)
        rest_of_rows = rows - float(np.sum(per_group - rests[:full_groups]))
        squares = min(squares, float(rests[-1]) * rest_of_rows)
    if squares <= 0:
        return 0.0
    if not p.sigma:
        return math.inf
    return math.sqrt(squares) * factorisation(p.counter, plan.horizon)[0] / p.sigma


def _per_group(
    p: PerturbationPlan, largest: float, c: float, copies: float, groups: int, horizon: int
) -> float:
    """Return what is above zero and what is below shift their group's path by vectors without a negative inner product, if C has no negative entry."""
    if (
        p.lower < 0
        and p.counter is not CounterName.HONAKER
        and float(np.min(response_and_column(p.counter, horizon)[1])) < 0
    ):
        raise AccountingError(
            "the counter has a negative entry: bounds per group of both signs would cost more than accounted for"
        )
    sides = [min(c * largest, side * p.grid) for side in (p.upper, -p.lower)]
    # At most that in every group; or, as all copies add up to copies * largest, in as many as that fills.
    return min(groups * math.fsum(side**2 for side in sides), copies * largest * max(sides))


def _selection_ratio(selection: SelectionPlan, plan: PrivacyPlan, times: int) -> float:
    if len(selection.weights) != times:
        raise AccountingError(
            f"{len(selection.weights)} selection weights for a unit that counts {times} times"
        )
    if (
        any(b > a for a, b in zip(selection.weights, selection.weights[1:], strict=False))
        or min(selection.weights) < 0
    ):
        raise AccountingError("selection weights must not increase and not be negative")
    weights = np.array(selection.weights) / 2.0**20
    norm_of_weights = math.sqrt(float(weights @ weights))
    return norm_of_weights * factorisation(selection.counter, plan.horizon)[0] / selection.sigma


def _threshold_failures(selection: SelectionPlan, plan: PrivacyPlan, weights: int) -> list[float]:
    """Return per trigger the probability that a group with so many times the largest weight reaches
    tau."""
    sd = selection.sigma * np.array(factorisation(selection.counter, plan.horizon)[1])
    margin = np.array(selection.thresholds) / 2.0**20 - weights * selection.weights[0] / 2.0**20
    from scipy.special import ndtr  # slow to import

    return [float(v) for v in ndtr(-margin / sd)]


def _check_carried(plan: PrivacyPlan) -> None:
    """Check what theorem 29 is about: windows that do not overlap, keys that stay known, and
    counters whose noise adds up with no negative factor."""
    carried_plan = plan.selection.carried if plan.selection else None
    if (plan.query.asked.carry_windows if plan.selection else 1) != (
        carried_plan.windows if carried_plan else 1
    ):
        raise AccountingError(
            "the plan carries evidence over another number of windows than the query asks for"
        )
    if carried_plan is None or plan.selection is None:
        return
    if plan.windows_per_record > 1 or plan.query.asked.release is ReleaseRule.RESELECT:
        raise AccountingError(
            "evidence is carried over windows that overlap, or in rounds: no theorem says what that costs"
        )
    if (
        tuple(map(len, carried_plan.thresholds)) != carried_plan.lengths
        or max(carried_plan.lengths) > carried_plan.windows
    ):
        raise AccountingError(
            "the plan does not have a threshold for each number of windows that a test can read"
        )
    name = plan.selection.counter
    # The tree's estimates are means, so their factors are positive by their form.
    if (
        name is not CounterName.HONAKER
        and float(np.min(impulse_response(counter(name, plan.horizon)))) < 0
    ):
        raise AccountingError(
            f"the noise of counter {name} has a negative factor: a failed test could make a later one likelier to pass"
        )


def _carried_failures(
    carried_plan: CarriedPlan, selection: SelectionPlan, plan: PrivacyPlan, min_periods: int
) -> list[float]:
    """Return, per length d, the probability of a failure: d ranges hold one group of a unit, each
    with at most `min_periods` units in each of its 1 to d windows."""
    sd = selection.sigma * factorisation(selection.counter, plan.horizon)[1][-1]
    from scipy.special import ndtr  # slow to import

    failures = []
    for d, taus in zip(carried_plan.lengths, carried_plan.thresholds, strict=True):
        k = np.arange(1, d + 1)
        margin = (np.array(taus) - k * min_periods * selection.weights[0]) / 2.0**20
        failures.append(d * float(np.max(ndtr(-margin / (np.sqrt(k) * sd)))))
    return failures
