"""What a query asks of a sketch, and every number of its plan."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from dpsql.mechanisms.protocol import Plan
from dpsql.parsed_query import ParsedQuery, PrivacyLevel
from dpsql.parts.sums import NoisySum, as_stored

# What a query asks of a sketch besides what every query says; every default is filled in.

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
class SketchLimits:
    """The limits of one unit in one contribution period: rows, rows with one value, values (C, c,
    G)."""

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
class SketchChoices:
    """The choices of one query of sketches.

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
    bounds: SketchLimits | None = None

    @property
    def limits(self) -> tuple[int | None, int | None, int | None]:
        """C, c and G; None at level EVENT."""
        if self.bounds is None:
            return None, None, None
        return self.bounds.max_rows, self.bounds.max_rows_per_key, self.bounds.max_keys

    @property
    def lists(self) -> bool:
        """Whether any aggregate has a list."""
        return any(each.number for each in self.wanted)


# SketchPlan: every number of a query with sketches, concrete. The planner makes it, the
# accountant checks it, steps get its numbers.


@dataclass(frozen=True, kw_only=True)
class CellsPlan(NoisySum):
    """The cells of one sketch, `sensitivity` over all of them; `sd`: standard deviation of a cell's noise at triggers 1.., in value units."""

    sd: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class SketchPlan(Plan):
    """The whole promise and how it is kept; `delta = delta_noise + delta_floor + delta_hash` at most, `mu` is all of it.

    Args:
        triggers: T of a window, and steps of every cell's counter.
        windows_per_record: r.
        beta: probability with which a key that no record has may pass the floor test at one trigger, in one sketch; None: no key is unknown.
        stderr: standard deviation of an estimate's noise, per standard deviation of a cell's.
        hash_scheme: what readers of the published sketch must implement.
        cells: in order of the aggregates.
    """

    mechanism: ClassVar[str] = "sketch"

    query: ParsedQuery[SketchChoices]
    triggers: int
    windows_per_record: int
    delta_noise: float
    delta_floor: float
    delta_hash: float
    beta: float | None
    stderr: float
    hash_scheme: str
    cells: tuple[CellsPlan, ...]

    @property
    def unknown_keys(self) -> bool:
        """Values are found by the floor test, and every window has a hash key of its own, published when it closes."""
        return self.query.asked.lists and self.query.public_groups is None


def document(plan: SketchPlan) -> dict[str, Any]:
    """Return the plan as JSON values: what its identity digests, and what run.json keeps."""
    return {"mechanism": plan.mechanism} | as_stored(plan)
