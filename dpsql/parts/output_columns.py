"""From an aggregate and its noisy sums to the column that is released."""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.parsed_query import (
    DEVIATIONS,
    SAMPLES,
    VARIANCES,
    Aggregate,
    AggregateFunction,
    Quantiles,
)
from dpsql.parts.sums import Summed
from dpsql.udfs.measure.output_columns import OutputColumn

KINDS = {
    AggregateFunction.SUM: "sum",
    AggregateFunction.AVG: "avg",
    AggregateFunction.APPROX_QUANTILES: "quantiles",
    **dict.fromkeys(VARIANCES, "variance"),
    **dict.fromkeys(DEVIATIONS, "deviation"),
}


def output_column(
    aggregate: Aggregate, parts: Sequence[Summed], errors: tuple[tuple[float, ...], ...] = ()
) -> OutputColumn:
    """How a released column is made of noisy sums, whose standard deviations at triggers 1..T are `errors`."""
    return OutputColumn(
        kind=KINDS.get(aggregate.function, "count"),
        perturbations=tuple(p.mechanism - 1 for p in parts),
        grids=tuple(p.step for p in parts),
        stderr=errors,
        bounds=aggregate.bounds or (0.0, 0.0),
        centre=parts[0].centre,
        parts=aggregate.parts if isinstance(aggregate, Quantiles) else 0,
        offset=next((p.upper * p.grid for p in parts if p.rule == "squares"), 0.0),
        sample=aggregate.function in SAMPLES,
    )
