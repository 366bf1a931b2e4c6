"""How mu^2 is shared among tables: the mean variance over a workload is made small. Input and result are public."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from dpsql.errors import ConfigError
from dpsql.udfs.marginals.cells import Keys

BITS = 20
"""Shares are multiples of 2^-20."""
ROUNDS = 4000
STILL = 1e-9
LEAST_OF_WHOLE = 0.005
"""A table of all keys with a smaller share is not measured: it has most of the cells."""


def shares(
    sizes: Sequence[int],
    tables: Sequence[Keys],
    energies: Mapping[Keys, float],
    costs: Mapping[Keys, float],
) -> dict[Keys, int]:
    """The share of each table that gets one, in units of 2^-20; together at most 1.

    Args:
        sizes: number of values of every key.
        tables: that may be measured.
        energies: mean of |P_B f|^2 over the workload, per B.
        costs: of each table, what one unit can move of it, to the square; any unit.

    Raises:
        ConfigError: some part of the workload is in no table.
    """
    found = _rounded(sizes, tables, energies, costs)
    whole = tuple(range(len(sizes)))
    if (
        len(found) > 1
        and found.get(whole, 1 << BITS) < LEAST_OF_WHOLE * 2**BITS
        and _covered(found.keys() - {whole}, energies)
    ):
        found = _rounded(sizes, [keys for keys in tables if keys != whole], energies, costs)
    return found


def _rounded(
    sizes: Sequence[int],
    tables: Sequence[Keys],
    energies: Mapping[Keys, float],
    costs: Mapping[Keys, float],
) -> dict[Keys, int]:
    if not _covered(tables, energies):
        raise ConfigError(
            "no marginal has all the keys that questions may name together: name GROUPING SETS with more keys, or a `workload`"
        )
    given = [part for part in energies if energies[part] > 0]
    energy = np.array([energies[part] for part in given])
    outside = np.array(
        [
            math.prod(n for key, n in enumerate(sizes) if key not in keys) / costs[keys]
            for keys in tables
        ]
    )
    inside = np.array([[{*part} <= {*keys} for keys in tables] for part in given]) * outside
    p = np.full(len(tables), 1 / len(tables))
    # With the square root each round lowers the sum of energy / lambda (Yu 2010, arXiv 0911.0108); no library's last digits are in it.
    for _ in range(ROUNDS):
        precision = (inside * p).sum(axis=1)
        gain = (inside * (energy / precision**2)[:, None]).sum(axis=0)
        before = p
        p = p * np.sqrt(gain)
        p = p / p.sum()
        if np.abs(p - before).max() < STILL:
            break
    whole = {
        keys: math.floor(share * 2**BITS) for keys, share in zip(tables, p.tolist(), strict=True)
    }
    return {keys: share for keys, share in whole.items() if share}


def _covered(tables: Collection[Keys], energies: Mapping[Keys, float]) -> bool:
    return all(
        any({*part} <= {*keys} for keys in tables)
        for part, energy in energies.items()
        if energy > 0
    )
