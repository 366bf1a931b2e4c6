"""Free answers: an estimate from public tables with its exact standard error. No budget, no secret, no private file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpsql.errors import ConfigError
from dpsql.mechanisms.marginals.plan import MarginalsPlan, MeasuredSum
from udfs.marginals.closed_cells import ClosedCells
from udfs.marginals.least_squares import Estimate, LeastSquares, Product


@dataclass(frozen=True)
class MaxError:
    """How far off an answer may be, at its confidence: rows, or a share of the noisy total."""

    amount: float
    of_total: bool


@dataclass(frozen=True)
class Answer:
    """One answer.

    `low, high` are where the truth is with that confidence, for a predicate that was chosen without looking at this release. `free` is False
    where the tables are not as accurate as was wanted: then `value` is NaN, and `stderr` says what is free.
    """

    value: float
    stderr: float
    low: float
    high: float
    confidence: float
    free: bool


def ask(
    plan: MarginalsPlan,
    each: MeasuredSum,
    released: Sequence[np.ndarray],
    trigger: int,
    predicate: Product,
    confidence: float = 0.95,
    max_error: MaxError | None = None,
) -> Answer:
    """Answer from the public tables of one trigger.

    Args:
        plan: of the run.
        each: which sum.
        released: its noisy tables at the trigger, in value units.
        trigger: at which.
        predicate: a product over keys.
        confidence: of the interval, between 0 and 1.
        max_error: the largest half width of the interval that is accepted; None: any.

    Raises:
        ConfigError: an argument is no confidence or no error, or a share is of a total that is not positive.
    """
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence:g}: give a number between 0 and 1, like 0.95")
    z = _quantile(confidence)
    found = estimate(plan, each, released, trigger, predicate)
    wanted = math.inf if max_error is None else _wanted(plan, each, released, trigger, max_error)
    # Both sides are functions of what is public, so which answers are free tells nothing.
    if not found.stderr * z <= wanted or not math.isfinite(found.stderr):
        return Answer(math.nan, found.stderr, -math.inf, math.inf, confidence, False)
    return Answer(found.value, found.stderr, found.value - z * found.stderr, found.value + z * found.stderr, confidence, True)


def estimate(plan: MarginalsPlan, each: MeasuredSum, released: Sequence[np.ndarray], trigger: int, predicate: Product) -> Estimate:
    """The best estimate from the tables of one trigger, in value units."""
    checked(plan, predicate)
    noise = plan.noisy_tables(each)
    marginals, variances, clock = noise.marginals, noise.variances(trigger), noise.clock
    if clock is None:
        return LeastSquares(marginals.sizes, marginals.tables, variances).estimate(predicate, released)
    fit = ClosedCells(marginals, variances, clock.keys, clock.closed(trigger), clock.begun(trigger))
    return fit.estimate(predicate, released)


def checked(plan: MarginalsPlan, predicate: Mapping[int, np.ndarray]) -> None:
    """A predicate has a finite weight for every value of the keys that it names.

    Raises:
        ConfigError: it has not.
    """
    sizes = plan.marginals.sizes
    for key, weights in predicate.items():
        if not 0 <= key < len(sizes) or np.shape(weights) != (sizes[key],) or not np.isfinite(weights).all():
            raise ConfigError(f"a predicate over key {key} needs a finite weight for each value of its domain")


def _wanted(plan: MarginalsPlan, each: MeasuredSum, released: Sequence[np.ndarray], trigger: int, asked: MaxError) -> float:
    if not 0 < asked.amount < math.inf:
        raise ConfigError(f"max_error is {asked.amount:g}: give a positive number of rows, or a share of the total")
    if not asked.of_total:
        return asked.amount
    total = estimate(plan, each, released, trigger, {}).value
    if not total > 0:
        raise ConfigError("the noisy total is not positive, so a share of it means nothing: give max_error in rows")
    return asked.amount * total


def _quantile(confidence: float) -> float:
    from scipy.special import ndtri  # slow to import

    return float(ndtri(0.5 + confidence / 2))
