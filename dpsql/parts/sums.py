"""Noisy sums: how records become integers, how much noise is added, and the column that is released."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from dpsql.parsed_query import (
    DEVIATIONS,
    PAIRED,
    SAMPLES,
    VARIANCES,
    Aggregate,
    AggregateFunction,
    Paired,
    Quantiles,
)
from dpsql.udfs.contributions import Increment
from dpsql.udfs.measure.output_columns import OutputColumn

# Noisy sums: what of a plan says how records become integers, and how much noise is added to
# them.


@dataclass(frozen=True, kw_only=True)
class Summed(Increment):
    """The amounts that records add to one integer sum per group; `noise_stream` is its number in
    the noise function (selection is 0, sums from 1)."""

    noise_stream: int

    @property
    def step(self) -> float:
        """Value of a unit of the noisy sum: as of increments."""
        return self.grid


@dataclass(frozen=True, kw_only=True)
class NoisySum(Summed):
    """One perturbed integer path per group, whatever its counter.

    Args:
        sensitivity: L2 sensitivity of one strategy step, the counter's largest column norm included, in value units.
        sigma: standard deviation of the noise of one strategy step, in value units.
    """

    sensitivity: float
    sigma: float


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


STORED_NAMES = {"noise_stream": "mechanism"}
"""Fields that identities digest, and run.json keeps, under another name."""


def as_stored(plan: Any) -> dict[str, Any]:
    """Return the fields of a plan, and of what is in it, under the names that are stored."""
    return asdict(plan, dict_factory=_stored)


def _stored(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Leave out what only some sums have, so that other plans keep their identity."""
    return {
        STORED_NAMES.get(name, name): value
        for name, value in items
        if name != "partner" or value is not None
    }


class MadeOfSums:
    """A plan whose columns are made of noisy sums: what it says of these."""

    arguments: tuple[str, ...]
    columns: tuple[Any, ...]

    @property
    def presence_only(self) -> tuple[bool, ...]:
        """Per argument: True if only COUNT(x) reads it, so its record column says NULL or not (NaN or 1.0) and no value."""
        return presence_only(self.arguments, self.perturbations)

    @property
    def perturbations(self) -> tuple[Any, ...]:
        """All perturbations in the order of their noise: trees of quantiles come last. Columns that are one number have one."""
        different = dict.fromkeys(p for column in self.columns for p in column.perturbations)
        return tuple(sorted(different, key=lambda p: p.noise_stream))

    @property
    def trees(self) -> tuple[Any, ...]:
        """The sums that are trees of quantiles."""
        return tuple(p for p in self.perturbations if isinstance(p, QuantileSum))


def presence_only(arguments: Sequence[str], perturbations: Sequence[Summed]) -> tuple[bool, ...]:
    """Tell for each argument whether all that read it only ask if there is a value."""
    used = [{p.rule for p in perturbations if p.argument == i} for i in range(len(arguments))]
    return tuple(rules <= {"valid", "valid_per_group"} for rules in used)


def per_group_sensitivity(increment: Increment, per_key: float, rows: float, groups: int) -> float:
    """Return the sensitivity of a sum with bounds per group, as a multiple of the counter's column
    norm, in value units (docs/privacy/lemma.md, bounds per group).

    Args:
        increment: what a row adds.
        per_key: rows of a unit with one key.
        rows, groups: rows of a unit, and groups that they are in; copies counted.
    """
    height = increment.largest if increment.rule.startswith("sum") else 1.0
    positive, negative = (
        min(per_key * height, bound * increment.grid)
        for bound in (increment.upper, -increment.lower)
    )
    return math.sqrt(
        min(max(positive, negative) * height * rows, groups * (positive**2 + negative**2))
    )


def bare(sums: Sequence[Increment]) -> tuple[Increment, ...]:
    """Return what an intake needs of them."""
    return tuple(
        Increment(*(getattr(each, field.name) for field in fields(Increment))) for each in sums
    )


# From an aggregate and its noisy sums to the column that is released.

KINDS = {
    AggregateFunction.SUM: "sum",
    AggregateFunction.AVG: "avg",
    AggregateFunction.APPROX_QUANTILES: "quantiles",
    **dict.fromkeys(VARIANCES, "variance"),
    **dict.fromkeys(DEVIATIONS, "deviation"),
    **{function: function.lower() for function in PAIRED},
}


def output_column(
    aggregate: Aggregate, parts: Sequence[Summed], errors: tuple[tuple[float, ...], ...] = ()
) -> OutputColumn:
    """Return how a released column is made of noisy sums, whose standard deviations at triggers 1..T are `errors`."""
    offsets = [p.upper * p.grid for p in parts if p.rule == "squares"]
    return OutputColumn(
        kind=KINDS.get(aggregate.function, "count"),
        perturbations=tuple(p.noise_stream - 1 for p in parts),
        grids=tuple(p.step for p in parts),
        stderr=errors,
        bounds=aggregate.bounds or (0.0, 0.0),
        centre=parts[0].centre,
        parts=aggregate.parts if isinstance(aggregate, Quantiles) else 0,
        offset=offsets[0] if offsets else 0.0,
        y_offset=offsets[-1] if offsets else 0.0,
        sample=aggregate.function in SAMPLES,
        x_bounds=aggregate.x_bounds if isinstance(aggregate, Paired) else (0.0, 0.0),
    )
