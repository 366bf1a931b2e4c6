"""How a run stands: its newest trigger, how late that was, and what it promises. Public numbers, read without Spark and without the secret."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from dpsql.errors import LakeError
from dpsql.lake.published import histogram_written
from dpsql.lake.runs import Lake, list_queries, read_run
from dpsql.privacy.budget import Budget
from dpsql.view.nothing import why_nothing
from dpsql.view.windows import finished

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Standing:
    """One query of a lake at one moment.

    Args:
        name: of the query.
        now: when this was found out.
        state: as `dpsql status`; None when the private folder cannot be read.
        plan: the plan as in run.json; None likewise.
        triggers: number of triggers of the shown window that are published.
        trigger_time: the newest of them, on the grid.
        ended: the window had ended by the newest trigger of all windows.
        written: when the newest commit to the histogram was made.
        budget: what the ledger knows of the source's people; None where it was not asked.
    """

    name: str
    now: datetime
    state: str | None
    plan: dict[str, Any] | None
    triggers: int
    trigger_time: datetime
    written: datetime
    budget: Budget | None = None
    ended: bool = True

    @property
    def late(self) -> timedelta:
        """How long after its time the newest trigger was written."""
        return self.written - self.trigger_time

    @property
    def replayed(self) -> bool:
        """Whether stored input was released: then its lag says nothing."""
        return self.state in (None, "published") and self.late > timedelta(days=1)

    @property
    def overdue(self) -> timedelta | None:
        """By how much the next trigger is late now; negative while it is still to come. None where nobody works on the run."""
        if self.plan is None or self.state != "running":
            return None
        return self.now - self.trigger_time - timedelta(microseconds=int(self.plan["query"]["trigger_interval_us"]))


def standing(
    lake: Lake, name: str, rows: pd.DataFrame, budget: Budget | None = None, now: datetime | None = None, clock: datetime | None = None
) -> Standing:
    """How a run stands.

    Args:
        lake, name: the query.
        rows: of the window that is shown.
        budget: of the source's ledger, if known.
        now: the present time.
        clock: the newest trigger of all windows; that of these rows unless given.

    Raises:
        LakeError: the histogram cannot be read, or has no rows.
    """
    state, plan = None, None
    try:
        plan = read_run(lake, name).plan
        state = next((listed.state for listed in list_queries(lake) if listed.name == name), None)
    except LakeError:
        pass  # whoever may read the histogram alone sees the page without them
    if rows.empty:
        raise LakeError(f"query {name!r}: {why_nothing(plan)}")
    newest = rows.loc[rows["trigger"].idxmax()]
    when = newest["trigger_time"].to_pydatetime()
    return Standing(
        name=name,
        now=now or datetime.now(UTC),
        state=state,
        plan=plan,
        triggers=int(newest["trigger"]),
        trigger_time=when if when.tzinfo else when.replace(tzinfo=UTC),
        written=histogram_written(lake, name),
        budget=budget,
        ended=bool(finished(rows, clock).all()),
    )
