"""Proof, in integers, that a table of discrete Laplace noise keeps its epsilon: the table is looked at, not the formula it was made from."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from dpsql.errors import AccountingError
from dpsql.udfs.noise.discrete_laplace import WORDS, DiscreteLaplace

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
    """A lower bound of e^x times 2^192: a part of its series, all of whose terms are positive, each rounded down."""
    whole = (x.numerator << _BITS) // x.denominator
    term = total = 1 << _BITS
    n = 0
    while term:
        n += 1
        term = (term * whole >> _BITS) // n
        total += term
    return total


__all__ = ["prove"]
