"""Published lists of a sketch, a line for each listed value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpsql.frames import TIMES

if TYPE_CHECKING:
    import pandas as pd


def lines_of(frame: pd.DataFrame, name: str) -> list[dict[str, Any]]:
    """Times, trigger and the fields of every entry of a list; `amount` is its count or sum. A window whose list is empty has none."""
    times = [time for time in TIMES if time in frame.columns]
    out = []
    for row in frame[[*times, name]].to_dict("records"):
        for entry in row[name]:
            amount = entry["count"] if "count" in entry else entry["sum"]
            out.append({**{time: row[time] for time in times}, **entry, "amount": amount})
    return out
