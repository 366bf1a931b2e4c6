"""Covariance, correlation and the line of least squares, read off noisy sums of pairs (y, x) that are centred and scaled to [-1, 1].

The value is a quotient of what the noisy sums give. Each part of it has a first derivative in every sum, so the delta method gives the
covariance of numerator and denominator, and Fieller's interval the 95% error of the quotient: its farther end. Where half of what is possible
is less than that error, nothing is said. A slope can be as steep as the bounds of y over the deviation of x, so a line is NULL where the noise could
have made the variance of x.

Guarantee (docs/privacy/histogram.md, theorem 33): post-processing of numbers each of which has its own noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Float
from dpsql.udfs.measure.errors import Z95, Sum, released

KINDS = ("covar_pop", "corr", "regr_slope", "regr_intercept")


@dataclass(frozen=True)
class PairScale:
    """The bounds of y and x, and the offsets that were taken from their squares."""

    y_bounds: tuple[float, float]
    x_bounds: tuple[float, float]
    y_offset: float
    x_offset: float

    @property
    def y_half(self) -> float:
        """Half of the width of the bounds of y."""
        return (self.y_bounds[1] - self.y_bounds[0]) / 2

    @property
    def x_half(self) -> float:
        """Half of the width of the bounds of x."""
        return (self.x_bounds[1] - self.x_bounds[0]) / 2


def measure(kind: str, sums: Sequence[Sum], scale: PairScale) -> tuple[Float, Float]:
    """Return the value of an aggregate of two values, and its stderr.

    Args:
        kind: one of `KINDS`.
        sums: of products, of y, of x, of squares of x, of squares of y, and of ones: as many as the kind needs.
        scale: of y and x.
    """
    y_half = scale.y_half
    x_half = scale.x_half
    units = [y_half * x_half, y_half, x_half, x_half**2, y_half**2][: len(sums) - 1]
    product, y, x, *squares, count = _differentials(sums, [*units, 1.0])
    shared = product - _divided(_times(x, y), count)
    if kind == "covar_pop":
        value, error = _fieller(shared, count)
        value, stderr = released(np.clip(value, -1.0, 1.0), error, (-1.0, 1.0), sums[-1])
        return value * units[0], stderr * units[0]
    x_spread = squares[0] + scale.x_offset / x_half**2 * count - _divided(_times(x, x), count)
    if kind == "corr":
        y_spread = squares[1] + scale.y_offset / y_half**2 * count - _divided(_times(y, y), count)
        value, error = _fieller(shared, _root(x_spread, y_spread))
        return released(np.clip(value, -1.0, 1.0), error, (-1.0, 1.0), sums[-1])
    return _line(kind, scale, (shared, x_spread), (y, x, count))


def _line(
    kind: str, scale: PairScale, spreads: tuple[Float, Float], sums: tuple[Float, Float, Float]
) -> tuple[Float, Float]:
    """Return the slope, or the intercept, where the slope's error leaves something to say.

    Args:
        kind, scale: as `measure`.
        spreads: the covariance and the variance of x, times the count.
        sums: of y, of x, and the count.
    """
    shared, x_spread = spreads
    y, x, count = sums
    value, error = _fieller(shared, x_spread)
    steepest = np.sqrt(count[0] / np.maximum(x_spread[0], TINY))
    is_said = error < steepest
    unit = scale.y_half / scale.x_half
    if kind == "regr_intercept":
        zero = -(scale.x_bounds[0] + scale.x_half) / scale.x_half
        numerator = _times(y, x_spread) + _times(zero * count - x, shared)
        value, error = _fieller(numerator, _times(count, x_spread))
        value = value + (scale.y_bounds[0] + scale.y_half) / scale.y_half
        unit = scale.y_half
    return np.where(is_said, value * unit, np.nan), np.where(is_said, error * unit / Z95, np.nan)


# A number and its differentials: row 0 is the value, the others are its derivative in each noisy
# sum times the deviation of that sum's noise.

TINY = 1e-300


def _differentials(sums: Sequence[Sum], units: Sequence[float]) -> list[Float]:
    """Return the sums in their units; of ones there is at least one."""
    numbers = []
    for i, ((value, error), unit) in enumerate(zip(sums, units, strict=True)):
        number = np.zeros((len(sums) + 1, len(value)))
        number[0] = value / unit
        number[i + 1] = error / unit
        numbers.append(number)
    numbers[-1][0] = np.maximum(numbers[-1][0], 1.0)
    return numbers


def _times(a: Float, b: Float) -> Float:
    return np.concatenate([a[:1] * b[:1], a[:1] * b[1:] + b[:1] * a[1:]])


def _divided(a: Float, b: Float) -> Float:
    value = a[:1] / b[:1]
    return np.concatenate([value, (a[1:] - value * b[1:]) / b[:1]])


def _deviation(number: Float) -> Float:
    return np.sqrt(np.sum(number[1:] ** 2, axis=0, keepdims=True))


def _root(a: Float, b: Float) -> Float:
    """Return the root of a product; no number where noise could be all of a factor."""
    is_positive = np.logical_and(*(part[:1] > Z95 * _deviation(part) for part in (a, b)))
    product = _times(a, b)
    value = np.sqrt(np.where(is_positive, product[:1], 1.0))
    return np.where(is_positive, np.concatenate([value, product[1:] / (2 * value)]), 0.0)


def _fieller(numerator: Float, denominator: Float) -> tuple[Float, Float]:
    """Return a quotient and how far its 95% interval reaches; infinitely, where the denominator could be 0."""
    noise = [Z95 * part[1:] for part in (numerator, denominator)]
    top = numerator[0]
    bottom = denominator[0]
    square = bottom**2 - np.sum(noise[1] ** 2, axis=0)
    middle = top * bottom - np.sum(noise[0] * noise[1], axis=0)
    product = top**2 - np.sum(noise[0] ** 2, axis=0)
    is_bounded = (square > 0) & (bottom > 0)
    square = np.where(is_bounded, square, 1.0)
    quotient = np.where(is_bounded, top / np.where(is_bounded, bottom, 1.0), 0.0)
    width = np.sqrt(np.maximum(middle**2 - square * product, 0.0)) / square
    error = width + np.abs(middle / square - quotient)
    return quotient, np.where(is_bounded, error, np.inf)
