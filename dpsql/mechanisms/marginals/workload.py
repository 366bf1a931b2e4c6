"""The predicates for which shares are made: ranges and sets over one to three keys, as energies, in closed form. Public, and nothing is drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from dpsql.sources.domains import Domain
from dpsql.udfs.marginals.cells import Keys
from dpsql.udfs.marginals.least_squares import parts

ORDERS = (0.2, 0.5, 0.3)
"""How many keys a predicate names: one, two, three."""


def default_energies(domains: Sequence[Domain]) -> dict[Keys, float]:
    """The mean of |P_B f|^2 over the default workload, for every B with any."""
    out: dict[Keys, float] = {}
    for size, weight in enumerate(ORDERS, start=1):
        for part, energy in energies_of(domains, min(size, len(domains))).items():
            out[part] = out.get(part, 0.0) + weight * energy
    return out


def energies_of(domains: Sequence[Domain], size: int) -> dict[Keys, float]:
    """The same of predicates that name so many keys, each set of them alike.

    An ordered key has a range between two values, each drawn from all; another key one value, or half of all values. A predicate is a product over
    independent parts, so means multiply.
    """
    both = [_moments(domain) for domain in domains]
    named = [*itertools.combinations(range(len(domains)), size)]
    out: dict[Keys, float] = {}
    for keys in named:
        base = math.prod(
            domain.size for key, domain in enumerate(domains) if key not in keys
        ) / len(named)
        for part in parts(keys):
            out[part] = out.get(part, 0.0) + base * math.prod(
                both[key][key in part] for key in keys
            )
    return out


def _moments(domain: Domain) -> tuple[float, float]:
    """Mean of (sum f)^2 / n, and of |f|^2 less that."""
    n = domain.size
    if domain.ordered:
        lengths = {1: 1 / n} | {length: 2 * (n - length + 1) / n**2 for length in range(2, n + 1)}
    else:
        half = max(1, n // 2)
        lengths = {1: 1.0} if half == 1 else {1: 0.5, half: 0.5}
    mean = math.fsum(share * length**2 for length, share in lengths.items()) / n
    return mean, math.fsum(share * length for length, share in lengths.items()) - mean
