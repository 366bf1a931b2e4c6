"""Released rows as a small table of text, for a notebook or a Python prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dpsql.frames import GROUPING, aggregates_of, has_windows, keys_of, lists_of
from dpsql.view.bounds import heads, left_out
from dpsql.view.formatting import absent, key_text, measured, printable, said_beside
from dpsql.view.nothing import why_nothing
from dpsql.view.reading import as_read, is_ordered
from dpsql.view.top_lists import lines_of
from dpsql.view.windows import in_order, newest_triggers

if TYPE_CHECKING:
    import pandas as pd

TIME = "%Y-%m-%d %H:%M"


def plain_table(rows: pd.DataFrame, document: Mapping[str, Any], limit: int) -> tuple[pd.DataFrame, list[str]]:
    """Each window's newest trigger with its 95% errors, and the sentences below it.

    Args:
        rows: of a histogram.
        document: of the plan.
        limit: how many rows are shown.
    """
    import pandas as pd

    if rows.empty:
        return pd.DataFrame(), [why_nothing(document)]
    if lists_of(rows):
        listed = [_line(line, name) for name in lists_of(rows) for line in lines_of(newest_triggers(rows), name)]
        more = [f"{len(listed) - limit:,} more: .rows has all."] if len(listed) > limit else []
        return pd.DataFrame(listed[:limit]), [*left_out(document), *more]
    ordered = in_order(as_read(newest_triggers(rows), document), keep=is_ordered(document))
    caps = heads(document)
    shown = [_row(row, aggregates_of(rows), caps) for row in ordered.head(limit).to_dict("records")]
    below = list(left_out(document))
    if keys_of(rows) and GROUPING not in rows.columns:  # of declared domains none is missing
        below.append("A key that is missing is not zero.")
    if len(ordered) > limit:
        below.append(f"{len(ordered) - limit:,} more rows: .rows has all.")
    return pd.DataFrame(shown), below


def _line(line: Mapping[str, Any], name: str) -> dict[str, str]:
    value = line["value"]
    parts = value.values() if isinstance(value, dict) else (value,)
    text = ", ".join("NULL" if absent(part) else printable(part) for part in parts)
    return {"window": f"{line['window_start']:{TIME}}", "value": text, name: measured(line["amount"], line["stderr"])[0]}


def _row(row: Mapping[Any, Any], aggregates: list[str], caps: Mapping[str, str]) -> dict[str, str]:
    place = "window_start" if has_windows(row) else "trigger_time"
    cells = {place.removesuffix("_start").removeprefix("trigger_"): f"{row[place]:{TIME}}"}
    cells |= {key: key_text(row, key) for key in keys_of(row)}
    for alias in aggregates:
        text, small = measured(row[alias], row[f"{alias}_stderr"])
        head = f"{alias} ({caps[alias]})" if caps.get(alias) else alias
        cells[head] = f"? {text}" if small and text != "NULL" else text
        cells |= {f"{alias} {ending}": said for ending, said in said_beside(row, alias).items()}
    return cells
