"""The planner: what is asked -> SlidingPlan, with every number concrete."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dpsql.config import Source
from dpsql.errors import ConfigError
from dpsql.mechanisms.identity import identity_of
from dpsql.mechanisms.sliding.asked import Asked, PaneGrouping
from dpsql.mechanisms.sliding.half_width import half_width
from dpsql.mechanisms.sliding.plan import MeasurementPlan, SlidingPlan, document
from dpsql.parsed_query import Aggregate, AggregateFunction, CounterName, ParsedQuery, PrivacyLevel
from dpsql.privacy.curve import round_down, round_up, total_mu
from dpsql.udfs.noise.discrete_laplace import LARGEST, SMALLEST, DiscreteLaplace, discrete_laplace
from dpsql.udfs.noise.randomness import MAX_NORMAL
from dpsql.udfs.sliding.window_sqrt import coefficients, response

PLAN_VERSION = 1
"""Changes when the same query would get other noise; part of the query's identity."""

MAX_EXACT = 2**62
"""Sums, and the noise, each stay below half of this many steps: int64 cannot overflow when they are added."""

MOST_PANES = 500
"""Of a window with WINDOW_SQRT: beyond, exact noise that float64 cannot round would take seconds."""

STEPS_OF_A_SUM = 10
"""log2 of the steps that the largest value of a SUM has under PANES: more would make tables of noise long, and no sum better."""

EPSILON_BITS = 40
NORMAL_95 = 1.959964


