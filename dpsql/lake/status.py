"""`dpsql status`: how a run stands, for a watchdog: is it at work, how far behind is it, is anything damaged. No Spark, no secret.

It reads the small files of the run's private folder, the marks of its tables and the sizes of published files, and no row of any of them.
"""

from __future__ import annotations

import errno
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsql import times
from dpsql.errors import LakeError
from dpsql.files import ObjectPath, Place, reason
from dpsql.lake import log_head
from dpsql.lake.event_log import BEHIND, DAMAGED, newest_events
from dpsql.lake.marks import closed_mark
from dpsql.lake.runs import LIVE_FILE, Lake, Run, is_bare, public_tables, read_run, state_of
from dpsql.privacy.totals import without_totals

NETWORK = {
    errno.ESTALE,
    errno.ENOTCONN,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EREMOTEIO,
}
REPAIR = "start the run again: its message names the command that repairs it"
TICKED = "contributions"
"""The table that has the ticks; of the others only the logs are looked at."""

SMALL_FILES = ("engine.json", "catch_up.json", LIVE_FILE)


@dataclass(frozen=True)
class Status:
    """How a run stands.

    Args:
        name, run_id: of the run.
        state: `running` (a process on this machine works on it), `failed` (its last start ended in an error), `stopped` (a live run that nobody
            works on), `published` (stored input was released), `started` (nothing is published yet), `damaged`, or `unreachable`: the
            store, or the disk over the network, does not answer, which says nothing of the run.
        released_us: the newest grid point that is released; None before the first. Microseconds since 1970 UTC.
        lag_seconds: the present time less that; None likewise.
        newest: kind of event -> the newest (`dpsql.lake.event_log`), without exact totals.
        alarms: what is wrong, one sentence each.
    """

    name: str
    run_id: str
    state: str
    released_us: int | None
    lag_seconds: float | None
    newest: dict[str, dict[str, Any]]
    alarms: tuple[str, ...]


def status(
    lake: Lake,
    name: str,
    max_lag_us: int | None = None,
    max_drop_share: float | None = None,
    now_us: int | None = None,
) -> Status:
    """Return how a run stands now.

    Args:
        lake, name: the run.
        max_lag_us: more than this behind is an alarm.
        max_drop_share: a larger share of the newest micro-batch dropped is an alarm; the share itself is not told.
        now_us: the present time, microseconds since 1970 UTC (default: the wall clock).

    Raises:
        LakeError: no such query.
    """
    try:
        return _reached_status(lake, name, max_lag_us, max_drop_share, now_us)
    except OSError as problem:
        where = f"{lake.private(name)} cannot be reached ({reason(problem)}): whether the run is well cannot be told from here"
        return Status(name, "", "unreachable", None, None, {}, (where,))


def _reached_status(
    lake: Lake, name: str, max_lag_us: int | None, max_drop_share: float | None, now_us: int | None
) -> Status:
    folder = lake.private(name)
    if is_bare(folder):
        read_run(lake, name)  # says that there is none
    try:
        run = read_run(lake, name)
        closed_us = _closed_us(folder, lake, run)
    except LakeError as damage:
        return Status(
            name, "", "damaged", None, None, _without_totals(newest_events(folder)), (str(damage),)
        )
    newest = newest_events(folder)
    published_us = newest.get("release", {}).get("closed_us")
    released_us = _on_grid(
        run,
        closed_us
        if published_us is None or closed_us is None
        else min(int(published_us), closed_us),
    )
    lag = (
        None
        if released_us is None
        else ((times.now_us() if now_us is None else now_us) - released_us) / 1e6
    )
    batch = newest.get("micro_batch", {})
    share = sum(batch["dropped"].values()) / batch["records"] if batch.get("records") else None
    failure = _failure(newest)
    alarms = _damaged(lake.histogram(name), run, newest)
    state = "damaged" if alarms else _state(lake, name, failure)
    if state == "failed":
        alarms.append(
            f"its last start ended badly ({failure}); start the same command again: it continues, or its message says more"
        )
    alarms += _current_alarms(newest)
    if max_lag_us is not None and (lag is None or lag * 1e6 > max_lag_us):
        behind = "nothing is released yet" if lag is None else f"{lag:,.0f} seconds behind"
        alarms.append(f"{behind}, more than the {max_lag_us / 1e6:,.0f} that are allowed")
    if max_drop_share is not None and share is not None and share > max_drop_share:
        alarms.append(
            f"more of the newest micro-batch was dropped than the {max_drop_share:.0%} that are allowed"
        )
    return Status(name, run.run_id, state, released_us, lag, _without_totals(newest), tuple(alarms))


