"""The standard normal quantile of a random word, in Python integers, to any number of bits: the definition that float64 comes close to.

A word is a sign and a 127-bit k; its normal is the real number with lower tail p = (k + 1/2) / 2^128, mirrored if the sign is set.
With h = 1/2 - p and phi the normal density, a = |z| solves integral_0^a phi = h. The integral is phi(a) S(a), S(a) = a + a^3/3 + a^5/(3 5)
+ ..., whose terms are all positive, so e = h / phi(a) - S(a) is the Newton step. All numbers are integers times 2^-w, rounded down.
"""

from __future__ import annotations

import math
from functools import lru_cache


def quantile(high: int, low: int, start: float, bits: int) -> int:
    """Return the normal of the word (high, low) times 2^bits; off by less than 1.

    Args:
        high, low: the 128 random bits; the highest is the sign.
        start: float64 approximation of the normal.
        bits: binary places.

    Raises:
        ArithmeticError: `start` is not within 2^-30 of the quantile (a broken library, never a matter of data).
    """
    # Bits beyond those asked for: log2(exp(a^2 / 2)), by which roundings grow, and 40 for their number; in whole 32s for the cache.
    guard = (int(0.7214 * start * start) + 40) // 32 * 32 + 32
    width = bits + guard
    tail = ((high & ((1 << 63) - 1)) << 64 | low) * 2 + 1  # over 2^129
    numerator, denominator = abs(start).as_integer_ratio()
    a = (numerator << width) // denominator
    while True:
        e = _newton_step(a, (1 << 128) - tail, width)
        places = width - e.bit_length()  # |e| < 2^-places
        if places < 30:
            raise ArithmeticError("the normal quantile of float64 is off by more than 2^-30")
        # a + e + a e^2 / 2 is the quantile but for at most (2 a^2 + 1) / 6 e^3 (1 + 2^-20) < 2^6 e^3.
        a += e + ((a * e >> width) * e >> (width + 1))
        if 3 * places - 6 >= bits + 2:
            return (a if high >> 63 else -a) >> guard


def _newton_step(a: int, h: int, width: int) -> int:
    """Return h / phi(a) - S(a), both series until their terms vanish; h over 2^129, all else over 2^width."""
    square = a * a >> width
    term = a
    odd = 1
    area = a
    while term:
        odd += 2
        term = (term * square >> width) // odd
        area += term
    half = square >> 1
    n = 0
    term = exponential = 1 << width  # exp(a^2 / 2)
    while term:
        n += 1
        term = (term * half >> width) // n
        exponential += term
    return (h * _root_of_two_pi(width) * exponential >> (width + 129)) - area


@lru_cache(maxsize=64)
def _root_of_two_pi(width: int) -> int:
    extra = width + 32
    pi = 16 * _arctan_of_inverse(5, extra) - 4 * _arctan_of_inverse(239, extra)  # Machin
    return math.isqrt(2 * pi << extra) >> 32


def _arctan_of_inverse(n: int, width: int) -> int:
    power = (1 << width) // n
    total = 0
    odd = 1
    while power:
        total += power // odd if odd % 4 == 1 else -(power // odd)
        power //= n * n
        odd += 2
    return total
