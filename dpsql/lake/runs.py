"""The lake: one folder with a public histogram and a private run per query name.

    DIR/public/NAME     the histogram (Delta): anyone may read it
    DIR/private/NAME    run.json, contributions, state, checkpoints: mode 0700

`run.json` binds a name to one plan, one run id and one secret for ever. A new run's ledger line is written first: a crash between
the two leaves a line without a run, and the next start takes a new run id and a new line. So the ledger may say more than was spent,
never less. What a run id has published is noted beside the ledger (`dpsql.privacy.register`): a lake that lost it does not go on.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dpsql import record
from dpsql.config import Source
from dpsql.errors import LakeError
from dpsql.files import ObjectPath, Place, create_file, reason
from dpsql.frames import frame_of, has_windows
from dpsql.lake.catch_up import LIVE_FILE
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.running import is_running
from dpsql.polling import read_overruns
from dpsql.privacy.declaration import declaration
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.ledger_rules import cap_for
from dpsql.privacy.origin import origin_of
from dpsql.privacy.register import RUN_FILE, Entry
from dpsql.privacy.secret import Secret
from udfs.histogram.stages import AdmissionStage, ReleaseStage
from udfs.stage import Table

if TYPE_CHECKING:
    import pandas as pd

    from dpsql.compiled import Query

SCHEMA_VERSION = 1
ORIGINAL = f"{record.PUT_BACK}, or start under another --name (a new run with a new ledger line)"
NEXT = ".{name}.next"
"""Beside the private folder of a run: that of the new run which is about to take its place."""


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
        first_window_us: windows that start earlier were published by an earlier run under this name and stay closed; None: there was none.
        ledger_id: of the ledger that the run began with; it is in its noise and salt. Empty for runs of earlier releases.
        mechanism: whose query it is. Runs of earlier releases do not say: there was one.
        triggers: offset and interval of the grid on which they are due, in microseconds. Earlier ones have it in the plan.
        state: operator -> tables of its state. Earlier ones do not say.
    """

    name: str
    run_id: str
    query_identity: str
    secret_check: str
    query_text: str
    plan: dict[str, Any]
    created: str
    first_window_us: int | None = None
    ledger_id: str = ""
    mechanism: str = "histogram"
    triggers: tuple[int, int] | None = None
    state: Mapping[str, Mapping[str, Table]] | None = None

    @property
    def triggers_us(self) -> tuple[int, int]:
        """Offset and interval of the grid on which triggers are due."""
        query = self.plan["query"]
        offset, interval = self.triggers or (query["window"]["offset_us"], query["trigger_interval_us"])
        return int(offset), int(interval)

    @property
    def tables(self) -> Mapping[str, Mapping[str, Table]]:
        """Operator -> the tables of its state."""
        if self.state is None:
            return {stage.operator: stage.tables for stage in (AdmissionStage, ReleaseStage)}
        return self.state


@dataclass(frozen=True)
class Lake:
    """A folder on a local or mounted disk (`root` becomes absolute), or a prefix of a bucket like `s3a://bucket/lake`."""

    root: Place

    def __init__(self, root: str | Path) -> None:
        given = str(root)
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", given):
            if not re.fullmatch(r"s3a://[a-z0-9][a-z0-9.-]+(/[^?#]+)?/?", given):
                raise LakeError(f"lake {root}: give a folder, or a bucket and a prefix like s3a://bucket/lake")
            object.__setattr__(self, "root", ObjectPath(given.rstrip("/")))
        else:
            object.__setattr__(self, "root", Path(root).expanduser().absolute())

    def histogram(self, name: str) -> Place:
        """The public Delta table of a query."""
        return self.root / "public" / _checked(name)

    def private(self, name: str) -> Place:
        """The private folder of a query."""
        return self.root / "private" / _checked(name)


@dataclass(frozen=True)
class Listed:
    """One line of `dpsql list`.

    `state` is `running` (a process on this machine works on it), `stopped` (a live run that nobody works on), `published` (stored input
    was released), `started` (nothing is published yet) or `unreadable`. `overruns` counts the micro-batches of a live run that took longer than
    the polling interval, which its promise assumes none does.
    """

    name: str
    run_id: str
    query_identity: str
    state: str
    overruns: int = 0


