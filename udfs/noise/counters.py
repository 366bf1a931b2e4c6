"""Continual counters: correlated Gaussian noise for running sums, one path per group, all groups at once.

A counter factorises the prefix-sum matrix A = B C. One user's change of the increments moves C x by at most the largest column
norm of C times the L2 norm of the change, so adding z ~ N(0, sigma^2) to C x is a Gaussian mechanism and the released path
is A x + B z (Denisov et al. 2022, arXiv 2202.08312: also when later data depend on earlier releases).

Steps are absolute trigger numbers 1..horizon, never "since the group's first record". All arithmetic is element-wise and in a
fixed order (no matrix products), so a path has the same bits whichever other groups are computed beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpsql.udfs.columns import Float
from dpsql.udfs.noise.blt_constants import BLT_CONSTANTS

Draw = Callable[[int], Float]
"""Standard normals of the current step, one per path; the argument numbers the draws of one step (tree levels), 0 first."""


@dataclass(frozen=True)
class Blt:
    """Buffered linear Toeplitz counter (arXiv 2404.16706): near the optimum with 1 + m numbers of state per path.

    C_0 = 1, C_i = sum_j omega_j theta_j^(i-1). Noise of step t: x_t = z_t - omega . s, then s <- theta s + x_t, path += x_t.
    """

    theta: tuple[float, ...]
    omega: tuple[float, ...]
    horizon: int

    @classmethod
    def for_horizon(cls, horizon: int) -> Blt:
        """Return the counter for a horizon: the constants of the smallest fitted horizon that is not below it."""
        fitted = min(h for h in BLT_CONSTANTS if h >= horizon)
        theta, omega = BLT_CONSTANTS[fitted]
        return cls(theta, omega, horizon)

    @property
    def width(self) -> int:
        """Numbers of state per path: the path itself, then one per buffer."""
        return 1 + len(self.theta)

    def advance(self, state: Float, draw: Draw, step: int) -> Float:
        """Return the state after one more step; column 0 is the unit-noise path. Shape (paths, width) in and out."""
        new_state = np.empty_like(state)
        x = draw(0).copy()
        for j, omega in enumerate(self.omega, start=1):
            x -= omega * state[:, j]
        new_state[:, 0] = state[:, 0] + x
        for j, theta in enumerate(self.theta, start=1):
            new_state[:, j] = theta * state[:, j] + x
        return new_state

    def squared_norm(self) -> float:
        """Return the largest squared column norm of C: that of its first column."""
        powers = np.array(self.theta)[None, :] ** np.arange(self.horizon - 1)[:, None]
        return 1.0 + float(np.sum((powers @ np.array(self.omega)) ** 2)) if self.theta else 1.0

    def path_variance(self) -> Float:
        """Return the variance of the path at steps 1..horizon for unit noise: running sum of squares of B's first column."""
        return np.cumsum(impulse_response(self) ** 2)


@dataclass(frozen=True)
class Honaker:
    """Binary tree with Honaker's bottom-up estimates, the counter of DP-SQLP (Algorithm 1).

    Every node has its own noise; a node's estimate combines it with the sum of its children's estimates by inverse variance:
    v_0 = 1, v_k = 1 / (1 + 1 / (2 v_(k-1))). The path at step t adds the estimates of t's binary decomposition. A leaf lies
    under floor(log2 T) + 1 nodes that can be used: T.bit_length() levels.
    """

    horizon: int

    @property
    def levels(self) -> int:
        """Levels of the tree that prefix sums can use."""
        return self.horizon.bit_length()

    @property
    def width(self) -> int:
        """Numbers of state per path: the path, then the newest estimate of each level."""
        return 1 + self.levels

    def node_variances(self) -> tuple[float, ...]:
        """Return the variance of a node at each level, v_0 to v_(levels-1)."""
        variances = [1.0]
        while len(variances) < self.levels:
            variances.append(1 / (1 + 1 / (2 * variances[-1])))
        return tuple(variances)

    def advance(self, state: Float, draw: Draw, step: int) -> Float:
        """Return the state after one more step: complete the nodes that end at this leaf, bottom up."""
        new_state = state.copy()
        v = self.node_variances()
        top = (step & -step).bit_length() - 1
        estimate = draw(0)
        for k in range(1, top + 1):
            estimate = v[k] * draw(k) + (1 - v[k]) * (new_state[:, k] + estimate)
        new_state[:, 1 + top] = estimate
        new_state[:, 0] = 0.0
        for k in range(self.levels):
            if step >> k & 1:
                new_state[:, 0] += new_state[:, 1 + k]
        return new_state

    def squared_norm(self) -> float:
        """Return the number of nodes over one leaf."""
        return float(self.levels)

    def path_variance(self) -> Float:
        """Return the variance of the path at steps 1..horizon for unit noise: sum of v over the binary decomposition."""
        v = self.node_variances()
        return np.array(
            [
                math.fsum(v[k] for k in range(self.levels) if step >> k & 1)
                for step in range(1, self.horizon + 1)
            ]
        )


Counter = Blt | Honaker


@lru_cache(maxsize=64)
def counter(name: str, horizon: int) -> Counter:
    """Return the counter of that name (`BLT`, `HONAKER`) for a horizon."""
    counters: dict[str, Callable[[int], Counter]] = {"BLT": Blt.for_horizon, "HONAKER": Honaker}
    return counters[name](horizon)


@lru_cache(maxsize=64)
def column_norm(chosen: Counter) -> float:
    """Return f, the largest L2 column norm of C, the factor from one user's change to the mechanism's sensitivity."""
    return math.sqrt(chosen.squared_norm())


@lru_cache(maxsize=64)
def path_sd(chosen: Counter) -> tuple[float, ...]:
    """Return the standard deviation of the path at steps 1..horizon for unit noise."""
    return tuple(float(v) for v in np.sqrt(chosen.path_variance()))


def impulse_response(chosen: Counter) -> Float:
    """Return the path at steps 1..horizon when only the first draw of step 1 is 1 and all others are 0."""
    state = np.zeros((1, chosen.width))
    path = np.empty(chosen.horizon)
    for step in range(1, chosen.horizon + 1):

        def draw(number: int, current_step: int = step) -> Float:
            return np.array([float((current_step, number) == (1, 0))])

        state = chosen.advance(state, draw, step)
        path[step - 1] = state[0, 0]
    return path
