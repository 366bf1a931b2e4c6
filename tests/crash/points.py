"""Where a job can be made to die, and which of its protections can be taken away. All of it is patched in from here: the product has no
switch for it. A point is a function of the product and a side of it; reaching it kills the whole session with SIGKILL: driver, JVM,
workers."""

import functools
import importlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STREAMING = "dpsql.streaming"
LAKE = "dpsql.lake"


@dataclass(frozen=True)
class Point:
    """Die before or after a call of `owner` (module, or module:Class) `.name` that `when` accepts. `buckets`: the point is in a worker, and
    there is one for each bucket."""

    owner: str
    name: str
    after: bool
    when: Callable[..., bool] = lambda *given, **named: True
    buckets: bool = False


def _operator(name: str) -> Callable[..., bool]:
    return lambda self, *given, **named: self.operator == name


def _of_bucket(operator: str | None = None) -> Callable[..., bool]:
    """A step's `run(self, bucket, ...)` or a store's `store(self, bucket, ...)` of the bucket that was asked for."""

    def accepts(self: Any, bucket: int, *given: Any, **named: Any) -> bool:
        return bucket == _bucket() and (operator is None or self.operator == operator)

    return accepts


def _file_of_bucket(operator: str) -> Callable[..., bool]:
    return lambda system, path, data: f"/{operator}-" in path and f"bucket={_bucket():04d}" in path


def _released(self: Any, rows: Any, bucket: int, *given: Any) -> bool:
    return bucket == _bucket()


def _named(name: str) -> Callable[..., bool]:
    return lambda path, *given: path.name == name


def _bucket() -> int:
    return int(os.environ.get("CRASH_BUCKET", "0"))


def _steps(operator: str, step: str, pure: str) -> dict[str, Point]:
    files = "dpsql.udfs.bucket_state"
    stages = "intake.stages" if operator == "admission" else "histogram.release"
    return {
        f"{operator}: before the step": Point(
            f"dpsql.udfs.worker:{step}", "run", False, _of_bucket(), True
        ),
        f"{operator}: inside the step": Point(f"dpsql.udfs.{stages}", pure, False),
        f"{operator}: temporary state file written": Point(
            files, "_write_bytes", True, _file_of_bucket(operator), True
        ),
        f"{operator}: state file renamed": Point(
            f"{files}:BucketFiles", "store", True, _of_bucket(operator), True
        ),
        f"{operator}: after the step": Point(
            f"dpsql.udfs.worker:{step}", "run", True, _of_bucket(), True
        ),
        f"{operator}: before the manifest": Point(
            f"{LAKE}.manifest:Manifest", "commit", False, _operator(operator)
        ),
        f"{operator}: after the manifest": Point(
            f"{LAKE}.manifest:Manifest", "commit", True, _operator(operator)
        ),
    }


POINTS = {
    "catch-up: before its time is written": Point(
        "os", "replace", False, lambda source, target: str(target).endswith("catch_up.json")
    ),
    "catch-up: its time is written": Point("dpsql.record", "write", True, _named("catch_up.json")),
    "admission: before Spark's query id is kept": Point(
        f"{LAKE}.preflight:Engine", "remember_query", False
    ),
    **_steps("admission", "WorkerIntake", "admit"),
    "admission: files of contributions written": Point(
        "dpsql.udfs.task_files:ContributionFiles", "write", True, _released, True
    ),
    "admission: rows appended": Point(f"{LAKE}.contributions:Contributions", "append", True),
    "admission: before Spark's commit": Point(
        f"{STREAMING}.admission:AdmissionSink", "__call__", True
    ),
    # Every catch-up reads two files, one per micro-batch.
    "admission: after Spark's commit": Point(
        f"{STREAMING}.admission:AdmissionSink", "__call__", False, lambda *given: given[-1] % 2 == 1
    ),
    "tick: before": Point(f"{LAKE}.contributions:Contributions", "tick", False),
    "tick: between the tick and its release": Point(
        f"{LAKE}.contributions:Contributions", "tick", True
    ),
    "release: what an earlier start has left is removed": Point(
        f"{STREAMING}.released", "sweep", True
    ),
    "release: before it is told what to read": Point(f"{STREAMING}.release", "hand_over", False),
    **_steps("release", "WorkerRelease", "release"),
    "release: file of released rows written": Point(
        "dpsql.udfs.task_files:ReleasedFiles", "write", True, _released, True
    ),
    "release: histogram appended": Point(
        f"{STREAMING}.published_table:PublishedTable", "publish", True
    ),
    "release: released rows removed": Point(f"{STREAMING}.released:ReleasedRows", "remove", True),
    "release: before Spark's commit": Point(f"{STREAMING}.release:ReleaseSink", "__call__", True),
    "catch-up: before its end is written": Point(f"{STREAMING}.context", "finish", False),
    "catch-up: its end is written": Point(f"{STREAMING}.context", "finish", True),
}
"""By name, in the order in which one catch-up meets them."""


