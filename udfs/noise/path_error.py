"""How far a noise path computed in float64 can be from the exact one: rigorous bounds, per counter and step.

A computed path obeys its recurrence up to one rounding per operation, so the deviation from the exact path is the counter's linear
response to these roundings. Each is at most u = 2^-53 times the size of a result. Sizes are not taken from the worst draws possible, which
would make the bounds useless at long horizons, but enforced: `within` turns a path that leaves LIMIT deviations into NaN, for good, and
NaN is never trusted (dpsql.udfs.noise.exact_paths). About one state in 10^10 does. All bounds are enlarged by ROOM, for their
own rounding and for products of two roundings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpsql.udfs.columns import Float
from dpsql.udfs.noise.counters import Blt, Counter, Draw, Honaker
from dpsql.udfs.noise.randomness import MAX_NORMAL

UNIT = 2.0**-53
ROOM = 1.01
LIMIT = 6.5
"""Standard deviations that a number of the state may have and still be trusted."""

RELATIVE = 12.0
ABSOLUTE = 4.0
"""A normal z of `randomness.normals` is within UNIT * (RELATIVE |z| + ABSOLUTE) of the exact quantile. The largest error that was measured
on 1.5 million words of all sizes is 0.56 of that (benchmarks/checks.py)."""


@dataclass(frozen=True)
class Trust:
    """`error[i - 1]`: bound on |computed - exact| of the counter's unit-noise path at step i, one product by sigma included.

    `limits[i - 1]`: per column of the state after step i, the largest size that the bound holds for (None: any).
    """

    counter: Counter
    error: Float
    limits: Float | None

    def advance(self, state: Float, draw: Draw, step: int) -> Float:
        """Return the counter's next state, with paths that the error bound does not cover turned into NaN."""
        return self.within(self.counter.advance(state, draw, step), step)

    def within(self, state: Float, step: int) -> Float:
        """Return the state, changed in place: NaN where a number is too large for the bound."""
        if self.limits is not None:
            wild = np.abs(state) > self.limits[step - 1]
            if wild.any():
                state[wild.any(axis=1)] = np.nan
        return state


@lru_cache(maxsize=64)
def trust(chosen: Counter) -> Trust:
    """Return the error bound of a counter's paths."""
    error, limits = _blt(chosen) if isinstance(chosen, Blt) else _honaker(chosen)
    return Trust(chosen, ROOM * error, limits)


def _blt(chosen: Blt) -> tuple[Float, Float]:
    theta = np.array(chosen.theta)
    omega = np.array(chosen.omega)
    # One row responds to a draw at the first step, one row per buffer to a change of that buffer before the first step.
    state = np.eye(chosen.width)
    state[0, 0] = 0.0
    draw = np.eye(chosen.width)[0]
    responses = np.empty((chosen.horizon, chosen.width, chosen.width))
    for step in range(1, chosen.horizon + 1):
        unit_draw = draw if step == 1 else np.zeros(chosen.width)
        state = chosen.advance(state, lambda _, unit_draw=unit_draw: unit_draw, step)  # type: ignore[misc]
        responses[step - 1] = state
    limits = LIMIT * np.sqrt(np.cumsum(responses[:, 0, :] ** 2, axis=0))
    buffer_limits = limits[:, 1:]
    earlier_limits = np.concatenate([np.zeros((1, len(theta))), limits[:-1, 1:]])
    feedback = earlier_limits @ omega
    # x = z - omega s: the draw, one product and one difference per buffer.
    of_x = UNIT * (
        RELATIVE * MAX_NORMAL + ABSOLUTE + feedback + len(omega) * (MAX_NORMAL + feedback)
    )
    # s <- theta s + x: one product and one sum per buffer.
    of_s = UNIT * (theta * earlier_limits + buffer_limits)
    of_path = np.cumsum(UNIT * limits[:, 0])
    # Sizes do not fall with the steps, so the last ones bound all before.
    to_path = np.cumsum(np.abs(responses[:, :, 0]), axis=0)
    error = (
        of_path + of_x * to_path[:, 0] + np.sum(of_s * to_path[:, 1:], axis=1) + UNIT * limits[:, 0]
    )
    return error, limits


def _honaker(chosen: Honaker) -> tuple[Float, Float]:
    sizes = [LIMIT * v**0.5 for v in chosen.node_variances()]
    errors = [UNIT * (RELATIVE * MAX_NORMAL + ABSOLUTE)]
    for k in range(1, chosen.levels):
        # v z + (1 - v) (left + right): v is off by at most 3 units of rounding, 1 - v by 4; then one product each and two sums.
        children = 2 * sizes[k - 1]
        errors.append(
            0.7 * (errors[0] + 4 * UNIT * MAX_NORMAL)
            + 0.5 * (2 * errors[k - 1] + 6 * UNIT * children)
            + UNIT * sizes[k]
        )
    path = LIMIT * np.sqrt(chosen.path_variance())
    nodes = np.array(
        [[step >> k & 1 for k in range(chosen.levels)] for step in range(1, chosen.horizon + 1)],
        float,
    )
    partial = nodes @ np.array(sizes)
    error = nodes @ np.array(errors) + chosen.levels * UNIT * partial + UNIT * path
    limits = np.concatenate([path[:, None], np.tile(sizes, (chosen.horizon, 1))], axis=1)
    return error, limits
