"""The accountant of tables without windows: what their numbers really cost, from the counter's recurrence and the definitions.

It shares no formula with calibration and planner. The counter's response is measured, C is found from it by long division, path variances
come from the recurrence's covariance by doubling (not from its poles), and thresholds are taken as they stand. What the proofs ask of a
counter (docs/privacy/dynamic.md) is checked, not believed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from dpsql.config import Source
from dpsql.errors import AccountingError
from dpsql.mechanisms.dynamic.plan import NoisySum, TablePlan
from dpsql.parsed_query import AggregateFunction, ContributionPeriod, CounterName, GroupSelection
from dpsql.privacy.cost import Cost, Overlap, PrivacyLevel, gaussian_delta
from dpsql.privacy.factorisation import factorisation
from udfs.dynamic.grid import LAST_STEP
from udfs.noise.blt_inf import BltInf
from udfs.noise.counters import counter, impulse_response

TOLERANCE = 1e-9
"""Relative slack for rounding in float64."""
LAGS = 1 << 10
"""Of C and B, found by measuring; the rest of C is a sum of powers, closed."""
PLACES = 192
"""Binary places of covariances."""

Matrix = list[list[int]]


def account(plan: TablePlan, source: Source) -> Cost:
    """What a plan costs one privacy unit, for ever: there is one contribution period.

    Raises:
        AccountingError: the recomputed mu or delta is larger than what the plan or the query says.
    """
    query, asked = plan.query, plan.query.asked
    if query.contribution_period is not ContributionPeriod.STREAM:
        raise AccountingError("a table without windows has one contribution period, STREAM")
    if [p.mechanism for p in plan.perturbations] != list(range(1, len(plan.perturbations) + 1)):
        raise AccountingError("perturbations must be mechanisms 1, 2, ...: equal numbers share their noise, and 0 is key selection")
    if plan.selection is None and query.keys and asked.group_selection_strategy is not GroupSelection.PUBLIC_GROUPS:
        raise AccountingError("the plan releases unknown keys without selecting them")
    if plan.epsilon > query.epsilon or plan.delta > query.delta:
        raise AccountingError(f"the plan promises ({plan.epsilon}, {plan.delta}), the query ({query.epsilon}, {query.delta})")
    finite = None if asked.max_triggers is None else factorisation(asked.counter, asked.max_triggers)
    norm = column_norm(BltInf()) if finite is None else finite[0]
    if plan.changes and finite is not None:
        _check_that_rows_may_end(asked.counter, asked.max_triggers or 0)
    groups = min(asked.max_rows_contributed, asked.max_groups_contributed)
    ends, counts = plan.changes is not None, plan.changes.max_spells_contributed if plan.changes else groups
    ratios = [_ratio(p, plan, norm, counts) for p in plan.perturbations]
    threshold = 0.0
    if (chosen := plan.selection) is not None:
        if len(chosen.weights) != counts:
            raise AccountingError(f"{len(chosen.weights)} selection weights for a unit that can begin to count {counts} times")
        ratios.append(presence_ratio([w / 2.0**20 for w in chosen.weights], ends, norm, chosen.sigma))
        least, last = asked.min_privacy_units_per_group * chosen.weights[0], asked.max_triggers or LAST_STEP
        end = _ends(chosen.first, chosen.thresholds, last)
        deviations = path_deviations(BltInf(), end) if finite is None else [finite[1][trigger - 1] for trigger in end]
        threshold = groups * _failures(chosen.sigma, chosen.first, end, deviations, chosen.thresholds, least)
    mu = math.sqrt(math.fsum(ratio**2 for ratio in ratios))
    noise = gaussian_delta(mu, plan.epsilon)
    ids = (source.max_users + (groups + groups * source.max_keys / 2.0**32) * source.max_keys) / 2.0**64
    for name, found, promised in (
        ("mu", mu, plan.mu),
        ("delta_noise", noise, plan.delta_noise),
        ("delta_threshold", threshold, plan.delta_threshold),
        ("delta_hash", ids, plan.delta_hash),
        ("delta", noise + threshold + ids, plan.delta),
    ):
        if not found <= promised * (1 + TOLERANCE):
            raise AccountingError(f"the plan's {name} is {found:.12g}, more than the {promised:.12g} it promises")
    return Cost(PrivacyLevel.USER, mu**2, 0.0, threshold + ids, Overlap.STREAM, mu**2, threshold + ids)


def _ratio(p: NoisySum, plan: TablePlan, norm: float, counts: int) -> float:
    """Sensitivity over sigma of one perturbation, from the query's bounds; a unit can begin to count so many times."""
    asked, ends = plan.query.asked, plan.changes is not None
    if p.rule not in ("rows", "valid", "users", "sum"):
        raise AccountingError(f"rule {p.rule} is unknown to the accountant")
    if (
        p.rule == "users"
        and next(c for c in plan.columns if p in c.perturbations).aggregate.function is AggregateFunction.COUNT_DISTINCT_UNIT
    ):
        return presence_ratio((1.0,) * counts, ends, norm, p.sigma)
    values = (p.lower * p.grid, p.upper * p.grid) if p.rule == "sum" else (0.0, 1.0)  # other rules add 0 or 1 whatever the clamp
    bounds = asked.max_rows_contributed, asked.max_rows_per_group, asked.max_groups_contributed
    return row_ratio(*bounds, ends, values, norm, p.sigma)


