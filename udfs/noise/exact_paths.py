"""Noise paths again from their random words, for the few cells where float64 cannot tell how the exact real number would be rounded.

The exact path is defined once, for every machine: the counter's linear map, with its float64 constants read as exact rationals, of the exact
normal quantiles of the words (dpsql.udfs.noise.exact_normal), times the float64 sigma read as a rational. Two tries, dear and dearer: a sum of
float64 draws with an error bound of its own, then integers with as many bits as the decision needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dpsql.udfs.columns import Bool, Float, Int
from dpsql.udfs.noise import randomness
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Blt, Counter, Honaker
from dpsql.udfs.noise.exact_normal import quantile
from dpsql.udfs.noise.path_error import ABSOLUTE, RELATIVE, UNIT

GUARD = 64
"""Bits beyond those asked for: a path of 10,000 steps rounds and carries less than 2^40 units."""

MOST_BITS = 1 << 14
"""No path is closer to a boundary: that has a probability of 2^-16000."""


@dataclass(frozen=True)
class Redraw:
    """Where the words of some paths come from: path i is that of group `groups[i]`, which has a row of `tag` and a round."""

    noise_key: bytes
    tag: randomness.Blocks
    groups: Int
    mechanism: int
    round_: Int | int
    counter: Counter | BltInf

    def rounded(self, rows: Int, step: int, scale: Float | float) -> Int:
        """Return the exact path at a step times `scale`, rounded to integers."""
        each = np.broadcast_to(scale, len(self.groups))
        return np.array(
            [self._settle(int(row), step, float(each[row]), Fraction(1, 2)) for row in rows],
            np.int64,
        )

    def reaches(self, rows: Int, step: int, scale: float, margin: npt.NDArray[np.floating]) -> Bool:
        """Tell whether the exact path at a step times `scale` is at least `margin` (one per row, read as exact)."""
        shifts = [-Fraction(float(m)) for m in margin]
        return np.array(
            [
                self._settle(int(row), step, scale, m) >= 0
                for row, m in zip(rows, shifts, strict=True)
            ],
            bool,
        )

    def _settle(self, row: int, step: int, scale: float, shift: Fraction) -> int:
        """Return floor(path * scale + shift), exactly."""
        steps, numbers = _draws(self.counter, step)
        group = int(self.groups[row])
        tag = np.repeat(self.tag[group : group + 1], len(steps), axis=0)
        round_ = self.round_ if isinstance(self.round_, int) else int(self.round_[group])
        z = randomness.normals(self.noise_key, tag, self.mechanism, round_, steps, numbers)
        settled = _settle_in_float64(
            z, coefficients(self.counter, step), scale, shift, _OFF.get(type(self.counter), 1)
        )
        if settled is not None:
            return settled
        words = randomness.words(
            self.noise_key, tag, self.mechanism, round_, steps, numbers
        ).tolist()
        bits = 64
        while True:
            path = exact_path(
                self.counter,
                [
                    quantile(h, low, at, bits + GUARD)
                    for (h, low), at in zip(words, z.tolist(), strict=True)
                ],
                step,
                bits,
            )
            low, high = (
                math.floor(Fraction(scale) * Fraction(path + off, 1 << bits) + shift)
                for off in (-1, 1)
            )
            if low == high or bits > MOST_BITS:
                return low
            bits *= 2


def rounded(path: Float, scale: Float | float, step: int, error: float, redraw: Redraw) -> Int:
    """Return the exact paths at a step times `scale`, rounded to integers: from float64 where it can tell, else, or where it is NaN, from the words.

    Args:
        path: unit-noise paths, each within `error` of the exact one.
        scale: of all paths or one per path; one product with it is part of `error`.
    """
    scaled = path * scale
    noise = np.rint(scaled)
    doubt = ~(np.abs(scaled - noise) < 0.5 - error * scale)
    if doubt.any():
        noise[doubt] = 0.0
        integer_noise = noise.astype(np.int64)
        rows = np.flatnonzero(doubt)
        integer_noise[rows] = redraw.rounded(rows, step, scale)
        return integer_noise
    return noise.astype(np.int64)


def path_reaches(
    path: Float,
    sigma: float,
    margin: npt.NDArray[np.floating],
    step: int,
    error: float,
    redraw: Redraw,
) -> Bool:
    """Tell whether the exact paths at a step times sigma are at least `margin` (one per row, read as exact); arguments as for `rounded`."""
    excess = sigma * path - margin
    reaches = excess >= 0
    doubt = ~(np.abs(excess) > error * sigma)
    if doubt.any():
        rows = np.flatnonzero(doubt)
        reaches[rows] = redraw.reaches(rows, step, sigma, margin[rows])
    return reaches


def sum_reaches(
    noise_key: bytes,
    chosen: Counter,
    sigma: float,
    paths: randomness.Blocks,
    words: randomness.Blocks,
    sd: float,
    round_: int,
    margin: float,
) -> bool:
    """Tell whether sigma times (the sum of the last exact paths of some groups and of `sd` times one normal of others) is at least `margin`.

    Args:
        noise_key: the run's.
        chosen, sigma: of key selection.
        paths, words: rows of `randomness.tags`: of groups with a path, in round 0, and of groups with one word, in round `round_` of the last step.
        sd, margin: read as exact.
    """
    last = chosen.horizon
    steps, numbers = _draws(chosen, last)
    cells = [(np.repeat(tag[None], len(steps), axis=0), 0, steps, numbers) for tag in paths]
    bits = 64
    while True:
        width = bits + GUARD
        total = sum(
            (
                Fraction(
                    exact_path(chosen, _normals(noise_key, *cell, width), last, bits), 1 << bits
                )
                for cell in cells
            ),
            Fraction(0),
        )
        single = _normals(
            noise_key,
            words,
            round_,
            np.full(len(words), last),
            np.zeros(len(words), np.int64),
            width,
        )
        total += Fraction(sd) * Fraction(sum(single), 1 << width)
        error_bound = Fraction(len(paths), 1 << bits) + Fraction(sd) * Fraction(
            len(words), 1 << width
        )
        low, high = (
            Fraction(sigma) * (total + sign * error_bound) >= Fraction(margin) for sign in (-1, 1)
        )
        if low == high or bits > MOST_BITS:
            return low
        bits *= 2


def _normals(
    noise_key: bytes, tag: randomness.Blocks, round_: int, steps: Int, numbers: Int, width: int
) -> list[int]:
    """Return draws of key selection times 2^width, each off by less than 1."""
    z = randomness.normals(noise_key, tag, randomness.SELECTION, round_, steps, numbers)
    words = randomness.words(noise_key, tag, randomness.SELECTION, round_, steps, numbers)
    return [
        quantile(high, low, at, width)
        for (high, low), at in zip(words.tolist(), z.tolist(), strict=True)
    ]


def _settle_in_float64(
    z: Float, b: Float, scale: float, shift: Fraction, units_off: int
) -> int | None:
    """Return floor(sum of b z * scale + shift), or None if the rounding of float64 could change it; b is within `off` units of rounding."""
    products = np.abs(b * z)
    error = (
        UNIT
        * ((RELATIVE + units_off + 2) * float(products.sum()) + ABSOLUTE * float(np.abs(b).sum()))
        * 1.01
    )
    value = Fraction(math.fsum((b * z).tolist()))
    reach = Fraction(error)
    low, high = (math.floor(Fraction(scale) * (value + sign * reach) + shift) for sign in (-1, 1))
    return low if low == high else None


_OFF = {Honaker: 64, BltInf: 16}
"""How many units of rounding `coefficients` may be off, where it is more than one."""


def _draws(chosen: Counter | BltInf, step: int) -> tuple[Int, Int]:
    """Return (step, number) of all draws of a path up to a step, in the order in which `exact_path` takes them."""
    steps = np.arange(1, step + 1)
    if not isinstance(chosen, Honaker):
        return steps, np.zeros(step, np.int64)
    per_step = [(s & -s).bit_length() for s in range(1, step + 1)]
    return np.repeat(steps, per_step), np.concatenate([np.arange(n) for n in per_step])


def coefficients(chosen: Counter | BltInf, step: int) -> Float:
    """Return row `step` of B, in the order of `_draws`: the float64 nearest to each entry; for the tree a product of at most 14 quotients and differences."""
    if isinstance(chosen, BltInf):
        return chosen.response(np.arange(step - 1, -1, -1))
    return _tree_row(step) if isinstance(chosen, Honaker) else _column(chosen)[step - 1 :: -1]


@lru_cache(maxsize=16)
def _column(chosen: Blt) -> Float:
    bits = 128
    unit = [1 << (bits + GUARD)] + [0] * (chosen.horizon - 1)
    return np.array(
        [value / (1 << (bits + GUARD)) for value in _buffered(chosen, unit, bits + GUARD)]
    )


@lru_cache(maxsize=1024)
def _tree_row(step: int) -> Float:
    """Return a row of the tree's B, from the roots down: a node's draw has v of the node's weight, each child 1 - v."""
    weight: dict[tuple[int, int], float] = {}
    end = 0
    for level in reversed(range(step.bit_length())):
        if step >> level & 1:
            end += 1 << level
            weight[end, level] = 1.0
    row = {}
    for level in reversed(range(step.bit_length())):
        v = 2.0**level / (2.0 ** (level + 1) - 1)
        for leaf in range(1 << level, step + 1, 1 << level):
            row[leaf, level] = weight[leaf, level] * v
            if level:
                weight[leaf, level - 1] = weight[leaf - (1 << (level - 1)), level - 1] = weight[
                    leaf, level
                ] * (1 - v)
    return np.array(
        [
            row[leaf, level]
            for leaf in range(1, step + 1)
            for level in range((leaf & -leaf).bit_length())
        ]
    )


