"""Published lists of a sketch, a line for each listed value."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.description import PROPERTY, START, STDERR, Column, Role, Rows
from dpsql.published.frames import newest_triggers, published_of
from dpsql.text import Z95
from dpsql.view.formatting import absent, printable
from dpsql.view.windows import finished, in_order

if TYPE_CHECKING:
    import pandas as pd

NO_LIST = "No list is published. How often a value came: dpsql ask NAME --value VALUE"


def lines_of(frame: pd.DataFrame, name: str) -> list[dict[str, Any]]:
    """Times, trigger and the fields of every entry of a list, the newest finished window first; `amount` is its count or sum.

    A window whose list is empty has none.
    """
    times = published_of(frame).names(Role.TIME)
    out = []
    for row in in_order(frame, keep=True)[[*times, name]].to_dict("records"):
        for entry in row[name]:
            amount = entry["count"] if "count" in entry else entry["sum"]
            out.append({**{time: row[time] for time in times}, **entry, "amount": amount})
    return out


def listing(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The newest finished window that lists something, and words for newer ones that list nothing; all that is there where no window does."""
    ended = frame[finished(frame)]
    lists = newest_triggers(ended)
    names = published_of(frame).lists
    has_values = np.array(
        [any(len(row[name]) for name in names) for row in lists.to_dict("records")], bool
    )
    full = lists[has_values][START]
    if full.empty:
        return frame, ""
    newer = int(lists[lists[START] > full.max()][START].nunique())
    words = (
        f"{newer:,} newer window{' lists' if newer == 1 else 's list'} nothing." if newer else ""
    )
    return frame[frame[START] == full.max()], words


def as_histogram(frame: pd.DataFrame) -> pd.DataFrame:
    """A list with a row per listed value, as a histogram has them, so that it can be drawn as one.

    `<alias>_stderr` is what makes low .. high a 95% interval: noise and collisions. Of several lists the first.
    """
    import pandas as pd  # slow to import

    published = published_of(frame)
    name, parts = next(
        (column.name, column.values) for column in published.columns if column.role is Role.LIST
    )
    key = parts[0] if len(parts) == 1 and parts[0] != name else "value"
    lines = lines_of(frame, name)
    times = {
        time: pd.Series([line[time] for line in lines], dtype=frame[time].dtype)
        for time in published.names(Role.TIME)
    }
    wide = [(line["high"] - line["low"]) / (2 * Z95) for line in lines]
    error = f"{name}_{STDERR}"
    values = {
        key: [value_text(line["value"]) for line in lines],
        name: [line["amount"] for line in lines],
        error: wide,
    }
    made = pd.DataFrame(times | values)
    columns = [column for column in published.columns if column.role is Role.TIME]
    columns += [
        Column(key, Role.KEY),
        Column(name, Role.VALUE, name),
        Column(error, Role.STDERR, name),
    ]
    made.attrs[PROPERTY] = replace(
        published, rows=Rows.HISTOGRAM, columns=tuple(columns), noise=None
    ).text()
    return made


def value_text(value: Any) -> str:
    """A value; the parts of a compound one with commas between them."""
    return ", ".join(
        "NULL" if absent(part) else printable(part)
        for part in (value.values() if isinstance(value, dict) else [value])
    )