def _appended(ending: str) -> Callable[..., bool]:
    return lambda path, *given: path.parent.name == "public" and path.name.endswith(ending)


_OF_SKETCHES = {
    "admission: inside the step": Point("dpsql.udfs.sketch.intake", "bound", False),
    "release: inside the step": Point("dpsql.udfs.sketch.release", "read_release", False),
    "release: histogram appended": Point(
        f"{STREAMING}.sketch_tables:SketchTables", "publish", True
    ),
}
_CELLS = {
    "release: before the cells": Point(
        f"{LAKE}.delta_tables", "append_files", False, _appended(".sketch")
    ),
    "release: cells appended, lists not": Point(
        f"{LAKE}.delta_tables", "append_files", True, _appended(".sketch")
    ),
}
_UNTIL_CELLS = list(POINTS).index("release: histogram appended")
SKETCH_POINTS = {
    **dict(list(POINTS.items())[:_UNTIL_CELLS]),
    **_CELLS,
    **dict(list(POINTS.items())[_UNTIL_CELLS:]),
} | _OF_SKETCHES
"""Of a run of sketches, whose tick makes two commits."""

RETENTION = f"{LAKE}.retention"
LIVE_POINTS = {
    "live: before its start is written": Point(f"{STREAMING}.live", "begin_live", False),
    "live: backlog read, no tick yet": Point(f"{STREAMING}.live:Ticker", "begin", False),
    "live tick: before": Point(f"{LAKE}.contributions:Contributions", "tick_by_clock", False),
    "live tick: between the tick and its release": Point(
        f"{LAKE}.contributions:Contributions", "tick_by_clock", True
    ),
    "live admission: after the step": Point(
        "dpsql.udfs.worker:WorkerIntake", "run", True, _of_bucket(), True
    ),
    "live admission: after the manifest": Point(
        f"{LAKE}.manifest:Manifest", "commit", True, _operator("admission")
    ),
    "live admission: rows appended": Point(f"{LAKE}.contributions:Contributions", "append", True),
    "live release: after the step": Point(
        "dpsql.udfs.worker:WorkerRelease", "run", True, _of_bucket(), True
    ),
    "live release: file of released rows written": Point(
        "dpsql.udfs.task_files:ReleasedFiles", "write", True, _released, True
    ),
    "live release: before it is noted beside the ledger": Point(
        "dpsql.privacy.register:RunRegister", "publishing", False
    ),
    "live release: noted beside the ledger": Point(
        "dpsql.privacy.register:RunRegister", "publishing", True
    ),
    "live release: histogram appended": Point(
        f"{STREAMING}.published_table:PublishedTable", "publish", True
    ),
    "live release: before released rows are removed": Point(
        f"{STREAMING}.released:ReleasedRows", "remove", False
    ),
    "live release: told to rest": Point(f"{STREAMING}.microbatches:Stepping", "_pause", False),
    "live release: woken from its rest": Point(
        f"{STREAMING}.microbatches:Stepping", "_pause", True
    ),
    "clean-up: before": Point(f"{RETENTION}:Retention", "sweep", False),
    "clean-up: era deleted, its files not": Point(f"{LAKE}.delta_tables", "delete", True),
    "clean-up: files of an era deleted": Point(
        f"{LAKE}.delta_tables", "vacuum", True, lambda path, hours: path.name == "contributions"
    ),
    "clean-up: between two buckets of state": Point(RETENTION, "sweep_bucket", True),
    "clean-up: before the list of files is compacted": Point(RETENTION, "compact", False),
    "clean-up: list of files compacted, old ones there": Point(
        f"{LAKE}.delta_tables",
        "replace_files",
        True,
        lambda table, path, *given: str(path).endswith("files"),
    ),
    "clean-up: after": Point(f"{RETENTION}:Retention", "sweep", True),
}
"""The same for a live run."""


