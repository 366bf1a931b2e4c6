"""The columns of a histogram, and the histogram as a pandas frame that loses nothing.

Pandas' own types have no room for a NULL among integers, and forget decimals.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


TIMES = ("window_start", "window_end", "trigger", "trigger_time")
"""Columns of a histogram before its keys; without windows the last two."""

GROUPING = "grouping_id"
"""The column of a table of several sets of keys that says which set a row is of."""

BESIDE = ("smoothed", "measured")
"""Endings of columns that say more of an aggregate, besides its `stderr`: a better guess, and how much of the value is measured. No key is called so
(`dpsql.sql.select_rules`)."""


def has_windows(columns: Iterable[Hashable]) -> bool:
    """Whether rows belong to windows; a table without them is released as it is."""
    return "window_start" in columns


def aggregates_of(columns: Iterable[Hashable]) -> list[str]:
    """The columns of a histogram that have a stderr; a frame is its columns' names."""
    names = [str(column) for column in columns]
    return [name for name in names if f"{name}_stderr" in names]


def keys_of(columns: Iterable[Hashable]) -> list[str]:
    """The columns that name a row besides its window and trigger."""
    names = [str(column) for column in columns]
    aggregates = aggregates_of(names)
    quantiles = [name for name in names if f"{name}_rank_stderr" in names]
    taken = {
        *TIMES,
        *quantiles,
        *(f"{name}_rank_stderr" for name in quantiles),
        *(f"{name}{ending}" for name in aggregates for ending in ("", "_stderr", *(f"_{each}" for each in BESIDE))),
    }
    return [name for name in names if name not in taken]


def beside(columns: Iterable[Hashable], alias: str) -> dict[str, str]:
    """The columns that say more of an aggregate, by their endings."""
    names = {str(column) for column in columns}
    return {ending: f"{alias}_{ending}" for ending in BESIDE if f"{alias}_{ending}" in names}


def lists_of(frame: pd.DataFrame) -> list[str]:
    """The columns of a frame that are lists (docs/privacy/sketch.md)."""
    kinds = {str(name): getattr(kind, "pyarrow_dtype", None) for name, kind in frame.dtypes.items()}
    return [name for name, kind in kinds.items() if str(kind).startswith("list<")]


def frame_of(histogram: pa.Table, keys: Collection[str] | None = None) -> pd.DataFrame:
    """Key columns are Arrow-backed, as `int64[pyarrow]`: type and NULL stay, whatever the other keys are; all others have pandas' own types.

    Written to Parquet, or taken back by `pyarrow.Table.from_pandas`, the frame is the table it was made of.

    Args:
        histogram: the table.
        keys: names of the key columns (default: what is left of a whole histogram's columns).
    """
    import pandas as pd  # slow to import
    import pyarrow as pa

    names = keys_of(histogram.column_names) if keys is None else keys

    def series(name: str) -> pd.Series:
        column = histogram.column(name)
        if name not in names or pa.types.is_timestamp(column.type):  # pandas has its own NULL among times
            return column.to_pandas()
        return column.to_pandas(types_mapper=pd.ArrowDtype)

    return pd.DataFrame({name: series(name) for name in histogram.column_names})
