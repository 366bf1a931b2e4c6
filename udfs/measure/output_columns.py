"""Output columns: counts, sums, averages, spreads, quantiles and their errors, read off noisy integer sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.measure.quotients import average, variance


@dataclass(frozen=True)
class OutputColumn:
    """One released column.

    Args:
        kind: `count` (int64), `sum` (float64, an exact multiple of the grid), `avg`, `variance` or `deviation` (float64),
            or `quantiles`: so many float64 as there are `parts`, and one (`dpsql.udfs.measure.quantiles`).
        perturbations: positions of its perturbations (avg: centred sum, then count; variance and deviation: squares between the two).
        grids: their grids.
        stderr: per perturbation, standard deviation of the noise at triggers 1..horizon, in value units.
        bounds: clip of an average; one record's of a variance. centre: what its values were centred on.
        offset: what was taken from each square. sample: a variance divides by the count less 1.
    """

    kind: str
    perturbations: tuple[int, ...]
    grids: tuple[float, ...]
    stderr: tuple[tuple[float, ...], ...]
    bounds: tuple[float, float] = (0.0, 0.0)
    centre: float = 0.0
    parts: int = 0
    offset: float = 0.0
    sample: bool = False


def released_columns(columns: Sequence[OutputColumn], whole: bool = True) -> pa.Schema:
    """Columns of released rows; not `whole`: as they are before quantiles are read off, with the `key` that these are of."""
    fields = [("window", pa.int64()), ("trigger", pa.int64()), ("key_bytes", pa.binary())]
    for i, column in enumerate(columns):
        if column.kind == "quantiles" and not whole:
            continue
        if column.kind == "quantiles":
            fields += [
                *((f"c{i}_{k}", pa.float64()) for k in range(column.parts + 1)),
                (f"s{i}", pa.float64()),
            ]
            continue
        fields += [
            (f"c{i}", pa.int64() if column.kind == "count" else pa.float64()),
            (f"s{i}", pa.float64()),
        ]
    if not whole and any(column.kind == "quantiles" for column in columns):
        fields.append(("key", pa.int64()))
    return pa.schema(fields)


def combine(
    column: OutputColumn, values: list[Int], errors: list[Float]
) -> tuple[Int | Float, Float]:
    """(values, stderr) of one output column.

    An average, a variance or a deviation is the middle of what its noisy sums allow at 95%, and its stderr is half of that over 1.96: made of
    released numbers only. NaN where there are none, or the noise of a sum is not known.

    Args:
        column: which.
        values: noisy sums in steps of their grids, of all perturbations.
        errors: standard deviation of the noise of every row, of each perturbation of the column.
    """
    first = values[column.perturbations[0]]
    if column.kind == "count":
        return first, errors[0]
    sums = [
        (values[j] * grid).astype(np.float64)
        for j, grid in zip(column.perturbations, column.grids, strict=True)
    ]
    if column.kind == "sum":
        return sums[0], errors[0]
    noisy, (low, high) = list(zip(sums, errors, strict=True)), column.bounds
    if column.kind == "avg":
        centred, stderr = average(noisy[0], noisy[1], (low - column.centre, high - column.centre))
        return column.centre + centred, stderr
    total, squares, count = noisy
    return variance(
        total,
        squares,
        count,
        column.offset,
        ((high - low) / 2) ** 2,
        column.sample,
        column.kind == "deviation",
    )
