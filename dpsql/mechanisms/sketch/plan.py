"""SketchPlan: every number of a query with sketches, concrete. The planner makes it, the accountant checks it, steps get its numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from dpsql.mechanisms.protocol import Plan
from dpsql.mechanisms.sketch.asked import Asked
from dpsql.parsed_query import ParsedQuery
from dpsql.parts.sums import NoisySum


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

    query: ParsedQuery[Asked]
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
    """The plan as JSON values: what its identity digests, and what run.json keeps."""
    return {"mechanism": plan.mechanism} | asdict(plan)
