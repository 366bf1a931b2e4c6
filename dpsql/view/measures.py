"""What each aggregate of a histogram measures, as far as drawing and ranking it depends on that. From the document of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpsql.frames import aggregates_of
from dpsql.parsed_query import DEVIATIONS, VARIANCES
from dpsql.view.bounds import asked, heads

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Measure:
    """An aggregate.

    Args:
        alias: its column.
        cap: what the bounds cap, in words; may be empty.
        within: an average, a variance or a deviation lies between these two; None for what grows with the number of records.
        adds_up: the keys' values sum to the whole, and none is negative: each has a share.
    """

    alias: str
    cap: str = ""
    within: tuple[float, float] | None = None
    adds_up: bool = False


def measures(rows: pd.DataFrame, document: Mapping[str, Any] | None) -> tuple[Measure, ...]:
    """The aggregates of a frame, in its order; without a document nothing is known of them but their names."""
    known = {each["alias"]: each for each in asked(document).get("aggregates", ())}
    caps = heads(document)
    return tuple(_measure(alias, known.get(alias, {}), caps.get(alias, "")) for alias in aggregates_of(rows))


def ranked(rows: pd.DataFrame, of: Sequence[Measure]) -> tuple[pd.DataFrame, str | None]:
    """The rows, the largest first, and the column that says so.

    An average of few records is noise, and the noisiest are the largest and the smallest. So keys are ranked by the first count or sum;
    where there are only averages, by how small the error is: that grows with the number of records. Then there is no such column.
    """
    sizes = [each.alias for each in of if each.within is None]
    if sizes:
        return rows.sort_values(sizes[0], ascending=False, kind="stable"), sizes[0]
    return (rows.sort_values(f"{of[0].alias}_stderr", kind="stable") if of else rows), None


def counted(rows: pd.DataFrame, document: Mapping[str, Any] | None) -> list[str]:
    """The aggregates that grow with the number of records; all, where there are only averages."""
    of = measures(rows, document)
    return [each.alias for each in of if each.within is None] or [each.alias for each in of]


def _measure(alias: str, aggregate: Mapping[str, Any], cap: str) -> Measure:
    function, bounds = aggregate.get("function"), aggregate.get("bounds")
    within = _within(function, (float(bounds[0]), float(bounds[1]))) if bounds else None
    adds_up = function in ("COUNT", "COUNT(*)") or (function == "SUM" and bounds is not None and bounds[0] >= 0)
    return Measure(alias, cap, within, adds_up)


def _within(function: str | None, bounds: tuple[float, float]) -> tuple[float, float] | None:
    """What lies between: an average its bounds, a deviation 0 and half their width, a variance the square of that."""
    half = (bounds[1] - bounds[0]) / 2
    if function == "AVG":
        return bounds
    if function in DEVIATIONS:
        return 0.0, half
    return (0.0, half**2) if function in VARIANCES else None
