"""`dpsql restore --new-run`: what cannot be restored ends, and a new run goes on under its name.

The new run has a run id of its own, so fresh noise, and a ledger line of its own. Windows with a published trigger stay closed for it:
their records are dropped, and no trigger of theirs is published again. The private folder of the old run is kept aside, hidden.
"""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from dpsql.compiled import Query
from dpsql.errors import LakeError
from dpsql.lake import RUN_FILE, SCHEMA_VERSION, Lake, Run, read_run
from dpsql.ledger import Ledger, line_of
from dpsql.new_file import create_file
from dpsql.operators import grid
from dpsql.secret import Secret
from dpsql.streaming import delta_log
from dpsql.streaming.catch_up import CatchUp, read_catch_up
from dpsql.streaming.contributions import closed_mark
from udfs.grid import NO_CLOCK


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
        LakeError: no such run, or its folder cannot be moved.
        BudgetError: the new run would exceed the source's cap.
    """
    folder = Path(lake.private(name))
    prepared = _prepared(folder)
    old = read_run(lake, name)
    first = max(first_free_window_us(query, closed_us(lake, old)), NO_CLOCK if old.first_window_us is None else old.first_window_us)
    run = replace(
        old,
        run_id=secrets.token_hex(16),
        query_identity=query.plan.identity,
        secret_check=secret.check(),
        query_text=query.text,
        plan=asdict(query.plan),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        first_window_us=None if first == NO_CLOCK else first,
    )
    ledger.append(line_of(query.plan, query.source, run.run_id, "run"), query.source.cap)
    try:
        shutil.rmtree(prepared, ignore_errors=True)
        prepared.mkdir(mode=0o700)
        create_file(prepared / RUN_FILE, json.dumps({"version": SCHEMA_VERSION, **asdict(run)}, indent=1).encode() + b"\n")
        folder.rename(folder.with_name(f".{name}.{old.run_id}"))
        prepared.rename(folder)
    except OSError as problem:
        raise LakeError(f"{folder}: {problem.strerror}") from None
    return run


def finish_new_run(lake: Lake, name: str) -> Run | None:
    """Finish what was broken off after the old run's folder had been moved away; None if nothing was."""
    folder = Path(lake.private(name))
    if folder.exists() or not (_prepared(folder) / RUN_FILE).exists():
        return None
    _prepared(folder).rename(folder)
    return read_run(lake, name)


def closed_us(lake: Lake, run: Run) -> int:
    """No trigger after this time can have been published by the run; NO_CLOCK if it has published nothing.

    Whatever is left of the run is asked. Where the ticks are lost, the wall clock stands in: it may close more, never less.
    """
    folder = Path(lake.private(run.name))
    found = [NO_CLOCK, *_published(lake.histogram(run.name))]
    try:
        begun: CatchUp | None = read_catch_up(folder)
    except LakeError:
        begun = None
    found += [] if begun is None else [begun.until_us]
    contributions = str(folder / "contributions")
    try:
        tick = delta_log.mark(contributions, closed_mark(run.run_id))
        readable = delta_log.exists(contributions)
    except (DeltaError, OSError):
        tick, readable = None, False
    found += [] if tick is None else [tick]
    if not readable and (len(found) > 1 or any(folder.glob("checkpoints/*"))):
        found.append(int(datetime.now(UTC).timestamp() * 1_000_000))
    return max(found)


def first_free_window_us(query: Query, closed: int) -> int:
    """Start of the first window whose first trigger lies after a time."""
    if closed == NO_CLOCK:
        return NO_CLOCK
    shape = grid(query.plan)
    return (closed - shape.trigger_us - shape.offset_us) // shape.slide_us * shape.slide_us + shape.offset_us + shape.slide_us


def _prepared(folder: Path) -> Path:
    """Where the private folder of the new run is made."""
    return folder.with_name(f".{folder.name}.next")


def _published(histogram: str) -> list[int]:
    """The newest trigger time of a histogram, if it can be read."""
    try:
        times = DeltaTable(histogram).to_pyarrow_table(columns=["trigger_time"])["trigger_time"] if delta_log.exists(histogram) else None
    except (DeltaError, OSError, pa.ArrowException):
        raise LakeError(f"histogram {histogram}: cannot be read, so it is unknown which windows are published") from None
    return [] if times is None or not len(times) else [int(pc.max(times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())).as_py())]
