"""What noise costs and how noisy it is, measured from its definitions: the accountants' own reading of counters, trees and tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from dpsql.errors import AccountingError
from dpsql.parsed_query import CounterName
from dpsql.udfs.columns import Float
from dpsql.udfs.measure import quantiles
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import counter, impulse_response
from dpsql.udfs.noise.discrete_laplace import WORDS, DiscreteLaplace

# What the counter without a last step costs and how noisy it is, measured: the accountants' own
# reading of it (docs/privacy/dynamic.md, theorem 15).

# Its response is measured, C is found from it by long division, and path variances come from the
# recurrence's covariance by doubling, not from its
# poles. What the proofs ask of a counter is checked, not believed.

VALUES = ("sum", "squares", "product")
"""Rules of sums to which a record adds a number from `lower` to `upper`; other rules add 0 or 1."""

LAGS = 1 << 10
"""Entries of C and B that are found by measuring; the rest of C is a sum of powers, closed."""
PLACES = 192
"""Binary places of covariances."""


@lru_cache(maxsize=4)
def column_norm(chosen: BltInf) -> float:
    """Return f: the norm of a column of C over infinite time.

    Raises:
        AccountingError: the counter is not what the theorems ask for: C convex and falling from its first entry on, B falling and not negative.
    """
    theta = np.array(chosen.theta)
    omega = np.array(chosen.omega)
    _check_constants(theta, omega)
    b = _measured(chosen)
    if np.any(b < 0) or np.any(np.diff(b) > 1e-15):
        raise AccountingError("the counter's response rises, or is negative")
    column = _reciprocal(np.diff(np.concatenate([[0.0], b])))
    powers = theta[None, :] ** np.arange(LAGS - 1)[:, None]
    if np.max(np.abs(column[1:] - powers @ omega)) > 1e-9:
        raise AccountingError("the counter's response is not that of its constants")
    if column[0] - 2 * column[1] + column[2] < 0 or np.any(np.diff(column) > 1e-12):
        raise AccountingError("C is not convex: rows that end would cost more than accounted for")
    pairs = theta[:, None] * theta[None, :]
    tail = float(np.sum(omega[:, None] * omega[None, :] * pairs ** (LAGS - 1) / (1 - pairs)))
    return math.sqrt(float(np.sum(column**2)) + tail)


def _check_constants(theta: Float, omega: Float) -> None:
    """Refuse constants with which C's entries from the second on are no moments of a positive measure.

    With the others B's are such moments, too: its poles and C's interlace.
    """
    if not (
        np.all(omega > 0)
        and np.all(theta > 0)
        and np.all(theta < 1)
        and len(set(theta.tolist())) == len(theta)
    ):
        raise AccountingError(
            "a counter without a last trigger needs positive omega, and theta between 0 and 1, all different"
        )


@lru_cache(maxsize=4)
def path_deviations(chosen: BltInf, triggers: tuple[int, ...]) -> tuple[float, ...]:
    """Return the standard deviation of the path at each of the triggers (ascending), for unit noise."""
    size = 1 + len(chosen.theta)
    # The covariance of n steps' draws is P_n = sum of v_k v_k^T over k < n, v_k = M^k v_0, and P_(a + b) = P_a + M^a P_b M^aT.
    unit_scale = 1 << PLACES
    move = [_recurrence(chosen)]
    spread = [np.full((size, size), unit_scale, object)]
    for _ in range(triggers[-1].bit_length()):
        m = move[-1]
        p = spread[-1]
        spread.append(p + _times(_times(m, p), m.T))
        move.append(_times(m, m))
    row = np.array([unit_scale] + [0] * (size - 1), object)  # the path's row of M^n
    steps = 0
    variance = 0
    deviations = []
    for trigger in triggers:
        for power in reversed(range((trigger - steps).bit_length())):
            if (trigger - steps) >> power & 1:
                variance += _times(_times(row, spread[power]), row)
                row = _times(row, move[power])
                steps += 1 << power
        deviations.append(math.sqrt(variance / unit_scale))
    return tuple(deviations)


def _measured(chosen: BltInf) -> np.ndarray:
    """Return the path after a single draw of 1 at step 1."""
    state = np.zeros((1, chosen.width))
    out = []
    for step in range(1, LAGS + 1):
        state = chosen.advance(state, lambda _, step=step: np.array([float(step == 1)]), step)  # type: ignore[misc]
        out.append(state[0, 0])
    return np.array(out)


def _recurrence(chosen: BltInf) -> np.ndarray:
    """Return M: what a step without a draw makes of (path, buffers); x = -omega . s is added to the
    path and to every buffer."""
    fed = [0, *(-_integer(v) for v in chosen.omega)]
    kept = [1 << PLACES, *(_integer(v) for v in chosen.theta)]
    return np.array(fed, object) + np.diag(np.array(kept, object))


def _integer(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return (numerator << PLACES) // denominator


def _times(a: np.ndarray, b: np.ndarray) -> Any:
    """Return a product of matrices or vectors of whole numbers over 2^PLACES, exact but for its last place."""
    return a @ b >> PLACES


# What counters with a last step cost and how noisy they are, measured: the accountants' own
# reading of them.


@lru_cache(maxsize=64)
def factorisation(name: CounterName, horizon: int) -> tuple[float, tuple[float, ...]]:
    """Return (largest column norm of C, standard deviation of the path at triggers 1..horizon for
    unit noise), recomputed.

    A Toeplitz counter is measured: b is its response to one draw, C's first column is the power series 1 / ((1 - x) b(x)),
    found by long division, so that B C = A holds by construction. For the tree both are counted node by node.
    """
    if name is CounterName.HONAKER:
        return _tree(horizon)
    b, column = response_and_column(name, horizon)
    return float(np.linalg.norm(column)), tuple(float(v) for v in np.sqrt(np.cumsum(b**2)))


def response_and_column(name: CounterName, horizon: int) -> tuple[Float, Float]:
    """Return the first columns of B and of C, of a Toeplitz counter."""
    b = impulse_response(counter(name, horizon))
    return b, _reciprocal(np.diff(np.concatenate([[0.0], b])))


def _reciprocal(series: Float) -> Float:
    """Return the first coefficients of 1 / a power series, by long division."""
    rest = np.zeros(len(series))
    rest[0] = 1.0
    quotient = np.zeros(len(series))
    for k in range(len(series)):
        quotient[k] = rest[k] / series[0]
        rest[k + 1 :] -= quotient[k] * series[1 : len(series) - k]
    return quotient


def _tree(horizon: int) -> tuple[float, tuple[float, ...]]:
    """Count the nodes over one leaf that some prefix up to the horizon uses, and v = 1 / (2 (1 -
    2^-levels)) per node of the decomposition."""
    nodes = sum(
        1 for k in range(64) if 1 << k <= horizon
    )  # the first leaf has the most: one complete node per level
    variances = (
        math.fsum(1 / (2 * (1 - 2.0 ** -(k + 1))) for k in range(64) if step >> k & 1)
        for step in range(1, horizon + 1)
    )
    return math.sqrt(nodes), tuple(map(math.sqrt, variances))


# What a row moves in the tree of counts that quantiles are read off, from the plan's numbers
# alone.


# Rows that end.


def check_that_rows_may_end(horizon: int) -> None:
    """Check that rows may end under a counter with a last trigger.

    Raises:
        AccountingError: C is not convex and falling, or B negative.
    """
    b, column = response_and_column(CounterName.BLT, max(horizon, 3))
    if (
        np.any(b < 0)
        or np.any(column < -1e-12)
        or np.any(np.diff(column) > 1e-12)
        or np.any(np.diff(column, 2) < -1e-12)
    ):
        raise AccountingError(
            "the counter is not convex and falling: rows that end would cost more than accounted for"
        )


def longest_vector(parts: Sequence[Any], sigmas: Sequence[float]) -> float | None:
    """Return b^2 + eta of the vectors (value, square, 1), over the noise (docs/privacy/lemma.md);
    None: these are other sums."""
    if [p.rule for p in parts] not in (["sum", "valid"], ["sum", "squares", "valid"]) or len(
        {(p.argument, p.centre) for p in parts[:-1]}
    ) > 1:
        return None
    heights = [p.upper * p.grid for p in parts[:-1]] + [1.0]
    mixed = any(p.lower != -p.upper for p in parts[:-1]) or parts[-1].argument != parts[0].argument
    if mixed or (
        len(parts) == 3 and not math.isclose(heights[1], heights[0] ** 2 / 2, rel_tol=1e-5)
    ):
        return None
    a, *squares, s = ((height / sigma) ** 2 for height, sigma in zip(heights, sigmas, strict=True))
    b = sum(squares)
    # The least inner product of two such vectors is -eta: at opposite values, unless their squares are worth more than that.
    eta = a**2 / (8 * b) + b - s if a <= 4 * b else a - b - s
    return (a + b + s) * (1 + 1e-5) + max(0.0, eta)


def levels(p: Any) -> int:
    """Count the nodes of a tree that one record counts in: of one level after the other, until a
    node is a leaf. Levels share no node, so squares add up.

    Raises:
        AccountingError: the tree is another than the one that is released.
    """
    count = 0
    leaves = 1
    while leaves < p.upper:
        count = count + 1
        leaves = leaves * p.fan_out
    is_known = (
        count == p.levels == quantiles.LEVELS
        and leaves == p.upper == quantiles.LEAVES
        and p.lower == 1
    )
    if p.rule != "leaf" or not is_known:
        raise AccountingError(
            f"a tree of {p.upper} leaves and fan-out {p.fan_out} is unknown to the accountant"
        )
    return count


# Proof, in integers, that a table of discrete Laplace noise keeps its epsilon: the table is
# looked at, not the formula it was made from.

_BITS = 192
"""Binary places of the lower bound of e^epsilon: far beyond the 2^-40 by which tables fall short of it."""


@lru_cache(maxsize=32)
def prove(table: DiscreteLaplace) -> None:
    """Check that adding 1 to a sum changes the probability of no noisy sum by more than a factor of e^epsilon, up or down.

    All neighbouring k are compared, also where a tail begins and where it goes on with the next word, in which entries of two tables
    meet. From there on the ratios repeat, so these are all of them.

    Raises:
        AccountingError: the table does not use all words exactly once, or a ratio is too large.
    """
    middle = table.middle
    onward = table.onward
    if (
        len(middle) < 2
        or len(onward) != len(middle)
        or min(*middle, table.tail, *onward, table.onward_tail) < 1
    ):
        raise AccountingError(
            "a noise table has an empty entry: a number that noise cannot reach gives neighbours away"
        )
    if (
        middle[0] + 2 * sum(middle[1:]) + 2 * table.tail != WORDS
        or sum(onward) + table.onward_tail != WORDS
    ):
        raise AccountingError("the entries of a noise table are not all random words")
    largest = _exp_below(Fraction(table.epsilon))
    # The last entry of each part against the first one beyond, which is a product of two tables.
    seams = [
        (middle[-1] * WORDS, table.tail * onward[0]),
        (onward[-1] * WORDS, table.onward_tail * onward[0]),
    ]
    for a, b in (*pairwise(middle), *pairwise(onward), *seams):
        if a << _BITS > b * largest or b << _BITS > a * largest:
            raise AccountingError(
                f"a noise table does not keep its epsilon of {table.epsilon:g} per step: neighbouring entries differ by more"
            )


def _exp_below(x: Fraction) -> int:
    """Return a lower bound of e^x times 2^192: a part of its series, all of whose terms are positive, each rounded down."""
    scaled = (x.numerator << _BITS) // x.denominator
    term = total = 1 << _BITS
    n = 0
    while term:
        n += 1
        term = (term * scaled >> _BITS) // n
        total += term
    return total


__all__ = ["prove"]
