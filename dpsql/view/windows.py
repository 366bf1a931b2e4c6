"""Which rows of a histogram a person wants first: each window's newest trigger, finished windows before those that still grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpsql.errors import LakeError
from dpsql.frames import aggregates_of, has_windows
from dpsql.view.formatting import Z95

if TYPE_CHECKING:
    import pandas as pd


def finished(rows: pd.DataFrame, clock: Any = None) -> pd.Series:
    """Per row whether its window had ended by the newest trigger: `clock`, or of these rows. (Late records may still change it.)"""
    if not has_windows(rows):
        return rows["trigger"].notna()  # a table is what it is at its newest trigger
    return rows["window_end"] <= (rows["trigger_time"].max() if clock is None else clock)


def newest_triggers(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of every window's newest trigger; without windows those of the newest."""
    if not has_windows(rows):
        return rows[rows["trigger"] == rows["trigger"].max()]
    return rows[rows["trigger"] == rows.groupby("window_start")["trigger"].transform("max")]


def in_order(rows: pd.DataFrame, by: str | None = None, keep: bool = False) -> pd.DataFrame:
    """The newest finished window first, unfinished ones last; within a window the largest keys first.

    Args:
        rows: of a histogram.
        by: the column that says how large a key is; the first aggregate unless given.
        keep: the rows of one window stay in their order.
    """
    sizes = [] if keep else [by] if by else aggregates_of(rows)[:1]
    columns = [*(["window_start"] if has_windows(rows) else []), "trigger", *sizes]
    ordered = rows.assign(_finished=finished(rows)).sort_values(["_finished", *columns], ascending=False, kind="stable")
    return ordered.drop(columns="_finished")


def one_window(rows: pd.DataFrame, name: str, window_us: int | None, growing: bool = False) -> pd.DataFrame:
    """The rows of one window; all there are where there are no windows.

    Args:
        rows: of all windows.
        name: of the query.
        window_us: where the window starts, microseconds since 1970 UTC; None: the newest one that is finished, or, where none is, the newest.
        growing: the newest one, finished or not.

    Raises:
        LakeError: the query has published no such window.
    """
    if not has_windows(rows):
        if window_us is not None:
            raise LakeError(f"query {name!r} has no windows: leave --window away")
        return rows
    if window_us is None:
        ended = rows[finished(rows)]
        chosen = rows if growing or ended.empty else ended
        return chosen[chosen["window_start"] == chosen["window_start"].max()]
    kept = rows[rows["window_start"].astype("datetime64[us, UTC]").astype("int64") == window_us]
    if kept.empty:
        raise LakeError(f"query {name!r} has published no window that starts at this time; `dpsql show {name} --all` shows all there are")
    return kept


def standing_out(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The newest finished window in which some value is larger than 95% of its noise, and how many newer ones were passed over.

    The newest finished one where no window has such a value; the newest where none is finished, and all there is where there are no windows.
    """
    if not has_windows(rows) or not finished(rows).any():
        return one_window(rows, "", None), 0
    newest = newest_triggers(rows[finished(rows)])
    large = newest["trigger"] < 0
    for alias in aggregates_of(rows):
        large |= (newest[alias].astype("float64").abs() > Z95 * newest[f"{alias}_stderr"].astype("float64")).fillna(False)
    starts = newest["window_start"].drop_duplicates().sort_values(ascending=False)
    telling = newest.loc[large, "window_start"]
    if telling.empty:
        return one_window(rows, "", None), 0
    return rows[rows["window_start"] == telling.max()], int((starts > telling.max()).sum())
