"""Released rows, and lists of a sketch, as a small table of text."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsql.description import DUE, START, STDERR, Column, Published, Role, Rows
from dpsql.parsed_query import Reading
from dpsql.published import words
from dpsql.published.public_rows import PublicRows
from dpsql.text import Z95
from dpsql.view.left_out import estimates
from dpsql.view.reading import NONE_LEFT, as_read
from dpsql.view.table import finished, in_order
from dpsql.view.words import (
    TIME,
    absent,
    heads,
    key_text,
    left_out,
    measured,
    printable,
    text_of,
    why_nothing,
)

# Published lists of a sketch, a line for each listed value.

if TYPE_CHECKING:
    import pandas as pd

NO_LIST = "No list is published. How often a value came: dpsql ask NAME VALUE"


def lines_of(rows: PublicRows, name: str) -> list[dict[str, Any]]:
    """Return times, trigger and the fields of every entry of a list, the newest finished window first; `amount` is its count or sum.

    A window whose list is empty has none.
    """
    columns = [*rows.description.names(Role.TIME), name]
    entries = []
    for row in in_order(rows).frame[columns].to_dict("records"):
        for entry in row.pop(name):
            amount = entry["count"] if "count" in entry else entry["sum"]
            entries.append({**row, **entry, "amount": amount})
    return entries


def listing(rows: PublicRows) -> tuple[PublicRows, str]:
    """Return the newest finished window that lists something, and words for newer ones that list nothing; all that is there where no window does."""
    lists = rows.where(finished(rows)).newest.frame
    names = rows.description.lists
    has_values = np.array(
        [any(len(row[name]) for name in names) for row in lists.to_dict("records")], bool
    )
    full = lists[has_values][START]
    if full.empty:
        return rows, ""
    newer = int(lists[lists[START] > full.max()][START].nunique())
    words = (
        f"{newer:,} newer window{' lists' if newer == 1 else 's list'} nothing." if newer else ""
    )
    return rows.where(rows.frame[START] == full.max()), words


def as_histogram(rows: PublicRows, alias: str | None = None) -> PublicRows:
    """Return a list with a row per listed value, as a histogram has them, so that it can be drawn as one.

    `<alias>_stderr` is what makes low .. high a 95% interval: noise and collisions.

    Args:
        rows: with lists.
        alias: which of them; the first unless given.
    """
    import pandas as pd  # slow to import

    published = rows.description
    name, parts = next(
        (column.name, column.values)
        for column in published.columns
        if column.role is Role.LIST and alias in (None, column.name)
    )
    key = parts[0] if len(parts) == 1 and parts[0] != name else "value"
    lines = lines_of(rows, name)
    times = {
        time: pd.Series([line[time] for line in lines], dtype=rows.frame[time].dtype)
        for time in published.names(Role.TIME)
    }
    stderrs = [(line["high"] - line["low"]) / (2 * Z95) for line in lines]
    error = f"{name}_{STDERR}"
    values = {
        key: [value_text(line["value"]) for line in lines],
        name: [line["amount"] for line in lines],
        error: stderrs,
    }
    columns = [column for column in published.columns if column.role is Role.TIME]
    columns += [
        Column(key, Role.KEY),
        Column(name, Role.VALUE, name),
        Column(error, Role.STDERR, name),
    ]
    description = replace(published, rows=Rows.HISTOGRAM, columns=tuple(columns), noise=None)
    return PublicRows.describe(pd.DataFrame(times | values), description)


def value_text(value: Any) -> str:
    """Return a value; the parts of a compound one with commas between them."""
    return ", ".join(
        "NULL" if absent(part) else printable(part)
        for part in (value.values() if isinstance(value, dict) else [value])
    )


# Released rows as a small table of text, for a notebook or a Python prompt.


SHOWN_ROWS = 20

NO_MATHS = "tex2jax_ignore mathjax_ignore"
"""Classes of HTML in which MathJax leaves a `$` as it is; notebooks typeset what is between two of them."""


@dataclass(frozen=True, repr=False)
class PlainRows:
    """Released rows, shown with a 95% error on every value."""

    all_rows: pd.DataFrame

    @property
    def rows(self) -> pd.DataFrame:
        """The rows as a DataFrame."""
        return self.all_rows

    @property
    def reading(self) -> Reading:
        """The rows that the query chooses."""
        return PublicRows.of_frame(self.all_rows).description.reading

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas DataFrame."""
        return self.rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> pd.Series:
        return self.rows[column]

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        import pyarrow as pa

        table = pa.Table.from_pandas(self.rows, preserve_index=False)
        return table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        table, notes = plain_table(PublicRows.of_frame(self.all_rows), self.reading)
        return "\n".join(([] if table.empty else [table.to_string(index=False)]) + notes)

    def _repr_html_(self) -> str:
        table, notes = plain_table(PublicRows.of_frame(self.all_rows), self.reading)
        table_html = "" if table.empty else table.to_html(index=False, escape=True, border=0)
        notes_html = "".join(f"<div>{html.escape(line)}</div>" for line in notes)
        return f'<div class="{NO_MATHS}">{table_html}{notes_html}</div>'


class OpenedTable(PlainRows):
    """The newest rows of a published table, from its folder alone."""

    def explain(self) -> str:
        """Return what is promised, how rows are to be read, and what each column is."""
        return "\n".join(explanation(PublicRows.of_frame(self.all_rows).description))


def explanation(published: Published) -> tuple[str, ...]:
    """Return what a table says of itself, a line each: what is promised, how rows are to be read, what each column is."""
    columns = [f"{name}: {text}" for name, text in words.columns(published)]
    return (*words.promises(published), *left_out(published), *columns)


def plain_table(rows: PublicRows, reading: Reading) -> tuple[pd.DataFrame, list[str]]:
    """Return each window's newest trigger with its 95% errors, and the sentences below it.

    Args:
        rows: of a histogram.
        reading: of the query.
    """
    import pandas as pd

    published = rows.description
    if rows.frame.empty:
        return pd.DataFrame(), [why_nothing(published), *estimates(rows)]
    if published.rows in (Rows.LISTS, Rows.CELLS) and not published.lists:
        return pd.DataFrame(), [NO_LIST]
    if published.lists:
        listed = [
            _line(line, _headed(name, published))
            for name in published.lists
            for line in lines_of(rows.newest, name)
        ]
        remainder_notes = (
            [f"{len(listed) - SHOWN_ROWS:,} more: .all_rows has all."]
            if len(listed) > SHOWN_ROWS
            else []
        )
        return pd.DataFrame(listed[:SHOWN_ROWS]), [*left_out(published), *remainder_notes]
    ordered = in_order(as_read(rows.newest, reading)).frame
    text_rows = [_row(row, published) for row in ordered.head(SHOWN_ROWS).to_dict("records")]
    notes = [NONE_LEFT] * ordered.empty + [*left_out(published, estimates(rows))]
    if published.selects:
        notes.append("A key that is missing is not zero.")
    if len(ordered) > SHOWN_ROWS:
        notes.append(f"{len(ordered) - SHOWN_ROWS:,} more rows: .rows has all.")
    return pd.DataFrame(text_rows), notes


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
    place = {}
    if not published.once:
        place = {"time": f"{row[DUE]:{TIME}}"}
    if published.windows:
        place = {"window": f"{row[START]:{TIME}}"}
    keys = {key: key_text(row, key, published) for key in published.keys}
    return (
        place
        | keys
        | {
            _headed(column.name, published): text_of(row, column, published)
            for column in published.display_columns
        }
    )
