"""The rows of a public table, with what the table says of itself: how they are read, and which are the newest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.description import (
    LEFT_OUT_ATTRIBUTE,
    LEFT_OUT_ENDING,
    PROPERTY,
    START,
    Published,
    Role,
    parse_description,
)
from dpsql.errors import DataError, LakeError, NothingPublished
from dpsql.files import Place, reason
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import Lake, neighbour, read_run
from dpsql.parsed_query import AS_RELEASED, Reading
from dpsql.published.left_out import as_records
from dpsql.record import parse

# Rows of public tables as pandas frames that lose nothing, and that carry what their table says
# of itself.

# Pandas' own types have no room for a NULL among integers, and forget decimals.

if TYPE_CHECKING:
    import pandas as pd

    from dpsql.udfs.columns import Float

PANDAS_ATTRIBUTES = "PANDAS_ATTRS"
"""Where pandas keeps a frame's attributes in a Parquet file."""

_parse = cache(parse_description)


@dataclass(frozen=True, eq=False)
class PublicRows:
    """Rows of a public table, with the description of the table.

    Args:
        frame: the rows; the frame has the description as an attribute, so that whoever is handed it can read them again.
        description: the description.
        is_newest: whether each window has one trigger, its newest.
    """

    frame: pd.DataFrame
    description: Published
    is_newest: bool = False

    @classmethod
    def of_frame(cls, frame: pd.DataFrame) -> PublicRows:
        """Read the description of a frame. Filters, sorts and groups of a frame keep it.

        Raises:
            DataError: it is lost: a merge loses it, and a frame that is built anew never had it.
        """
        description = _parse(frame.attrs.get(PROPERTY, "{}"))
        if description is None:
            raise DataError(
                "these rows do not say what they are: take a frame as dpsql hands it out, or give it its description: "
                f"new.attrs['{PROPERTY}'] = old.attrs['{PROPERTY}']"
            )
        return cls(frame, description)

    @classmethod
    def describe(cls, frame: pd.DataFrame, description: Published) -> PublicRows:
        """Give a frame its description."""
        frame.attrs[PROPERTY] = description.text()
        return cls(frame, description)

    def where(self, is_chosen: pd.Series) -> PublicRows:
        """Return the rows of a mask."""
        return self.with_frame(self.frame[is_chosen])

    def with_frame(self, frame: pd.DataFrame) -> PublicRows:
        """Return some of the rows, or all in another order."""
        return replace(self, frame=frame)

    @cached_property
    def newest(self) -> PublicRows:
        """The rows of every window's newest trigger; without windows those of the newest."""
        if self.is_newest or self.description.once:
            return self
        frame = self.frame
        newest = frame["trigger"].max()
        if self.description.windows:
            newest = frame.groupby(START)["trigger"].transform("max")
        return replace(self.where(frame["trigger"] == newest), is_newest=True)

    @property
    def left_out(self) -> list[dict[str, Any]]:
        """Rows of figures of what the limits left out, of all windows of the table that have some."""
        records: list[dict[str, Any]] = json.loads(self.frame.attrs.get(LEFT_OUT_ATTRIBUTE, "[]"))
        return records

    @property
    def visible(self) -> pd.DataFrame:
        """The frame without columns that say nothing."""
        return self.frame.drop(columns=self.description.hidden, errors="ignore")

    @property
    def last_window(self) -> PublicRows:
        """The rows of the window that begins last; all rows where there are no windows."""
        if not self.description.windows:
            return self
        starts = self.frame[START]
        return self.where(starts == starts.max())

    def numbers(self, alias: str) -> tuple[Float, Float]:
        """Return the values of an aggregate and their standard errors; NaN for NULL."""
        values, stderrs = (
            self.frame[name].to_numpy(np.float64, na_value=np.nan)
            for name in (alias, self.description.stderr(alias))
        )
        return values, stderrs


def frame_of(
    rows: pa.Table, published: Published, left_out: pa.Table | None = None
) -> pd.DataFrame:
    """Make a frame whose Parquet file pandas can read again.

    Key columns are Arrow-backed, as `int64[pyarrow]`: type and NULL stay, whatever the other keys are. Arrays are lists of Python's own values. All
    other columns have pandas' own types.

    Args:
        rows: of the table, perhaps of some columns.
        published: what it says of itself.
        left_out: rows of the table of figures beside it.
    """
    import pandas as pd  # slow to import

    arrow_columns = {*published.names(Role.KEY, Role.SET, Role.LIST)}

    def series(name: str) -> pd.Series:
        column = rows[name]
        if pa.types.is_nested(
            column.type
        ):  # pandas writes the names of such types into files, and cannot read them
            return pd.Series(column.to_pylist(), dtype=object)
        if name in arrow_columns and not pa.types.is_timestamp(
            column.type
        ):  # pandas has its own NULL among times
            return column.to_pandas(types_mapper=pd.ArrowDtype)
        return column.to_pandas()

    frame = pd.DataFrame({name: series(name) for name in rows.column_names})
    if left_out is not None:
        figures = left_out.drop_columns(published.hidden)
        frame.attrs[LEFT_OUT_ATTRIBUTE] = json.dumps(as_records(figures))
    return PublicRows.describe(frame, published).frame


