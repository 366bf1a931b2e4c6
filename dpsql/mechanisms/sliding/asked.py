"""What a query asks of sliding windows besides what every query says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dpsql.parsed_query import PrivacyLevel


class PaneGrouping(StrEnum):
    """Whether panes are measured together: only as the paper does, afterwards."""

    NONE = "NONE"
    RETROACTIVE = "RETROACTIVE"


@dataclass(frozen=True, kw_only=True)
class Asked:
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
