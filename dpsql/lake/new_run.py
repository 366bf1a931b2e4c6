"""`dpsql restore --new-run`: what cannot be restored ends, and a new run goes on under its name.

The new run has a run id of its own, so fresh noise, and a ledger line of its own. Windows with a published trigger stay closed for it:
their records are dropped, and no trigger of theirs is published again. The private folder of the old run is kept aside, hidden.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from dpsql import record
from dpsql.description import DUE
from dpsql.errors import LakeError
from dpsql.files import Place, reporting_os_errors
from dpsql.lake import delta_tables
from dpsql.lake.catch_up import read_catch_up
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.manifest import BATCH_ROW
from dpsql.lake.marks import closed_mark
from dpsql.lake.opening import NEXT, begin, read_claim, run_of
from dpsql.lake.running import exclusive
from dpsql.lake.runs import SCHEMA_VERSION, Lake, Run, read_run
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.record import RUN_FILE
from dpsql.times import now_us
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.stage import RELEASE

if TYPE_CHECKING:
    from dpsql.compiled import Query


def begin_new_run(lake: Lake, name: str, query: Query, secret: Secret, ledger: Ledger) -> Run:
    """End the run of a name and bind the name to a new one.

    Args:
        lake, name: of the run; it must not be running.
        query: the run's query, compiled.
        secret: for the new run.
        ledger: gets a line.

    Returns:
        The new run. Its `first_window_us` is the first window that no run has published anything of.

    Raises:
        LakeError: no such run, or its folder cannot be moved; its table has no windows.
        BudgetError: the new run would exceed the source's cap.
    """
    ledger = ledger.sealed_by(secret)
    folder = _on_disk(lake, name)
    schedule = query.shape.schedule
    if not schedule.windows:
        raise LakeError(
            f"{name!r} releases one table without end, so no window is free for a new run: start it under another --name"
        )
    prepared = _prepared(folder)
    old = read_run(lake, name)
    with exclusive(folder):
        ledger.lines()  # before anything is made: it may be damaged
        closed = closed_us(lake, old, ledger)
        run = run_of(name, secrets.token_hex(16), query, secret, ledger.own_id())
        firsts = [
            bound_run.first_window_us
            for bound_run in (old, run)
            if bound_run.first_window_us is not None
        ]
        firsts += [] if closed == NO_CLOCK else [schedule.first_free_window(closed)]
        run = replace(run, first_window_us=max(firsts, default=None))
        begin(lake, prepared, run, query, ledger, query.source)
        # An earlier start of it may have been broken off, before the old run has published more.
        claimed_run = read_claim(prepared / RUN_FILE) or run
        run = replace(claimed_run, first_window_us=run.first_window_us)
        _exchange(folder, prepared, old, run)
    return run


def _exchange(folder: Path, prepared: Path, old: Run, run: Run) -> None:
    """Put the new run in the place of the old one."""
    with reporting_os_errors(str(folder), LakeError):
        record.write(prepared / RUN_FILE, run, SCHEMA_VERSION)
        folder.rename(folder.with_name(f".{old.name}.{old.run_id}"))
        prepared.rename(folder)


def finish_new_run(lake: Lake, name: str) -> Run | None:
    """Finish what was broken off after the old run's folder had been moved away; None if nothing was."""
    folder = _on_disk(lake, name)
    if (folder / RUN_FILE).exists() or not (_prepared(folder) / RUN_FILE).exists():
        return None
    with reporting_os_errors(str(folder), LakeError):
        _prepared(folder).rename(folder)
    return read_run(lake, name)


def closed_us(lake: Lake, run: Run, ledger: Ledger) -> int:
    """Return the time after which the run can have published no trigger; NO_CLOCK if it has published nothing.

    A trigger is listed, its tick committed, and noted beside the ledger before it is published. Where both tables are lost, the wall clock and the time of the
    last catch-up stand in: they may close more, never less.
    """
    folder = lake.private(run.name)
    times_us = [NO_CLOCK]
    has_tables = False
    for path, times in ((folder / "contributions", _ticks), (folder / "files", _listed)):
        try:
            if delta_tables.exists(path):
                times_us += times(path, run.run_id)
                has_tables = True
        except (DeltaError, OSError, ValueError, pa.ArrowException):
            continue
    if not has_tables and any(
        (folder / name).exists() for name in ("checkpoints", "catch_up.json", "state")
    ):
        times_us.append(now_us())
        times_us += _asked_for(folder)
    entry = ledger.register.find(run.run_id)
    register_times = [] if entry is None or entry.closed_us is None else [entry.closed_us]
    return max([*times_us, *register_times, *_published(lake.histogram(run.name))])


def _on_disk(lake: Lake, name: str) -> Path:
    folder = lake.private(name)
    if isinstance(folder, Path):
        return folder
    raise LakeError(
        f"{folder}: in a bucket no folder can be put in another's place; begin a new run under another --name"
    )


def _prepared(folder: Path) -> Path:
    """Return where the private folder of the new run is made."""
    return folder.with_name(NEXT.format(name=folder.name))


def _published(histogram: Place) -> list[int]:
    """Return the newest trigger time of a histogram, if it can be read."""
    try:
        times = read_rows(histogram, [DUE])[DUE] if delta_tables.exists(histogram) else None
    except (DeltaError, OSError, pa.ArrowException):
        raise LakeError(
            f"histogram {histogram}: cannot be read, so it is unknown which windows are published"
        ) from None
    return (
        []
        if times is None or not len(times)
        else [int(pc.max(times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())).as_py())]
    )


def _ticks(contributions: Place, run_id: str) -> list[int]:
    tick = delta_tables.mark(contributions, closed_mark(run_id))
    return [] if tick is None else [tick]


def _listed(files: Place, run_id: str) -> list[int]:
    """Return the closed times in the listings of query 2, of all generations."""
    table = read_rows(files, ["operator", "bucket", "detail"]).to_pylist()
    return [
        int(json.loads(row["detail"])["closed_us"])
        for row in table
        if row["operator"] == RELEASE and row["bucket"] == BATCH_ROW
    ]


def _asked_for(folder: Place) -> list[int]:
    try:
        begun = read_catch_up(folder)
    except LakeError:
        return []
    return [] if begun is None else [begun.until_us]
