"""The accountant: recomputes (epsilon, delta) from a finished plan and refuses one that does not keep its promise.

It shares no formula with the planner: sensitivities come from the bounds and from the counter's measured response, path
deviations from the counter's measured response, threshold failures from the thresholds themselves, and the Gaussian curve is written
out here (the planner's calibration asks dp-accounting).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.signal import lfilter
from scipy.special import log_ndtr
from scipy.stats import norm

from dpsql.config import Source
from dpsql.errors import AccountingError
from dpsql.privacy_plan import PerturbationPlan, PrivacyPlan, SelectionPlan
from dpsql.query import AggregateFunction, CounterName, GroupSelection, ReleaseRule
from udfs.counters import counter, impulse_response

TOLERANCE = 1e-9
"""Relative slack for rounding in float64; far below anything that matters."""


@dataclass(frozen=True)
class Spent:
    """What a finished plan really costs one privacy unit: the total Gaussian-DP mu, and delta at the plan's epsilon, by part."""

    mu: float
    delta_noise: float
    delta_threshold: float
    delta_hash: float

    @property
    def delta(self) -> float:
        """All parts together."""
        return self.delta_noise + self.delta_threshold + self.delta_hash


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of a mu-Gaussian-DP mechanism: Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

    Source: Balle and Wang 2018 (arXiv 1805.06530), theorem 8; Dong, Roth and Su 2019 (arXiv 1905.02383), corollary 1.
    Edge cases: mu = 0 gives 0. Computed through logarithms, so tiny deltas keep their digits.
    """
    if mu <= 0:
        return 0.0
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(math.exp(first) * -math.expm1(min(0.0, second - first)))


@lru_cache(maxsize=64)
def factorisation(name: CounterName, horizon: int) -> tuple[float, tuple[float, ...]]:
    """(largest column norm of C, standard deviation of the path at triggers 1..horizon for unit noise), recomputed.

    A Toeplitz counter is measured: b is its response to one draw, C's first column is the power series 1 / ((1 - x) b(x)),
    found by long division, so that B C = A holds by construction. For the tree both are counted node by node.
    """
    if name is CounterName.HONAKER:
        return _tree(horizon)
    b = impulse_response(counter(name, horizon))
    reciprocal = np.diff(np.concatenate([[0.0], b]))
    one = np.zeros(horizon)
    one[0] = 1.0
    column = lfilter([1.0], reciprocal, one)
    return float(np.linalg.norm(column)), tuple(float(v) for v in np.sqrt(np.cumsum(b**2)))


def _tree(horizon: int) -> tuple[float, tuple[float, ...]]:
    """Nodes over one leaf that some prefix up to the horizon uses, and v = 1 / (2 (1 - 2^-levels)) per node of the decomposition."""
    nodes = sum(1 for k in range(64) if 1 << k <= horizon)  # the first leaf has the most: one complete node per level
    sd = []
    for step in range(1, horizon + 1):
        sd.append(math.sqrt(math.fsum(1 / (2 * (1 - 2.0 ** -(k + 1))) for k in range(64) if step >> k & 1)))
    return math.sqrt(nodes), tuple(sd)


def spent(plan: PrivacyPlan, source: Source) -> Spent:
    """Recompute the cost of a plan.

    Args:
        plan: a finished plan.
        source: the stream's declaration (max_users, max_keys).

    Returns:
        The cost at plan.epsilon.
    """
    query = plan.query
    squared = [_ratio(p, plan) ** 2 for p in plan.perturbations]
    delta_threshold = 0.0
    groups = _groups(plan)
    if plan.selection is not None:
        times = _times_counted(plan)
        squared.append(_selection_ratio(plan.selection, plan, times) ** 2)
        delta_threshold = times * sum(_threshold_failures(plan.selection, plan, query.min_privacy_units_per_group))
    mu = math.sqrt(math.fsum(squared))
    delta_hash = (source.max_users + (groups + groups * source.max_keys / 2.0**32) * source.max_keys) / 2.0**64
    return Spent(mu, gaussian_delta(mu, plan.epsilon), delta_threshold, delta_hash)


def check(plan: PrivacyPlan, source: Source) -> Spent:
    """Refuse a plan that exceeds its query's promise.

    Raises:
        AccountingError: the recomputed mu or delta is larger than what the plan or the query says.
    """
    cost = spent(plan, source)
    mechanisms = [p.mechanism for p in plan.perturbations]
    if mechanisms != list(range(1, len(mechanisms) + 1)):
        raise AccountingError("perturbations must be mechanisms 1, 2, ...: equal numbers share their noise, and 0 is key selection")
    if plan.windows_per_record != -(-plan.query.window.size_us // plan.query.window.slide_us):
        raise AccountingError(f"the plan copies a record into {plan.windows_per_record} windows, the query into another number")
    if plan.selection is None and plan.query.keys and plan.query.group_selection_strategy is not GroupSelection.PUBLIC_GROUPS:
        raise AccountingError("the plan releases unknown keys without selecting them")
    if plan.epsilon > plan.query.epsilon or plan.delta > plan.query.delta:
        raise AccountingError(f"the plan promises ({plan.epsilon}, {plan.delta}), the query ({plan.query.epsilon}, {plan.query.delta})")
    for name, found, promised in (
        ("mu", cost.mu, plan.mu),
        ("delta_noise", cost.delta_noise, plan.delta_noise),
        ("delta_threshold", cost.delta_threshold, plan.delta_threshold),
        ("delta_hash", cost.delta_hash, plan.delta_hash),
        ("delta", cost.delta, plan.delta),
    ):
        if not found <= promised * (1 + TOLERANCE):
            raise AccountingError(f"the plan's {name} is {found:.12g}, more than the {promised:.12g} it promises")
    return cost


def _groups(plan: PrivacyPlan) -> int:
    """K: groups one privacy unit can be in, from the bounds."""
    query = plan.query
    return plan.windows_per_record * min(query.max_rows_contributed, query.max_groups_contributed)


def _times_counted(plan: PrivacyPlan) -> int:
    """How often one unit counts in key selection: per group, or in rounds per copy of an admitted record."""
    query = plan.query
    if query.release is ReleaseRule.RESELECT:
        return plan.windows_per_record * min(query.max_rows_contributed, query.max_groups_contributed * query.max_rows_per_group)
    return _groups(plan)


def _ratio(p: PerturbationPlan, plan: PrivacyPlan) -> float:
    """Sensitivity over sigma of one perturbation, from the query's bounds."""
    query = plan.query
    c, rows = query.max_rows_per_group, min(query.max_rows_contributed, query.max_groups_contributed * query.max_rows_per_group)
    column = next(column for column in plan.columns if p in column.perturbations)
    if p.rule not in ("rows", "valid", "users", "sum"):
        raise AccountingError(f"rule {p.rule} is unknown to the accountant")
    largest = max(abs(p.lower), abs(p.upper)) * p.grid if p.rule == "sum" else 1.0  # other rules add 0 or 1 whatever the clamp
    if p.rule == "users" and column.aggregate.function is AggregateFunction.COUNT_DISTINCT_UNIT:
        per_user = math.sqrt(_groups(plan))
    else:
        # c records of every group, in as many groups as the rows allow: sum of n_g^2 <= c * sum of n_g.
        per_user = math.sqrt(plan.windows_per_record * c * rows) * largest
    return per_user * factorisation(p.counter, plan.horizon)[0] / p.sigma


def _selection_ratio(selection: SelectionPlan, plan: PrivacyPlan, times: int) -> float:
    if len(selection.weights) != times:
        raise AccountingError(f"{len(selection.weights)} selection weights for a unit that counts {times} times")
    if any(b > a for a, b in zip(selection.weights, selection.weights[1:], strict=False)) or min(selection.weights) < 0:
        raise AccountingError("selection weights must not increase and not be negative")
    norm_of_weights = math.sqrt(sum(w * w for w in selection.weights)) / 2.0**20
    return norm_of_weights * factorisation(selection.counter, plan.horizon)[0] / selection.sigma


def _threshold_failures(selection: SelectionPlan, plan: PrivacyPlan, min_users: int) -> list[float]:
    """Per trigger: probability that a group of `min_users` users of the largest weight reaches tau."""
    sd = selection.sigma * np.array(factorisation(selection.counter, plan.horizon)[1])
    margin = np.array(selection.thresholds) / 2.0**20 - min_users * selection.weights[0] / 2.0**20
    return [float(v) for v in norm.sf(margin / sd)]
