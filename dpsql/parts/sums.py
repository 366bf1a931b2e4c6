"""Noisy sums: what of a plan says how records become integers, and how much noise is added to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NoisySum:
    """One perturbed integer path per group, whatever its counter.

    Args:
        mechanism: number of the mechanism in the noise function (selection is 0, perturbations from 1).
        rule: how a record becomes an increment: `rows`, `valid`, `users`, `sum` or `squares` (`dpsql.udfs.contributions.Increment`).
        argument: position of the record's argument column a0, a1, ..., or -1.
        grid: size of one integer unit (a power of two; 1.0 for counts).
        lower, upper: clamp of one record's increment, in grid units.
        centre: what is subtracted before clamping (AVG, variances), in value units.
        sensitivity: L2 sensitivity of one strategy step, the counter's largest column norm included, in value units.
        sigma: standard deviation of the noise of one strategy step, in value units.
    """

    mechanism: int
    rule: str
    argument: int
    grid: float
    lower: int
    upper: int
    centre: float
    sensitivity: float
    sigma: float

    @property
    def step(self) -> float:
        """Value of a unit of the noisy sum: as of increments."""
        return self.grid


@dataclass(frozen=True, kw_only=True)
class QuantileSum(NoisySum):
    """A tree of noisy counts: `rule` is `leaf`, `grid` the width of a leaf, `centre` where the first one begins, `upper` the number of the last.

    Args:
        fan_out: leaves or nodes below one node; there is no root.
        levels: nodes that one record counts in.
        parts: of the quantiles.
    """

    fan_out: int
    levels: int
    parts: int


def presence_only(arguments: Sequence[str], perturbations: Sequence[NoisySum]) -> tuple[bool, ...]:
    """Per argument: whether all that read it only ask if there is a value."""
    used = [{p.rule for p in perturbations if p.argument == i} for i in range(len(arguments))]
    return tuple(rules == {"valid"} for rules in used)
