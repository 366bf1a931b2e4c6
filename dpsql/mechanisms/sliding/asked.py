"""What a query asks of sliding windows; every default is filled in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dpsql.parsed_query import Aggregate, ContributionPeriod
from dpsql.privacy.cost import PrivacyLevel


class SlidingCounter(StrEnum):
    """How windows get their noise: every pane one of its own (discrete Laplace), or correlated over panes (Gaussian)."""

    PANES = "PANES"
    WINDOW_SQRT = "WINDOW_SQRT"


class PaneGrouping(StrEnum):
    """Whether panes are measured together, and when that is decided."""

    NONE = "NONE"
    RETROACTIVE = "RETROACTIVE"
    PLANNED = "PLANNED"


class Smoothing(StrEnum):
    """What is shown beside the unbiased sums."""

    NONE = "NONE"
    LIMITED_TRANSLATION = "LIMITED_TRANSLATION"


@dataclass(frozen=True)
class Bounds:
    """What one unit may do in one contribution period: rows, rows per key, keys (C, c, G); and how many units there are."""

    max_rows: int
    max_rows_per_key: int
    max_keys: int
    max_users: int
    period: ContributionPeriod

    @property
    def rows(self) -> int:
        """Rows of a unit in one period, at most."""
        return min(self.max_rows, self.max_keys * self.max_rows_per_key)


@dataclass(frozen=True)
class Asked:
    """One query.

    Args:
        level: what neighbouring streams differ in.
        epsilon, delta: the promise.
        panes: panes (slides) of a window.
        aggregates: the output columns.
        counter, grouping, smoothing: see above.
        monitor_share: share of epsilon that a grouping's monitor gets.
        bounds: at level USER; None at level EVENT, which knows no unit.
        revise, rescue: repairs of RETROACTIVE; the paper's own configuration has neither, and SQL cannot ask for it.
    """

    level: PrivacyLevel
    epsilon: float
    delta: float
    panes: int
    aggregates: tuple[Aggregate, ...]
    counter: SlidingCounter = SlidingCounter.PANES
    grouping: PaneGrouping = PaneGrouping.NONE
    smoothing: Smoothing = Smoothing.NONE
    monitor_share: float = 0.1
    bounds: Bounds | None = None
    revise: bool = True
    rescue: bool = True
