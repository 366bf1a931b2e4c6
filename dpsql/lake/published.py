"""What a query has published: its rows, when they were written, and up to which trigger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dpsql.errors import LakeError
from dpsql.files import Place
from dpsql.frames import frame_of, has_windows, lists_of
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.marks import triggers_mark
from dpsql.lake.overruns import read_overruns
from dpsql.lake.runs import LIVE_FILE, Lake, read_run
from dpsql.polling import ASSUMPTION

if TYPE_CHECKING:
    import pandas as pd


def histogram_written(lake: Lake, name: str) -> datetime:
    """When the newest commit to a query's histogram was made, UTC.

    Raises:
        LakeError: the table cannot be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    table = lake.histogram(name)
    try:
        return datetime.fromtimestamp(DeltaTable(str(table)).history(1)[0]["timestamp"] / 1000, UTC)
    except (DeltaError, OSError) as problem:
        raise LakeError(f"histogram {table}: cannot be read ({type(problem).__name__})") from None


@dataclass(frozen=True)
class PublishedMarks:
    """How far a histogram is, by the transaction marks of its commits.

    Args:
        triggers: grid points of triggers up to the newest tick with rows, counted from 1970: public, unlike a number of micro-batches, which
            tells how many private files there are. None before the first commit.
    """

    triggers: int | None

    def have(self, detail: Mapping[str, Any]) -> bool:
        """Whether the rows of a listed micro-batch of the release query are in the histogram."""
        return not detail.get("rows") or (self.triggers is not None and int(detail["mark"]) <= self.triggers)

    def newest_batch(self, listed: Mapping[int, Mapping[str, Any]]) -> int | None:
        """The newest micro-batch with rows in the histogram; where the list ends before, the one after its end."""
        marks = [int(detail["mark"]) for detail in listed.values() if "mark" in detail]
        if self.triggers is not None and self.triggers > max(marks, default=self.triggers - 1):
            return max(listed, default=-1) + 1
        return max((batch for batch, detail in listed.items() if detail.get("rows") and self.have(detail)), default=None)


def published_marks(histogram: Place, run_id: str, generation: int) -> PublishedMarks:
    """The marks of a run in a histogram, of one generation of the release query."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(histogram)):
        return PublishedMarks(None)
    return PublishedMarks(DeltaTable(str(histogram)).transaction_version(triggers_mark(run_id, generation)))


def live_notes(lake: Lake, name: str) -> tuple[str, ...]:
    """What a live run's promise assumes, and whether that was so; nothing for other runs, and for readers of the histogram alone."""
    folder = lake.private(name)
    try:
        if not (folder / LIVE_FILE).exists():
            return ()
        found = read_overruns(folder).said()
    except (LakeError, OSError):
        return ()
    return (ASSUMPTION, found or "every micro-batch did")


def read_histogram(lake: Lake, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """All published rows of a query, without a JVM.

    Args:
        lake, name: of the query.
        columns: which ones; None for all.

    Raises:
        LakeError: no such query, nothing published yet, or the table cannot be read.
    """
    from deltalake.exceptions import DeltaError, TableNotFoundError  # slow to import; only readers of tables need it

    table = lake.histogram(name)
    try:
        if not (table / "_delta_log").is_dir():
            raise TableNotFoundError
        return read_rows(table, columns)
    except TableNotFoundError:
        read_run(lake, name)
        raise LakeError(f"query {name!r} has published nothing yet: no trigger has passed") from None
    except (DeltaError, OSError, pa.ArrowException) as problem:
        raise LakeError(f"histogram {table}: cannot be read ({type(problem).__name__})") from None


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
    from deltalake.exceptions import DeltaError

    table = lake.histogram(name)
    try:
        if (table / "_delta_log").is_dir():  # whoever may read this alone is told of it
            return DeltaTable(str(table)).version()
        read_run(lake, name)
        return 0
    except (DeltaError, OSError) as problem:
        raise LakeError(f"histogram {table}: cannot be read ({type(problem).__name__})") from None


def newest(lake: Lake, name: str) -> pd.DataFrame:
    """The rows of the newest published trigger of every window, or of a table without windows, by window and keys.

    Raises:
        LakeError: as `read_histogram`.
    """
    rows = frame_of(read_histogram(lake, name))
    last = rows.groupby("window_start")["trigger"].transform("max") if has_windows(rows) else rows["trigger"].max()
    kept = rows[rows["trigger"] == last]
    return kept.sort_values([name for name in kept.columns if name not in lists_of(kept)], kind="stable", ignore_index=True)
