"""How one record becomes the increments of an aggregate: grids, clamps, trees of quantiles, and no overflow."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence

from dpsql.errors import ConfigError
from dpsql.parsed_query import (
    REGRESSIONS,
    SPREADS,
    Aggregate,
    AggregateFunction,
    Paired,
    PerGroup,
    Quantiles,
)
from dpsql.parts.sums import QuantileSum
from dpsql.privacy.curve import round_up
from dpsql.sources.config import Source
from dpsql.udfs.contributions import PER_GROUP, Increment, Partner
from dpsql.udfs.measure import quantiles
from dpsql.udfs.noise.randomness import MAX_NORMAL

# How one record becomes the increments of an aggregate: grids, clamps, and no overflow.

MIN_WIDTH = 1e-100
MAX_WIDTH = 1e100
"""Clamps narrower or wider than this have no meaning and would leave the range of float64 on the way."""

MAX_EXACT = 2**62
"""Sums, and the noise, each stay below half of this many grid units: int64 cannot overflow when they are added."""


def sums_of(function: AggregateFunction) -> int:
    """Return how many noisy sums an aggregate is made of: an average of two, a spread of three."""
    if function in MOMENTS:
        return len(MOMENTS[function])
    return 3 if function in SPREADS else 2 if function is AggregateFunction.AVG else 1


_COVARIANCE = ("products", "sum of y", "sum of x")
_REGRESSION = (*_COVARIANCE, "squares of x")
MOMENTS: Mapping[AggregateFunction, tuple[str, ...]] = {
    AggregateFunction.COVAR_POP: (*_COVARIANCE, "count"),
    **dict.fromkeys(REGRESSIONS, (*_REGRESSION, "count")),
    AggregateFunction.CORR: (*_REGRESSION, "squares of y", "count"),
}
"""The sums of aggregates of two values, in the order in which `dpsql.udfs.measure.pairs` reads them."""


def places_of(aggregates: Sequence[Aggregate]) -> tuple[tuple[int, ...], ...]:
    """Number the noisy sums of a query, and return those of each aggregate: aggregates of the same two values within the same bounds share theirs."""
    numbers: dict[Hashable, int] = {}
    places = []
    for i, aggregate in enumerate(aggregates):
        keys: list[Hashable] = [(i, part) for part in range(sums_of(aggregate.function))]
        if isinstance(aggregate, Paired):
            shared = aggregate.argument, aggregate.x, aggregate.bounds, aggregate.x_bounds
            keys = [(shared, moment) for moment in MOMENTS[aggregate.function]]
        places.append(tuple(numbers.setdefault(key, len(numbers)) for key in keys))
    return tuple(places)


def count_sums(aggregates: Sequence[Aggregate]) -> int:
    """Count the different noisy sums of some aggregates."""
    return len({place for places in places_of(aggregates) for place in places})


Clamp = Callable[[str, float, float], tuple[float, int, int]]
"""A function of an alias and its bounds; gives the grid, and the clamp in its units, rounded inwards."""


def increments_of(aggregate: Aggregate, arguments: Sequence[str], clamp: Clamp) -> list[Increment]:
    """Return what a record adds to each of the sums that an aggregate is made of; its argument is one of `arguments`."""
    argument = -1 if aggregate.argument is None else arguments.index(aggregate.argument)
    per_group = PER_GROUP if isinstance(aggregate, PerGroup) else ""
    count = {
        AggregateFunction.COUNT_ROWS: "rows",
        AggregateFunction.COUNT: "valid",
        AggregateFunction.COUNT_DISTINCT_UNIT: "users",
    }
    if isinstance(aggregate, Paired):
        return _moments(aggregate, argument, arguments.index(aggregate.x), clamp)
    if aggregate.function in count:
        upper = int(aggregate.bounds[1]) if per_group and aggregate.bounds else 1
        return [Increment(count[aggregate.function] + per_group, argument, upper=upper)]
    if aggregate.bounds is None:
        raise ConfigError(f"{aggregate.function} needs contribution_bounds_per_row")
    lo, hi = aggregate.bounds
    if aggregate.function is AggregateFunction.SUM:
        return [Increment("sum" + per_group, argument, *clamp(aggregate.alias, lo, hi))]
    # Values centred on the middle of the bounds have half their width as sensitivity; so have their squares, less half of the largest.
    centre = lo + (hi - lo) / 2
    half = (hi - lo) / 2
    parts = [Increment("sum", argument, *clamp(aggregate.alias, -half, half), centre)]
    if aggregate.function in SPREADS:
        parts.append(_squares(aggregate.alias, argument, centre, half, clamp))
    return [*parts, Increment("valid", argument)]


def _squares(
    alias: str,
    argument: int,
    centre: float,
    half: float,
    clamp: Clamp,
    partner: Partner | None = None,
) -> Increment:
    """Return the sum of squares of centred values, less half of the largest.

    Raises:
        ConfigError: they leave the range of numbers.
    """
    if not MIN_WIDTH <= half * half <= MAX_WIDTH:
        raise ConfigError(
            f"the bounds of {alias} are {2 * half:g} apart, and their squares leave the range of numbers: scale the values, so that it is "
            f"between {2 * math.sqrt(MIN_WIDTH):g} and {2 * math.sqrt(MAX_WIDTH):g}"
        )
    clamps = clamp(alias, -half * half / 2, half * half / 2)
    return Increment("squares", argument, *clamps, centre, partner)


def _moments(aggregate: Paired, y: int, x: int, clamp: Clamp) -> list[Increment]:
    """Return the sums of centred values, products and squares of records that have both values."""
    alias = aggregate.alias
    y_low, y_high = aggregate.bounds or (0.0, 0.0)
    x_low, x_high = aggregate.x_bounds
    y_half = (y_high - y_low) / 2
    x_half = (x_high - x_low) / 2
    y_centre = y_low + y_half
    x_centre = x_low + x_half
    check_width(alias, 2 * y_half * x_half)
    product = clamp(alias, -y_half * x_half, y_half * x_half)
    moments = {
        "sum of y": Increment("sum", y, *clamp(alias, -y_half, y_half), y_centre, Partner(x)),
        "sum of x": Increment("sum", x, *clamp(alias, -x_half, x_half), x_centre, Partner(y)),
        "products": Increment(
            "product", y, *product, y_centre, Partner(x, x_centre, x_half, y_half)
        ),
        "count": Increment("valid", y, partner=Partner(x)),
        "squares of x": _squares(alias, x, x_centre, x_half, clamp, Partner(y)),
        "squares of y": _squares(alias, y, y_centre, y_half, clamp, Partner(x)),
    }
    return [moments[name] for name in MOMENTS[aggregate.function]]


def of_width(source: Source, rows: float) -> Clamp:
    """Choose grids of a power of two no coarser than (hi - lo) / 2^20, for sums over all users of a
    source with so many rows each."""

    def clamp(alias: str, lo: float, hi: float) -> tuple[float, int, int]:
        check_width(alias, hi - lo)
        grid = math.ldexp(1.0, math.frexp(hi - lo)[1] - 21)
        lower = math.ceil(lo / grid)
        upper = math.floor(hi / grid)
        if max(abs(lower), abs(upper)) * source.max_users * rows >= MAX_EXACT // 2:
            raise ConfigError(
                f"the bounds ({lo:g}, {hi:g}) of {alias} could overflow a 64-bit sum over {source.max_users} users: bring them closer to zero, "
                f"or declare fewer at {source.place('max_users')}"
            )
        return grid, lower, upper

    return clamp


def check_noise(alias: str, sigma: float, grid: float, reach: float) -> None:
    """Check that the largest noise that can be drawn fits beside the largest sum; `reach`: how many
    times the largest draw a path can be.

    Raises:
        ConfigError: it does not.
    """
    if not noise_fits(sigma, grid, reach):
        raise ConfigError(
            f"the noise of {alias} could overflow 64 bits: raise epsilon, or lower max_rows_contributed"
        )


def noise_fits(sigma: float, grid: float, reach: float) -> bool:
    """Tell whether the largest noise that can be drawn fits beside the largest sum; arguments as `check_noise`."""
    return MAX_NORMAL * sigma / grid * reach < MAX_EXACT // 2


def check_width(alias: str, width: float) -> None:
    """Reject bounds so close, or so far apart, that float64 is no grid for what lies between.

    Raises:
        ConfigError: they are.
    """
    if not MIN_WIDTH <= width <= MAX_WIDTH:
        raise ConfigError(
            f"the bounds of {alias} are {width:g} apart: scale the values so that it is between {MIN_WIDTH:g} and {MAX_WIDTH:g}"
        )


# Trees of noisy counts that quantiles are read off.

BEYOND = 40
"""Standard deviations that a normal exceeds with a probability below 10^-340."""


def quantile_sum(
    aggregate: Quantiles,
    arguments: Sequence[str],
    noise_stream: int,
    sensitivity: float,
    mu: float,
    sd: float,
    rows: float,
) -> QuantileSum:
    """Plan a sum in which every row counts one in a node of each level.

    Args:
        aggregate: what is asked; its argument is one of `arguments`.
        noise_stream: number in the noise function.
        sensitivity: L2 sensitivity of a step, all levels included.
        mu: what the tree has of the budget.
        sd: largest standard deviation of a node's path, per standard deviation of a step.
        rows: of all units, at most.

    Raises:
        ConfigError: bounds too far apart or too close, or counts that could overflow.
    """
    lower, upper = aggregate.bounds or (0.0, 0.0)
    check_width(aggregate.alias, upper - lower)
    sigma = round_up(sensitivity / mu * (1 + 1e-12))
    largest = quantiles.NODES * BEYOND * (sigma * sd + 1) + quantiles.LEVELS * rows
    if not 4 * largest < quantiles.MOST_ROWS:
        raise ConfigError(
            f"the counts of {aggregate.alias} could overflow 64 bits: raise epsilon, or lower max_rows_contributed"
        )
    return QuantileSum(
        noise_stream=noise_stream,
        rule="leaf",
        argument=arguments.index(str(aggregate.argument)),
        grid=(upper - lower) / quantiles.LEAVES,
        lower=1,
        upper=quantiles.LEAVES,
        centre=lower,
        sensitivity=sensitivity,
        sigma=sigma,
        fan_out=quantiles.FAN_OUT,
        levels=quantiles.LEVELS,
        parts=aggregate.parts,
    )
