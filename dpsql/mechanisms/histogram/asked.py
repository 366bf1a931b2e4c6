"""What a query asks of the histogram besides what every query says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dpsql.parsed_query import CounterName


class ReleaseRule(StrEnum):
    """When a selected key is released again."""

    EVERY_TRIGGER = "EVERY_TRIGGER"
    RESELECT = "RESELECT"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Bounds, key selection and release of one query; the options of the same names, every default filled in.

    `carry_windows`: how many windows, the present one included, may prove a key together; 1: each for itself. C and c are infinite where
    rows are not counted.
    """

    max_rows_contributed: float
    max_rows_per_group: float
    max_groups_contributed: int
    min_privacy_units_per_group: int
    release: ReleaseRule
    counter: CounterName
    carry_windows: int = 1