def open_run(lake: Lake, name: str, query: Query, secret: Secret, ledger: Ledger, source: Source) -> Run:
    """Start a new run under a name, or find the one that the name is bound to.

    Raises:
        LakeError: the name belongs to another query or another secret; run.json is lost or damaged; the folders are not ours; the run
            is in two lakes, or the ledger does not know it.
        BudgetError: a new run would exceed the source's cap.
    """
    folder, ledger = _prepare(lake, name), ledger.sealed_by(secret)
    if not (folder / RUN_FILE).exists():
        if (folder.parent / NEXT.format(name=name) / RUN_FILE).exists():
            raise LakeError(f"a new run of {name!r} was begun and broken off; finish it: dpsql restore {name} --lake {lake.root} --new-run")
        _refuse_orphans(lake, name, folder)
        run = new_run(lake, name, query, secret, ledger, source)
        try:
            create_file(folder / RUN_FILE, record.content(run, SCHEMA_VERSION, indent=1))
        except FileExistsError:
            pass  # somebody started the same name at the same moment: theirs is the run, ours was only a ledger line
        except OSError as problem:
            raise LakeError(f"lake {folder}: {reason(problem)}") from None
    run = read_run(lake, name)
    check_binding(run, query, secret, lake)
    line = ledger.find(run.run_id)
    if line is None:
        raise LakeError(
            f"run {name!r} in lake {lake.root} has no line in {ledger.folder}: the ledger was lost, is older than the lake, or belongs to "
            f"another secret file. Put back the newest ledger; if there is none: dpsql budget --record {name} --lake {lake.root}"
        )
    if line.origin.ledger_id != run.ledger_id:
        raise LakeError(f"{folder / RUN_FILE} names another ledger than the run's line in {ledger.folder}; put back the original file")
    ledger.check_is_home()
    ledger.check_cap_is_kept(source)
    ledger.register.enter(run.run_id, lake.private(name), source)
    return run


