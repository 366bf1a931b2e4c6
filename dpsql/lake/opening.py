"""Which run a start works on: the one that the name is bound to, or a new one.

A new run is claimed (`.run.json`), gets its ledger line and its entry in the register, and then its `run.json`. The next start does what a
broken-off one has not done, so a run has one line however often it was killed. What a run id has published is noted beside the ledger
(`dpsql.privacy.register`): a lake that lost it does not go on.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsql import record
from dpsql.description import CELLS_ENDING, LEFT_OUT_ENDING
from dpsql.errors import BudgetError, LakeError
from dpsql.files import Claim, ObjectPath, Place, replace_file, reporting_os_errors, sync_folder
from dpsql.lake.runs import ORIGINAL, SCHEMA_VERSION, Lake, Run, has_begun, neighbour, read_run
from dpsql.privacy.declaration import declaration
from dpsql.privacy.ledger import Ledger, cap_for
from dpsql.privacy.origin import origin_of
from dpsql.privacy.register import Entry
from dpsql.privacy.secret import Secret
from dpsql.record import RUN_FILE
from dpsql.sources.config import Source
from dpsql.times import timestamp

if TYPE_CHECKING:
    from dpsql.compiled import Query

NEXT = ".{name}.next"
"""Beside the private folder of a run: that of the new run which is about to take its place."""
CLAIM_FILE = f".{RUN_FILE}"
"""In the private folder of a run: its `run.json` until it is paid."""
SPARK_SAID = "spark.log"
"""In the private folder of a run on this machine: what its JVM printed since the last start."""


def check_may_begin(lake: Lake, name: str, query: Query, ledger: Ledger, source: Source) -> None:
    """Refuse a new run that cannot begin, as far as is known before Spark has started; then make its lake. Nothing is bound or spent.

    Raises:
        LakeError, BudgetError: as `open_run`.
    """
    _refuse_remains(lake, name, lake.private(name))
    _refuse_absent(lake, name, ledger)
    claimed_run = read_claim(Claim(lake.private(name) / CLAIM_FILE))
    if claimed_run is None or not ledger.has(claimed_run.run_id):
        line = query.line("", "run", origin_of(source, "", level=query.protects))
        ledger.check(line, cap_for(source, query.protects))
    _prepare(lake, name)


def spark_output(lake: Lake, name: str) -> Path | None:
    """Return the file for what a JVM prints until its run is bound, when `keep_spark_output` moves it; None in a bucket."""
    folder = lake.private(name)
    if isinstance(folder, ObjectPath):
        return None
    return (
        folder / SPARK_SAID if has_begun(lake, name) else folder.with_name(f".{name}.{SPARK_SAID}")
    )


def keep_spark_output(file: Path | None, lake: Lake, name: str) -> None:
    """Move what a JVM prints to its run."""
    folder = lake.private(name)
    if file is not None and isinstance(folder, Path):
        with contextlib.suppress(FileNotFoundError):  # another start of the name has moved it
            file.replace(folder / SPARK_SAID)


def open_run(
    lake: Lake, name: str, query: Query, secret: Secret, ledger: Ledger, source: Source
) -> Run:
    """Start a new run under a name, or find the one that the name is bound to.

    Raises:
        LakeError: the name belongs to another query or another secret; run.json is lost or damaged; the folders are not ours; the run
            is in two lakes, or the ledger does not know it.
        BudgetError: a new run would exceed the source's cap.
    """
    ledger = ledger.sealed_by(secret)
    if not has_begun(lake, name):
        check_may_begin(lake, name, query, ledger, source)
        new_run = run_of(name, secrets.token_hex(16), query, secret, ledger.own_id())
        begin(lake, lake.private(name), new_run, query, ledger, source)
    folder = _prepare(lake, name)
    with reporting_os_errors(f"lake {lake.root}", LakeError):
        _close(folder)
    run = read_run(lake, name)
    check_binding(run, query, secret, lake)
    line = ledger.find(run.run_id)
    if line is None:
        raise LakeError(
            f"run {name!r} in lake {lake.root} has no line in {ledger.folder}: the ledger was lost, is older than the lake, or belongs to "
            f"another secret file. Put back the newest ledger; if there is none: dpsql restore {name} --ledger --lake {lake.root}"
        )
    if line.origin.ledger_id != run.ledger_id:
        raise LakeError(
            f"{folder / RUN_FILE} names another ledger than the run's line in {ledger.folder}; put back the original file"
        )
    ledger.check_is_home()
    ledger.check_cap_is_kept(source)
    ledger.register.enter(run.run_id, folder, source)
    return run


def begin(
    lake: Lake, folder: Place, new_run: Run, query: Query, ledger: Ledger, source: Source
) -> None:
    """Give a folder its `run.json`: a fresh run, or the one whose start was broken off there. What is done already is not done again.

    Raises:
        LakeError: the run that was begun there has its line, and is of another query, secret or source.
        BudgetError: it would exceed the source's cap, or the source spends on another ledger than before.
    """
    claim = Claim(folder / CLAIM_FILE)
    with reporting_os_errors(f"lake {folder}", LakeError):
        while not (folder / RUN_FILE).exists():
            _close(folder)
            claim.create(record.content(new_run, SCHEMA_VERSION, indent=1))
            run = read_claim(claim)
            # Another starter may have made the file since: then a claim is too late.
            if run is None or (folder / RUN_FILE).exists():
                claim.remove()
                continue
            origin = origin_of(source, run.ledger_id, level=query.protects)
            line = query.line(run.run_id, "run", origin)
            checks = (run.query_identity, run.secret_check)
            is_same = checks == (new_run.query_identity, new_run.secret_check)
            if not is_same and not ledger.has(run.run_id):
                claim.remove()
                continue
            try:
                ledger.append(line, cap_for(source, query.protects))
            except BudgetError:
                written_line = ledger.find(run.run_id)
                if written_line is None:
                    claim.remove()
                    raise
                if not is_same or replace(written_line, created=line.created) != line:
                    raise LakeError(
                        f"name {run.name!r} belongs to another query, secret or source, whose start was broken off ({claim}): start that again as it "
                        "was, or this one with another --name"
                    ) from None
            if ledger.register.find(run.run_id) is None:
                place = str(lake.private(run.name))
                ledger.register.add(Entry(run.run_id, place, declared=declaration(source)))
            replace_file(folder / RUN_FILE, record.content(run, SCHEMA_VERSION, indent=1))
            claim.remove()


def read_claim(claim: Claim | Place) -> Run | None:
    """Return the run in a file, perhaps one that is only claimed; None if it is not there."""
    return record.load(claim, Run, SCHEMA_VERSION, ORIGINAL)


def _refuse_absent(lake: Lake, name: str, ledger: Ledger) -> None:
    """Refuse a name whose run was here, and is gone with its lake."""
    folder = lake.private(name)
    for number, line in reversed([*enumerate(ledger.lines(), start=1)]):
        try:
            entry = ledger.register.find(line.run_id)
        except record.DamagedRecord:
            continue
        if entry is None or os.path.realpath(entry.place) != os.path.realpath(str(folder)):
            continue
        # Asked after the register: another starter may be at work.
        if read_claim(Claim(folder / CLAIM_FILE)) is not None or has_begun(lake, name):
            return
        released_text = (
            "nothing" if entry.closed_us is None else f"up to {timestamp(entry.closed_us)}"
        )
        raise LakeError(
            f"ledger line {number} is a run of this name here, released {released_text}, and {folder} is not there: is the disk of the lake mounted? "
            "If it is gone, start a new run with another --name"
        )


def run_of(name: str, run_id: str, query: Query, secret: Secret, ledger_id: str) -> Run:
    """Return what a run says of itself, begun now."""
    shape = query.shape
    return Run(
        name=name,
        run_id=run_id,
        query_identity=query.plan.identity,
        secret_check=secret.check(),
        query_text=query.text,
        plan=query.document(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        mechanism=query.parsed.mechanism,
        triggers_us=(shape.schedule.offset_us, shape.schedule.interval_us),
        tables=shape.state,
        first_window_us=query.facts(None).first_window_us,
        ledger_id=ledger_id,
        beside=tuple(ending for ending, _ in shape.neighbours),
    )


def _what_is_asked(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a query asks; what its source declares of a change feed is no part of it."""
    query = plan.get("query")
    return query and {name: value for name, value in query.items() if name != "feed"}