def _check_that_rows_may_end(name: CounterName, horizon: int) -> None:
    """With a last trigger; for a tree it holds by its nodes: of rows that follow each other one begins in a node in which the other ends.

    Raises:
        AccountingError: C is not convex and falling, or B negative.
    """
    if name is CounterName.HONAKER:
        return
    b = impulse_response(counter(name, max(horizon, 3)))
    reciprocal = np.diff(np.concatenate([[0.0], b]))
    from scipy.signal import lfilter  # slow to import

    column = lfilter([1.0], reciprocal, np.eye(1, len(b))[0])
    if np.any(b < 0) or np.any(column < -1e-12) or np.any(np.diff(column) > 1e-12) or np.any(np.diff(column, 2) < -1e-12):
        raise AccountingError(f"{name} is not convex and falling: rows that end would cost more than accounted for")


@lru_cache(maxsize=4)
def column_norm(chosen: BltInf) -> float:
    """f: norm of a column of C over infinite time.

    Raises:
        AccountingError: the counter is not what the theorems ask for: C convex and falling from its first entry on, B falling and not negative.
    """
    theta, omega = np.array(chosen.theta), np.array(chosen.omega)
    if not (np.all(omega > 0) and np.all(theta > 0) and np.all(theta < 1) and len(set(chosen.theta)) == len(theta)):
        # Then C's entries from the second on are moments of a positive measure, and B's too (its poles and C's interlace).
        raise AccountingError("a counter for ever needs positive omega, and theta between 0 and 1, all different")
    b = _measured(chosen)
    if np.any(b < 0) or np.any(np.diff(b) > 1e-15):
        raise AccountingError("the counter's response rises, or is negative")
    from scipy.signal import lfilter  # slow to import

    one = np.zeros(LAGS)
    one[0] = 1.0
    column = lfilter([1.0], np.diff(np.concatenate([[0.0], b])), one)
    powers = theta[None, :] ** np.arange(LAGS - 1)[:, None]
    if np.max(np.abs(column[1:] - powers @ omega)) > 1e-9:
        raise AccountingError("the counter's response is not that of its constants")
    if column[0] - 2 * column[1] + column[2] < 0 or np.any(np.diff(column) > 1e-12):
        raise AccountingError("C is not convex: rows that end would cost more than accounted for")
    pairs = theta[:, None] * theta[None, :]
    tail = float(np.sum(omega[:, None] * omega[None, :] * pairs ** (LAGS - 1) / (1 - pairs)))
    return math.sqrt(float(np.sum(column**2)) + tail)


@lru_cache(maxsize=4)
def path_deviations(chosen: BltInf, triggers: tuple[int, ...]) -> tuple[float, ...]:
    """Standard deviation of the path at each of the triggers (ascending), for unit noise."""
    size = 1 + len(chosen.theta)
    # The covariance of n steps' draws is P_n = sum of v_k v_k^T over k < n, v_k = M^k v_0, and P_(a + b) = P_a + M^a P_b M^aT.
    one = 1 << PLACES
    move = [_recurrence(chosen)]
    spread = [[[one] * size for _ in range(size)]]
    for _ in range(triggers[-1].bit_length()):
        m, p = move[-1], spread[-1]
        spread.append(_sum(p, _times(_times(m, p), _transposed(m))))
        move.append(_times(m, m))
    row = [one] + [0] * (size - 1)  # the path's row of M^n
    done, variance, out = 0, 0, []
    for trigger in triggers:
        for power in reversed(range((trigger - done).bit_length())):
            if (trigger - done) >> power & 1:
                variance += _inner(_across(row, spread[power]), row)
                row = _across(row, move[power])
                done += 1 << power
        out.append(math.sqrt(variance / one))
    return tuple(out)