def _without_totals(newest: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {kind: without_totals(event) for kind, event in newest.items()}


def _damaged(histogram: Place, run: Run, newest: dict[str, dict[str, Any]]) -> list[str]:
    """Return which published files are gone or have other sizes now, and what the last start, which looks at all bytes, has found."""
    public_folders = [
        path
        for path in public_tables(histogram, run).values()
        if isinstance(path, Path) and (path / "_delta_log").is_dir()
    ]
    problems = [problem for problem in map(log_head.damage, public_folders) if problem]
    alarm = newest.get(f"alarm/{DAMAGED}")
    if (
        alarm is not None
        and alarm["time"] >= newest.get("start", alarm)["time"]
        and alarm["text"] not in problems
    ):
        problems.append(str(alarm["text"]))
    return problems


def _current_alarms(newest: dict[str, dict[str, Any]]) -> list[str]:
    """Return the alarms that hold: those of the newest start, and of unread files those since the newest release, which follows when all are read."""
    texts = []
    for kind, event in newest.items():
        ends = ("start", "release") if kind == f"alarm/{BEHIND}" else ("start",)
        is_told = kind.startswith("alarm/") and kind != f"alarm/{DAMAGED}"
        if is_told and all(event["time"] >= newest.get(end, event)["time"] for end in ends):
            texts.append(str(event["text"]))
    return texts


def _failure(newest: dict[str, dict[str, Any]]) -> str:
    """Return how the last start ended, if not well. Whether a process of another machine is still at work cannot be told from here."""
    start = newest.get("start")
    end = newest.get("end")
    if start is None:
        return ""
    if end is not None and end["time"] >= start["time"]:
        return str(end["failed"])
    return "it was killed" if start["host"] == socket.gethostname() else ""


def _state(lake: Lake, name: str, failure: str) -> str:
    found = state_of(lake, name)
    return "failed" if failure and found != "running" else found


def _closed_us(folder: Place, lake: Lake, run: Run) -> int | None:
    """Return the time of the newest tick; looks at every small file and at the log of every table on the way.

    Raises:
        LakeError: one of them is lost or damaged.
        OSError: it cannot be reached.
    """
    for path in (folder / name for name in SMALL_FILES):
        try:
            if path.exists() and not isinstance(json.loads(path.read_bytes()), dict):
                raise ValueError
        except (OSError, ValueError) as problem:
            if _is_far(problem, path):
                raise
            raise LakeError(f"{path}: damaged; put back the original file") from None
    tables = {
        TICKED: folder / "contributions",
        "files": folder / "files",
        **public_tables(lake.histogram(run.name), run),
    }
    engine = folder / "engine.json"
    has_begun = engine.exists() and bool(json.loads(engine.read_bytes()).get("queries"))
    return {
        what: _mark(what, path, closed_mark(run.run_id), has_begun) for what, path in tables.items()
    }[TICKED]


def _mark(table_name: str, path: Place, application: str, expected: bool) -> int | None:
    try:
        if isinstance(path, Path) and (path / "_delta_log").is_dir() and log_head.is_whole(path):
            mark = log_head.newest_mark(path, application) if table_name == TICKED else None
            if mark is not None or table_name != TICKED:
                return mark
        return _opened_mark(table_name, path, application, expected)
    except OSError as problem:
        if _is_far(problem, path):
            raise
        raise _unreadable(table_name, path, problem) from None


def _opened_mark(table_name: str, path: Place, application: str, expected: bool) -> int | None:
    from deltalake import DeltaTable  # slow to import
    from deltalake.exceptions import DeltaError

    try:
        if DeltaTable.is_deltatable(str(path)):
            mark = DeltaTable(str(path)).transaction_version(application)
            return None if mark is None else int(mark)
    except DeltaError as problem:
        raise _unreadable(table_name, path, problem) from None
    if expected:
        raise LakeError(f"the table {table_name} at {path} is lost; {REPAIR}")
    return None


def _unreadable(table_name: str, path: Place, problem: Exception) -> LakeError:
    return LakeError(
        f"the table {table_name} at {path} cannot be read ({type(problem).__name__}); {REPAIR}"
    )


def _is_far(problem: Exception, path: Place) -> bool:
    """Tell whether an error says that a file cannot be reached, and nothing of what is in it."""
    if not isinstance(problem, OSError) or isinstance(problem, FileNotFoundError):
        return False
    return isinstance(path, ObjectPath) or problem.errno in NETWORK


def _on_grid(run: Run, closed_us: int | None) -> int | None:
    """Return the newest grid point at or before a time."""
    if closed_us is None:
        return None
    offset_us, interval_us = run.triggers_us
    return (closed_us - offset_us) // interval_us * interval_us + offset_us