def exact_path(chosen: Counter | BltInf, z: list[int], step: int, bits: int) -> int:
    """Return the unit-noise path at a step times 2^bits, off by less than 1.

    Args:
        chosen: the counter.
        z: its draws times 2^(bits + GUARD), in order of (step, number), each off by less than 1.
        step: from 1.
        bits: binary places.
    """
    width = bits + GUARD
    if isinstance(chosen, Honaker):
        path = _tree(z, step)
    else:
        path = _buffered(chosen, z, width)[-1]
    return path >> GUARD


def _buffered(chosen: Blt | BltInf, z: list[int], width: int) -> list[int]:
    """Return paths at all steps, by the recurrence of `Blt.advance`, theta and omega as exact integers over 2^width."""
    theta = [_scaled(v, width) for v in chosen.theta]
    omega = [_scaled(v, width) for v in chosen.omega]
    s = [0] * len(theta)
    path = 0
    paths = []
    for draw in z:
        x = draw - (sum(w * v for w, v in zip(omega, s, strict=True)) >> width)
        s = [(t * v >> width) + x for t, v in zip(theta, s, strict=True)]
        path += x
        paths.append(path)
    return paths


def _tree(z: list[int], step: int) -> int:
    """Return the path of `Honaker.advance`, v_k = 2^k / (2^(k+1) - 1)."""
    draws = iter(z)
    newest = [0] * step.bit_length()
    for leaf in range(1, step + 1):
        estimate = next(draws)
        top = (leaf & -leaf).bit_length() - 1
        for k in range(1, top + 1):
            estimate = ((next(draws) << k) + ((1 << k) - 1) * (newest[k - 1] + estimate)) // (
                (1 << (k + 1)) - 1
            )
        newest[top] = estimate
    return sum(value for k, value in enumerate(newest) if step >> k & 1)


def _scaled(value: float, width: int) -> int:
    numerator, denominator = value.as_integer_ratio()
    return (
        numerator << width
    ) // denominator  # exact: a float64 above 2^-70 is an integer over 2^width
