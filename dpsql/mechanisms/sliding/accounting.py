"""What a finished plan of sliding windows costs, from definitions: from its noise tables and coefficients, not from how they were chosen."""

from __future__ import annotations

import math
from fractions import Fraction

from dpsql.errors import AccountingError
from dpsql.mechanisms.sliding.plan import MeasurementPlan, PaneChoices, PaneGrouping, SlidingPlan
from dpsql.parsed_query import ContributionPeriod
from dpsql.privacy.cost import (
    TOLERANCE,
    Cost,
    Overlap,
    PrivacyLevel,
    check_promise,
    gamma,
    gaussian_delta,
)
from dpsql.privacy.noise_costs import prove
from dpsql.sources.config import Source


def account(plan: SlidingPlan, source: Source) -> Cost:
    """Return the cost of one protected unit: of one event, or of a unit in one contribution period (docs/privacy/sliding.md).

    Raises:
        AccountingError: the plan costs more than it promises, or is none that this module knows.
    """
    choices = plan.query.asked
    bounds = (
        choices.max_rows_contributed,
        choices.max_rows_per_group,
        choices.max_groups_contributed,
    )
    has_unit = bool(plan.query.privacy_unit)
    if choices.privacy_level is PrivacyLevel.EVENT and (
        has_unit or any(bound is not None for bound in bounds)
    ):
        raise AccountingError("one event has no unit and no bounds")
    if choices.privacy_level is PrivacyLevel.USER and not (
        has_unit and all(bound is not None and bound >= 1 for bound in bounds)
    ):
        raise AccountingError("a unit needs bounds")
    if [m.noise_stream for m in plan.measurements] != list(range(1, len(plan.measurements) + 1)):
        raise AccountingError(
            "measurements must be mechanisms 1, 2, ...: equal numbers share their noise"
        )
    if plan.query.delta > 0:
        return _gaussian(plan, source)
    return _pure(plan, source)


def _pure(plan: SlidingPlan, source: Source) -> Cost:
    """Return the theorem's condition (b): over all questions that hold a bin's pane, the shift over the scale, added up exactly."""
    choices = plan.query.asked
    promised = plan.query.epsilon
    loss = sum(
        (_loss(m, choices.grouping) * _largest(m) * _rows(choices) for m in plan.measurements),
        Fraction(0),
    )
    epsilon = float(loss) * (1 + TOLERANCE / 2)
    if choices.privacy_level is PrivacyLevel.USER:
        # A unit's id is also another's with probability p; then the two change what each other may do, for twice the loss.
        epsilon += math.log1p(source.max_users / 2.0**64 * math.expm1(epsilon))
    check_promise(plan, {"epsilon": epsilon})
    return _cost(plan, 0.0, min(epsilon, promised), 0.0, 1.0)


def _loss(m: MeasurementPlan, grouping: PaneGrouping) -> Fraction:
    """Return the loss per step of a pane's sum, of the dearest way in which the pane may be
    measured; every table is proven."""
    for table in (m.fine, m.monitor, m.together):
        if table is not None:
            prove(table)
    fine, monitor, joint = (
        None if table is None else Fraction(table.epsilon)
        for table in (m.fine, m.monitor, m.together)
    )
    match grouping:
        case PaneGrouping.NONE if fine is not None and monitor is None and joint is None:
            return fine
        case PaneGrouping.RETROACTIVE if fine is None and monitor is not None and joint is not None:
            return monitor + joint
    raise AccountingError(f"a measurement has other noise than grouping {grouping} asks for")


def _rows(choices: PaneChoices) -> int:
    """Return how many rows of one protected unit can be in all panes together."""
    if choices.max_rows_contributed is None:
        return 1
    return min(
        choices.max_rows_contributed,
        (choices.max_groups_contributed or 0) * (choices.max_rows_per_group or 0),
    )


def _largest(m: MeasurementPlan) -> int:
    """Return by how many steps one row moves a pane's sum: |round(a) - round(b)| <= ceil(|a - b|),
    and n rows move all panes by at most n times that."""
    if m.rule in ("rows", "valid"):
        return 1
    if m.rule in ("sum", "squares"):
        return -(-max(abs(m.lower), abs(m.upper)) >> m.bits)
    raise AccountingError(f"rule {m.rule} is unknown to the accountant")


def _gaussian(plan: SlidingPlan, source: Source) -> Cost:
    """Return the joint Gaussian cost: every row moves C x by the norm of C's column, which is the
    same for all columns, for ever."""
    choices = plan.query.asked
    query = plan.query
    if (
        choices.grouping is not PaneGrouping.NONE
        or len(plan.coefficients) < plan.panes
        or plan.coefficients[0] != 1.0
    ):
        raise AccountingError("WINDOW_SQRT measures no groups, and its matrix begins with 1")
    if not all(m.sigma > 0 for m in plan.measurements):
        raise AccountingError("a sum without noise")
    squared = sum((Fraction(c) ** 2 for c in plan.coefficients), Fraction(0))
    # One unit's rows in a bin move its path by n_g |C| at most, and sum n_g^2 <= c sum n_g <= c min(C, G c).
    times = (choices.max_rows_per_group or 1) * _rows(choices)
    mu2 = float(
        sum(
            (
                squared * times * _largest(m) ** 2 / Fraction(m.sigma) ** 2
                for m in plan.measurements
            ),
            Fraction(0),
        )
    )
    failure = 0.0 if choices.privacy_level is PrivacyLevel.EVENT else source.max_users / 2.0**64
    delta = gaussian_delta(math.sqrt(mu2), query.epsilon) + failure
    check_promise(plan, {"mu": math.sqrt(mu2), "failure": failure, "delta": delta})
    return _cost(plan, mu2, 0.0, failure, gamma(plan.coefficients, plan.panes))


def _cost(plan: SlidingPlan, mu2: float, epsilon: float, failure: float, meeting: float) -> Cost:
    if plan.query.asked.privacy_level is PrivacyLevel.EVENT:
        return Cost(PrivacyLevel.EVENT, mu2, epsilon, failure, Overlap.EVENTS, mu2, failure)
    if plan.query.contribution_period is ContributionPeriod.STREAM:
        return Cost(PrivacyLevel.USER, mu2, epsilon, failure, Overlap.STREAM, mu2, failure)
    if not mu2:
        return Cost(PrivacyLevel.USER, mu2, epsilon, failure, Overlap.NONE, mu2, failure)
    return Cost(PrivacyLevel.USER, mu2, epsilon, failure, Overlap.WINDOWS, mu2 * meeting, failure)
