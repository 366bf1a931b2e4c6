"""The lake: one folder with a public histogram and a private run per query name.

    DIR/public/NAME     the histogram (Delta): anyone may read it
    DIR/private/NAME    run.json, contributions, state, checkpoints: mode 0700

`run.json` binds a name to one plan, one run id and one secret for ever (`dpsql.lake.opening`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsql import record
from dpsql.description import CELLS_ENDING
from dpsql.errors import LakeError
from dpsql.files import ObjectPath, Place, bucket_problem, reason, reporting_os_errors
from dpsql.lake.overruns import read_overruns
from dpsql.lake.running import is_running
from dpsql.record import RUN_FILE
from dpsql.udfs.state_table import StateTable

SCHEMA_VERSION = 1
ORIGINAL = f"{record.PUT_BACK}, or start under another --name (a new run with a new ledger line)"
LIVE_FILE = "live.json"
"""In the private folder of a run that was started live: what it began with."""


@dataclass(frozen=True)
class Run:
    """One promise: a plan on a source, with its run id.

    Args:
        name: the query's name in the lake.
        run_id: 128 random bits in hex; no secret.
        query_identity: the plan's identity.
        secret_check: tells the secret of this run from others.
        query_text: the SQL as first started.
        plan: the plan, for people to read.
        created: UTC time, ISO 8601.
        mechanism: whose query it is.
        triggers_us: offset and interval of the grid on which they are due.
        tables: operator -> the tables of its state.
        first_window_us: windows that start earlier were published by an earlier run under this name, or do not exist; None: there are none.
        ledger_id: of the ledger that the run began with; it is in its noise and salt.
        beside: endings of the names of its public tables besides the histogram: `sketch` for `NAME.sketch`.
    """

    name: str
    run_id: str
    query_identity: str
    secret_check: str
    query_text: str
    plan: dict[str, Any]
    created: str
    mechanism: str
    triggers_us: tuple[int, int]
    tables: Mapping[str, Mapping[str, StateTable]]
    first_window_us: int | None = None
    ledger_id: str = ""
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lake:
    """A folder on a local or mounted disk (`root` becomes absolute), or a prefix of a bucket like `s3a://bucket/lake`."""

    root: Place

    def __init__(self, root: str | Path) -> None:
        text = str(root)
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text):
            if not re.fullmatch(r"s3a://[a-z0-9][a-z0-9.-]+(/[^?#]+)?/?", text):
                raise LakeError(
                    f"lake {root}: give a folder, or a bucket and a prefix like s3a://bucket/lake"
                )
            object.__setattr__(self, "root", ObjectPath(text.rstrip("/")))
        else:
            object.__setattr__(self, "root", Path(root).expanduser().absolute())

    def histogram(self, name: str) -> Place:
        """Return the public Delta table of a query."""
        return self.root / "public" / _checked(name)

    def private(self, name: str) -> Place:
        """Return the private folder of a query."""
        return self.root / "private" / _checked(name)


@dataclass(frozen=True)
class ListedRun:
    """One line of `dpsql status`.

    `state` is `running` (a process on this machine works on it), `stopped` (a live run that nobody works on), `published` (stored input
    was released), `started` (nothing is published yet) or `unreadable`. `overruns` counts the micro-batches of a live run that took longer than
    the polling interval, which its promise assumes none does.
    """

    name: str
    run_id: str
    query_identity: str
    state: str
    overruns: int = 0


def public_tables(histogram: Place, run: Run) -> dict[str, Place]:
    """Return all public tables of a run: what they are called in messages, and where they are; the histogram is the last that a tick is written to."""
    return {ending: neighbour(histogram, ending) for ending in run.beside} | {
        "histogram": histogram
    }


def neighbour(histogram: Place, ending: str) -> Place:
    """Return a table beside the public table of a query."""
    return histogram.parent / f"{histogram.name}.{ending}"


def cells_path(histogram: Place) -> Place:
    """Return the table of cells beside the public table of a query."""
    return neighbour(histogram, CELLS_ENDING)


def has_begun(lake: Lake, name: str) -> bool:
    """Tell whether a name is bound to a run.

    Raises:
        LakeError: the lake is not reached.
    """
    with reporting_os_errors(f"lake {lake.root}", LakeError):
        private = lake.private(name)
        is_bound = (private / RUN_FILE).exists()
        if isinstance(private, Path) and not is_bound:
            os.stat(
                f"{next(folder for folder in private.parents if folder.exists())}/"
            )  # a file is no place for a lake
    if (
        not is_bound
        and isinstance(lake.root, ObjectPath)
        and (problem := bucket_problem(lake.root.uri))
    ):
        raise LakeError(f"lake {lake.root}: {problem}")
    return is_bound


def read_run(lake: Lake, name: str) -> Run:
    """Return the run that a name is bound to.

    Raises:
        LakeError: no such name; run.json is unreadable, damaged or of an unknown version.
    """
    path = lake.private(name) / RUN_FILE
    run = record.load(path, Run, SCHEMA_VERSION, ORIGINAL)
    if run is None:
        raise LakeError(
            f"no query {name!r} in lake {lake.root}; see: dpsql status --lake {lake.root}"
        )
    if run.name != name or not re.fullmatch(r"[0-9a-f]{32}", run.run_id):
        raise record.DamagedRecord(f"{path}: damaged; {ORIGINAL}")
    return run


def list_queries(lake: Lake) -> tuple[ListedRun, ...]:
    """Return every query of a lake, by name.

    Raises:
        LakeError: no such lake, or it may not be read.
    """
    try:
        names = sorted(
            entry.name
            for entry in (lake.root / "private").iterdir()
            if re.fullmatch(r"[A-Za-z0-9_-]+", entry.name)
        )
    except FileNotFoundError:
        raise LakeError(f"no lake at {lake.root}; `dpsql run` makes one") from None
    except OSError as problem:
        raise LakeError(f"lake {lake.root}: {reason(problem)}") from None
    return tuple(_listed(lake, name) for name in names if not is_bare(lake.private(name)))


def is_bare(folder: Place) -> bool:
    """Tell whether a private folder has nothing of a run, but perhaps what a broken-off start has left."""
    try:
        return all(entry.name.startswith(".") for entry in folder.iterdir())
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
        raise LakeError(
            f"query name {name!r}: use 1 to 100 letters, digits, _ and - only, like --name page_views"
        )
    return name


def state_of(lake: Lake, name: str) -> str:
    """Return the state of a run that can be read (`ListedRun`)."""
    private = lake.private(name)
    if is_running(private):
        return "running"
    if (private / LIVE_FILE).exists():
        return "stopped"
    return "published" if (lake.histogram(name) / "_delta_log").is_dir() else "started"


def _listed(lake: Lake, name: str) -> ListedRun:
    try:
        run = read_run(lake, name)
        overruns = read_overruns(lake.private(name)).micro_batches
    except LakeError:
        return ListedRun(name, "", "", "unreadable")
    return ListedRun(name, run.run_id, run.query_identity, state_of(lake, name), overruns)