def new_run(lake: Lake, name: str, query: Query, secret: Secret, ledger: Ledger, source: Source) -> Run:
    """A fresh run id with its ledger line and its entry in the register; run.json is left to the caller.

    Raises:
        BudgetError: it would exceed the source's cap, or the source spends on another ledger than before.
    """
    ledger, shape = ledger.sealed_by(secret), query.shape
    run = Run(
        name=name,
        run_id=secrets.token_hex(16),
        query_identity=query.plan.identity,
        secret_check=secret.check(),
        query_text=query.text,
        plan=query.document(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        ledger_id=ledger.own_id(),
        mechanism=query.parsed.mechanism,
        triggers=(shape.schedule.offset_us, shape.schedule.interval_us),
        state=shape.state,
    )
    origin = origin_of(source, run.ledger_id, level=query.protects)
    ledger.append(query.line(run.run_id, "run", origin), cap_for(source, query.protects))
    ledger.register.add(Entry(run.run_id, str(lake.private(name)), declared=declaration(source)))
    return run


def read_run(lake: Lake, name: str) -> Run:
    """The run that a name is bound to.

    Raises:
        LakeError: no such name; run.json is unreadable, damaged or of an unknown version.
    """
    path = lake.private(name) / RUN_FILE
    run = record.read(path, Run, SCHEMA_VERSION, ORIGINAL)
    if run is None:
        raise LakeError(f"no query {name!r} in lake {lake.root}; see: dpsql list --lake {lake.root}")
    if run.name != name or not re.fullmatch(r"[0-9a-f]{32}", run.run_id):
        raise record.DamagedFile(f"{path}: damaged; {ORIGINAL}")
    return run


def check_binding(run: Run, query: Query, secret: Secret, lake: Lake) -> None:
    """Refuse a query or a secret that is not the one of the run.

    Raises:
        LakeError: says which of them differs and how to proceed.
    """
    if run.query_identity != query.plan.identity:
        if run.plan.get("query") == json.loads(json.dumps(query.document().get("query"))):
            raise LakeError(
                f"run {run.name!r} in lake {lake.root} was started by another version of dpsql, or under other declarations, which make "
                "another plan of the same query. (Up to commit 27b5d01, sliding windows counted a privacy unit once per period instead of "
                "once per window, and RESELECT with them did not keep its promise: see CHANGELOG.md.) "
                "It cannot go on with other noise: start a new run with another --name"
            )
        raise LakeError(
            f"name {run.name!r} in lake {lake.root} belongs to another query (identity {run.query_identity}); "
            f"this one is {query.plan.identity}. "
            "A changed query is a new run: start it with another --name or --lake"
        )
    if run.secret_check != secret.check():
        raise LakeError(
            f"run {run.name!r} in lake {lake.root} was started with another secret; name the right one with --secret-file, "
            "or start a new run with another --name"
        )


def list_queries(lake: Lake) -> tuple[Listed, ...]:
    """Every query of a lake, by name.

    Raises:
        LakeError: no such lake, or it may not be read.
    """
    try:
        names = sorted(entry.name for entry in (lake.root / "private").iterdir() if re.fullmatch(r"[A-Za-z0-9_-]+", entry.name))
    except FileNotFoundError:
        raise LakeError(f"no lake at {lake.root}; `dpsql run` makes one") from None
    except OSError as problem:
        raise LakeError(f"lake {lake.root}: {reason(problem)}") from None
    return tuple(_listed(lake, name) for name in names)


def read_histogram(lake: Lake, name: str) -> pa.Table:
    """All published rows of a query, without a JVM.

    Raises:
        LakeError: no such query, nothing published yet, or the table cannot be read.
    """
    from deltalake.exceptions import DeltaError, TableNotFoundError  # slow to import; only readers of tables need it

    table = lake.histogram(name)
    try:
        if not (table / "_delta_log").is_dir():
            raise TableNotFoundError
        return read_rows(table)
    except TableNotFoundError:
        read_run(lake, name)
        raise LakeError(f"query {name!r} has published nothing yet: no trigger has passed") from None
    except (DeltaError, OSError, pa.ArrowException) as problem:
        raise LakeError(f"histogram {table}: cannot be read ({type(problem).__name__})") from None


def histogram_version(lake: Lake, name: str) -> int:
    """How many commits a query's histogram has had; 0 when nothing is published.

    Raises:
        LakeError: no such query, or the table cannot be read.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    read_run(lake, name)
    table = lake.histogram(name)
    try:
        return DeltaTable(str(table)).version() if (table / "_delta_log").is_dir() else 0
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
    return kept.sort_values(list(kept.columns), kind="stable", ignore_index=True)


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
        raise LakeError(f"query name {name!r}: use 1 to 100 letters, digits, _ and - only, like --name page_views")
    return name


def _prepare(lake: Lake, name: str) -> Place:
    """Make the folders; close private ones that we own, refuse those of others. (Who may read a bucket, its policy says.)"""
    folder = lake.private(name)
    if isinstance(folder, ObjectPath) or isinstance(lake.root, ObjectPath):
        return folder
    try:
        for public in (lake.root, lake.root / "public"):
            if not public.exists():
                public.mkdir(parents=True, exist_ok=True)
                public.chmod(0o755)
        for private in (folder.parent, folder):
            private.mkdir(mode=0o700, exist_ok=True)
            status = private.stat()
            if status.st_uid != os.geteuid():
                raise LakeError(f"{private}: belongs to another user (uid {status.st_uid}); use a lake of your own with --lake")
            if status.st_mode & 0o077:
                private.chmod(0o700)
    except OSError as problem:
        raise LakeError(f"lake {lake.root}: {reason(problem)}") from None
    return folder


def _tables(lake: Lake, name: str) -> Iterator[Place]:
    """Whatever a run leaves behind besides run.json (a crash may leave a hidden temporary file)."""
    histogram, private = lake.histogram(name), lake.private(name)
    if histogram.exists() or os.path.islink(str(histogram)):
        yield histogram
    if private.exists():
        yield from (entry for entry in private.iterdir() if entry.name != RUN_FILE and not entry.name.startswith("."))


def _refuse_orphans(lake: Lake, name: str, folder: Place) -> None:
    found = next(_tables(lake, name), None)
    if found is not None and not (folder / RUN_FILE).exists():  # another starter may have made both meanwhile
        raise LakeError(
            f"{folder / RUN_FILE} is lost, but {found} is there: the run id of these tables is unknown, so nothing may be added to them. "
            f"Put back {RUN_FILE}, or start a new run with another --name or --lake"
        )


def _listed(lake: Lake, name: str) -> Listed:
    private = lake.private(name)
    try:
        run, overruns = read_run(lake, name), read_overruns(private).micro_batches
    except LakeError:
        return Listed(name, "", "", "unreadable")
    if is_running(private):
        state = "running"
    elif (private / LIVE_FILE).exists():
        state = "stopped"
    else:
        state = "published" if (lake.histogram(name) / "_delta_log").is_dir() else "started"
    return Listed(name, run.run_id, run.query_identity, state, overruns)
