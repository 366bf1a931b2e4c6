"""Discrete Laplace noise from integer tables: P(k) proportional to exp(-epsilon |k|), drawn from random words, with an unbounded tail.

A table gives each k of a middle part, and each tail, a number of 128-bit words. A word of a tail is followed by a second one, which a
one-sided geometric table turns into the rest of |k|, as often as it takes: no k is impossible, so delta = 0 is exact. What a table
promises is a fact about its integers (`dpsql.privacy.noise_costs`); no float is involved.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from dpsql.udfs.columns import Int
from dpsql.udfs.noise.randomness import Blocks, words

WORDS = 1 << 128
"""Number of random words."""

MOST_ENTRIES = 1 << 20
REACH = 5
"""The middle part of a table goes to REACH / epsilon, where e^-5 of the probability is left, or to MOST_ENTRIES."""

SLACK = Fraction(1, 1 << 40)
"""Tables are made for this share of epsilon less: their entries are integers, and rounding must not bring a ratio above e^epsilon."""

SMALLEST = 2.0**-22
LARGEST = 20.0
"""Epsilon per step of the grid: below, tails would be drawn from too often; above, entries would be too small for their rounding."""

_BITS = 256


@dataclass(frozen=True)
class DiscreteLaplace:
    """A table; equal tables are equal noise.

    Args:
        epsilon: how much the logarithm of P(k) may differ between neighbouring k.
        middle: words of k = 0, 1, .., M; each k but 0 is there with both signs.
        tail: words of all k > M together, and as many of all k < -M.
        onward: words of 0, 1, .., M of the one-sided geometric that goes on from M + 1.
        onward_tail: words of all beyond; one more word goes on from there.
    """

    epsilon: float
    middle: tuple[int, ...] = field(repr=False)
    tail: int = field(repr=False)
    onward: tuple[int, ...] = field(repr=False)
    onward_tail: int = field(repr=False)

    @property
    def last(self) -> int:
        """M: the largest k that a single word can give."""
        return len(self.middle) - 1

    @property
    def variance(self) -> float:
        """2 a / (1 - a)^2, a = exp(-epsilon)."""
        return 0.5 / math.sinh(self.epsilon / 2) ** 2

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all entries; hexadecimal."""
        return hashlib.sha256(
            repr((self.middle, self.tail, self.onward, self.onward_tail)).encode()
        ).hexdigest()

    @cached_property
    def bounds(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Ends of the intervals of words of k = -(M + 1) (a tail), -M, .., M, high and low half. What is left is k = M + 1."""
        return _ends([self.tail, *self.middle[:0:-1], *self.middle])

    @cached_property
    def onward_bounds(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Ends of the intervals of words of 0, 1, .., M of the geometric, high and low half."""
        return _ends([*self.onward])

    def draw(
        self, noise_key: bytes, tag: Blocks, mechanism: int, round_: int | Int, step: int | Int
    ) -> Int:
        """Return one number per group and cell; all word numbers of a cell are its own.

        Args:
            noise_key, tag, mechanism, round_, step: as for `words`.
        """
        random_words = words(noise_key, tag, mechanism, round_, step)
        k = _find(random_words, self.bounds) - (self.last + 1)
        in_tail = np.flatnonzero(np.abs(k) > self.last)
        number = 0
        sign = np.sign(k)
        while len(in_tail):
            number += 1
            rounds, steps = (
                each if isinstance(each, int) else each[in_tail] for each in (round_, step)
            )
            more = _find(
                words(noise_key, tag[in_tail], mechanism, rounds, steps, number), self.onward_bounds
            )
            k[in_tail] += sign[in_tail] * more
            in_tail = in_tail[more > self.last]
        return k


@lru_cache(maxsize=32)
def discrete_laplace(epsilon: float) -> DiscreteLaplace:
    """Return the table for an epsilon per step of the grid, in integer arithmetic.

    Raises:
        ValueError: no table can be made for this epsilon.
    """
    if not SMALLEST <= epsilon <= LARGEST:
        raise ValueError(
            f"a table of discrete Laplace noise needs {SMALLEST:.3g} <= epsilon <= {LARGEST:g} per step, not {epsilon:g}"
        )
    last = min(math.ceil(REACH / epsilon), MOST_ENTRIES)
    unit = 1 << _BITS
    a = _exp_of_minus(Fraction(epsilon) * (1 - SLACK))
    powers = [unit]
    for _ in range(last + 1):
        powers.append(powers[-1] * a >> _BITS)
    of_zero = ((unit - a) << _BITS) // (unit + a)
    middle = [of_zero * power >> (2 * _BITS - 128) for power in powers[: last + 1]]
    tail = (powers[last + 1] << 128) // (unit + a)
    middle[0] = WORDS - 2 * (sum(middle[1:]) + tail)
    onward = [(unit - a) * power >> (2 * _BITS - 128) for power in powers[: last + 1]]
    onward_tail = powers[last + 1] >> (_BITS - 128)
    onward[0] = WORDS - sum(onward[1:]) - onward_tail
    return DiscreteLaplace(epsilon, tuple(middle), tail, tuple(onward), onward_tail)


def _exp_of_minus(x: Fraction) -> int:
    """Return exp(-x) times 2^256, off by less than 2^-200 of itself for x up to LARGEST."""
    bits = _BITS + 64
    halvings = 8
    unit = 1 << bits
    reduced = (x.numerator << bits) // (x.denominator << halvings)
    term = total = unit
    n = 0
    while term:
        n += 1
        term = (term * reduced >> bits) // n
        total += term
    for _ in range(halvings):
        total = total * total >> bits
    return (1 << (bits + _BITS)) // total


def _ends(sizes: list[int]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    high = []
    low = []
    total = 0
    for size in sizes:
        total += size
        high.append(total >> 64)
        low.append(total & ((1 << 64) - 1))
    return np.array(high, np.uint64), np.array(low, np.uint64)


def _find(
    random_words: Blocks, bounds: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
) -> Int:
    """Return how many intervals end at or before each word: by the high halves, and by the low ones where those are equal."""
    ends_high, ends_low = bounds
    high = random_words[:, 0]
    low = random_words[:, 1]
    position = np.searchsorted(ends_high, high).astype(np.int64, copy=False)
    tied = np.flatnonzero(ends_high[np.minimum(position, len(ends_high) - 1)] == high)
    while len(tied):
        place = position[tied]
        is_inside = place < len(ends_high)
        tied = tied[is_inside]
        place = place[is_inside]
        tied = tied[(ends_high[place] == high[tied]) & (ends_low[place] <= low[tied])]
        position[tied] += 1
    return position