def row_ratio(max_rows: int, per_group: int, max_groups: int, ends: bool, values: tuple[float, float], norm: float, sigma: float) -> float:
    """Sensitivity over sigma of a sum of rows' values, for all that one unit ever begins.

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
        return norm * max(-lower, upper, 0.0) * math.sqrt(per_group * min(max_rows, max_groups * per_group)) / sigma
    # A version is at most |C e_s - C e_t| = sqrt(2) f high, those of a slot add up in squares, slots by Cauchy; signs apart, then by Cauchy again.
    one_sign = [abs(v) for v in values if v] or [0.0]
    height2 = sum(v * v for v in one_sign) if lower < 0 < upper else max(one_sign) ** 2
    return math.sqrt(per_group * max_rows * 2 * norm**2 * height2) / sigma


def presence_ratio(weights: Sequence[float], ends: bool, norm: float, sigma: float) -> float:
    """Sensitivity over sigma of a sum to which a unit adds weights[i] from the time on that it counts for the i-th time; with ends: until it ends.

    Raises:
        AccountingError: weights grow or are negative.
    """
    if any(w < 0 for w in weights) or any(b > a for a, b in pairwise(weights)):
        raise AccountingError("selection weights must not increase and not be negative")
    return norm * math.hypot(*weights) * (math.sqrt(2) if ends else 1.0) / sigma


def threshold_failure(
    chosen: BltInf, sigma: float, first: tuple[int, ...], thresholds: Sequence[int], largest_weight: int, min_units: int
) -> float:
    """The probability that a group with one unit too few ever crosses, at most: summed over every trigger that there can be.

    Args:
        first: first trigger of every block; thresholds: its tau. Weights and thresholds are in units of 2^-20.
    """
    end = _ends(first, thresholds, LAST_STEP)
    return _failures(sigma, first, end, path_deviations(chosen, end), thresholds, min_units * largest_weight)


def _ends(first: tuple[int, ...], thresholds: Sequence[int], last: int) -> tuple[int, ...]:
    """The last trigger of every block."""
    if first[0] != 1 or any(b <= a for a, b in pairwise(first)) or len(first) != len(thresholds) or first[-1] > last:
        raise AccountingError("blocks of thresholds do not cover every trigger")
    return (*(begin - 1 for begin in first[1:]), last)


def _failures(
    sigma: float, first: tuple[int, ...], end: tuple[int, ...], deviations: Sequence[float], thresholds: Sequence[int], others: int
) -> float:
    """Summed over triggers. Within a block tau is one number and the deviation grows: the last trigger, whose `deviations` are, is the worst."""
    from scipy.stats import norm  # slow to import

    margin = (np.array(thresholds, dtype=np.float64) - others) / 2.0**20
    failures = norm.sf(margin / (sigma * np.array(deviations)))
    return math.fsum((last - begin + 1) * float(q) for begin, last, q in zip(first, end, failures, strict=True))


def _measured(chosen: BltInf) -> np.ndarray:
    """The path after a single draw of 1 at step 1."""
    state, out = np.zeros((1, chosen.width)), []
    for step in range(1, LAGS + 1):
        state = chosen.advance(state, lambda _, step=step: np.array([float(step == 1)]), step)  # type: ignore[misc]
        out.append(state[0, 0])
    return np.array(out)


def _recurrence(chosen: BltInf) -> Matrix:
    """M: what a step without a draw makes of (path, buffers); x = -omega . s is added to the path and to every buffer."""
    fed = [0, *(-_integer(v) for v in chosen.omega)]
    kept = [1 << PLACES, *(_integer(v) for v in chosen.theta)]
    return [[value + (kept[i] if i == j else 0) for j, value in enumerate(fed)] for i in range(len(kept))]


def _integer(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return (numerator << PLACES) // denominator


def _transposed(a: Matrix) -> Matrix:
    return [list(column) for column in zip(*a, strict=True)]


def _inner(a: list[int], b: list[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True)) >> PLACES


def _across(row: list[int], a: Matrix) -> list[int]:
    return [_inner(row, column) for column in _transposed(a)]


def _times(a: Matrix, b: Matrix) -> Matrix:
    return [_across(row, b) for row in a]


def _sum(a: Matrix, b: Matrix) -> Matrix:
    return [[x + y for x, y in zip(left, right, strict=True)] for left, right in zip(a, b, strict=True)]
