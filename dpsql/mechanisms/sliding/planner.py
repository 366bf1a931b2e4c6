"""The planner: what is asked -> SlidingPlan, with every number concrete."""

from __future__ import annotations

import math

import numpy as np

from dpsql.errors import ConfigError
from dpsql.mechanisms.sliding.asked import Asked, PaneGrouping, SlidingCounter
from dpsql.mechanisms.sliding.half_width import half_width
from dpsql.mechanisms.sliding.plan import MeasurementPlan, SlidingPlan
from dpsql.parsed_query import Aggregate, AggregateFunction
from dpsql.privacy.cost import PrivacyLevel
from dpsql.privacy.curve import round_down, round_up, total_mu
from udfs.noise.discrete_laplace import LARGEST, SMALLEST, DiscreteLaplace, discrete_laplace
from udfs.sliding.window_sqrt import coefficients, response

MOST_PANES = 500
"""Of a window with WINDOW_SQRT: beyond, exact noise that float64 cannot round would take seconds."""

STEPS_OF_A_SUM = 10
"""log2 of the steps that the largest value of a SUM has under PANES: more would make tables of noise long, and no sum better."""

EPSILON_BITS = 40
NORMAL_95 = 1.959964


def make_plan(asked: Asked) -> SlidingPlan:
    """Plan one query.

    Raises:
        ConfigError: no noise keeps the promise; says what would be accepted.
    """
    arguments = tuple(dict.fromkeys(a.argument for a in asked.aggregates if a.argument is not None))
    sums = [each for aggregate in asked.aggregates for each in _sums(asked, aggregate, arguments)]
    if asked.counter is SlidingCounter.WINDOW_SQRT:
        return _window_sqrt(asked, sums, arguments)
    pure = pure_epsilon(asked)
    return SlidingPlan(
        asked, tuple(_pane_plan(asked, number, each, pure / len(sums)) for number, each in enumerate(sums, 1)), 0.0, (), (), 0.0, arguments
    )


def pure_epsilon(asked: Asked) -> float:
    """What is left of epsilon for the noise.

    At level USER colliding 64-bit ids let in rows of another unit, at most as many again: eps' + ln(1 + p (e^eps' - 1)) <= epsilon.
    """
    if asked.bounds is None:
        return asked.epsilon
    p = asked.bounds.max_users / 2.0**64
    left = asked.epsilon - math.log1p(p * math.expm1(asked.epsilon))  # more than enough: eps' is below epsilon
    return left * (1 - 1e-12)


_Sum = tuple[str, int, float, int, int, float, bool]
"""rule, argument, grid, lower, upper, centre, floor."""


def _sums(asked: Asked, aggregate: Aggregate, arguments: tuple[str, ...]) -> list[_Sum]:
    argument = arguments.index(aggregate.argument) if aggregate.argument is not None else -1
    match aggregate.function:
        case AggregateFunction.COUNT_ROWS:
            return [("rows", -1, 1.0, 0, 1, 0.0, True)]
        case AggregateFunction.COUNT:
            return [("valid", argument, 1.0, 0, 1, 0.0, True)]
        case AggregateFunction.SUM | AggregateFunction.AVG if aggregate.bounds is not None:
            lo, hi = aggregate.bounds
            if aggregate.function is AggregateFunction.SUM:
                return [("sum", argument, *_clamp(asked, aggregate.alias, lo, hi), 0.0, lo >= 0)]
            centre, half = lo + (hi - lo) / 2, (hi - lo) / 2
            count: _Sum = ("valid", argument, 1.0, 0, 1, 0.0, True)
            return [("sum", argument, *_clamp(asked, aggregate.alias, -half, half), centre, False), count]
    raise ConfigError(f"{aggregate.function} of {aggregate.alias} is not a sum over panes")


def _clamp(asked: Asked, alias: str, lo: float, hi: float) -> tuple[float, int, int]:
    """Grid of a power of two and the clamp in its steps, rounded inwards."""
    largest = max(abs(lo), abs(hi))
    if not 1e-100 <= largest <= 1e100:
        raise ConfigError(f"the bounds of {alias} reach to {largest:g}: scale the values so that it is between 1e-100 and 1e+100")
    mantissa, exponent = math.frexp(largest)
    bits = STEPS_OF_A_SUM if asked.counter is SlidingCounter.PANES else 20
    grid = math.ldexp(1.0, exponent - bits - (1 if mantissa == 0.5 else 0))
    lower, upper = math.ceil(lo / grid), math.floor(hi / grid)
    if lower >= upper:
        raise ConfigError(f"the bounds of {alias} are too close together for where they are: subtract a constant from the values")
    return grid, lower, upper


