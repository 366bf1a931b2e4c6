"""The planner of sliding windows: noise of panes, and the exact interval of their sums."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dpsql.errors import ConfigError
from dpsql.mechanisms.protocol import identity_of
from dpsql.mechanisms.sliding.plan import (
    MeasurementPlan,
    PaneChoices,
    PaneGrouping,
    SlidingPlan,
    document,
)
from dpsql.parsed_query import ParsedQuery, PrivacyLevel, arguments_of
from dpsql.parts.increments import MAX_EXACT, increments_of
from dpsql.privacy.curve import round_down, round_up, total_mu
from dpsql.sources.config import Source
from dpsql.sql.time_rules import MOST_PANES
from dpsql.udfs.noise.discrete_laplace import LARGEST, SMALLEST, DiscreteLaplace, discrete_laplace
from dpsql.udfs.noise.randomness import MAX_NORMAL
from dpsql.udfs.noise.window_sqrt import coefficients, response

# The exact 95% interval of a sum of discrete Laplace noises: smaller or larger than 1.96
# standard deviations, which is for normal noise.

COVERAGE = 0.95
FINEST = 2.0**-10
"""Epsilon per step below which steps are taken together, for speed: the interval may then be wider than needed by 2^-12 of itself, never narrower."""


def half_width(epsilon: float, panes: int) -> int:
    """Return the smallest h for which the sum of `panes` noises lies within -h .. h with probability 0.95 at least, in steps of the grid."""
    together = 1 << max(0, math.ceil(math.log2(FINEST / epsilon))) if epsilon < FINEST else 1
    found = _steps_covered(epsilon * together, panes)
    return found if together == 1 else math.ceil(found * together * (1 + 2.0**-12))


def _steps_covered(epsilon: float, panes: int) -> int:
    p = _probabilities(epsilon, panes)
    inside = p[0] + 2.0 * np.concatenate([[0.0], np.cumsum(p[1 : len(p) // 2])])
    return int(np.argmax(inside >= COVERAGE * (1 + 1e-12)))


def _probabilities(epsilon: float, panes: int) -> np.ndarray:
    """Return P(sum = k) at index k modulo their number, from the characteristic function; what
    wraps around is below 1e-15."""
    a = math.exp(-epsilon)
    reach = 10 * math.sqrt(2 * panes) / epsilon + 80 / epsilon + 16
    size = 1 << math.ceil(math.log2(2 * reach))
    cosine = np.cos(2 * math.pi * np.arange(size // 2 + 1) / size)
    return np.fft.irfft(((1 - a) ** 2 / (1 - 2 * a * cosine + a * a)) ** panes, size)


# The planner: what is asked -> SlidingPlan, with every number concrete.

PLAN_VERSION = 2
"""Changes when the same query would get other noise; part of the query's identity."""

BITS_OF_A_SUM = 20
"""log2 of the units that the largest value of a SUM has at most."""

EPSILON_BITS = 40
MONITOR_SHARE = 0.1
"""Share of epsilon that a grouping's monitor gets."""

NORMAL_95 = 1.959964


def make_plan(query: ParsedQuery[PaneChoices], source: Source) -> SlidingPlan:
    """Plan one query of panes.

    Args:
        query: an accepted query.
        source: the declaration of the stream it reads.

    Raises:
        ConfigError: no noise keeps the promise; says what would be accepted.
    """
    window = query.windows
    arguments = arguments_of(query)
    increments = [
        increment
        for aggregate in query.aggregates
        for increment in increments_of(aggregate, arguments, _clamp)
    ]
    sums = [
        MeasurementPlan(**vars(increment), noise_stream=number, floor=increment.lower >= 0)
        for number, increment in enumerate(increments, 1)
    ]
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
    plan = (_window_sqrt if query.delta > 0 else _every_pane)(plan, sums, source)
    _check_sizes(plan, source)
    return replace(plan, identity=identity(plan))


def identity(plan: SlidingPlan) -> str:
    """Return the SHA-256 that identifies a plan."""
    return identity_of(PLAN_VERSION, document(replace(plan, identity="")))


def pure_epsilon(query: ParsedQuery[PaneChoices], source: Source) -> float:
    """Return what is left of epsilon for the noise.

    At level USER colliding 64-bit ids let in rows of another unit, at most as many again: eps' + ln(1 + p (e^eps' - 1)) <= epsilon.
    """
    if query.asked.privacy_level is PrivacyLevel.EVENT:
        return query.epsilon
    p = source.max_users / 2.0**64
    remaining = query.epsilon - math.log1p(
        p * math.expm1(query.epsilon)
    )  # more than enough: eps' is below epsilon
    return remaining * (1 - 1e-12)


def _every_pane(plan: SlidingPlan, sums: list[MeasurementPlan], source: Source) -> SlidingPlan:
    each = pure_epsilon(plan.query, source) / len(sums)
    return replace(plan, measurements=tuple(_pane_plan(plan, one, each) for one in sums))


