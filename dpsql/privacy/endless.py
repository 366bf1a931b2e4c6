"""What the counter without a last step costs and how noisy it is, measured: the accountants' own reading of it (docs/privacy/dynamic.md, theorem 15).

Its response is measured, C is found from it by long division, and path variances come from the recurrence's covariance by doubling, not from its
poles. What the proofs ask of a counter is checked, not believed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from dpsql.errors import AccountingError
from dpsql.udfs.noise.blt_inf import BltInf

LAGS = 1 << 10
"""Of C and B, found by measuring; the rest of C is a sum of powers, closed."""
PLACES = 192
"""Binary places of covariances."""


@lru_cache(maxsize=4)
def column_norm(chosen: BltInf) -> float:
    """f: norm of a column of C over infinite time.

    Raises:
        AccountingError: the counter is not what the theorems ask for: C convex and falling from its first entry on, B falling and not negative.
    """
    theta = np.array(chosen.theta)
    omega = np.array(chosen.omega)
    if not (
        np.all(omega > 0)
        and np.all(theta > 0)
        and np.all(theta < 1)
        and len(set(chosen.theta)) == len(theta)
    ):
        # Then C's entries from the second on are moments of a positive measure, and B's too (its poles and C's interlace).
        raise AccountingError(
            "a counter for ever needs positive omega, and theta between 0 and 1, all different"
        )
    b = _measured(chosen)
    if np.any(b < 0) or np.any(np.diff(b) > 1e-15):
        raise AccountingError("the counter's response rises, or is negative")
    from scipy.signal import lfilter  # slow to import

    one = np.zeros(LAGS)
    one[0] = 1.0
    column = lfilter([1.0], np.diff(np.concatenate([[0.0], b])), one)
    powers = theta[None, :] ** np.arange(LAGS - 1)[:, None]
    if np.max(np.abs(column[1:] - powers @ omega)) > 1e-9:
        raise AccountingError("the counter's response is not that of its constants")
    if column[0] - 2 * column[1] + column[2] < 0 or np.any(np.diff(column) > 1e-12):
        raise AccountingError("C is not convex: rows that end would cost more than accounted for")
    pairs = theta[:, None] * theta[None, :]
    tail = float(np.sum(omega[:, None] * omega[None, :] * pairs ** (LAGS - 1) / (1 - pairs)))
    return math.sqrt(float(np.sum(column**2)) + tail)


@lru_cache(maxsize=4)
def path_deviations(chosen: BltInf, triggers: tuple[int, ...]) -> tuple[float, ...]:
    """Standard deviation of the path at each of the triggers (ascending), for unit noise."""
    size = 1 + len(chosen.theta)
    # The covariance of n steps' draws is P_n = sum of v_k v_k^T over k < n, v_k = M^k v_0, and P_(a + b) = P_a + M^a P_b M^aT.
    one = 1 << PLACES
    move = [_recurrence(chosen)]
    spread = [np.full((size, size), one, object)]
    for _ in range(triggers[-1].bit_length()):
        m = move[-1]
        p = spread[-1]
        spread.append(p + _times(_times(m, p), m.T))
        move.append(_times(m, m))
    row = np.array([one] + [0] * (size - 1), object)  # the path's row of M^n
    done = 0
    variance = 0
    out = []
    for trigger in triggers:
        for power in reversed(range((trigger - done).bit_length())):
            if (trigger - done) >> power & 1:
                variance += _times(_times(row, spread[power]), row)
                row = _times(row, move[power])
                done += 1 << power
        out.append(math.sqrt(variance / one))
    return tuple(out)


def _measured(chosen: BltInf) -> np.ndarray:
    """The path after a single draw of 1 at step 1."""
    state = np.zeros((1, chosen.width))
    out = []
    for step in range(1, LAGS + 1):
        state = chosen.advance(state, lambda _, step=step: np.array([float(step == 1)]), step)  # type: ignore[misc]
        out.append(state[0, 0])
    return np.array(out)


def _recurrence(chosen: BltInf) -> np.ndarray:
    """M: what a step without a draw makes of (path, buffers); x = -omega . s is added to the path and to every buffer."""
    fed = [0, *(-_integer(v) for v in chosen.omega)]
    kept = [1 << PLACES, *(_integer(v) for v in chosen.theta)]
    return np.array(fed, object) + np.diag(np.array(kept, object))


def _integer(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return (numerator << PLACES) // denominator


def _times(a: np.ndarray, b: np.ndarray) -> Any:
    """A product of matrices or vectors of whole numbers over 2^PLACES, exact but for its last place."""
    return a @ b >> PLACES
