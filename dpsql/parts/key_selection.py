"""Weights and thresholds of key selection, and the shares that the planner chooses by default."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpsql.privacy.curve import round_up
from dpsql.udfs.columns import Float

THRESHOLD_DELTA_SHARE = 0.5
"""Part of delta (after the hash charge) kept for the thresholds; thresholds and noise both depend on it only through logarithms."""

LAST_TRIGGER_BETA_SHARE = 0.5
"""Part of the threshold's failure probability spent at the last trigger, where most keys appear."""

SELECTION_SHARE = 0.7
"""Default part of mu^2 for key selection: too little and few keys appear, too much and their counts are noisier."""

SELECTION_SHARE_OF_SEVERAL = 0.5
"""Default part of mu^2 where windows prove keys together: selection needs less then, and counts want more."""

SELECTION_DECAY = 0.5
"""How fast the weights of a unit's keys fall, from the first on."""

PAPER_SHARE = 0.5
PAPER_DECAY = 0.0
"""The paper's choices: an even split, and equal weights."""

CARRIED_SHARE = 0.5
"""Part of the thresholds' delta for tests over several windows."""

WEIGHT_BITS = 20


def selection_weights(groups: int, decay: float) -> tuple[int, ...]:
    """Return w_i proportional to i^-decay with sum of squares at most 1, rounded down to multiples
    of 2^-20; in units of 2^-20."""
    raw = np.arange(1, groups + 1, dtype=np.float64) ** -decay
    scaled = raw / math.sqrt(float(np.sum(raw**2))) * (1 - 1e-12)
    return tuple(int(v) for v in np.floor(scaled * 2.0**WEIGHT_BITS))


def weights_in_people(groups: int, decay: float) -> tuple[int, ...]:
    """Return w_i = i^-decay, rounded down to multiples of 2^-20, in units of 2^-20: a unit's first key counts 1."""
    return in_weight_units(np.arange(1, groups + 1, dtype=np.float64) ** -decay)


def in_weight_units(people: Float) -> tuple[int, ...]:
    """Return weights in units of 2^-20, rounded down.

    Machines differ in the last digits of a power, and powers of squares are whole: a hair more has one floor on all of them.
    """
    return tuple(np.floor(people * (2.0**WEIGHT_BITS + 2.0**-20)).astype(np.int64).tolist())


def weight_norm(weights: Sequence[int]) -> float:
    """Return the L2 norm of weights, in people."""
    return float(np.linalg.norm(np.array(weights, np.float64))) / 2.0**WEIGHT_BITS


def left_over(weights: Sequence[int], per_group: int, rows: float) -> float:
    """Return the L2 norm of what a unit adds to a count beyond its weights, in people (docs/privacy/histogram.md, theorem 30).

    Args:
        weights: w_1..w_K in units of 2^-20, w_1 = 2^20.
        per_group: what a unit adds to the count of one group, at most.
        rows: what it adds to all groups together; infinite: no more than that.
    """
    fractions = np.array(weights, np.float64) / 2.0**WEIGHT_BITS
    in_every_group = float(np.sum((per_group - fractions) ** 2))
    if rows == math.inf:
        return math.sqrt(in_every_group)
    first_weights = float(np.sum(fractions[: math.ceil(rows / per_group)]))
    in_few_groups = (per_group - float(fractions[-1])) * max(rows - first_weights, 0.0)
    return math.sqrt(min(in_every_group, in_few_groups))


def failure_probabilities(total: float, horizon: int) -> tuple[float, ...]:
    """Return the betas of all triggers with sum `total`: half at the last trigger, the rest shared
    equally."""
    if horizon == 1:
        return (total,)
    early = total * (1 - LAST_TRIGGER_BETA_SHARE) / (horizon - 1)
    return (early,) * (horizon - 1) + (total * LAST_TRIGGER_BETA_SHARE,)


def thresholds(
    weights: tuple[int, ...], sd: tuple[float, ...], betas: tuple[float, ...], min_users: int
) -> tuple[int, ...]:
    """Return tau_i = min_users * w_1 + sd_i * Phi^-1(1 - beta_i), rounded up to multiples of 2^-20;
    in units of 2^-20."""
    distinct, positions = np.unique(np.array(betas), return_inverse=True)
    from scipy.special import ndtri  # slow to import

    quantiles = np.array([round_up(-float(q) * (1 + 1e-12)) for q in ndtri(distinct)])
    noise = np.array(sd) * quantiles[positions] * (1 + 1e-12)
    return tuple(min_users * weights[0] + int(v) for v in np.ceil(noise * 2.0**WEIGHT_BITS))