def _check_sizes(plan: SlidingPlan, source: Source) -> None:
    """Check that sums of a window and their noise fit into 64 bits."""
    rows = plan.query.asked.rows * source.max_users
    for m in plan.measurements:
        if (
            plan.query.asked.privacy_level is PrivacyLevel.USER
            and max(abs(m.lower), abs(m.upper)) * rows * 2 >= MAX_EXACT
        ):
            raise ConfigError(
                f"sums over {source.max_users} users could overflow 64 bits: lower max_rows_contributed, or declare fewer at "
                f"{source.place('max_users')}"
            )
        if MAX_NORMAL * m.sigma * len(plan.sd) >= MAX_EXACT // 2:
            raise ConfigError(
                "noise could overflow 64 bits: raise epsilon, or lower max_rows_contributed"
            )


def _clamp(alias: str, lo: float, hi: float) -> tuple[float, int, int]:
    """Return a grid of a power of two and the clamp in its units, rounded inwards."""
    largest = max(abs(lo), abs(hi))
    if not 1e-100 <= largest <= 1e100:
        raise ConfigError(
            f"the bounds of {alias} reach to {largest:g}: scale the values so that it is between 1e-100 and 1e+100"
        )
    mantissa, exponent = math.frexp(largest)
    grid = math.ldexp(1.0, exponent - BITS_OF_A_SUM - (1 if mantissa == 0.5 else 0))
    lower = math.ceil(lo / grid)
    upper = math.floor(hi / grid)
    if lower >= upper:
        raise ConfigError(
            f"the bounds of {alias} are too close together for where they are: subtract a constant from the values"
        )
    return grid, lower, upper


def _pane_plan(plan: SlidingPlan, m: MeasurementPlan, epsilon: float) -> MeasurementPlan:
    choices = plan.query.asked
    # Rounded up: two sums that differ by a part of a step may be rounded to two steps that differ by one.
    steps = math.ceil(max(abs(m.lower), abs(m.upper)) / 2**m.bits)
    per_step = round_down(epsilon / (steps * choices.rows), EPSILON_BITS)
    fine = monitor = joint = None
    if choices.grouping is PaneGrouping.RETROACTIVE:
        watch = round_down(MONITOR_SHARE * per_step, EPSILON_BITS)
        monitor = _table(watch)
        joint = _table(round_down(per_step - watch, EPSILON_BITS))
    else:
        fine = _table(per_step)
    noise = fine or joint
    assert noise is not None
    stderr = math.sqrt(plan.panes * noise.variance) * m.step
    bar = None
    if choices.grouping is PaneGrouping.NONE:
        # Each pane of a sum may be half a step off by its rounding, all of them to one side.
        bar = (half_width(per_step, plan.panes) + (plan.panes / 2 if m.bits else 0)) * m.step
    return replace(m, fine=fine, monitor=monitor, together=joint, stderr=stderr, half_width=bar)


def _table(epsilon: float) -> DiscreteLaplace:
    if not SMALLEST <= epsilon <= LARGEST:
        way = (
            "lower max_rows_contributed or raise epsilon"
            if epsilon < SMALLEST
            else f"promise an epsilon of at most {LARGEST:g}"
        )
        raise ConfigError(
            f"noise of epsilon {epsilon:g} per step cannot be drawn from a table: {way}"
        )
    return discrete_laplace(epsilon)


def _window_sqrt(plan: SlidingPlan, sums: list[MeasurementPlan], source: Source) -> SlidingPlan:
    choices = plan.query.asked
    panes = plan.panes
    delta = plan.delta
    if panes > MOST_PANES:
        raise ConfigError(
            f"with a delta a window has at most {MOST_PANES} slides, not {panes}: let it slide further, or write delta = 0"
        )
    failure = 0.0 if choices.privacy_level is PrivacyLevel.EVENT else source.max_users / 2.0**64
    if failure > 0.01 * delta:
        raise ConfigError(
            f"delta = {delta:g} is too small: collisions of 64-bit ids alone cost {failure:.2g}, over 1% of it"
        )
    mu = round_down(total_mu(plan.epsilon, (delta - failure) * (1 - 1e-12)))
    c = coefficients(panes)
    norm = math.sqrt(math.fsum(value * value for value in c)) * (1 + 1e-14)
    sd = np.sqrt(np.cumsum(response(panes, c).window ** 2))
    sd = sd[: 1 + int(np.argmax(sd >= sd[-1]))]
    rows = math.sqrt((choices.max_rows_per_group or 1) * choices.rows)
    plans = []
    for m in sums:
        sigma = round_up(
            max(abs(m.lower), abs(m.upper))
            * rows
            * norm
            / (mu / math.sqrt(len(sums)))
            * (1 + 1e-12)
        )
        stderr = math.sqrt((sigma * float(sd[-1])) ** 2 + 1 / 12) * m.grid
        plans.append(replace(m, sigma=sigma, stderr=stderr, half_width=NORMAL_95 * stderr))
    return replace(
        plan,
        measurements=tuple(plans),
        mu=mu,
        coefficients=c,
        sd=tuple(sd.tolist()),
        failure=failure,
    )
