"""CUBE as sets of keys."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from dpsql.udfs.marginals.cells import Keys

MAX_CELLS = 2**22
"""Of all measured tables together."""


def cube(sizes: Sequence[int], max_grouping_keys: int) -> tuple[Keys, ...]:
    """Every set of one to so many keys, and the whole table unless it alone has too many cells.

    The total is not among them: it is the sum of every table. Of one key more than that a table has no worth of its own.
    """
    keys = range(len(sizes))
    few = [
        some
        for size in range(1, max_grouping_keys + 1)
        for some in itertools.combinations(keys, size)
    ]
    whole = tuple(keys)
    return tuple(few) if whole in few or math.prod(sizes) > MAX_CELLS else (*few, whole)
