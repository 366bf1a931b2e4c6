"""The register: what each run has published and where, beside the ledger and so outside the lake.

    ledger/runs/RUN_ID.json

The noise of a run is a function of its run id. A run id that went on over other input would publish the same noise on other data, and
the difference of the two would be exact. A lake alone cannot notice: it may have lost its tables, it may be an older copy, there may be
two of it. So before anything is published, the register is told up to when; and a run goes on only where the lake has at least that,
and only in one place. Moving a lake is allowed: at the old place the run is gone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dpsql import record
from dpsql.errors import LakeError
from dpsql.files import Place, create_file, place, reporting_os_errors
from dpsql.privacy.declaration import check_declaration
from dpsql.record import RUN_FILE
from dpsql.sources.config import Source
from dpsql.times import timestamp

SCHEMA_VERSION = 1
ORIGINAL = f"{record.PUT_BACK} (it says what the run has published)"


@dataclass(frozen=True)
class Entry:
    """The facts known of one run id.

    Args:
        run_id: of the run.
        place: the run's private folder at its last start; empty for runs without a lake.
        closed_us: everything up to here may have been published, microseconds since 1970 UTC; None before the first release.
        given: fingerprint of the input of a run without a lake (`dpsql.local.local_run`); empty for others.
        declared: what `sources.yaml` said of its input at its first start (`dpsql.privacy.declaration`); empty for runs without a lake.
    """

    run_id: str
    place: str = ""
    closed_us: int | None = None
    given: str = ""
    declared: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRegister:
    """All entries of one ledger; `folder` is `ledger/runs`."""

    folder: Path

    def add(self, entry: Entry) -> None:
        """Add the entry of a new run id.

        Raises:
            LakeError: the run id already exists with another entry, or the folder cannot be written.
        """
        with reporting_os_errors(str(self.folder), LakeError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                create_file(self._path(entry.run_id), record.content(entry, SCHEMA_VERSION))
            except FileExistsError:
                if self.find(entry.run_id) != entry:
                    raise LakeError(
                        f"run {entry.run_id} is registered already in {self.folder}; a run id is used once"
                    ) from None

    def find(self, run_id: str) -> Entry | None:
        """Return the entry of a run; None if there is none.

        Raises:
            LakeError: it is damaged or from another release.
        """
        path = self._path(run_id)
        entry = record.load(path, Entry, SCHEMA_VERSION, ORIGINAL)
        if entry is not None and entry.run_id != run_id:
            raise record.DamagedRecord(f"{path}: damaged; {ORIGINAL}")
        return entry

    def enter(self, run_id: str, folder: Place, source: Source | None = None) -> Entry:
        """Return a start of a run in a lake: refuse a second lake and another input, follow a lake that has moved.

        Args:
            run_id: of the run.
            folder: its private folder.
            source: as declared now.

        Raises:
            LakeError: the run is not registered here, is also at another place, or was started on another input.
        """
        entry = self.find(run_id)
        if entry is None:
            raise LakeError(
                f"run {run_id} of {folder} is not in {self.folder}: the ledger was lost, is older than the lake, or belongs to another secret. "
                "Put back the newest ledger; if there is none, `dpsql restore NAME --lake DIR --ledger` writes down again what this run spends"
            )
        if not _same_place(entry.place, folder):
            if _run_id_at(entry.place) == run_id:
                raise LakeError(
                    f"run {run_id} is in two lakes, {entry.place} and {folder}: both would publish the same noise, on other data in the end. "
                    "Go on with the first, and start this one under another --name, as a new run with a ledger line of its own"
                )
            entry = replace(entry, place=str(folder))
            self._write(entry)
        if source is not None:
            check_declaration(entry.declared, source, folder.name)
        return entry

    def check(self, run_id: str, closed_us: int) -> None:
        """Refuse a lake that has less than was published: it lost its tables, or is an older copy.

        Args:
            run_id: of the run.
            closed_us: up to when the lake has closed the trigger grid.

        Raises:
            LakeError: says what to do.
        """
        entry = self.find(run_id)
        if entry is None or entry.closed_us is None or closed_us >= entry.closed_us:
            return
        raise LakeError(
            f"run {run_id} has published triggers up to {timestamp(entry.closed_us)}, and {entry.place} does not have these: tables were deleted, "
            "or this is an older copy of the lake. Going on would publish the same noise on other data. "
            "Put back the newest lake, or start a new run with `dpsql restore --new-run` or under another --name"
        )

    def publishing(self, run_id: str, folder: Place, closed_us: int) -> None:
        """Note, before the rows are written, that everything up to `closed_us` may be published.

        Raises:
            LakeError: the run has been started at another place meanwhile.
        """
        entry = self.find(run_id)
        if entry is None or not _same_place(entry.place, folder):
            raise LakeError(
                f"run {run_id} is no longer that of {folder}: it was started at another place, or its entry in {self.folder} is gone"
            )
        if entry.closed_us is None or closed_us > entry.closed_us:
            self._write(replace(entry, closed_us=closed_us))

    def _write(self, entry: Entry) -> None:
        with reporting_os_errors(str(self.folder), LakeError):
            record.write(self._path(entry.run_id), entry, SCHEMA_VERSION)

    def _path(self, run_id: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{32}", run_id):
            raise LakeError(
                f"run id {run_id!r}: a run id has 32 hexadecimal digits, like secrets.token_hex(16)"
            )
        return self.folder / f"{run_id}.json"


def _same_place(recorded: str, place: Place) -> bool:
    """Tell whether two paths are one folder, perhaps through a link or another mount."""
    if recorded == str(place):
        return True
    try:
        return isinstance(place, Path) and place.samefile(recorded)
    except OSError:
        return False


def _run_id_at(folder: str) -> str | None:
    """Return the run that lives in a private folder; None where it is gone or cannot be read."""
    try:
        found = json.loads((place(folder) / RUN_FILE).read_bytes())["run_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)