def _pane_plan(asked: Asked, number: int, each: _Sum, epsilon: float) -> MeasurementPlan:
    rule, argument, grid, lower, upper, centre, floor = each
    rows = 1 if asked.bounds is None else asked.bounds.rows
    per_step = round_down(epsilon / (max(abs(lower), abs(upper)) * rows), EPSILON_BITS)
    fine = monitor = together = None
    if asked.grouping is not PaneGrouping.NONE:
        watch = round_down(asked.monitor_share * per_step, EPSILON_BITS)
        monitor, together = _table(watch), _table(round_down(per_step - watch, EPSILON_BITS))
    if asked.grouping is not PaneGrouping.RETROACTIVE:
        fine = _table(per_step)
    shown = fine or together
    assert shown is not None
    width = half_width(per_step, asked.panes) * grid if asked.grouping is PaneGrouping.NONE else None
    stderr = math.sqrt(asked.panes * shown.variance) * grid
    return MeasurementPlan(number, rule, argument, grid, lower, upper, centre, fine, monitor, together, 0.0, stderr, width, floor)


def _table(epsilon: float) -> DiscreteLaplace:
    if not SMALLEST <= epsilon <= LARGEST:
        way = "lower max_rows_contributed or raise epsilon" if epsilon < SMALLEST else f"promise an epsilon of at most {LARGEST:g}"
        raise ConfigError(f"noise of epsilon {epsilon:g} per step cannot be drawn from a table: {way}")
    return discrete_laplace(epsilon)


def _window_sqrt(asked: Asked, sums: list[_Sum], arguments: tuple[str, ...]) -> SlidingPlan:
    if asked.panes > MOST_PANES:
        raise ConfigError(f"WINDOW_SQRT takes windows of at most {MOST_PANES} slides, not {asked.panes}: let the window slide further")
    failure = 0.0 if asked.bounds is None else asked.bounds.max_users / 2.0**64
    if failure > 0.01 * asked.delta:
        raise ConfigError(f"delta = {asked.delta:g} is too small: collisions of 64-bit ids alone cost {failure:.2g}, over 1% of it")
    mu = round_down(total_mu(asked.epsilon, (asked.delta - failure) * (1 - 1e-12)))
    c = coefficients(asked.panes)
    norm = math.sqrt(math.fsum(value * value for value in c)) * (1 + 1e-14)
    sd = np.sqrt(np.cumsum(response(asked.panes, c).window ** 2))
    sd = sd[: 1 + int(np.argmax(sd >= sd[-1]))]
    rows = 1.0 if asked.bounds is None else math.sqrt(asked.bounds.max_rows_per_key * asked.bounds.rows)
    plans = []
    for number, (rule, argument, grid, lower, upper, centre, floor) in enumerate(sums, 1):
        sigma = round_up(max(abs(lower), abs(upper)) * rows * norm / (mu / math.sqrt(len(sums))) * (1 + 1e-12))
        stderr = math.sqrt((sigma * float(sd[-1])) ** 2 + 1 / 12) * grid
        each = (rule, argument, grid, lower, upper, centre, None, None, None, sigma, stderr, NORMAL_95 * stderr, floor)
        plans.append(MeasurementPlan(number, *each))
    return SlidingPlan(asked, tuple(plans), mu, c, tuple(sd.tolist()), failure, arguments)


def panes_beat_window_sqrt(asked: Asked, delta: float) -> tuple[float, float]:
    """Standard errors of a COUNT's window under (PANES, WINDOW_SQRT at this delta), for one event."""
    if asked.level is not PrivacyLevel.EVENT:
        raise ValueError("the comparison is for events")
    c = coefficients(asked.panes)
    of_window = math.sqrt(math.fsum(v * v for v in c)) * float(np.linalg.norm(response(asked.panes, c).window))
    return math.sqrt(asked.panes * discrete_laplace(asked.epsilon).variance), of_window / total_mu(asked.epsilon, delta)