def install(environment: Mapping[str, str]) -> None:
    """Patch this process: die at CRASH_POINT, live without the protection CRASH_WITHOUT, clean up all the time with CRASH_OFTEN."""
    if environment.get("CRASH_OFTEN"):
        retention, compaction = (
            importlib.import_module(f"{LAKE}.{name}") for name in ("retention", "compaction")
        )
        retention.SWEEP_SECONDS = 0
        retention.VACUUM_HOURS = 0
        compaction.MANY_FILES = 2
        compaction.LOG_COMMITS = 3
        compaction.KEPT_HOURS = 0
        kept = {
            "spark.sql.streaming.minBatchesToRetain": "2",
            "spark.sql.streaming.fileSource.log.compactInterval": "2",
        }
        importlib.import_module(f"{STREAMING}.session").RUN.update(kept)
    if protection := environment.get("CRASH_WITHOUT"):
        WITHOUT[protection]()
    if name := environment.get("CRASH_POINT"):
        point = (SKETCH_POINTS | LIVE_POINTS | POINTS_WITHOUT_RENAME)[name]
        owner = _owner(point.owner)
        setattr(owner, point.name, _deadly(getattr(owner, point.name), point))


def _owner(path: str) -> Any:
    module, _, name = path.partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, name) if name else loaded


def _deadly(function: Callable[..., Any], point: Point) -> Callable[..., Any]:
    @functools.wraps(function)
    def dying(*given: Any, **named: Any) -> Any:
        due = point.when(*given, **named)
        if due and not point.after:
            kill_session(os.getsid(0))
        done = function(*given, **named)
        if due:
            kill_session(os.getsid(0))
        return done

    return dying


def kill_session(session: int) -> None:
    """SIGKILL to every process group of a session (Spark's Python daemon has one of its own), the caller's last."""
    groups = set()
    for pid in members(session):
        try:
            groups.add(os.getpgid(pid))
        except ProcessLookupError:
            continue
    for group in sorted(groups, key=lambda group: group == os.getpgrp()):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue


def members(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
            except (ProcessLookupError, PermissionError):
                continue
    return found


def _no_marks() -> None:
    """Every commit is made again by a repeated micro-batch."""
    importlib.import_module(f"{LAKE}.delta_tables").committed = lambda *mark: False


def _no_rename() -> None:
    """State files are written in place, in two halves."""
    state = importlib.import_module("dpsql.udfs.bucket_state")
    whole = state._write_bytes

    def write(system: Any, path: str, data: Any) -> None:
        folder, _, name = path.rpartition("/")
        final = f"{folder}/{name[1:].rpartition('.')[0]}"
        state._write_half(system, final, data.slice(0, data.size // 2))
        whole(system, final, data)
        whole(system, path, data)  # what the rename will take

    state._write_half = whole
    state._write_bytes = write


HALF = "half of a state file written in place"
POINTS_WITHOUT_RENAME = {
    HALF: Point("dpsql.udfs.bucket_state", "_write_half", True, _file_of_bucket("admission"), True)
}

WITHOUT = {"transaction marks": _no_marks, "the atomic rename": _no_rename}
"""Protections that can be taken away, by name."""
