"""The lake: one folder with a public histogram and a private run per query name.

    DIR/public/NAME     the histogram (Delta): anyone may read it
    DIR/private/NAME    run.json, contributions, state, checkpoints: mode 0700

`run.json` binds a name to one plan, one run id and one secret for ever. A new run's ledger line is written first: a crash between
the two leaves a line without a run, and the next start takes a new run id and a new line. So the ledger may say more than was spent,
never less.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from dpsql.config import Source
from dpsql.errors import LakeError
from dpsql.ledger import Ledger, line_of
from dpsql.new_file import create_file
from dpsql.privacy_plan import PrivacyPlan
from dpsql.secret import Secret

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
RUN_FILE = "run.json"


class CompiledQuery(Protocol):
    """What a run needs to know of a query: its text and its plan."""

    @property
    def text(self) -> str:
        """The SQL."""

    @property
    def plan(self) -> PrivacyPlan:
        """What the accountant has passed."""


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
    """

    name: str
    run_id: str
    query_identity: str
    secret_check: str
    query_text: str
    plan: dict[str, Any]
    created: str
    first_window_us: int | None = None


@dataclass(frozen=True)
class Lake:
    """A folder on a local or mounted disk; `root` becomes absolute."""

    root: Path

    def __init__(self, root: str | Path) -> None:
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", str(root)):
            raise LakeError(f"lake {root}: give a folder; object stores are not supported")
        object.__setattr__(self, "root", Path(root).expanduser().absolute())

    def histogram(self, name: str) -> str:
        """The public Delta table of a query."""
        return str(self.root / "public" / _checked(name))

    def private(self, name: str) -> str:
        """The private folder of a query."""
        return str(self.root / "private" / _checked(name))


@dataclass(frozen=True)
class Listed:
    """One line of `dpsql list`; `state` is `started` (nothing published yet), `published` or `unreadable`."""

    name: str
    run_id: str
    query_identity: str
    state: str


def open_run(lake: Lake, name: str, query: CompiledQuery, secret: Secret, ledger: Ledger, source: Source) -> Run:
    """Start a new run under a name, or find the one that the name is bound to.

    Raises:
        LakeError: the name belongs to another query or another secret; run.json is lost or damaged; the folders are not ours.
        BudgetError: a new run would exceed the source's cap.
    """
    folder = _prepare(lake, name)
    if not (folder / RUN_FILE).exists():
        _refuse_orphans(lake, name, folder)
        run = Run(
            name=name,
            run_id=secrets.token_hex(16),
            query_identity=query.plan.identity,
            secret_check=secret.check(),
            query_text=query.text,
            plan=asdict(query.plan),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        ledger.append(line_of(query.plan, source, run.run_id, "run"), source.cap)
        try:
            create_file(folder / RUN_FILE, json.dumps({"version": SCHEMA_VERSION, **asdict(run)}, indent=1).encode() + b"\n")
        except FileExistsError:
            pass  # somebody started the same name at the same moment: theirs is the run, ours was only a ledger line
        except OSError as problem:
            raise LakeError(f"lake {folder}: {problem.strerror}") from None
    run = read_run(lake, name)
    check_binding(run, query, secret, lake)
    return run


def read_run(lake: Lake, name: str) -> Run:
    """The run that a name is bound to.

    Raises:
        LakeError: no such name; run.json is unreadable, damaged or of an unknown version.
    """
    path = Path(lake.private(name)) / RUN_FILE
    try:
        given = json.loads(path.read_bytes())
        version = given.pop("version")
        if version != SCHEMA_VERSION:
            raise LakeError(f"{path}: version {version!r} was written by another release of dpsql; this one reads version {SCHEMA_VERSION}")
        run = Run(**given)
        texts = (run.name, run.run_id, run.query_identity, run.secret_check, run.query_text, run.created)
        if not all(isinstance(text, str) for text in texts) or not re.fullmatch(r"[0-9a-f]{32}", run.run_id) or run.name != name:
            raise ValueError
    except (FileNotFoundError, NotADirectoryError):
        raise LakeError(f"no query {name!r} in lake {lake.root}; see: dpsql list --lake {lake.root}") from None
    except OSError as problem:
        raise LakeError(f"{path}: {problem.strerror}") from None
    except LakeError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise LakeError(
            f"{path}: damaged; put back the original file, or start under another --name (a new run with a new ledger line)"
        ) from None
    return run


def check_binding(run: Run, query: CompiledQuery, secret: Secret, lake: Lake) -> None:
    """Refuse a query or a secret that is not the one of the run.

    Raises:
        LakeError: says which of them differs and how to proceed.
    """
    if run.query_identity != query.plan.identity:
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
        raise LakeError(f"lake {lake.root}: {problem.strerror}") from None
    return tuple(_listed(lake, name) for name in names)


def read_histogram(lake: Lake, name: str) -> pa.Table:
    """All published rows of a query, without a JVM.

    Raises:
        LakeError: no such query, nothing published yet, or the table cannot be read.
    """
    from deltalake import DeltaTable  # slow to import; only readers of tables need it
    from deltalake.exceptions import DeltaError, TableNotFoundError

    table = lake.histogram(name)
    try:
        if not (Path(table) / "_delta_log").is_dir():
            raise TableNotFoundError
        return DeltaTable(table).to_pyarrow_table()
    except TableNotFoundError:
        read_run(lake, name)
        raise LakeError(f"query {name!r} has published nothing yet: no trigger has passed") from None
    except (DeltaError, OSError, pa.ArrowException) as problem:
        raise LakeError(f"histogram {table}: cannot be read ({type(problem).__name__})") from None


def newest(lake: Lake, name: str) -> pd.DataFrame:
    """The rows of the newest published trigger of every window, by window and keys.

    Raises:
        LakeError: as `read_histogram`.
    """
    rows = read_histogram(lake, name).to_pandas()
    last = rows.groupby("window_start")["trigger"].transform("max")
    kept = rows[rows["trigger"] == last]
    return kept.sort_values(list(kept.columns), kind="stable", ignore_index=True)


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
        raise LakeError(f"query name {name!r}: use 1 to 100 letters, digits, _ and - only, like --name page_views")
    return name


def _prepare(lake: Lake, name: str) -> Path:
    """Make the folders; close private ones that we own, refuse those of others."""
    folder = Path(lake.private(name))
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
        raise LakeError(f"lake {lake.root}: {problem.strerror}") from None
    return folder


def _tables(lake: Lake, name: str) -> Iterator[Path]:
    """Whatever a run leaves behind besides run.json (a crash may leave a hidden temporary file)."""
    if os.path.lexists(lake.histogram(name)):
        yield Path(lake.histogram(name))
    yield from (entry for entry in Path(lake.private(name)).iterdir() if entry.name != RUN_FILE and not entry.name.startswith("."))


def _refuse_orphans(lake: Lake, name: str, folder: Path) -> None:
    found = next(_tables(lake, name), None)
    if found is not None and not (folder / RUN_FILE).exists():  # another starter may have made both meanwhile
        raise LakeError(
            f"{folder / RUN_FILE} is lost, but {found} is there: the run id of these tables is unknown, so nothing may be added to them. "
            f"Put back {RUN_FILE}, or start a new run with another --name or --lake"
        )


def _listed(lake: Lake, name: str) -> Listed:
    try:
        run = read_run(lake, name)
    except LakeError:
        return Listed(name, "", "", "unreadable")
    published = (Path(lake.histogram(name)) / "_delta_log").is_dir()
    return Listed(name, run.run_id, run.query_identity, "published" if published else "started")