def shown_frame(
    rows: pa.Table, published: Published, left_out: pa.Table | None = None
) -> pd.DataFrame:
    """Make a frame of what people are shown: without the times of a one-time release, which are of nothing."""
    return PublicRows(frame_of(rows, published, left_out), published).visible


# What a query has published: its rows, and when they were written.


class PublicTable(Lake):
    """A published table by itself, wherever it is: nothing private is beside it, and it goes by any name."""

    def histogram(self, name: str) -> Place:
        """Return the place of the table."""
        return self.root

    def private(self, name: str) -> Place:
        """Return a folder that is not there."""
        return self.root / "_private"


def open_table(path: str | Path) -> PublicTable:
    """Return the published table in a folder.

    Raises:
        LakeError: none is there.
    """
    from dpsql.lake.delta_tables import exists  # slow to import

    table = PublicTable(path)
    if not exists(table.root):
        raise LakeError(
            f"{path}: no published table exists there: give its folder, like lake/public/demo, or the NAME of a query and its lake"
        )
    return table


@contextmanager
def readable(table: Place) -> Iterator[None]:
    """Turn errors of what reads a public table into one line.

    Raises:
        LakeError: it cannot be read.
    """
    from deltalake.exceptions import DeltaError  # slow to import

    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as problem:
        raise LakeError(f"{table}: cannot be read ({reason(problem)})") from None


def histogram_written(lake: Lake, name: str) -> datetime:
    """Return when the newest commit to a query's histogram was made, UTC.

    Raises:
        LakeError: the table cannot be read.
    """
    from deltalake import DeltaTable

    with readable(table := lake.histogram(name)):
        return datetime.fromtimestamp(DeltaTable(str(table)).history(1)[0]["timestamp"] / 1000, UTC)


def described(table: Place) -> Published:
    """Return what a public table says of itself: the one door to it.

    Raises:
        LakeError: an earlier dpsql made it, or somebody else.
        DeltaError: it cannot be read.
    """
    from deltalake import DeltaTable

    published = parse_description(
        DeltaTable(str(table)).metadata().configuration.get(PROPERTY, "{}")
    )
    if published is None:
        raise LakeError(
            f"{table}: an earlier dpsql made this table: run the query again; any reader of Delta tables shows it"
        )
    return published


def read_histogram(lake: Lake, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return all published rows of a query, without a JVM.

    Args:
        lake, name: of the query.
        columns: which ones; None for all.

    Raises:
        LakeError: no such query, or the table cannot be read.
        NothingPublished: no trigger has passed.
    """
    if not _is_there(lake, name):
        raise NothingPublished(f"query {name!r} has published nothing yet: no trigger has passed")
    with readable(table := lake.histogram(name)):
        return read_rows(table, columns)


def newest_trigger(lake: Lake, name: str) -> tuple[datetime | None, int]:
    """Return when the newest published trigger was due, None if no row is published, and the number of rows; raises as `read_histogram`."""
    times = read_histogram(lake, name, ["trigger_time"])["trigger_time"]
    return pc.max(times).as_py(), len(times)


def histogram_version(lake: Lake, name: str) -> int:
    """Return how many commits a query's histogram has had; 0 when nothing is published.

    Raises:
        LakeError: no such query, or the table cannot be read.
    """
    from deltalake import DeltaTable

    with readable(table := lake.histogram(name)):
        return DeltaTable(str(table)).version() if _is_there(lake, name) else 0


def _is_there(lake: Lake, name: str) -> bool:
    """Tell whether a query has a public table. Whoever may read that alone is told of it; of others the query has to be known."""
    from dpsql.lake.delta_tables import exists  # slow to import

    with readable(table := lake.histogram(name)):
        is_there = exists(table)
    if not is_there:
        read_run(lake, name)
    return is_there


def own_reading(lake: Lake, name: str) -> Reading | None:
    """Return how the query's rows are shown, for who may read its run; None for others."""
    try:
        stored = read_run(lake, name).plan.get("reading")
    except LakeError:
        return None
    return parse(stored, Reading) if stored else AS_RELEASED


def all_rows(lake: Lake, name: str) -> PublicRows:
    """Return the rows of every trigger; raises as `read_histogram`."""
    rows = read_histogram(lake, name)
    published = described(lake.histogram(name))
    return PublicRows.of_frame(frame_of(rows, published, _read_left_out(lake, name, published)))


def _read_left_out(lake: Lake, name: str, published: Published) -> pa.Table | None:
    """Read the figures of what the limits left out, where a table of them is beside the histogram."""
    from dpsql.lake.delta_tables import exists  # slow to import

    if LEFT_OUT_ENDING not in dict(published.neighbours):
        return None
    path = neighbour(lake.histogram(name), LEFT_OUT_ENDING)
    with readable(path):
        return read_rows(path) if exists(path) else None


def newest(lake: Lake, name: str) -> PublicRows:
    """Return the rows of the newest published trigger of every window, or of a table without windows, by window and keys.

    Raises:
        LakeError: as `read_histogram`.
    """
    rows = all_rows(lake, name).newest
    order = rows.description.names(Role.TIME, Role.KEY, Role.SET)
    return rows.with_frame(rows.frame.sort_values(order, kind="stable", ignore_index=True))
