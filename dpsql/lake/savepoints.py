"""Savepoints: a named version of a run's state, kept for as long as one likes and readable as plain Parquet.

    DIR/private/NAME/savepoints/LABEL.json                        which versions, and what the run had done by then
    DIR/private/NAME/savepoints/LABEL/users/bucket=0007.parquet   one folder per table of the state

The files are hard links to the state files where the disk can do that, so they cost nothing and outlive every clean-up.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsql import record
from dpsql.errors import LakeError
from dpsql.files import Place, create_file
from dpsql.lake.preflight import state_files
from dpsql.lake.restore_points import NOTHING, Point, Tables, tables_of
from dpsql.lake.runs import Lake, read_run
from dpsql.udfs.bucket_state import read_table
from dpsql.udfs.stage import OPERATORS

FOLDER = "savepoints"
VERSION = 1
ATTEMPTS = 20


@dataclass(frozen=True)
class SavepointRecord:
    """The content of LABEL.json.

    Args:
        created: UTC time, ISO 8601.
        buckets: of users and of keys.
        points: by operator.
        ticked, closed_us: the newest micro-batch that a tick covered, and the time of that tick (None: no tick yet).
        state: the files that no clean-up may remove, as operator, generation, bucket, version.
    """

    created: str
    buckets: tuple[int, int]
    points: Mapping[str, Point]
    ticked: int
    closed_us: int | None
    void: tuple[tuple[int, int], ...]
    state: tuple[tuple[str, int, int, int], ...] = ()

    def __post_init__(self) -> None:
        if set(self.points) != set(OPERATORS):
            raise ValueError("a query without its point")


@dataclass(frozen=True)
class Savepoint:
    """A named version of a run.

    Args:
        folder: with its tables.
        label: its name.
        facts: what is known of it.
    """

    folder: Path
    label: str
    facts: SavepointRecord

    def load(self, operator: str, names: Collection[str]) -> dict[int, dict[str, pa.Table]]:
        """Return, for each bucket, its tables of these names.

        Raises:
            LakeError: a file is gone or damaged.
        """
        try:
            pointers = self.facts.points[operator].pointers
            return {
                bucket: {name: read_table(str(_path(self.folder, name, bucket))) for name in names}
                for bucket in pointers
            }
        except (OSError, pa.ArrowException) as problem:
            raise LakeError(
                f"savepoint {self.label!r} in {self.folder} cannot be read ({type(problem).__name__})"
            ) from None


def take_savepoint(lake: Lake, name: str, label: str | None = None) -> Savepoint:
    """Name the newest state of a run and keep it.

    Args:
        lake, name: of the run.
        label: letters, digits, _ and -; default: the time.

    Raises:
        LakeError: the run has no state yet, or the label is taken or malformed.
    """
    tables = tables_of(lake, read_run(lake, name))
    created = datetime.now(UTC).isoformat(timespec="seconds")
    label = label or re.sub(r"[^0-9T]", "", created[:19])
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", label):
        raise LakeError(
            f"savepoint {label!r}: use 1 to 100 letters, digits, _ and - only, like before_upgrade"
        )
    if tables is None:
        raise LakeError(f"query {name!r} has not been started yet: there is nothing to save")
    points = _settled_points(tables)
    if not any(point.pointers for point in points.values()):
        raise LakeError(f"query {name!r} has no state yet: there is nothing to save")
    folder = _on_disk(tables.folder) / FOLDER / label
    engine = tables.engine
    state = tuple(
        (o, engine.generation(o), bucket, sequence)
        for o, point in points.items()
        for bucket, sequence in point.pointers.items()
    )
    facts = SavepointRecord(
        created, engine.buckets, points, tables.ticked, tables.closed_us, engine.void, state
    )
    try:
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
        for operator in OPERATORS:
            _link(
                state_files(engine, operator).folder,
                points[operator].pointers,
                tuple(engine.tables[operator]),
                folder,
            )
        # Last: a savepoint without this file is none.
        create_file(folder.with_suffix(".json"), record.content(facts, VERSION))
    except FileExistsError:
        raise LakeError(
            f"savepoint {label!r} of {name!r} already exists; give another label"
        ) from None
    except OSError as problem:
        shutil.rmtree(folder, ignore_errors=True)
        raise LakeError(f"savepoint {folder}: {problem.strerror}") from None
    return read_savepoint(tables.folder, label)


def _settled_points(tables: Tables) -> dict[str, Point]:
    """Return the newest points of both operators; of a running job those between which it has not moved on.

    Raises:
        LakeError: it does not stand still for long enough.
    """
    for _ in range(ATTEMPTS):
        standing = tables.standing()
        points = {
            operator: next(tables.points(operator), Point(NOTHING, {}, {}))
            for operator in OPERATORS
        }
        if tables.standing() == standing:
            return points
    raise LakeError(
        f"{tables.folder.name!r} is running, and writes all the time: stop it first with `dpsql stop`"
    )


def read_savepoint(private: Place, label: str) -> Savepoint:
    """Return a savepoint of the run in a private folder.

    Raises:
        LakeError: there is none of this name, or its file is damaged.
    """
    private = _on_disk(private)
    path = private / FOLDER / f"{label}.json"
    facts = record.load(path, SavepointRecord, VERSION)
    if facts is None:
        labels = (
            ", ".join(
                path_of_record.stem for path_of_record in sorted((private / FOLDER).glob("*.json"))
            )
            or "none"
        )
        raise LakeError(f"no savepoint {label!r} of {private.name!r}; there are: {labels}")
    return Savepoint(private / FOLDER / label, label, facts)


def _on_disk(folder: Place) -> Path:
    if isinstance(folder, Path):
        return folder
    raise LakeError(
        f"{folder}: savepoints are for lakes on a disk; a bucket keeps versions itself where its versioning is on"
    )


def _link(source: Any, pointers: dict[int, int], names: tuple[str, ...], folder: Path) -> None:
    for name in names:
        (folder / name).mkdir(mode=0o700, exist_ok=True)
        for bucket, sequence in pointers.items():
            file = Path(source(bucket)) / f"{sequence:06d}.{name}.parquet"
            link = _path(folder, name, bucket)
            try:
                os.link(file, link)
            except PermissionError:
                shutil.copy(file, link)


def _path(folder: Path, table: str, bucket: int) -> Path:
    return folder / table / f"bucket={bucket:04d}.parquet"
