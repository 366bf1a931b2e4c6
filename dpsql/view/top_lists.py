"""Published lists of a sketch, a line for each listed value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dpsql.frames import TIMES

if TYPE_CHECKING:
    import pandas as pd


def lists_of(frame: pd.DataFrame) -> list[str]:
    """The columns that are lists."""
    kinds = {str(name): getattr(kind, "pyarrow_dtype", None) for name, kind in frame.dtypes.items()}
    return [name for name, kind in kinds.items() if kind is not None and pa.types.is_list(kind)]


def lines_of(frame: pd.DataFrame, name: str) -> list[dict[str, Any]]:
    """Times, trigger and the fields of every entry of a list; `amount` is its count or sum. A window whose list is empty has none."""
    times = [time for time in TIMES if time in frame.columns]
    out = []
    for row in frame[[*times, name]].to_dict("records"):
        for entry in row[name]:
            amount = entry["count"] if "count" in entry else entry["sum"]
            out.append({**{time: row[time] for time in times}, **entry, "amount": amount})
    return out
