"""What colliding 64-bit ids cost of delta."""

from __future__ import annotations

from typing import Any

from dpsql.errors import ConfigError
from dpsql.parsed_query import ParsedQuery
from dpsql.sources.config import Source

HASH_SHARE = 0.1
"""Share of delta, at most, for collisions of ids: it leaves nine tenths for noise and thresholds, which costs half a percent of the noise at most."""


def hash_charge(query: ParsedQuery[Any], source: Source, users: int, groups: int) -> float:
    """Return what colliding ids cost, of so many users and K groups of one user; nothing where one row is protected, whose it is nobody asks.

    Raises:
        ConfigError: over 10% of delta.
    """
    if not query.privacy_unit:
        return 0.0
    delta = query.delta
    charge = source.collisions(users, groups)
    if charge > HASH_SHARE * delta:
        raise ConfigError(
            f"delta = {delta:g} is too small for {source.max_users} users and {source.max_keys} keys: collisions of 64-bit ids alone cost "
            f"{charge:.2g}, over {HASH_SHARE:.0%} of it. Raise delta to {charge / HASH_SHARE:.2g} or more, or declare fewer at {source.place('max_users')} "
            f"and {source.place('max_keys')}"
        )
    return charge
