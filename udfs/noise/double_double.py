"""Numbers as sums of two float64, hi + lo with |lo| at most half a unit of hi: 106 significant bits from plain additions and products.

Everything is element-wise on arrays, in a fixed order, so a number has the same bits whichever others are computed beside it, on every
machine that follows IEEE 754. Each operation is off by less than 8 * 2^-106 of its result (of the larger operand, for a sum). Source:
Joldes, Muller and Popescu 2017, Tight and rigorous error bounds for basic building blocks of double-word arithmetic.
"""

from __future__ import annotations

from typing import TypeVar

from dpsql.udfs.columns import Float

Number = TypeVar("Number", float, Float)

Pair = tuple[Float, Float]
"""hi, lo."""

_SPLIT = 134217729.0  # 2^27 + 1


def two_sum(a: Float, b: Float) -> Pair:
    """Add two float64 without error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def add(a: Pair, b: Pair) -> Pair:
    """Add two pairs of numbers."""
    s, e = two_sum(a[0], b[0])
    t, f = two_sum(a[1], b[1])
    s, e = _quick(s, e + t)
    return _quick(s, e + f)


def times(c: Float, a: Pair) -> Pair:
    """Return c * a, for float64 c of at most 26 significant bits."""
    high, low = _halves(a[0])
    p = c * a[0]
    return _quick(p, ((c * high - p) + c * low) + c * a[1])


def product(c: tuple[float, float], a: Pair) -> Pair:
    """Return c * a for one number c = hi + lo."""
    c_high, c_low = _halves(c[0])
    high, low = _halves(a[0])
    p = c[0] * a[0]
    e = ((c_high * high - p) + c_high * low + c_low * high) + c_low * low
    return _quick(p, e + (c[0] * a[1] + c[1] * a[0]))


def _quick(a: Float, b: Float) -> Pair:
    """Add a and b where b is small beside a, or a is 0."""
    s = a + b
    return s, b - (s - a)


def _halves(a: Number) -> tuple[Number, Number]:
    """Split a into a sum of two numbers of 26 bits (Veltkamp)."""
    t = _SPLIT * a
    high = t - (t - a)
    return high, a - high