def check_binding(run: Run, query: Query, secret: Secret, lake: Lake) -> None:
    """Refuse a query or a secret that is not the one of the run.

    Raises:
        LakeError: says which of them differs and how to proceed.
    """
    if run.query_identity != query.plan.identity:
        if _what_is_asked(run.plan) == _what_is_asked(json.loads(json.dumps(query.document()))):
            raise LakeError(
                f"run {run.name!r} in lake {lake.root} was started by another version of dpsql, or under other declarations, which make "
                "another plan of the same query: verify it with that version (CHANGELOG.md names its commit), or start a new run with another --name"
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


def _prepare(lake: Lake, name: str) -> Place:
    """Make the lake, and return the folder of a run in it. (Who may read a bucket, its policy says.)"""
    folder = lake.private(name)
    if isinstance(folder, ObjectPath) or isinstance(lake.root, ObjectPath):
        return folder
    with reporting_os_errors(f"lake {lake.root}", LakeError):
        for public in (lake.root, lake.root / "public"):
            if not public.exists():
                public.mkdir(parents=True, exist_ok=True)
                public.chmod(0o755)
                sync_folder(public.parent)
        _close(folder.parent)
    return folder


def _close(private: Place) -> None:
    """Make a private folder, close one that is ours, and refuse that of another user."""
    if isinstance(private, ObjectPath):
        return
    private.mkdir(mode=0o700, exist_ok=True)
    sync_folder(private.parent)
    status = private.stat()
    if status.st_uid != os.geteuid():
        raise LakeError(
            f"{private}: belongs to another user (uid {status.st_uid}); use a lake of your own with --lake"
        )
    if status.st_mode & 0o077:
        private.chmod(0o700)


ENDINGS = (CELLS_ENDING, LEFT_OUT_ENDING)


def _tables(lake: Lake, name: str) -> Iterator[Place]:
    """Yield whatever a run leaves behind besides run.json (a crash may leave a hidden temporary file)."""
    histogram = lake.histogram(name)
    private = lake.private(name)
    for path in (histogram, *(neighbour(histogram, ending) for ending in ENDINGS)):
        if path.exists() or os.path.islink(str(path)):
            yield path
    if private.exists():
        yield from (
            entry
            for entry in private.iterdir()
            if entry.name != RUN_FILE and not entry.name.startswith(".")
        )


def _refuse_remains(lake: Lake, name: str, folder: Place) -> None:
    """Refuse a name of which something is left that has to be mended first."""
    if (folder.parent / NEXT.format(name=name) / RUN_FILE).exists():
        raise LakeError(
            f"a new run of {name!r} was begun and broken off; finish it: dpsql restore {name} --lake {lake.root} --new-run"
        )
    orphan = next(_tables(lake, name), None)
    if (
        orphan is not None and not (folder / RUN_FILE).exists()
    ):  # another starter may have made both meanwhile
        raise LakeError(
            f"{folder / RUN_FILE} is missing, but {orphan} exists: the run id of these tables is unknown, so nothing may be added to them. "
            f"Put back {RUN_FILE}, or start a new run with another --name or --lake"
        )
