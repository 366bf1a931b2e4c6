"""What a query asks of sliding windows, and every number of its plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from dpsql.mechanisms.protocol import Plan
from dpsql.parsed_query import CounterName, ParsedQuery, PrivacyLevel
from dpsql.parts.sums import Summed, as_stored, presence_only
from dpsql.udfs.noise.discrete_laplace import DiscreteLaplace

# What a query asks of sliding windows besides what every query says.


class PaneGrouping(StrEnum):
    """Whether panes are measured together: only as the paper does, afterwards."""

    NONE = "NONE"
    RETROACTIVE = "RETROACTIVE"


@dataclass(frozen=True, kw_only=True)
class PaneChoices:
    """Bounds and noise of one query.

    Args:
        privacy_level: what neighbouring streams differ in.
        grouping: whether panes are measured together.
        max_rows_contributed, max_rows_per_group, max_groups_contributed: C, c, G; None at level EVENT, which knows no unit.
    """

    privacy_level: PrivacyLevel
    grouping: PaneGrouping
    max_rows_contributed: int | None
    max_rows_per_group: int | None
    max_groups_contributed: int | None

    @property
    def rows(self) -> int:
        """min(C, G c): rows of the protected unit in one contribution period; one event is one."""
        if (
            self.max_rows_contributed is None
            or self.max_rows_per_group is None
            or self.max_groups_contributed is None
        ):
            return 1
        return min(self.max_rows_contributed, self.max_groups_contributed * self.max_rows_per_group)


# SlidingPlan: every number of a query of sliding windows, concrete. The planner makes it, the
# accountant checks it, steps get its numbers.

TABLES = ("fine", "monitor", "together")
"""Fields that are tables of noise."""

BITS_OF_A_STEP = 10
"""log2 of the units of a step of a noisy sum under PANES: finer steps would make tables of noise long, and no sum better."""


@dataclass(frozen=True, kw_only=True)
class MeasurementPlan(Summed):
    """One noisy sum per bin: records are rounded to units of the grid, and a pane's sum of them to steps.

    Args:
        fine: noise of a pane that is measured by itself with the whole budget; None where no pane is.
        monitor, together: noise of a grouping's monitor, and of what it measures; None without grouping.
        sigma: standard deviation of z in steps (WINDOW_SQRT); 0 otherwise.
        stderr: standard deviation of a window's noise in value units; at WINDOW_SQRT of a late window, first ones have less.
        half_width: of the exact 95% interval, in value units; None where no bar is right for every stream (grouping).
        floor: no sum can be negative.
    """

    fine: DiscreteLaplace | None = None
    monitor: DiscreteLaplace | None = None
    together: DiscreteLaplace | None = None
    sigma: float = 0.0
    stderr: float = 0.0
    half_width: float | None = None
    floor: bool = False

    @property
    def bits(self) -> int:
        """log2 of the units of a step of the noise."""
        return BITS_OF_A_STEP if self.rule in ("sum", "squares") and not self.sigma else 0

    @property
    def step(self) -> float:
        """Value of a step."""
        return self.grid * 2**self.bits


@dataclass(frozen=True, kw_only=True)
class SlidingPlan(Plan):
    """The whole promise and how it is kept.

    Args:
        panes: slides of a window.
        lateness_us: how long a pane stays open after its end: `allowed_lateness`, up to the next end of a pane.
        mu: Gaussian part of the promise; 0 where noise is discrete Laplace.
        failure: probability that hashed ids collide, charged to delta (WINDOW_SQRT at level USER; a pure promise charges epsilon).
        coefficients: first column of C (WINDOW_SQRT), else ().
        sd: standard deviation of a window's noise for sigma = 1, by pane number; the last one holds for ever (WINDOW_SQRT).
        measurements: in order of the aggregates; an AVG has two, a centred sum and a count; a spread also one of squares.
    """

    mechanism: ClassVar[str] = "sliding"

    query: ParsedQuery[PaneChoices]
    panes: int
    lateness_us: int
    failure: float
    coefficients: tuple[float, ...]
    sd: tuple[float, ...]
    measurements: tuple[MeasurementPlan, ...]

    @property
    def counter(self) -> CounterName:
        """PANES keep a pure promise; with a delta WINDOW_SQRT is less noisy over many periods."""
        return CounterName.WINDOW_SQRT if self.query.delta > 0 else CounterName.PANES

    @property
    def smooths(self) -> bool:
        """Whether a smoothed column is shown beside sums and counts: where it costs nothing."""
        return self.counter is CounterName.PANES and self.query.asked.grouping is PaneGrouping.NONE

    @property
    def presence_only(self) -> tuple[bool, ...]:
        """Per argument: True if only COUNT(x) reads it."""
        return presence_only(self.arguments, self.measurements)


def document(plan: SlidingPlan) -> dict[str, Any]:
    """Return the plan as JSON values; noise tables by the digest of their entries, which are part of the promise."""
    bare = [replace(m, fine=None, monitor=None, together=None) for m in plan.measurements]
    content = as_stored(replace(plan, measurements=tuple(bare)))
    for values, measurement in zip(content["measurements"], plan.measurements, strict=True):
        for name in TABLES:
            table = getattr(measurement, name)
            values[name] = (
                None if table is None else {"epsilon": table.epsilon, "digest": table.digest}
            )
    return content
