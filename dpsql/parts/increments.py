"""How one record becomes the increments of an aggregate: grids, clamps, and no overflow."""

from __future__ import annotations

import math

from dpsql.config import Source
from dpsql.errors import ConfigError
from dpsql.parsed_query import SPREADS, Aggregate, AggregateFunction

MIN_WIDTH, MAX_WIDTH = 1e-100, 1e100
"""Clamps narrower or wider than this have no meaning and would leave the range of float64 on the way."""

MAX_EXACT = 2**62
"""Sums, and the noise, each stay below half of this many grid units: int64 cannot overflow when they are added."""


def sums_of(function: AggregateFunction) -> int:
    """How many noisy sums an aggregate is made of: an average of two, a spread of three."""
    return 3 if function in SPREADS else 2 if function is AggregateFunction.AVG else 1


def increments_of(aggregate: Aggregate, source: Source, rows: int) -> list[tuple[str, float, int, int, float]]:
    """(rule, grid, lower, upper, centre) of one record's increment, per perturbation of the aggregate."""
    count = {AggregateFunction.COUNT_ROWS: "rows", AggregateFunction.COUNT: "valid", AggregateFunction.COUNT_DISTINCT_UNIT: "users"}
    if aggregate.function in count:
        return [(count[aggregate.function], 1.0, 0, 1, 0.0)]
    if aggregate.bounds is None:
        raise ConfigError(f"{aggregate.function} needs contribution_bounds_per_row")
    lo, hi = aggregate.bounds
    if aggregate.function is AggregateFunction.SUM:
        return [("sum", *_clamp(aggregate, lo, hi, source, rows), 0.0)]
    # Values centred on the middle of the bounds have half their width as sensitivity; so have their squares, less half of the largest.
    centre, half = lo + (hi - lo) / 2, (hi - lo) / 2
    parts = [("sum", *_clamp(aggregate, -half, half, source, rows), centre)]
    if aggregate.function in SPREADS:
        parts.append(("squares", *_squares(aggregate, half, source, rows), centre))
    return [*parts, ("valid", 1.0, 0, 1, 0.0)]


def _clamp(aggregate: Aggregate, lo: float, hi: float, source: Source, rows: int) -> tuple[float, int, int]:
    """Grid of a power of two no coarser than (hi - lo) / 2^20, and the clamp in grid units, rounded inwards."""
    width = hi - lo
    check_width(aggregate, width)
    grid = math.ldexp(1.0, math.frexp(width)[1] - 21)
    lower, upper = math.ceil(lo / grid), math.floor(hi / grid)
    if max(abs(lower), abs(upper)) * source.max_users * rows >= MAX_EXACT // 2:
        raise ConfigError(
            f"the bounds ({lo:g}, {hi:g}) of {aggregate.alias} could overflow a 64-bit sum over {source.max_users} users: bring them closer to zero, "
            f"or declare fewer at sources.{source.name}.max_users"
        )
    return grid, lower, upper


def check_width(aggregate: Aggregate, width: float) -> None:
    """Bounds so close, or so far apart, that float64 is no grid for what lies between.

    Raises:
        ConfigError: they are.
    """
    if not MIN_WIDTH <= width <= MAX_WIDTH:
        raise ConfigError(
            f"the bounds of {aggregate.alias} are {width:g} apart: scale the values so that it is between {MIN_WIDTH:g} and {MAX_WIDTH:g}"
        )


def _squares(aggregate: Aggregate, half: float, source: Source, rows: int) -> tuple[float, int, int]:
    if not MIN_WIDTH <= half * half <= MAX_WIDTH:
        raise ConfigError(
            f"the bounds of {aggregate.alias} are {2 * half:g} apart, and their squares leave the range of numbers: scale the values, so that it is "
            f"between {2 * math.sqrt(MIN_WIDTH):g} and {2 * math.sqrt(MAX_WIDTH):g}"
        )
    return _clamp(aggregate, -half * half / 2, half * half / 2, source, rows)
