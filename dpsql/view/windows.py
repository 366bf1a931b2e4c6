"""Which rows of a histogram a person wants first: each window's newest trigger, finished windows before those that still grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.description import DUE, END, START
from dpsql.errors import LakeError
from dpsql.published.frames import newest_triggers, published_of
from dpsql.view.measures import size_of

if TYPE_CHECKING:
    import pandas as pd

BY_CHANCE = 0.01
"""How often a window of noise alone has, at most, a value that passes for more (Gaussian noise; `telling`)."""


def finished(rows: pd.DataFrame, clock: Any = None) -> pd.Series:
    """Per row whether its window had ended by the newest trigger: `clock`, or of these rows. (Late records may still change it.)"""
    if not published_of(rows).windows:
        return rows["trigger"].notna()  # a table is what it is at its newest trigger
    return rows[END] <= (rows[DUE].max() if clock is None else clock)


def in_order(rows: pd.DataFrame, by: str | None = None, keep: bool = False) -> pd.DataFrame:
    """The newest finished window first, unfinished ones last; within a window the largest keys first.

    Args:
        rows: of a histogram.
        by: the column that says how large a key is; as `size_of` unless given, or the first aggregate.
        keep: the rows of one window stay in their order.
    """
    published = published_of(rows)
    sizes = [
        each
        for each in (by or size_of(rows), *published.amounts, *published.fitted)
        if each and not keep
    ][:1]
    columns = ["_finished", *published.release, *sizes]
    ordered = rows.assign(_finished=finished(rows)).sort_values(
        columns, ascending=False, kind="stable"
    )
    return ordered.drop(columns="_finished")


def telling(rows: pd.DataFrame, aggregates: Sequence[str]) -> pd.Series:
    """Per row whether its window has a value above its own noise. Of many noisy values some are large: the more there are, the larger one must be."""
    last = newest_triggers(rows)
    values = last[list(aggregates)].to_numpy(np.float64, na_value=np.nan)
    errors = last[[published_of(rows).stderr(alias) for alias in aggregates]].to_numpy(
        np.float64, na_value=np.nan
    )
    largest = np.divide(
        np.abs(values), errors, out=np.zeros_like(values), where=(errors > 0) & np.isfinite(values)
    ).max(axis=1)
    windows = last[[START]].assign(largest=largest).groupby(START)["largest"].agg(["max", "size"])
    # P(|N| > z) <= exp(-z^2 / 2), of which a union bound makes that of all values
    enough = windows["max"] > np.sqrt(2 * np.log(windows["size"] * len(aggregates) / BY_CHANCE))
    return rows[START].map(enough)


def one_window(
    rows: pd.DataFrame,
    name: str,
    window_us: int | None,
    growing: bool = False,
    of: Sequence[str] = (),
) -> pd.DataFrame:
    """The rows of one window; all there are where there are no windows.

    Args:
        rows: of all windows.
        name: of the query.
        window_us: where the window starts, microseconds since 1970 UTC; None: the newest one that is finished, or, where none is, the newest.
        growing: the newest one, finished or not.
        of: aggregates, one of which is above its own noise in the window that is chosen, if there is such a one.

    Raises:
        LakeError: the query has published no such window.
    """
    if not published_of(rows).windows:
        if window_us is not None:
            raise LakeError(f"query {name!r} has no windows: leave --window away")
        return rows
    if window_us is None:
        ended = rows[finished(rows)]
        chosen = rows if growing or ended.empty else ended
        if of and not growing and (tells := telling(chosen, of)).any():
            chosen = chosen[tells]
        return chosen[chosen[START] == chosen[START].max()]
    kept = rows[rows[START].astype("datetime64[us, UTC]").astype("int64") == window_us]
    if kept.empty:
        raise LakeError(
            f"query {name!r} has published no window that starts at this time; `dpsql show {name} --all` shows all there are"
        )
    return kept


def passed_over(rows: pd.DataFrame, shown: pd.DataFrame) -> str:
    """What is said of the finished windows that are newer than the one that is shown; nothing where there are none."""
    if not published_of(rows).windows:
        return ""
    newer = rows[finished(rows) & (rows[START] > shown[START].iloc[0])][START]
    if newer.empty:
        return ""
    if newer.nunique() == 1:
        return f"A newer window, that of {newer.min():%Y-%m-%d %H:%M} UTC, is passed over: no value in it is clearly above its own noise."
    span = f"{newer.min():%Y-%m-%d %H:%M} to {newer.max():%Y-%m-%d %H:%M} UTC"
    return f"{newer.nunique():,} newer windows, of {span}, are passed over: no value in them is clearly above its own noise."
