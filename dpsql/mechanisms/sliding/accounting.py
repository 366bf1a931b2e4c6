"""What a finished plan of sliding windows costs, from definitions: from its noise tables and coefficients, not from how they were chosen."""

from __future__ import annotations

import math
from fractions import Fraction

from dpsql.errors import AccountingError
from dpsql.mechanisms.sliding.asked import Bounds, PaneGrouping, SlidingCounter
from dpsql.mechanisms.sliding.plan import MeasurementPlan, SlidingPlan
from dpsql.parsed_query import ContributionPeriod
from dpsql.privacy.cost import Cost, Overlap, PrivacyLevel, gaussian_delta
from dpsql.privacy.table_proof import prove

TOLERANCE = 1e-9
"""Relative slack for rounding in float64; far below anything that matters."""


def account(plan: SlidingPlan) -> Cost:
    """The cost of one protected unit: of one event, or of a unit in one contribution period (docs/privacy/sliding.md).

    Raises:
        AccountingError: the plan costs more than it promises, or is none that this module knows.
    """
    asked = plan.asked
    if (asked.level is PrivacyLevel.EVENT) != (asked.bounds is None):
        raise AccountingError("one event has no bounds, and a unit needs them")
    if [m.mechanism for m in plan.measurements] != list(range(1, len(plan.measurements) + 1)):
        raise AccountingError("measurements must be mechanisms 1, 2, ...: equal numbers share their noise")
    if asked.counter is SlidingCounter.WINDOW_SQRT:
        return _gaussian(plan)
    return _pure(plan)


def _pure(plan: SlidingPlan) -> Cost:
    """The theorem's condition (b): over all questions that hold a bin's pane, the shift over the scale, added up exactly."""
    asked = plan.asked
    loss = sum((_loss(m, asked.grouping) * _shift(m, asked.bounds) for m in plan.measurements), Fraction(0))
    epsilon = float(loss) * (1 + TOLERANCE / 2)
    if asked.bounds is not None:
        # A unit's id is also another's with probability p; then the two change what each other may do, for twice the loss.
        epsilon += math.log1p(asked.bounds.max_users / 2.0**64 * math.expm1(epsilon))
    if not epsilon <= asked.epsilon * (1 + TOLERANCE):
        raise AccountingError(f"the plan's epsilon is {epsilon:.12g}, more than the {asked.epsilon:.12g} it promises")
    return _cost(plan, 0.0, min(epsilon, asked.epsilon), 0.0, 1.0)


def _loss(m: MeasurementPlan, grouping: PaneGrouping) -> Fraction:
    """Loss per step of a pane's sum, of the dearest way in which the pane may be measured; every table is proven."""
    for table in (m.fine, m.monitor, m.together):
        if table is not None:
            prove(table)
    fine, monitor, together = (None if table is None else Fraction(table.epsilon) for table in (m.fine, m.monitor, m.together))
    match grouping:
        case PaneGrouping.NONE if fine is not None and monitor is None and together is None:
            return fine
        case PaneGrouping.RETROACTIVE if fine is None and monitor is not None and together is not None:
            return monitor + together
        case PaneGrouping.PLANNED if fine is not None and monitor is not None and together is not None:
            return max(fine, monitor + together)
    raise AccountingError(f"a measurement has other noise than grouping {grouping} asks for")


def _shift(m: MeasurementPlan, bounds: Bounds | None) -> int:
    """By how many steps one protected unit moves all of a measurement's pane sums together (L1)."""
    rows = 1 if bounds is None else min(bounds.max_rows, bounds.max_keys * bounds.max_rows_per_key)
    return _largest(m) * rows


def _largest(m: MeasurementPlan) -> int:
    """By how many steps one row moves a pane's sum."""
    if m.rule in ("rows", "valid"):
        return 1
    if m.rule == "sum":
        return max(abs(m.lower), abs(m.upper))
    raise AccountingError(f"rule {m.rule} is unknown to the accountant")


def _gaussian(plan: SlidingPlan) -> Cost:
    """Joint Gaussian cost: every row moves C x by the norm of C's column, which is the same for all columns, for ever."""
    asked, bounds = plan.asked, plan.asked.bounds
    if asked.grouping is not PaneGrouping.NONE or len(plan.coefficients) < asked.panes or plan.coefficients[0] != 1.0:
        raise AccountingError("WINDOW_SQRT measures no groups, and its matrix begins with 1")
    squared = sum((Fraction(c) ** 2 for c in plan.coefficients), Fraction(0))
    # One unit's rows in a bin move its path by n_g |C| at most, and sum n_g^2 <= c sum n_g <= c min(C, G c).
    times = 1 if bounds is None else bounds.max_rows_per_key * min(bounds.max_rows, bounds.max_keys * bounds.max_rows_per_key)
    mu2 = float(sum((squared * times * _largest(m) ** 2 / Fraction(m.sigma) ** 2 for m in plan.measurements), Fraction(0)))
    failure = 0.0 if bounds is None else bounds.max_users / 2.0**64
    delta = gaussian_delta(math.sqrt(mu2), asked.epsilon) + failure
    for name, found, promised in (("mu", math.sqrt(mu2), plan.mu), ("failure", failure, plan.failure), ("delta", delta, asked.delta)):
        if not found <= promised * (1 + TOLERANCE):
            raise AccountingError(f"the plan's {name} is {found:.12g}, more than the {promised:.12g} it promises")
    return _cost(plan, mu2, 0.0, failure, gamma(plan.coefficients, asked.panes))


def _cost(plan: SlidingPlan, mu2: float, epsilon: float, failure: float, meeting: float) -> Cost:
    bounds = plan.asked.bounds
    if bounds is None:
        return Cost(PrivacyLevel.EVENT, mu2, epsilon, failure, Overlap.EVENTS, mu2, failure)
    if bounds.period is ContributionPeriod.STREAM:
        return Cost(PrivacyLevel.USER, mu2, epsilon, failure, Overlap.STREAM, mu2, failure)
    if not mu2:
        return Cost(PrivacyLevel.USER, mu2, epsilon, failure, Overlap.NONE, mu2, failure)
    return Cost(PrivacyLevel.USER, mu2, epsilon, failure, Overlap.WINDOWS, mu2 * meeting, failure)


def gamma(coefficients: tuple[float, ...], panes: int) -> float:
    """How much more n periods of one unit cost together than n times one, as periods that follow each other meet in a bin's path.

    With g(k) the inner product of C's columns k panes apart: 1 + max (|g(a)| + |g(b)|) / g(0) over a, b >= 1 with a + b >= w + 1, plus
    2 max |g(k)| / g(0) over k > w. Rows of three consecutive periods lie so; those of periods further apart do not meet.
    """
    size = len(coefficients)
    products = [abs(math.fsum(coefficients[m] * coefficients[m + k] for m in range(size - k))) for k in range(size)]
    largest = [each / products[0] for each in products] + [0.0] * (panes + 2)
    beyond = largest[:]
    for k in reversed(range(len(beyond) - 1)):
        beyond[k] = max(beyond[k], beyond[k + 1])
    together = max(largest[a] + beyond[max(1, panes + 1 - a)] for a in range(1, len(largest)))
    return (1 + together + 2 * beyond[panes + 1]) * (1 + TOLERANCE)
