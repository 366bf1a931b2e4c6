"""How a run stands: its newest trigger, how late that was, and what it promises. Public numbers, read without Spark and without the secret."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from dpsql.description import DUE, Published
from dpsql.errors import LakeError, NothingPublished
from dpsql.lake.overruns import read_overruns
from dpsql.lake.runs import LIVE_FILE, Lake, list_queries
from dpsql.privacy.budget import Budget
from dpsql.published.public_rows import PublicRows, histogram_written
from dpsql.schedule import ASSUMPTION
from dpsql.view.table import finished
from dpsql.view.words import STATUS, why_nothing

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Standing:
    """One query of a lake at one moment.

    Args:
        name: of the query.
        moment: when this was found out.
        state: as `dpsql status`; None when the private folder cannot be read.
        published: what the table says of itself.
        triggers: number of triggers of the shown window that are published.
        trigger_time: the newest of them, on the grid.
        ended: the window had ended by the newest trigger of all windows.
        commit_time: when the newest commit to the histogram was made.
        budget: what the ledger knows of the source's people; None where it was not asked.
    """

    name: str
    moment: datetime
    state: str | None
    published: Published
    triggers: int
    trigger_time: datetime
    commit_time: datetime
    budget: Budget | None = None
    ended: bool = True

    @property
    def late(self) -> timedelta:
        """How long after its time the newest trigger was written."""
        return self.commit_time - self.trigger_time

    @property
    def replayed(self) -> bool:
        """Whether stored input was released: then its lag says nothing."""
        return self.state in (None, "published") and self.late > timedelta(days=1)

    @property
    def overdue(self) -> timedelta | None:
        """By how much the next trigger is late now; negative while it is still to come. None where nobody works on the run."""
        if self.state != "running":
            return None
        return self.moment - self.trigger_time - self.interval

    @property
    def interval(self) -> timedelta:
        """The time between two triggers."""
        return timedelta(microseconds=self.published.trigger_us)


def standing(
    lake: Lake,
    name: str,
    rows: pd.DataFrame,
    budget: Budget | None = None,
    clock: datetime | None = None,
) -> Standing:
    """Return how a run stands.

    Args:
        lake, name: the query.
        rows: of the window that is shown.
        budget: of the source's ledger, if known.
        clock: the newest trigger of all windows; that of these rows unless given.

    Raises:
        LakeError: the histogram cannot be read.
        NothingPublished: it has no rows.
    """
    state = None
    public_rows = PublicRows.of_frame(rows)
    published = public_rows.description
    with contextlib.suppress(
        LakeError
    ):  # whoever may read the histogram alone sees the page without it
        state = next(
            (
                run.state
                for run in list_queries(lake)
                if run.name == name and run.state != "unreadable"
            ),
            None,
        )
    if rows.empty:
        raise NothingPublished(f"query {name!r}: {why_nothing(published, STATUS)}")
    newest = rows.loc[rows["trigger"].idxmax()]
    due_time = newest[DUE].to_pydatetime()
    return Standing(
        name=name,
        moment=datetime.now(UTC),
        state=state,
        published=published,
        triggers=int(newest["trigger"]),
        trigger_time=due_time if due_time.tzinfo else due_time.replace(tzinfo=UTC),
        commit_time=histogram_written(lake, name),
        budget=budget,
        ended=bool(finished(public_rows, clock).all()),
    )


def live_notes(lake: Lake, name: str) -> tuple[str, ...]:
    """Return what a live run's promise assumes, and whether that was so; nothing for other runs, and for readers of the histogram alone."""
    folder = lake.private(name)
    try:
        if not (folder / LIVE_FILE).exists():
            return ()
        overrun_text = read_overruns(folder).summary()
    except (LakeError, OSError):
        return ()
    return (ASSUMPTION, overrun_text or "every micro-batch did")
