"""After a ledger was lost: what a run spends is written down anew, from its lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from dpsql.description import DUE, START
from dpsql.errors import LakeError
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import Lake, Run
from dpsql.privacy.declaration import declaration
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.origin import origin_of
from dpsql.privacy.register import Entry
from dpsql.record import RUN_FILE
from dpsql.sources.config import Source

if TYPE_CHECKING:
    from dpsql.compiled import Query


def record_run(lake: Lake, run: Run, query: Query, ledger: Ledger, source: Source) -> bool:
    """Write down anew what a run spends, after the ledger was lost; no cap is asked, because it is spent already. The run keeps its noise.

    From here on it is held to the input that the source declares now.

    Returns:
        False if the ledger knows it all.

    Raises:
        LakeError: of the run nothing is left but run.json, so what it has published cannot be known.
    """
    published = (lake.histogram(run.name) / "_delta_log").is_dir()
    if not published and (lake.private(run.name) / "contributions").exists():
        raise LakeError(
            f"the histogram of {run.name!r} in lake {lake.root} is lost: put it back first, or start a new run under another --name"
        )
    if not published:
        raise LakeError(
            f"of run {run.name!r} in lake {lake.root} nothing is left but {RUN_FILE}, so it is unknown what it has published: "
            "start a new run under another --name"
        )
    in_ledger = ledger.has(run.run_id), ledger.register.find(run.run_id) is not None
    if not in_ledger[0]:
        ledger.append(
            query.line(run.run_id, "run", origin_of(source, run.ledger_id, level=query.protects)),
            None,
            spent_already=True,
        )
    if not in_ledger[1]:
        until = _published_until(lake, run)
        ledger.register.add(
            Entry(run.run_id, str(lake.private(run.name)), until, declared=declaration(source))
        )
    return in_ledger != (True, True)


def _published_until(lake: Lake, run: Run) -> int | None:
    """Return up to when a run may have published: its newest row, and its newest tick, of which there may be no row."""
    from dpsql.lake.delta_tables import mark
    from dpsql.lake.marks import closed_mark  # slow to import

    rows = read_rows(lake.histogram(run.name))
    if run.first_window_us is not None:  # earlier windows are another run's
        rows = rows.filter(
            pc.greater_equal(
                rows[START].cast(pa.timestamp("us", "UTC")).cast(pa.int64()), run.first_window_us
            )
        )
    newest = pc.max(rows[DUE].cast(pa.timestamp("us", "UTC")).cast(pa.int64())).as_py()
    ticked = mark(lake.private(run.name) / "contributions", closed_mark(run.run_id))
    return max((time for time in (newest, ticked) if time is not None), default=None)