def make_plan(query: ParsedQuery[Asked], source: Source) -> SlidingPlan:
    """Plan one query.

    Args:
        query: an accepted query.
        source: the declaration of the stream it reads.

    Raises:
        ConfigError: no noise keeps the promise; says what would be accepted.
    """
    window = query.windows
    arguments = tuple(dict.fromkeys(a.argument for a in query.aggregates if a.argument is not None))
    sums = [each for aggregate in query.aggregates for each in _sums(query, aggregate, arguments)]
    noise = _window_sqrt if query.asked.counter is CounterName.WINDOW_SQRT else _every_pane
    plan = SlidingPlan(
        query=query,
        panes=window.size_us // window.slide_us,
        lateness_us=-(-query.allowed_lateness_us // window.slide_us) * window.slide_us,
        epsilon=query.epsilon,
        delta=query.delta,
        mu=0.0,
        failure=0.0,
        coefficients=(),
        sd=(),
        measurements=(),
        arguments=arguments,
        identity="",
    )
    plan = noise(plan, sums, source)
    _check_sizes(plan, source)
    return replace(plan, identity=identity(plan))


def identity(plan: SlidingPlan) -> str:
    """The query's."""
    return identity_of(PLAN_VERSION, document(replace(plan, identity="")))


def pure_epsilon(query: ParsedQuery[Asked], source: Source) -> float:
    """What is left of epsilon for the noise.

    At level USER colliding 64-bit ids let in rows of another unit, at most as many again: eps' + ln(1 + p (e^eps' - 1)) <= epsilon.
    """
    if query.asked.privacy_level is PrivacyLevel.EVENT:
        return query.epsilon
    p = source.max_users / 2.0**64
    left = query.epsilon - math.log1p(p * math.expm1(query.epsilon))  # more than enough: eps' is below epsilon
    return left * (1 - 1e-12)


def _every_pane(plan: SlidingPlan, sums: list[_Sum], source: Source) -> SlidingPlan:
    each = pure_epsilon(plan.query, source) / len(sums)
    return replace(plan, measurements=tuple(_pane_plan(plan, number, one, each) for number, one in enumerate(sums, 1)))


def _check_sizes(plan: SlidingPlan, source: Source) -> None:
    """Sums of a window and their noise must fit into 64 bits."""
    rows = plan.query.asked.rows * source.max_users
    for m in plan.measurements:
        if plan.query.asked.privacy_level is PrivacyLevel.USER and max(abs(m.lower), abs(m.upper)) * rows * 2 >= MAX_EXACT:
            raise ConfigError(
                f"sums over {source.max_users} users could overflow 64 bits: lower max_rows_contributed, or declare fewer at "
                f"sources.{source.name}.max_users"
            )
        if MAX_NORMAL * m.sigma * len(plan.sd) >= MAX_EXACT // 2:
            raise ConfigError("noise could overflow 64 bits: raise epsilon, or lower max_rows_contributed")


_Sum = tuple[str, int, float, int, int, float, bool]
"""rule, argument, grid, lower, upper, centre, floor."""


def _sums(query: ParsedQuery[Asked], aggregate: Aggregate, arguments: tuple[str, ...]) -> list[_Sum]:
    argument = arguments.index(aggregate.argument) if aggregate.argument is not None else -1
    match aggregate.function:
        case AggregateFunction.COUNT_ROWS:
            return [("rows", -1, 1.0, 0, 1, 0.0, True)]
        case AggregateFunction.COUNT:
            return [("valid", argument, 1.0, 0, 1, 0.0, True)]
        case AggregateFunction.SUM | AggregateFunction.AVG if aggregate.bounds is not None:
            lo, hi = aggregate.bounds
            if aggregate.function is AggregateFunction.SUM:
                return [("sum", argument, *_clamp(query.asked, aggregate.alias, lo, hi), 0.0, lo >= 0)]
            centre, half = lo + (hi - lo) / 2, (hi - lo) / 2
            count: _Sum = ("valid", argument, 1.0, 0, 1, 0.0, True)
            return [("sum", argument, *_clamp(query.asked, aggregate.alias, -half, half), centre, False), count]
    raise ConfigError(f"{aggregate.function} of {aggregate.alias} is not a sum over panes")


def _clamp(asked: Asked, alias: str, lo: float, hi: float) -> tuple[float, int, int]:
    """Grid of a power of two and the clamp in its steps, rounded inwards."""
    largest = max(abs(lo), abs(hi))
    if not 1e-100 <= largest <= 1e100:
        raise ConfigError(f"the bounds of {alias} reach to {largest:g}: scale the values so that it is between 1e-100 and 1e+100")
    mantissa, exponent = math.frexp(largest)
    bits = STEPS_OF_A_SUM if asked.counter is CounterName.PANES else 20
    grid = math.ldexp(1.0, exponent - bits - (1 if mantissa == 0.5 else 0))
    lower, upper = math.ceil(lo / grid), math.floor(hi / grid)
    if lower >= upper:
        raise ConfigError(f"the bounds of {alias} are too close together for where they are: subtract a constant from the values")
    return grid, lower, upper


def _pane_plan(plan: SlidingPlan, number: int, each: _Sum, epsilon: float) -> MeasurementPlan:
    asked, (rule, argument, grid, lower, upper, centre, floor) = plan.query.asked, each
    per_step = round_down(epsilon / (max(abs(lower), abs(upper)) * asked.rows), EPSILON_BITS)
    fine = monitor = together = None
    if asked.grouping is not PaneGrouping.NONE:
        watch = round_down(asked.monitor_share * per_step, EPSILON_BITS)
        monitor, together = _table(watch), _table(round_down(per_step - watch, EPSILON_BITS))
    if asked.grouping is not PaneGrouping.RETROACTIVE:
        fine = _table(per_step)
    shown = fine or together
    assert shown is not None
    return MeasurementPlan(
        mechanism=number,
        rule=rule,
        argument=argument,
        grid=grid,
        lower=lower,
        upper=upper,
        centre=centre,
        fine=fine,
        monitor=monitor,
        together=together,
        sigma=0.0,
        stderr=math.sqrt(plan.panes * shown.variance) * grid,
        half_width=half_width(per_step, plan.panes) * grid if asked.grouping is PaneGrouping.NONE else None,
        floor=floor,
    )


def _table(epsilon: float) -> DiscreteLaplace:
    if not SMALLEST <= epsilon <= LARGEST:
        way = "lower max_rows_contributed or raise epsilon" if epsilon < SMALLEST else f"promise an epsilon of at most {LARGEST:g}"
        raise ConfigError(f"noise of epsilon {epsilon:g} per step cannot be drawn from a table: {way}")
    return discrete_laplace(epsilon)


def _window_sqrt(plan: SlidingPlan, sums: list[_Sum], source: Source) -> SlidingPlan:
    asked, panes, delta = plan.query.asked, plan.panes, plan.delta
    if panes > MOST_PANES:
        raise ConfigError(f"WINDOW_SQRT takes windows of at most {MOST_PANES} slides, not {panes}: let the window slide further")
    failure = 0.0 if asked.privacy_level is PrivacyLevel.EVENT else source.max_users / 2.0**64
    if failure > 0.01 * delta:
        raise ConfigError(f"delta = {delta:g} is too small: collisions of 64-bit ids alone cost {failure:.2g}, over 1% of it")
    mu = round_down(total_mu(plan.epsilon, (delta - failure) * (1 - 1e-12)))
    c = coefficients(panes)
    norm = math.sqrt(math.fsum(value * value for value in c)) * (1 + 1e-14)
    sd = np.sqrt(np.cumsum(response(panes, c).window ** 2))
    sd = sd[: 1 + int(np.argmax(sd >= sd[-1]))]
    rows = math.sqrt((asked.max_rows_per_group or 1) * asked.rows)
    plans = []
    for number, (rule, argument, grid, lower, upper, centre, floor) in enumerate(sums, 1):
        sigma = round_up(max(abs(lower), abs(upper)) * rows * norm / (mu / math.sqrt(len(sums))) * (1 + 1e-12))
        stderr = math.sqrt((sigma * float(sd[-1])) ** 2 + 1 / 12) * grid
        plans.append(
            MeasurementPlan(
                mechanism=number,
                rule=rule,
                argument=argument,
                grid=grid,
                lower=lower,
                upper=upper,
                centre=centre,
                fine=None,
                monitor=None,
                together=None,
                sigma=sigma,
                stderr=stderr,
                half_width=NORMAL_95 * stderr,
                floor=floor,
            )
        )
    return replace(plan, measurements=tuple(plans), mu=mu, coefficients=c, sd=tuple(sd.tolist()), failure=failure)


@dataclass(frozen=True)
class Alternatives:
    """Standard errors of a COUNT's window: PANES with the same epsilon and delta 0; WINDOW_SQRT, and noise of one copy per window, with a delta."""

    panes: float
    window_sqrt: float
    copies: float


def alternatives(plan: SlidingPlan, delta: float) -> Alternatives | None:
    """What the other counters would give; None where one of them cannot be planned."""
    asked, panes = plan.query.asked, plan.panes
    per_step = plan.epsilon / asked.rows
    if panes > MOST_PANES or not SMALLEST <= per_step <= LARGEST:
        return None
    c, mu = coefficients(panes), total_mu(plan.epsilon, delta)
    rows = math.sqrt((asked.max_rows_per_group or 1) * asked.rows)
    of_window = math.sqrt(math.fsum(v * v for v in c)) * float(np.linalg.norm(response(panes, c).window))
    return Alternatives(math.sqrt(panes * discrete_laplace(per_step).variance), rows * of_window / mu, rows * math.sqrt(panes) / mu)
