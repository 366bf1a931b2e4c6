"""The counters' paths from the definitions of their papers, one normal at a time: the reference for what the steps do by recurrence."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from dpsql.udfs.columns import Float
from dpsql.udfs.noise.counters import Blt, Counter, Honaker


def unit_path(counter: Counter, trigger: int, z: Callable[[int, int], float]) -> float:
    """The counter's path at one trigger, from the definitions of docs/privacy/histogram.md: z(step, number) are its standard normals."""
    if isinstance(counter, Honaker):
        return math.fsum(_node(end, level, z) for end, level in _decomposition(trigger))
    return math.fsum(
        b * z(step, 0)
        for step, b in zip(range(trigger, 0, -1), toeplitz(counter)[:trigger], strict=True)
    )


def noise_matrix(counter: Counter) -> Float:
    """Return B, (horizon, draws): the path as a linear map of its draws, in order of (step, number).

    It is read off the steps themselves, by unit vectors in place of the draws.
    """
    units = [
        (step, number)
        for step in range(1, counter.horizon + 1)
        for number in range((step & -step).bit_length() if isinstance(counter, Honaker) else 1)
    ]
    state = np.zeros((len(units), counter.width))
    matrix = np.empty((counter.horizon, len(units)))
    for step in range(1, counter.horizon + 1):

        def draw(number: int, now: int = step) -> Float:
            return np.array([float(unit == (now, number)) for unit in units])

        state = counter.advance(state, draw, step)
        matrix[step - 1] = state[:, 0]
    return matrix


def _decomposition(trigger: int) -> list[tuple[int, int]]:
    """(last leaf, level) of the complete subtrees that make up leaves 1..trigger."""
    nodes = []
    end = 0
    for level in reversed(range(trigger.bit_length())):
        if trigger >> level & 1:
            end += 1 << level
            nodes.append((end, level))
    return nodes


def _node(end: int, level: int, z: Callable[[int, int], float]) -> float:
    """Honaker's bottom-up estimate of a node: its own value and its children's sum, by inverse variance."""
    if level == 0:
        return z(end, 0)
    below = 1 / (2 * (1 - 2.0**-level))
    mine = 1 / (1 + 1 / (2 * below))
    return mine * z(end, level) + mine / (2 * below) * (
        _node(end - (1 << level - 1), level - 1, z) + _node(end, level - 1, z)
    )


@lru_cache(maxsize=64)
def toeplitz(counter: Blt) -> tuple[float, ...]:
    """First column of B = A C^-1, by the power series of 1 / ((1 - x) C(x))."""
    n = counter.horizon
    c = [1.0] + [
        math.fsum(w * t ** (k - 1) for t, w in zip(counter.theta, counter.omega, strict=True))
        for k in range(1, n)
    ]
    inverse: list[float] = []
    for k in range(n):
        inverse.append(
            (1.0 if k == 0 else 0.0) - math.fsum(c[j] * inverse[k - j] for j in range(1, k + 1))
        )
    return tuple(math.fsum(inverse[: k + 1]) for k in range(n))
