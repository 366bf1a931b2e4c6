"""BLT_INF: the buffered linear Toeplitz counter without a last step (arXiv 2404.16706, its constants over infinite time).

    C(z) = 1 + sum_j omega_j z / (1 - theta_j z),   B(z) = 1 / ((1 - z) C(z)) = sum_i r_i / (1 - lambda_i z),   B C = prefix sums.

With omega_j > 0 and 0 < theta_1 < theta_2 < ... < 1 the zeros of C interlace: lambda_1 < theta_1 < lambda_2 < theta_2 < ...; lambda_0 = 1. So
all r_i are positive, and b_k = sum_i r_i lambda_i^k falls, is convex and never negative. All that is asked of a far step (variance, error,
row of B) is such a sum, in closed form: nothing here is an array over time. A test holds them against the recurrence.

The state of a path is 1 + m numbers as double-double, so what a path's error grows with is its draws' own error (`error`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from dpsql.udfs.columns import Float, Int
from dpsql.udfs.noise import double_double as dd
from dpsql.udfs.noise.counters import Draw
from dpsql.udfs.noise.path_error import ABSOLUTE, RELATIVE, ROOM, UNIT
from dpsql.udfs.noise.randomness import MAX_NORMAL

SCALE = 24
"""theta and omega are multiples of 2^-24: a product with half a float64 is exact."""
THETA = tuple(v / 2**SCALE for v in (8598533, 15648866, 16719632, 16773443, 16776757, 16777186))
OMEGA = tuple(v / 2**SCALE for v in (1803286, 1967962, 439108, 70157, 19917, 10273))

BITS = 256
"""Binary places of zeros, residues and powers."""
SERIAL = 64
"""Steps that `jump` takes one by one, for all its blocks at once."""


@dataclass(frozen=True)
class BltInf:
    """The counter; every step from 1 on, without end.

    Args:
        theta, omega: multiples of 2^-24; theta ascends.
    """

    theta: tuple[float, ...] = THETA
    omega: tuple[float, ...] = OMEGA

    @property
    def width(self) -> int:
        """Numbers of state per path: path and buffers, first the high parts of all, then the low ones."""
        return 2 * (1 + len(self.theta))

    def advance(self, state: Float, draw: Draw, step: int) -> Float:
        """Return the state after one more step; column 0 is the unit-noise path. Shape (paths, width) in and out."""
        return self._step(state, draw(0))

    def jump(self, state: Float, draws: Float) -> Float:
        """Return the state after as many steps as there are columns of standard normals, in one go.

        Not the same last bits as step by step, but as exact: the same arguments always give the same bits. A key that appears at a
        late step has all steps before it to catch up with.
        """
        paths, steps = draws.shape
        blocks = 1 << max((steps - 1) // SERIAL, 0).bit_length() if steps > SERIAL else 1
        padded = np.zeros((paths, blocks * SERIAL if blocks > 1 else steps))
        padded[:, padded.shape[1] - steps :] = (
            draws  # steps without noise, before any, change nothing
        )
        parts = np.zeros((paths * blocks, self.width))
        padded = padded.reshape(paths * blocks, -1)
        for column in range(padded.shape[1]):
            parts = self._step(parts, np.ascontiguousarray(padded[:, column]))
        length = padded.shape[1]
        parts = parts.reshape(paths, blocks, self.width)
        while parts.shape[1] > 1:
            earlier, later = (
                np.ascontiguousarray(parts[:, i::2]).reshape(-1, self.width) for i in (0, 1)
            )
            parts = self._plus(later, self._move(earlier, length)).reshape(paths, -1, self.width)
            length *= 2
        shifted = state
        for power in range(steps.bit_length()):
            if steps >> power & 1 and state.any():
                shifted = self._move(shifted, 1 << power)
        return self._plus(parts[:, 0], shifted)

    def squared_norm(self) -> float:
        """Return f^2, the squared norm of every column of C, over infinite time."""
        theta, omega = ([Fraction(v) for v in values] for values in (self.theta, self.omega))
        pairs = ((j, k) for j in range(len(theta)) for k in range(len(theta)))
        return float(1 + sum(omega[j] * omega[k] / (1 - theta[j] * theta[k]) for j, k in pairs))

    def path_variance(self, step: int) -> float:
        """Return the variance of the path at a step for unit noise: b_0^2 + ... + b_(step-1)^2."""
        return _path_variance(self, step)

    def response_sum(self, step: int) -> float:
        """Return the sum of b_0 to b_(step-1), the largest response."""
        return sum(r * _geometric(x, step) >> BITS for x, r in zip(*self._poles, strict=True)) / (
            1 << BITS
        )

    def response(self, steps: Int) -> Float:
        """Return b_k at each k, in float64: off by less than 16 units of rounding, because no term is negative."""
        rates, residues = self._decays
        return sum(
            (r * np.exp(rate * steps) for rate, r in zip(rates, residues, strict=True)),
            np.zeros(len(steps)),
        )

    def error(self, step: int) -> float:
        """Return a bound on |high part of the path - exact path| after a step, one product by sigma included; `dpsql.udfs.noise.path_error` has that of others.

        A draw is off by UNIT (RELATIVE |z| + ABSOLUTE), and its error reaches the path times b_k. No path is larger than MAX_NORMAL times
        the sum of b. Roundings of double-double: draws of x = z - omega . s are at most 2 MAX_NORMAL, as the absolute sum of the inverse
        of C is at most 2; so buffers stay below 2^24.7, and a step is off by less than 2^37 * 2^-106 and its effect on later paths by no
        more, because an error in a buffer moves no path by more than itself. 2^-68 per step is more than that.
        """
        return ROOM * (
            UNIT * ((RELATIVE + 2) * MAX_NORMAL + ABSOLUTE) * self.response_sum(step)
            + step * 2.0**-68
        )

    def _step(self, state: Float, z: Float) -> Float:
        new_state = np.empty_like(state)
        half = self.width // 2
        s = state[:, 1:half], state[:, half + 1 :]
        fed = dd.times(-np.array(self.omega), s)
        x: dd.Pair = (z, np.zeros_like(z))
        for j in range(half - 1):
            x = dd.add(x, (fed[0][:, j], fed[1][:, j]))
        new_state[:, 0], new_state[:, half] = dd.add((state[:, 0], state[:, half]), x)
        new_state[:, 1:half], new_state[:, half + 1 :] = dd.add(
            dd.times(np.array(self.theta), s), (x[0][:, None], x[1][:, None])
        )
        return new_state

    def _plus(self, a: Float, b: Float) -> Float:
        half = self.width // 2
        return np.concatenate(
            dd.add((a[:, :half], a[:, half:]), (b[:, :half], b[:, half:])), axis=1
        )

    def _move(self, state: Float, steps: int) -> Float:
        """Return the state after steps without noise; steps is a power of two."""
        new_state = np.zeros_like(state)
        half = self.width // 2
        for i, row in enumerate(_transition(self, steps)):
            for j, entry in enumerate(row):
                if entry != (0.0, 0.0):
                    new_state[:, i], new_state[:, half + i] = dd.add(
                        (new_state[:, i], new_state[:, half + i]),
                        dd.product(entry, (state[:, j], state[:, half + j])),
                    )
        return new_state

    @cached_property
    def _poles(self) -> tuple[list[int], list[int]]:
        """Poles (lambda_0 = 1, lambda_1, ...) and their residues r_i, over 2^BITS."""
        unit = 1 << BITS
        theta = [_fixed(v) for v in self.theta]
        omega = [_fixed(v) for v in self.omega]
        roots = [unit]
        for low, high in zip([0, *theta], theta, strict=False):
            # 1 + sum omega_j / (lambda - theta_j) falls from plus to minus infinity between two poles.
            while high - low > 1:
                middle = (low + high) // 2
                positive = (
                    unit
                    + sum((w << BITS) // (middle - t) for w, t in zip(omega, theta, strict=True))
                    > 0
                )
                low, high = (middle, high) if positive else (low, middle)
            roots.append(low)
        residues = []
        for root in roots:
            numerator = math.prod(root - t for t in theta)
            denominator = math.prod(root - pole for pole in roots if pole != root)
            residues.append((numerator << BITS) // denominator)
        return roots, residues

    @cached_property
    def _decays(self) -> tuple[list[float], list[float]]:
        """Logarithms of lambda_i, and residues r_i, in float64."""
        unit = 1 << BITS
        roots, residues = self._poles
        return [math.log1p(-((unit - x) / unit)) for x in roots], [r / unit for r in residues]


@lru_cache(maxsize=4096)
def _path_variance(chosen: BltInf, step: int) -> float:
    """Return the variance of a path. Cached: a plan asks for all blocks of thresholds, a release for each of its columns."""
    roots, residues = chosen._poles
    total = 0
    for i, (x, r) in enumerate(zip(roots, residues, strict=True)):
        for k in range(i + 1):
            total += (1 if k == i else 2) * (r * residues[k] >> BITS) * _geometric(
                x * roots[k] >> BITS, step
            ) >> BITS
    return total / (1 << BITS)


@lru_cache(maxsize=128)
def _transition(chosen: BltInf, steps: int) -> list[list[tuple[float, float]]]:
    """Return what so many steps (a power of two) without noise make of a state: (high, low) of each entry."""
    return [[_pair(entry) for entry in row] for row in _power(chosen, steps)]


@lru_cache(maxsize=128)
def _power(chosen: BltInf, steps: int) -> list[list[int]]:
    if steps > 1:
        half = _power(chosen, steps // 2)
        return [
            [
                sum(a * b for a, b in zip(row, column, strict=True)) >> BITS
                for column in zip(*half, strict=True)
            ]
            for row in half
        ]
    # x = -omega . s, path += x, s_j <- theta_j s_j + x.
    x = [0] + [-_fixed(v) for v in chosen.omega]
    rows = [list(x) for _ in range(1 + len(chosen.theta))]
    rows[0][0] = 1 << BITS
    for j, theta in enumerate(chosen.theta, start=1):
        rows[j][j] += _fixed(theta)
    return rows


def _fixed(value: float) -> int:
    return int(value * 2**SCALE) << (BITS - SCALE)  # exact: a multiple of 2^-24


def _pair(entry: int) -> tuple[float, float]:
    high = entry / (1 << BITS)
    numerator, denominator = high.as_integer_ratio()
    return high, (entry - (numerator << BITS) // denominator) / (1 << BITS)


def _geometric(x: int, count: int) -> int:
    """Return 1 + x + ... + x^(count-1) over 2^BITS."""
    unit = 1 << BITS
    if x == unit:
        return count << BITS
    power = unit
    base = x
    remaining = count
    while remaining:
        if remaining & 1:
            power = power * base >> BITS
        base = base * base >> BITS
        remaining >>= 1
    return ((unit - power) << BITS) // (unit - x)
