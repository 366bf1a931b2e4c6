"""Lower bounds on what a mechanism really costs, from samples of a statistic under two neighbouring streams. Assumed: the trials of a side
are independent and alike. Confidence: each bound is wrong (above the truth) with probability at most 5% (two Clopper-Pearson limits of 2.5%
each). The event is chosen on the first half of the trials and measured on the other. A bound below the promise proves nothing by itself;
how near it can come is computed in `tests.audit.ideal`."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv, ndtri

from dpsql.udfs.columns import Float

LEVEL = 0.025
"""Failure probability of one Clopper-Pearson limit; a bound uses two."""

CHOOSING = 1e-4
"""The same while an event is chosen: stricter, so that the best of many events is not merely the luckiest one in a tail."""

TAIL = np.geomspace(1e-5, 0.01, 40)
CANDIDATES = np.concatenate([TAIL, np.linspace(0.0, 1.0, 400), 1 - TAIL])
"""Quantiles of the pooled statistic at which events begin; dense in both tails, where threshold failures are."""


@dataclass(frozen=True)
class Found:
    """Lower bounds at 95% confidence: delta at the promised epsilon, and mu of the Gaussian trade-off curve."""

    delta: float
    mu: float


def at_least(hits: Float, trials: int, level: float = LEVEL) -> Float:
    """Clopper-Pearson lower limit of a probability."""
    safe = np.maximum(hits, 1)
    return np.where(hits > 0, betaincinv(safe, trials - safe + 1, level), 0.0)


def at_most(hits: Float, trials: int, level: float = LEVEL) -> Float:
    """Clopper-Pearson upper limit of a probability."""
    safe = np.minimum(hits, trials - 1)
    return np.where(hits < trials, betaincinv(safe + 1, trials - safe, 1 - level), 1.0)


def delta_of(more: Float, less: Float, epsilon: float) -> Float:
    """The hockey stick of one event: P(E) - e^epsilon Q(E)."""
    return more - math.exp(epsilon) * less


def mu_of(more: Float, less: Float, delta_threshold: float) -> Float:
    """Smallest mu for which P(E) <= Phi(Phi^-1(Q(E)) + mu) + delta_threshold; -inf where any mu will do."""
    with np.errstate(invalid="ignore"):
        mu = ndtri(np.clip(more - delta_threshold, 0.0, 1.0)) - ndtri(np.clip(less, 0.0, 1.0))
    return np.where(np.isnan(mu), -math.inf, mu)


def found(with_user: Float, without: Float, epsilon: float, delta_threshold: float) -> Found:
    """Bounds from a statistic that tends to be larger under the first side; events are `at least t` and, the other way, `below t`.

    Args:
        with_user, without: the statistic of every trial, the first half of each for choosing.
        epsilon: where delta is measured.
        delta_threshold: part of delta that the trade-off curve allows beside mu (0 without key selection).
    """
    halves = [(len(side) // 2, len(side) // 2 * 2) for side in (with_user, without)]
    first = [side[:half] for side, (half, _) in zip((with_user, without), halves, strict=True)]
    second = [
        side[half:end] for side, (half, end) in zip((with_user, without), halves, strict=True)
    ]
    best = []
    for name in ("delta", "mu"):
        # Event and direction are chosen on the first half.
        choices = []
        for sign in (1, -1):
            more, less = directed(first, sign)
            at = cuts(np.concatenate([more, less]))
            bound = bound_of(
                name,
                hits(more, at),
                len(more),
                hits(less, at),
                len(less),
                epsilon,
                delta_threshold,
                CHOOSING,
            )
            choices.append((float(bound.max()), sign, at[[int(bound.argmax())]]))
        _, sign, cut = max(choices, key=lambda choice: choice[0])
        more, less = directed(second, sign)
        bound = bound_of(
            name, hits(more, cut), len(more), hits(less, cut), len(less), epsilon, delta_threshold
        )
        best.append(max(0.0, float(bound[0])))
    return Found(*best)


def directed(sides: list[Float], sign: int) -> tuple[Float, Float]:
    """(side on which the event should be frequent, the other), with the statistic turned so that the event is `at least`."""
    return (sides[0], sides[1]) if sign > 0 else (-sides[1], -sides[0])


def bound_of(
    name: str,
    more: Float,
    n: int,
    less: Float,
    m: int,
    epsilon: float,
    delta_threshold: float,
    level: float = LEVEL,
) -> Float:
    """The bound on delta or mu from events with `more` hits in n trials of one side and `less` in m of the other."""
    p = at_least(more, n, level)
    q = at_most(less, m, level)
    return delta_of(p, q, epsilon) if name == "delta" else mu_of(p, q, delta_threshold)


def cuts(values: Float) -> Float:
    return np.unique(np.quantile(values, CANDIDATES, method="nearest"))


def hits(values: Float, at: Float) -> Float:
    return (len(values) - np.searchsorted(np.sort(values), at, side="left")).astype(np.float64)
