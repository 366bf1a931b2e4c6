"""Rows of public tables as pandas frames that lose nothing, and that carry what their table says of itself.

Pandas' own types have no room for a NULL among integers, and forget decimals.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING

from dpsql.description import PROPERTY, START, Published, Role, read
from dpsql.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import pyarrow as pa

PANDAS_ATTRIBUTES = "PANDAS_ATTRS"
"""Where pandas keeps a frame's attributes in a Parquet file."""

_read = cache(read)


def published_of(frame: pd.DataFrame) -> Published:
    """What the table of a frame says of itself. Filters, sorts and groups of a frame keep it.

    Raises:
        DataError: it is lost: a merge loses it, and a frame that is built anew never had it.
    """
    published = _read(frame.attrs.get(PROPERTY, "{}"))
    if published is None:
        raise DataError(
            f"these rows do not say what they are: take a frame as dpsql hands it out, or give it its description: new.attrs['{PROPERTY}'] = "
            f"old.attrs['{PROPERTY}']"
        )
    return published


def frame_of(rows: pa.Table, published: Published) -> pd.DataFrame:
    """Make a frame whose Parquet file pandas can read again.

    Key columns are Arrow-backed, as `int64[pyarrow]`: type and NULL stay, whatever the other keys are. Arrays are lists of Python's own values. All
    other columns have pandas' own types.

    Args:
        rows: of the table, perhaps of some columns.
        published: what it says of itself.
    """
    import pandas as pd  # slow to import
    import pyarrow as pa

    exact = {*published.names(Role.KEY, Role.SET, Role.LIST)}

    def series(name: str) -> pd.Series:
        column = rows.column(name)
        if pa.types.is_nested(
            column.type
        ):  # pandas writes the names of such types into files, and cannot read them
            return pd.Series(column.to_pylist(), dtype=object)
        if name in exact and not pa.types.is_timestamp(
            column.type
        ):  # pandas has its own NULL among times
            return column.to_pandas(types_mapper=pd.ArrowDtype)
        return column.to_pandas()

    frame = pd.DataFrame({name: series(name) for name in rows.column_names})
    frame.attrs[PROPERTY] = published.text()
    return frame


def write_parquet(rows: pa.Table, published: Published, path: Path) -> None:
    """Write rows into a file that pandas reads as `frame_of` makes them, and others with the types of the table.

    Args:
        rows: of the table.
        published: what it says of itself; the frame that pandas reads has it.
        path: of the file.
    """
    import pyarrow as pa  # slow to import
    from pyarrow.parquet import write_table

    frame = frame_of(rows.slice(0, 0), published)
    metadata = dict(pa.Table.from_pandas(frame, preserve_index=False).schema.metadata)
    metadata[PANDAS_ATTRIBUTES] = json.dumps(frame.attrs)
    write_table(rows.replace_schema_metadata(metadata), path)


def newest_triggers(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of every window's newest trigger; without windows those of the newest."""
    windows = published_of(rows).windows
    return rows[
        rows["trigger"]
        == (rows.groupby(START)["trigger"].transform("max") if windows else rows["trigger"].max())
    ]
