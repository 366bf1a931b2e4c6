"""A histogram as a pandas frame that loses nothing: pandas' own types have no room for a NULL among integers, and forget decimals."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pyarrow as pa

from dpsql.shown import keys_of

if TYPE_CHECKING:
    import pandas as pd


def frame_of(histogram: pa.Table, keys: Collection[str] | None = None) -> pd.DataFrame:
    """Key columns are Arrow-backed, as `int64[pyarrow]`: type and NULL stay, whatever the other keys are; all others have pandas' own types.

    Written to Parquet, or taken back by `pyarrow.Table.from_pandas`, the frame is the table it was made of.

    Args:
        histogram: the table.
        keys: names of the key columns (default: what is left of a whole histogram's columns).
    """
    import pandas as pd  # slow to import

    names = keys_of(histogram.column_names) if keys is None else keys

    def series(name: str) -> pd.Series:
        column = histogram.column(name)
        if name not in names or pa.types.is_timestamp(column.type):  # pandas has its own NULL among times
            return column.to_pandas()
        return column.to_pandas(types_mapper=pd.ArrowDtype)

    return pd.DataFrame({name: series(name) for name in histogram.column_names})
