"""Output columns: counts, sums, averages, spreads, quantiles and their errors, read off noisy integer sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.measure import pairs
from dpsql.udfs.measure.errors import Z95, Sum, released

# Averages, variances and standard deviations: what noisy sums of centred values, of their
# squares and of how many there are allow.

# The value is what the noisy sums give, clamped. Its 95% error is the farther end of an interval
# that holds everything that sums within 1.96 standard errors, taken together, of the noisy ones
# give: for an average Fieller's interval (Journal of the Royal Statistical Society B, 1954). An
# interval cut to the bounds would be short where values lie near a bound, and hold the truth too
# seldom among those that are short. Where the error is half of what the bounds allow, nothing is
# said: the value is the middle of the bounds, the error all between them.

# Guarantee (docs/privacy/histogram.md, theorems 10 and 22): post-processing of numbers each of
# which has its own noise. Squares are summed less the
# middle of what they can be, so that one record moves their sum by half as much; the middle
# times the noisy count is added here.

QUARTER = ((0.0, 1.0), (0.28, 0.96), (0.6, 0.8), (0.8, 0.6), (0.96, 0.28), (1.0, 0.0))
"""Points of a quarter of the unit circle, of which every machine has the same bits."""

Ends = tuple[Float, Float]


def average(total: Sum, count: Sum, bounds: tuple[float, float]) -> tuple[Float, Float]:
    """Return (average of the centred values, stderr)."""
    low, high = _outermost(
        ((total[0] - left * total[1]) / n, (total[0] + left * total[1]) / n)
        for n, left in _counts(*count)
    )
    value = _quotient(total[0] / np.maximum(count[0], 1.0), low, high, count)
    error = np.maximum(high - value, value - low)
    return released(np.clip(value, *bounds), error, bounds, count)


def variance(
    total: Sum, squares: Sum, count: Sum, offset: float, largest: float, sample: bool, root: bool
) -> tuple[Float, Float]:
    """Return (variance, stderr); with `root` those of the standard deviation.

    Args:
        total: of the centred values. squares: of their squares, `offset` taken from each.
        offset: the middle of what one square can be. largest: the largest variance that values within their bounds can have.
        sample: divide by count - 1, as for values that stand for others.
    """
    low, high = _outermost(_spreads(total, squares, count))
    n = np.maximum(count[0], 1.0)
    quotient = _quotient(squares[0] / n - (total[0] / n) ** 2, low, high, count)
    ends = [quotient + offset, low + offset, high + offset]
    ends.append(np.clip(ends[0], 0.0, largest))
    if sample:
        counts = (np.maximum(count[0] + side * Z95 * count[1], 2.0) for side in (0, 1, -1, 0))
        ends = [end * (n / (n - 1)) for end, n in zip(ends, counts, strict=True)]
        largest *= 2
    middle, low, high, value = ends
    error = np.maximum(high - middle, middle - low)
    if root:
        deviation = np.sqrt(value)
        error = np.maximum(
            np.sqrt(value + error) - deviation, deviation - np.sqrt(np.maximum(value - error, 0.0))
        )
        return released(deviation, error, (0.0, largest**0.5), count)
    return released(value, error, (0.0, largest), count)


def _counts(count: Float, error: Float) -> Iterator[tuple[Float, float]]:
    """Yield counts within 1.96 standard errors, 1 at least, and how many standard errors each leaves to the other sums."""
    for part, left in QUARTER:
        for side in (-part, part):
            yield np.maximum(count + side * Z95 * error, 1.0), Z95 * left


def _spreads(total: Sum, squares: Sum, count: Sum) -> Iterator[Ends]:
    size = np.abs(total[0])
    for n, share in _counts(*count):
        for of_total, of_squares in QUARTER:
            shift = share * of_total * total[1]
            error = share * of_squares * squares[1]
            low = (size + shift) / n
            high = np.maximum(size - shift, 0.0) / n
            yield (squares[0] - error) / n - low**2, (squares[0] + error) / n - high**2


def _outermost(ends: Iterator[Ends]) -> Ends:
    """Return the ends of all intervals together."""
    low, high = next(ends)
    for lowest, highest in ends:
        low = np.minimum(low, lowest)
        high = np.maximum(high, highest)
    return low, high


def _quotient(quotient: Float, low: Float, high: Float, count: Sum) -> Float:
    """Return a quotient by the noisy count; the middle of its interval where that count is below 1."""
    return np.where(count[0] < 1, (low + high) / 2, quotient)


@dataclass(frozen=True)
class OutputColumn:
    """One released column.

    Args:
        kind: `count` (int64), `sum` (float64, an exact multiple of the grid), `avg`, `variance`, `deviation` or one of
            `PAIRED` (float64), or `quantiles`: so many float64 as there are `parts`, and one (`dpsql.udfs.measure.quantiles`).
        perturbations: positions of its perturbations (avg: centred sum, then count; variance and deviation: squares between the two).
        grids: their grids.
        stderr: per perturbation, standard deviation of the noise at triggers 1..horizon, in value units.
        bounds: clip of an average; one record's of a variance. centre: what its values were centred on.
        offset: what was taken from each square. sample: a variance divides by the count less 1.
        x_bounds: of two values the second one's; `bounds` and `y_offset` are then of the first.
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
    x_bounds: tuple[float, float] = (0.0, 0.0)
    y_offset: float = 0.0


def released_columns(columns: Sequence[OutputColumn], with_quantiles: bool = True) -> pa.Schema:
    """Return columns of released rows; not `with_quantiles`: as they are before quantiles are read off, with the `key` that these are of."""
    fields = [("window", pa.int64()), ("trigger", pa.int64()), ("key_bytes", pa.binary())]
    for i, column in enumerate(columns):
        if column.kind == "quantiles" and not with_quantiles:
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
    if not with_quantiles and any(column.kind == "quantiles" for column in columns):
        fields.append(("key", pa.int64()))
    return pa.schema(fields)


def combine(
    column: OutputColumn, values: list[Int], errors: list[Float]
) -> tuple[Int | Float, Float]:
    """Return (values, stderr) of one output column.

    An average, a variance or a deviation is what its noisy sums give, and its stderr the farther end of what they allow at 95% over 1.96: made of
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
    noisy = list(zip(sums, errors, strict=True))
    low, high = column.bounds
    if column.kind == "avg":
        centred, stderr = average(noisy[0], noisy[1], (low - column.centre, high - column.centre))
        return column.centre + centred, stderr
    if column.kind in pairs.KINDS:
        scale = pairs.PairScale(column.bounds, column.x_bounds, column.y_offset, column.offset)
        return pairs.measure(column.kind, noisy, scale)
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
