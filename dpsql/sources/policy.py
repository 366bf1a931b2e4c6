"""Policies: how much one query may spend at most, and what holds where it says nothing, as `sources.yaml` declares it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpsql.parsed_query import PrivacyLevel
from dpsql.sources.yaml_file import Block, YamlDocument

POLICY_KEYS = (
    "max_epsilon_per_query",
    "delta_per_query",
    "max_groups_contributed",
    "max_rows_per_group",
    "bounds",
    "privacy_level",
)


@dataclass(frozen=True)
class Policy:
    """The policy of one source; None: it says nothing of that.

    It guards against slips of who asks, not against who may edit `sources.yaml`.

    Args:
        max_epsilon_per_query: a limit, and the epsilon of a query without one.
        delta_per_query: the same for delta.
        max_groups_contributed, max_rows_per_group: no limits, for noise follows them: what a query without them has.
        bounds: of values, by column (lower case): what an aggregate without bounds has.
        protects: the level of the queries that are accepted; caps of two levels do not add up for a person.
    """

    max_epsilon_per_query: float | None = None
    delta_per_query: float | None = None
    max_groups_contributed: int | None = None
    max_rows_per_group: int | None = None
    bounds: tuple[tuple[str, tuple[float, float]], ...] = ()
    protects: PrivacyLevel = PrivacyLevel.USER

    def within(self, peer: Policy) -> Policy:
        """Return the policy with the limits of another source of the same people, where it says none itself."""
        return replace(
            self,
            max_epsilon_per_query=self.max_epsilon_per_query or peer.max_epsilon_per_query,
            delta_per_query=self.delta_per_query or peer.delta_per_query,
            protects=peer.protects if self == NO_POLICY else self.protects,
        )

    def bounds_of(self, column: str) -> tuple[float, float] | None:
        """Return the bounds of a column's values."""
        return dict(self.bounds).get(column)


NO_POLICY = Policy()
"""The policy of a source that declares none."""


def read_policy(document: YamlDocument, key_path: tuple[str, ...]) -> Policy:
    """Return the policy at a path.

    Raises:
        ConfigError: with the line of what is wrong.
    """
    block = document.block(key_path, POLICY_KEYS)
    level = block.text("privacy_level").upper() or PrivacyLevel.USER
    if level not in list(PrivacyLevel):
        raise block.wrong("privacy_level", " or ".join(PrivacyLevel))
    return Policy(
        _number(block, "max_epsilon_per_query"),
        _number(block, "delta_per_query"),
        _count(block, "max_groups_contributed"),
        _count(block, "max_rows_per_group"),
        read_bounds(document, (*key_path, "bounds")) if "bounds" in block.settings else (),
        PrivacyLevel(level),
    )


def _number(block: Block, name: str) -> float | None:
    return block.positive(name) if name in block.settings else None


def _count(block: Block, name: str) -> int | None:
    return block.whole_number(name, 1, minimum=1) if name in block.settings else None


def read_bounds(
    document: YamlDocument, key_path: tuple[str, ...]
) -> tuple[tuple[str, tuple[float, float]], ...]:
    """Return `{stars: [0, 5]}` as pairs, by column.

    Raises:
        ConfigError: no two finite numbers in order.
    """
    pairs = {}
    for column, value in document.block(key_path).settings.items():
        numbers = [*map(_number_of, value)] if isinstance(value, list) else []
        if len(numbers) != 2 or not numbers[0] < numbers[1]:
            message = f"`{column}` must be two numbers, the lower one first, like [0, 5]"
            raise document.error(message, (*key_path, column))
        pairs[column.lower()] = (numbers[0], numbers[1])
    return tuple(sorted(pairs.items()))


def _number_of(value: object) -> float:
    """Return a finite number, or NaN; YAML 1.1 reads 1e6 as text."""
    is_written = isinstance(value, int | float | str) and not isinstance(value, bool)
    try:
        number = float(value) if is_written else math.nan  # type: ignore[arg-type]
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
