"""Released rows as a small table of text, for a notebook or a Python prompt."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpsql.description import DUE, START, Published, Rows
from dpsql.parsed_query import Reading
from dpsql.published import words
from dpsql.published.frames import newest_triggers, published_of
from dpsql.view.bounds import heads, left_out
from dpsql.view.formatting import TIME, key_text, measured, text_of
from dpsql.view.nothing import why_nothing
from dpsql.view.reading import as_read, is_ordered
from dpsql.view.top_lists import NO_LIST, lines_of, value_text
from dpsql.view.windows import in_order

if TYPE_CHECKING:
    import pandas as pd

SHOWN_ROWS = 20


@dataclass(frozen=True, repr=False)
class Shown:
    """Released rows, shown with a 95% error on every value."""

    rows: pd.DataFrame

    @property
    def reading(self) -> Reading:
        """Which rows are shown."""
        return published_of(self.rows).reading

    def to_pandas(self) -> pd.DataFrame:
        """The rows."""
        return self.rows

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        table, below = plain_table(self.rows, SHOWN_ROWS, self.reading)
        return "\n".join(([] if table.empty else [table.to_string(index=False)]) + below)

    def _repr_html_(self) -> str:
        table, below = plain_table(self.rows, SHOWN_ROWS, self.reading)
        shown = "" if table.empty else table.to_html(index=False, escape=True, border=0)
        return shown + "".join(f"<div>{html.escape(line)}</div>" for line in below)


class PublicRows(Shown):
    """The newest rows of a published table, from its folder alone."""

    def explain(self) -> str:
        """What is promised, how rows are to be read, and what each column is."""
        published = published_of(self.rows)
        columns = [f"{name}: {said}" for name, said in words.columns(published)]
        return "\n".join((*words.promises(published), *left_out(published), *columns))


def plain_table(rows: pd.DataFrame, limit: int, reading: Reading) -> tuple[pd.DataFrame, list[str]]:
    """Each window's newest trigger with its 95% errors, and the sentences below it.

    Args:
        rows: of a histogram.
        limit: how many rows are shown.
        reading: of the query.
    """
    import pandas as pd

    published = published_of(rows)
    if rows.empty:
        return pd.DataFrame(), [why_nothing(published)]
    if published.rows in (Rows.LISTS, Rows.CELLS) and not published.lists:
        return pd.DataFrame(), [NO_LIST]
    if published.lists:
        listed = [
            _line(line, _headed(name, published))
            for name in published.lists
            for line in lines_of(newest_triggers(rows), name)
        ]
        more = [f"{len(listed) - limit:,} more: .rows has all."] if len(listed) > limit else []
        return pd.DataFrame(listed[:limit]), [*left_out(published), *more]
    ordered = in_order(as_read(newest_triggers(rows), reading), keep=is_ordered(rows))
    shown = [_row(row, published) for row in ordered.head(limit).to_dict("records")]
    below = list(left_out(published))
    if published.selects:
        below.append("A key that is missing is not zero.")
    if len(ordered) > limit:
        below.append(f"{len(ordered) - limit:,} more rows: .rows has all.")
    return pd.DataFrame(shown), below


def _headed(alias: str, published: Published) -> str:
    cap = heads(published).get(alias)
    return f"{alias} ({cap})" if cap else alias


def _line(line: Mapping[str, Any], head: str) -> dict[str, str]:
    return {
        "window": f"{line[START]:{TIME}}",
        "value": value_text(line["value"]),
        head: measured(line["amount"], line["stderr"])[0],
    }


def _row(row: Mapping[Any, Any], published: Published) -> dict[str, str]:
    place = (
        {"window": f"{row[START]:{TIME}}"} if published.windows else {"time": f"{row[DUE]:{TIME}}"}
    )
    keys = {key: key_text(row, key, published) for key in published.keys}
    return (
        place
        | keys
        | {
            _headed(column.name, published): text_of(row, column, published)
            for column in published.shown
        }
    )
