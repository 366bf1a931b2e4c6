"""What a query asks of sliding windows besides what every query says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dpsql.parsed_query import CounterName, PrivacyLevel


class PaneGrouping(StrEnum):
    """Whether panes are measured together, and when that is decided."""

    NONE = "NONE"
    RETROACTIVE = "RETROACTIVE"
    PLANNED = "PLANNED"


class Smoothing(StrEnum):
    """What is shown beside the unbiased sums."""

    NONE = "NONE"
    LIMITED_TRANSLATION = "LIMITED_TRANSLATION"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of the same names, every default filled in.

    Args:
        privacy_level: what neighbouring streams differ in.
        counter: PANES or WINDOW_SQRT.
        monitor_share: share of epsilon that a grouping's monitor gets.
        publish_above: rows whose aggregate is below are not written; None: all are.
        max_rows_contributed, max_rows_per_group, max_groups_contributed: C, c, G; None at level EVENT, which knows no unit.
        revise, rescue: repairs of RETROACTIVE; the paper's own configuration has neither, and SQL cannot ask for it.
    """

    privacy_level: PrivacyLevel
    counter: CounterName
    grouping: PaneGrouping
    monitor_share: float
    smoothing: Smoothing
    publish_above: float | None
    max_rows_contributed: int | None
    max_rows_per_group: int | None
    max_groups_contributed: int | None
    revise: bool = True
    rescue: bool = True

    @property
    def rows(self) -> int:
        """min(C, G c): rows of the protected unit in one contribution period; one event is one."""
        if self.max_rows_contributed is None or self.max_rows_per_group is None or self.max_groups_contributed is None:
            return 1
        return min(self.max_rows_contributed, self.max_groups_contributed * self.max_rows_per_group)
