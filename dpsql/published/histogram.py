"""What a query has published: its rows, and when they were written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dpsql.description import PROPERTY, Published, Role, read
from dpsql.errors import LakeError, NothingPublished
from dpsql.files import Place, reason
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import Lake, read_run
from dpsql.parsed_query import AS_RELEASED, Reading
from dpsql.published.frames import frame_of, newest_triggers, published_of
from dpsql.record import parse

if TYPE_CHECKING:
    import pandas as pd


class PublicTable(Lake):
    """A published table by itself, wherever it is: nothing private is beside it, and it goes by any name."""

    def histogram(self, name: str) -> Place:
        """The table."""
        return self.root

    def private(self, name: str) -> Place:
        """A folder that is not there."""
        return self.root / "_private"


def opened(path: str | Path) -> PublicTable:
    """The published table in a folder.

    Raises:
        LakeError: none is there.
    """
    from dpsql.lake.delta_tables import exists  # slow to import

    table = PublicTable(path)
    if not exists(table.root):
        raise LakeError(
            f"{path}: no published table is there: give its folder, like lake/public/demo, or the NAME of a query and its lake"
        )
    return table


@contextmanager
def readable(table: Place) -> Iterator[None]:
    """Around what reads a public table.

    Raises:
        LakeError: it cannot be read.
    """
    from deltalake.exceptions import DeltaError  # slow to import

    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as problem:
        raise LakeError(f"{table}: cannot be read ({reason(problem)})") from None


def histogram_written(lake: Lake, name: str) -> datetime:
    """When the newest commit to a query's histogram was made, UTC.

    Raises:
        LakeError: the table cannot be read.
    """
    from deltalake import DeltaTable

    with readable(table := lake.histogram(name)):
        return datetime.fromtimestamp(DeltaTable(str(table)).history(1)[0]["timestamp"] / 1000, UTC)


def described(table: Place) -> Published:
    """What a public table says of itself: the one door to it.

    Raises:
        LakeError: an earlier dpsql made it, or somebody else.
        DeltaError: it cannot be read.
    """
    from deltalake import DeltaTable

    published = read(DeltaTable(str(table)).metadata().configuration.get(PROPERTY, "{}"))
    if published is None:
        raise LakeError(
            f"{table}: an earlier dpsql made this table: run the query anew; any reader of Delta tables shows it"
        )
    return published


def read_histogram(lake: Lake, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """All published rows of a query, without a JVM.

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
    """When the newest published trigger was due, None if no row is published, and the number of rows; raises as `read_histogram`."""
    times = read_histogram(lake, name, ["trigger_time"])["trigger_time"]
    return pc.max(times).as_py(), len(times)


def histogram_version(lake: Lake, name: str) -> int:
    """How many commits a query's histogram has had; 0 when nothing is published.

    Raises:
        LakeError: no such query, or the table cannot be read.
    """
    from deltalake import DeltaTable

    with readable(table := lake.histogram(name)):
        return DeltaTable(str(table)).version() if _is_there(lake, name) else 0


def _is_there(lake: Lake, name: str) -> bool:
    """Whether a query has a public table. Whoever may read that alone is told of it; of others the query has to be known."""
    from dpsql.lake.delta_tables import exists  # slow to import

    with readable(table := lake.histogram(name)):
        found = exists(table)
    if not found:
        read_run(lake, name)
    return found


def own_reading(lake: Lake, name: str) -> Reading | None:
    """How the query's rows are shown, for who may read its run; None for others."""
    try:
        given = read_run(lake, name).plan.get("reading")
    except LakeError:
        return None
    return parse(given, Reading) if given else AS_RELEASED


def all_rows(lake: Lake, name: str) -> pd.DataFrame:
    """The rows of every trigger; raises as `read_histogram`."""
    rows = read_histogram(lake, name)
    return frame_of(rows, described(lake.histogram(name)))


def newest(lake: Lake, name: str) -> pd.DataFrame:
    """The rows of the newest published trigger of every window, or of a table without windows, by window and keys.

    Raises:
        LakeError: as `read_histogram`.
    """
    rows = all_rows(lake, name)
    by = published_of(rows).names(Role.TIME, Role.KEY, Role.SET)
    return newest_triggers(rows).sort_values(by, kind="stable", ignore_index=True)
