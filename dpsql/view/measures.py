"""What each aggregate of a histogram measures, as far as drawing and ranking it depends on that. From what its table says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpsql import description
from dpsql.published.frames import published_of
from dpsql.view.bounds import heads

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Measure:
    """An aggregate.

    Args:
        alias: its column.
        cap: what the bounds cap, in words; may be empty.
        within: an average, a variance or a deviation lies between these two; None for what grows with the number of records.
        has_shares: the keys' values sum to the whole, and none is negative: each has a share.
    """

    alias: str
    cap: str = ""
    within: tuple[float, float] | None = None
    has_shares: bool = False


def measures(rows: pd.DataFrame) -> tuple[Measure, ...]:
    """The aggregates of a frame that have a standard error, in its order."""
    published = published_of(rows)
    known, caps = {each.alias: each for each in published.measures}, heads(published)
    return tuple(_measure(alias, known.get(alias), caps.get(alias, "")) for alias in published.amounts)


def ranked(rows: pd.DataFrame, of: Sequence[Measure]) -> tuple[pd.DataFrame, str | None]:
    """The rows, the largest first, and the column that says so.

    An average of few records is noise, and the noisiest are the largest and the smallest. So keys are ranked by the first count or sum;
    where there are only averages, by how small the error is: that grows with the number of records. Then there is no such column.
    """
    sizes = [each.alias for each in of if each.within is None]
    if sizes:
        return rows.sort_values(sizes[0], ascending=False, kind="stable"), sizes[0]
    return (rows.sort_values(published_of(rows).stderr(of[0].alias), kind="stable") if of else rows), None


def counted(rows: pd.DataFrame) -> list[str]:
    """The aggregates that grow with the number of records; all, where there are only averages."""
    of = measures(rows)
    return [each.alias for each in of if each.within is None] or [each.alias for each in of]


def _measure(alias: str, known: description.Measure | None, cap: str) -> Measure:
    if known is None:
        return Measure(alias, cap)
    return Measure(alias, cap, known.within, known.additive and (known.bounds is None or known.bounds[0] >= 0))
