"""How far one privacy unit moves sums over rows that begin, and may end: for the planners of tables without windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ROUNDING = 1e-5
"""How much more the sums of a measure may move together because each is rounded to a grid, relatively."""


@dataclass(frozen=True)
class TableBounds:
    """The most that one privacy unit may add to a table.

    Args:
        max_rows: C; with ends: row versions.
        max_rows_per_group: c: of these with one key, at the same time.
        max_groups: G: different keys.
        ends: rows may be deleted and changed; otherwise the table only grows.
        max_spells: S: times of presence, over all keys; with ends only.
    """

    max_rows: float
    max_rows_per_group: float
    max_groups: int
    ends: bool = False
    max_spells: int = 1

    @property
    def rows(self) -> float:
        """Rows that can count: a slot that is free again takes another version, so with ends G keys of c slots hold C in the course of time."""
        return (
            self.max_rows
            if self.ends
            else min(self.max_rows, self.max_groups * self.max_rows_per_group)
        )

    @property
    def counts(self) -> int:
        """Times that one unit can begin to count in key selection, or in COUNT(DISTINCT unit)."""
        return self.max_spells if self.ends else self.keys

    @property
    def keys(self) -> int:
        """Keys in which one unit can count."""
        return int(min(self.max_rows, self.max_groups))


def row_sensitivity(bounds: TableBounds, lower: float, upper: float) -> float:
    """Return the sensitivity of a sum of values in [lower, upper] (a count: [0, 1]), as a multiple
    of the counter's column norm (docs/privacy/dynamic.md, theorem 16)."""
    per_group = bounds.max_rows_per_group
    if not bounds.ends:
        return math.sqrt(per_group * bounds.rows) * max(abs(lower), abs(upper))
    largest = math.hypot(lower, upper) if lower < 0 < upper else max(abs(lower), abs(upper))
    return math.sqrt(2 * per_group * bounds.rows) * largest


def measure_sensitivity(bounds: TableBounds, sums: int, lower: float, upper: float) -> float:
    """Return the sensitivity of one of the `sums` of an average or a spread, each with as much of
    mu^2 as the others.

    Where rows end their shifts are one vector (docs/privacy/lemma.md, a measure whose rows end), and signs cost nothing as long as the count has as
    much of mu^2 as the sum; of a spread 9 parts, as sum and squares have 8 each.
    """
    if not bounds.ends or sums == 1:
        return row_sensitivity(bounds, lower, upper)
    parts = 1 / sums if sums == 2 else (9 if lower == 0 else 8) / 25
    return row_sensitivity(bounds, 0.0, max(abs(lower), abs(upper))) * math.sqrt(
        (1 + ROUNDING) / (sums * parts)
    )


def presence_sensitivity(bounds: TableBounds, weights: Sequence[float]) -> float:
    """Return the sensitivity of a sum to which a unit adds its i-th weight while it is present."""
    return math.sqrt((2 if bounds.ends else 1) * math.fsum(w * w for w in weights))
