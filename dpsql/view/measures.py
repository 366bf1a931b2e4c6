"""What each aggregate of a histogram measures, as far as drawing and ranking it depends on that. From what its table says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpsql.description import Measure, Role
from dpsql.parsed_query import AggregateFunction
from dpsql.published.frames import published_of

if TYPE_CHECKING:
    import pandas as pd


def measures(rows: pd.DataFrame) -> list[Measure]:
    """The aggregates of a frame that have a standard error, in its order."""
    published = published_of(rows)
    known = {each.alias: each for each in published.measures}
    return [known[alias] for alias in published.amounts]


def grouped_by(rows: pd.DataFrame) -> list[str]:
    """The key columns; of the rows of a CUBE those that some row has a value of, as all have of one level."""
    published = published_of(rows)
    return [
        name
        for name in published.keys
        if not published.sets
        or (name not in published.names(Role.SET) and rows[name].notna().any())
    ]


def levels(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of a CUBE by what they are grouped by, few columns first; the total, which is grouped by none, last."""
    found = [level for _, level in rows.groupby(published_of(rows).names(Role.SET), sort=False)]
    return sorted(
        found, key=lambda level: (not grouped_by(level), len(grouped_by(level)), grouped_by(level))
    )


def size_of(rows: pd.DataFrame) -> str | None:
    """The column that says how large a key is: of people, whom bounds hardly touch; else the count or sum that stands out most of its noise.

    None where there are only averages: of few records they are noise, and the noisiest are the largest and the smallest.
    """
    published = published_of(rows)
    people = {
        each.alias
        for each in published.measures
        if each.function is AggregateFunction.COUNT_DISTINCT_UNIT
    }

    def signal(alias: str) -> tuple[bool, float]:
        noise = float((rows[published.stderr(alias)].astype(float) ** 2).sum() ** 0.5)
        return alias in people, float(
            rows[alias].astype(float).abs().sum()
        ) / noise if noise > 0 else 0.0

    return max(
        (each.alias for each in measures(rows) if each.within is None), key=signal, default=None
    )


def ranked(rows: pd.DataFrame) -> tuple[pd.DataFrame, str | None]:
    """The rows, the largest first, and the column that says so (`size_of`).

    Where there are only averages, those with the smallest error come first: it says where most records are.
    """
    if size := size_of(rows):
        return rows.sort_values(size, ascending=False, kind="stable"), size
    published = published_of(rows)
    return (
        rows.sort_values(published.stderr(published.amounts[0]), kind="stable")
        if published.amounts
        else rows
    ), None


def counted(rows: pd.DataFrame) -> list[str]:
    """The aggregates that grow with the number of records; all, where there are only averages."""
    of = measures(rows)
    return [each.alias for each in of if each.within is None] or [each.alias for each in of]
