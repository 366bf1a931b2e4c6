"""The square root of the window operator: its coefficients, and what one draw does to later windows."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from dpsql.udfs.columns import Float
from dpsql.udfs.noise.path_error import ROOM
from dpsql.udfs.noise.randomness import MAX_NORMAL

VANISHED = 2.0**-300
"""Responses below this are nothing: an exact path reaches back until what is left out is below its precision."""

LONGEST = 1 << 18
"""Steps after which a response must have vanished."""


def coefficients(panes: int) -> tuple[float, ...]:
    """Return the coefficients c_0 to c_(2w-1): those of (1 - z)^(-1/2), half of them again w later with the opposite sign."""
    exact = [Fraction(1)]
    for k in range(1, 2 * panes):
        exact.append(exact[-1] * (2 * k - 1) / (2 * k))
    return tuple(
        float(exact[k] - (exact[k - panes] / 2 if k >= panes else 0)) for k in range(2 * panes)
    )


@dataclass(frozen=True)
class Response:
    """Effect of a draw on later numbers: on u (`inverse`, the first column of C^-1) and on windows (`window`, that of B), until it has vanished."""

    inverse: Float
    window: Float

    @cached_property
    def older_reach(self) -> Float:
        """Reach of all draws older than the newest so many together: how far they can move a window."""
        sizes = np.abs(self.window)
        return np.asarray(MAX_NORMAL * ROOM * np.append(np.cumsum(sizes[::-1])[::-1], 0.0))


@lru_cache(maxsize=16)
def response(panes: int, c: tuple[float, ...]) -> Response:
    """Measure what a draw does, by pushing one through the recursion.

    Raises:
        ValueError: it does not vanish.
    """
    band = np.array(c[1:])[::-1]
    width = len(band)
    u = np.zeros(width + LONGEST)
    u[width] = 1.0
    for t in range(1, LONGEST):
        u[width + t] = -float(band @ u[t : width + t])
        if t % (2 * panes) == 0 and np.abs(u[t + 1 : width + t + 1]).max() < VANISHED:
            inverse = u[width : width + t + 1]
            total = np.cumsum(inverse)
            return Response(inverse, total - np.concatenate([np.zeros(panes), total[:-panes]]))
    raise ValueError(f"the square-root factorisation of a window of {panes} panes does not forget")
