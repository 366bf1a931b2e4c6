"""What a query asks of a sketch besides what every query says; every default is filled in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dpsql.parsed_query import PrivacyLevel

DEPTH = 9
"""Rows of a sketch."""


class SketchKind(StrEnum):
    """Cells with signs and medians (unbiased), or without and minima (the paper's; biased, for comparison)."""

    COUNT_SKETCH = "COUNT_SKETCH"
    COUNT_MIN = "COUNT_MIN"


@dataclass(frozen=True)
class Wanted:
    """One aggregate: APPROX_TOP_COUNT (`number`), APPROX_TOP_SUM (also `weight`, clamped to `bounds`), COUNT_SKETCH (`number` 0: no list)."""

    alias: str
    number: int
    weight: str | None = None
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class WantedPerGroup(Wanted):
    """APPROX_TOP_SUM, where `bounds` hold what the rows of one unit with one value add up to in a window."""


@dataclass(frozen=True)
class Bounds:
    """What one unit may do in one contribution period: rows, rows with one value, values (C, c, G)."""

    max_rows: int
    max_rows_per_key: int
    max_keys: int

    @property
    def rows(self) -> int:
        """Rows of a unit in one period, at most."""
        return min(self.max_rows, self.max_keys * self.max_rows_per_key)

    @property
    def keys(self) -> int:
        """Values of a unit in one period, at most."""
        return min(self.max_rows, self.max_keys)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One query.

    Args:
        level: what neighbouring streams differ in.
        value: what is counted, Spark SQL; all sketches of a query count the same.
        wanted: the aggregates.
        width: `sketch_width`. depth, kind: what the planner fixes.
        bounds: at level USER; None at level EVENT, which knows no unit.
    """

    level: PrivacyLevel
    value: str
    wanted: tuple[Wanted, ...]
    depth: int = DEPTH
    width: int = 8192
    kind: SketchKind = SketchKind.COUNT_SKETCH
    bounds: Bounds | None = None

    @property
    def lists(self) -> bool:
        """Whether any aggregate has a list."""
        return any(each.number for each in self.wanted)
