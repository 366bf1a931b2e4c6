"""A data file of the histogram as the driver writes it: its bytes and its statistics are a function of the rows."""

from __future__ import annotations

import hashlib
import sys
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpsql.files import Place
from dpsql.udfs.bucket_state import filesystem, write_whole

FIRST_MS = -62_167_219_200_000
LAST_MS = 253_402_300_799_999
"""The beginning of the year 0, where windows of the first day of the year 1 may begin, and the end of the year 9999."""

TEXT = 32
LAST = "\U0010ffff"
"""No text comes after it."""


def sorted_file(path: Place, rows: pa.Table) -> dict[str, Any]:
    """Write rows, in their order, as one file of a table; it is in the table once it is committed.

    Args:
        path: of the table.
        rows: at least one.

    Returns:
        What `delta_tables.append_files` wants to know of it.
    """
    rows = rows.combine_chunks()
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows, sink, compression="snappy", row_group_size=rows.num_rows, write_page_checksum=True
    )
    system, root = filesystem(str(path))
    content = sink.getvalue()
    name = f"part-00000-{uuid.uuid4()}-{hashlib.sha256(content).hexdigest()}.parquet"
    size = write_whole(system, root, name, content)
    return {
        "path": name,
        "bytes": size,
        "rows": rows.num_rows,
        "partition": {},
        "stats": statistics(rows),
    }


def statistics(rows: pa.Table) -> dict[str, Any]:
    """Return the bounds of every column, by which readers leave out files; of all, because deltalake takes a column without them for one of NULLs."""
    lower_bounds = dict[str, Any]()
    upper_bounds = dict[str, Any]()
    nulls = dict[str, int]()
    for name in rows.column_names:
        column = rows[name]
        if any(
            has_none(column.type)
            for has_none in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_list)
        ):  # has no bounds in Delta
            continue
        nulls[name] = column.null_count
        if column.null_count < len(column):
            lower_bounds[name], upper_bounds[name] = _bounds(column)
    return {"minValues": lower_bounds, "maxValues": upper_bounds, "nullCount": nulls}


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return bounds like Delta's: times in milliseconds, texts cut; never narrower than the column."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        low, high = pc.min_max(column.cast(pa.large_binary())).as_py().values()
        return _text(low, ""), _text(high, LAST)
    if pa.types.is_timestamp(kind):
        low, high = pc.min_max(column.cast(pa.int64())).as_py().values()
        return _time(low // 1000), _time(-(-high // 1000))
    low, high = pc.min_max(column).as_py().values()
    if pa.types.is_floating(kind):
        max_float = sys.float_info.max  # JSON has no infinity
        return min(max(low, -max_float), max_float), min(max(high, -max_float), max_float)
    if pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return str(low), str(high)
    return low, high


def _text(value: bytes, end: str) -> str:
    """Return the beginning of a long text, and `end`; `end` alone for bytes that are no text."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return end
    return text if len(text) <= TEXT else text[:TEXT] + end


def _time(ms: int) -> str:
    """Write a time; years before 0 and after 9999 have no form: the nearest moment that has one stands for them."""
    return f"{np.datetime64(min(max(ms, FIRST_MS), LAST_MS), 'ms')}Z"
