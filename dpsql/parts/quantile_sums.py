"""Trees of noisy counts that quantiles are read off."""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.errors import ConfigError
from dpsql.parsed_query import Quantiles
from dpsql.parts.increments import check_width
from dpsql.parts.sums import QuantileSum
from dpsql.privacy.curve import round_up
from dpsql.udfs.measure import quantiles

BEYOND = 40
"""Standard deviations that a normal exceeds with a probability below 10^-340."""


def quantile_sum(
    aggregate: Quantiles,
    arguments: Sequence[str],
    mechanism: int,
    sensitivity: float,
    mu: float,
    sd: float,
    rows: float,
) -> QuantileSum:
    """Every row counts one in a node of each level.

    Args:
        aggregate: what is asked; its argument is one of `arguments`.
        mechanism: number in the noise function.
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
        mechanism=mechanism,
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
