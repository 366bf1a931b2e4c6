"""What a query has published, looked at: which window, and when it was written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dpsql.errors import LakeError
from dpsql.lake import Lake

if TYPE_CHECKING:
    import pandas as pd


def histogram_written(lake: Lake, name: str) -> datetime:
    """When the newest commit to a query's histogram was made, UTC.

    Raises:
        LakeError: the table cannot be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    table = lake.histogram(name)
    try:
        return datetime.fromtimestamp(DeltaTable(table).history(1)[0]["timestamp"] / 1000, UTC)
    except (DeltaError, OSError) as problem:
        raise LakeError(f"histogram {table}: cannot be read ({type(problem).__name__})") from None


def one_window(rows: pd.DataFrame, name: str, window_us: int | None) -> pd.DataFrame:
    """The rows of the window that starts at `window_us` (microseconds since 1970 UTC), or of the newest.

    Raises:
        LakeError: the query has published no such window.
    """
    if window_us is None:
        return rows[rows["window_start"] == rows["window_start"].max()]
    kept = rows[rows["window_start"].astype("datetime64[us, UTC]").astype("int64") == window_us]
    if kept.empty:
        raise LakeError(f"query {name!r} has published no window that starts at this time; `dpsql show {name} --all` shows all there are")
    return kept
