"""SlidingPlan: every number of a query of sliding windows, concrete. The planner makes it, the accountant checks it, steps get its numbers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from dpsql.mechanisms.sliding.asked import Asked
from udfs.noise.discrete_laplace import DiscreteLaplace


@dataclass(frozen=True)
class MeasurementPlan:
    """One noisy sum per bin.

    Args:
        mechanism: number in the noise function, from 1.
        rule: how a record becomes an increment: `rows`, `valid` or `sum` (`udfs.sliding.intake`).
        argument: position of the argument column, or -1.
        grid: value of one step (a power of two; 1.0 for counts).
        lower, upper: clamp of one record's increment, in steps.
        centre: what is subtracted before clamping (AVG), in value units.
        fine: noise of a pane that is measured by itself with the whole budget; None where no pane is.
        monitor, together: noise of a grouping's monitor, and of what it measures; None without grouping.
        sigma: standard deviation of z in steps (WINDOW_SQRT); 0 otherwise.
        stderr: standard deviation of a window's noise in value units; at WINDOW_SQRT of a late window, first ones have less.
        half_width: of the exact 95% interval, in value units; None where no bar is right for every stream (grouping).
        floor: no sum can be negative.
    """

    mechanism: int
    rule: str
    argument: int
    grid: float
    lower: int
    upper: int
    centre: float
    fine: DiscreteLaplace | None
    monitor: DiscreteLaplace | None
    together: DiscreteLaplace | None
    sigma: float
    stderr: float
    half_width: float | None
    floor: bool


@dataclass(frozen=True)
class SlidingPlan:
    """The whole promise and how it is kept.

    Args:
        asked: the query.
        measurements: in order of the aggregates; an AVG has two, a centred sum and a count.
        mu: Gaussian part of the promise; 0 where noise is discrete Laplace.
        coefficients: first column of C (WINDOW_SQRT), else ().
        sd: standard deviation of a window's noise for sigma = 1, by pane number; the last one holds for ever (WINDOW_SQRT).
        failure: probability that hashed ids collide, charged to delta (WINDOW_SQRT at level USER; a pure promise charges epsilon).
        arguments: distinct argument expressions of the aggregates.
    """

    asked: Asked
    measurements: tuple[MeasurementPlan, ...]
    mu: float
    coefficients: tuple[float, ...]
    sd: tuple[float, ...]
    failure: float
    arguments: tuple[str, ...]


def document(plan: SlidingPlan) -> dict[str, Any]:
    """The plan as JSON values; noise tables by the digest of their entries, which are part of the promise."""
    out = asdict(plan)
    for shown, measurement in zip(out["measurements"], plan.measurements, strict=True):
        for name in ("fine", "monitor", "together"):
            table = getattr(measurement, name)
            shown[name] = None if table is None else {"epsilon": table.epsilon, "entries": _digest(table)}
    return out


def _digest(table: DiscreteLaplace) -> str:
    entries = json.dumps([table.middle, table.tail, table.onward, table.onward_tail], separators=(",", ":"))
    return hashlib.sha256(entries.encode()).hexdigest()
