"""What counters with a last step cost and how noisy they are, measured: the accountants' own reading of them."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpsql.parsed_query import CounterName
from dpsql.udfs.columns import Float
from dpsql.udfs.noise.counters import counter, impulse_response


@lru_cache(maxsize=64)
def factorisation(name: CounterName, horizon: int) -> tuple[float, tuple[float, ...]]:
    """(largest column norm of C, standard deviation of the path at triggers 1..horizon for unit noise), recomputed.

    A Toeplitz counter is measured: b is its response to one draw, C's first column is the power series 1 / ((1 - x) b(x)),
    found by long division, so that B C = A holds by construction. For the tree both are counted node by node.
    """
    if name is CounterName.HONAKER:
        return _tree(horizon)
    b, column = response_and_column(name, horizon)
    return float(np.linalg.norm(column)), tuple(float(v) for v in np.sqrt(np.cumsum(b**2)))


def response_and_column(name: CounterName, horizon: int) -> tuple[Float, Float]:
    """First columns of B and of C, of a Toeplitz counter."""
    b = impulse_response(counter(name, horizon))
    reciprocal = np.diff(np.concatenate([[0.0], b]))
    from scipy.signal import (
        lfilter,
    )  # here, because it is slow to import, and `dpsql status` asks for no plan

    return b, lfilter([1.0], reciprocal, np.eye(1, len(b))[0])


def _tree(horizon: int) -> tuple[float, tuple[float, ...]]:
    """Nodes over one leaf that some prefix up to the horizon uses, and v = 1 / (2 (1 - 2^-levels)) per node of the decomposition."""
    nodes = sum(
        1 for k in range(64) if 1 << k <= horizon
    )  # the first leaf has the most: one complete node per level
    sd = []
    for step in range(1, horizon + 1):
        sd.append(
            math.sqrt(
                math.fsum(1 / (2 * (1 - 2.0 ** -(k + 1))) for k in range(64) if step >> k & 1)
            )
        )
    return math.sqrt(nodes), tuple(sd)
