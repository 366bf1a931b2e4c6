"""What it costs that a draw of noise has 128 random bits and is no real number: docs/privacy/index.md, theorem 5, "What 128 bits are"."""

from __future__ import annotations

import math

from dpsql.mechanisms.histogram.accounting import factorisation
from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.parsed_query import ContributionPeriod

BITS = 128
"""A sign and the 127 bits of k."""


def beyond_the_proof(plan: PrivacyPlan) -> float:
    """At most this much is to be added to the plan's delta for draws of 128 bits instead of real ones."""
    query = plan.query
    groups = plan.windows_per_record * min(query.asked.max_rows_contributed, query.asked.max_groups_contributed)
    met = 2 if query.contribution_period is ContributionPeriod.WINDOW else 1  # groups that another period of the unit comes back in
    draws = 2 * plan.horizon  # the tree has the most
    scales = [p.sigma * factorisation(p.counter, plan.horizon)[1][-1] / p.grid for p in plan.perturbations]
    numbers = [apart(draws, scale) for scale in scales] + ([apart(draws, 0.0)] if plan.selection else [])
    return (1 + math.exp(plan.epsilon)) * met * groups * plan.horizon * math.fsum(numbers)


def apart(draws: int, scale: float, bits: int = BITS) -> float:
    """At most so probable is it that a released number is another one with real draws of the same cells.

    Args:
        draws: that it is made of.
        scale: its noise's standard deviation, in units of its grid; 0 for a test against one threshold.
        bits: of a draw.
    """
    return (31 * draws + 55 * math.sqrt(draws) * scale) * 2.0**-bits
