"""Points that a run can go back to: a listed micro-batch of each operator whose rows are there, and what it left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable

from dpsql.errors import LakeError
from dpsql.files import Place
from dpsql.lake import delta_tables
from dpsql.lake.contributions import latest_column
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.engine_file import Engine, read_engine
from dpsql.lake.manifest import Manifest
from dpsql.lake.marks import closed_mark, merged_mark, rows_mark, ticked_mark, triggers_mark
from dpsql.lake.preflight import state_files
from dpsql.lake.published_marks import PublishedMarks, published_marks
from dpsql.lake.read_files import listed_details
from dpsql.lake.runs import Lake, Run, public_tables
from dpsql.udfs.bucket_state import UnknownStateVersion
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.stage import ADMISSION, RELEASE, TICK

NOTHING = -1
"""Number of the micro-batch before the first."""


@dataclass(frozen=True)
class Point:
    """The state of one operator after a micro-batch: versions of its buckets, and the manifest's detail."""

    batch: int
    pointers: dict[int, int]
    detail: dict[str, Any]

    @property
    def position(self) -> str | None:
        """Where the source stands, as Spark's offset (JSON); None at the very beginning."""
        return next(iter(self.detail.get("offsets", [])), None)

    @property
    def resumable(self) -> bool:
        """Whether a new query can go on from here: after files, at Kafka offsets, or between two commits of a Delta table."""
        if self.position is None:
            return True
        try:
            offset = json.loads(self.position)
        except ValueError:
            return False
        if not isinstance(offset, dict):
            return False
        kafka = bool(offset) and all(isinstance(partitions, dict) for partitions in offset.values())
        return (
            "logOffset" in offset
            or kafka
            or ("reservoirVersion" in offset and self.version is not None)
        )

    @property
    def version(self) -> int | None:
        """The version of the Delta table to go on from; None if the micro-batch ends inside a commit."""
        if self.position is None:
            return 0
        offset = json.loads(self.position)
        return (
            None
            if offset.get("index", -1) >= 0 or offset.get("isStartingVersion")
            else int(offset["reservoirVersion"])
        )


@dataclass(frozen=True)
class Tables:
    """The tables of a run that has been started, read from outside.

    Args:
        folder: private.
        histogram: public table.
        run_id: of the run.
        engine: its settings.
        other_public: its public tables besides the histogram, by what they are called.
    """

    folder: Place
    histogram: Place
    run_id: str
    engine: Engine
    other_public: Mapping[str, Place] = field(default_factory=dict)

    @property
    def public(self) -> dict[str, Place]:
        """All public tables, the histogram first."""
        return {"histogram": self.histogram, **self.other_public}

    @property
    def private(self) -> dict[str, Place]:
        """The two private tables by name."""
        return {"contributions": self.contributions, "files": self.folder / "files"}

    @property
    def published_mark(self) -> str:
        """The mark of the ticks of the current generation in them."""
        return triggers_mark(self.run_id, self.engine.generation(RELEASE))

    @property
    def contributions(self) -> Place:
        """The table between the two queries."""
        return self.folder / "contributions"

    def manifest(self, operator: str, generation: int | None = None) -> Manifest:
        """Return the listed files of an operator, by default of its current generation."""
        number = self.engine.generation(operator) if generation is None else generation
        return Manifest(self.folder / "files", self.run_id, operator, number)

    def rows_mark(self, operator: str) -> int:
        """Return the newest micro-batch of the current generation whose rows are in their table."""
        mark = self._rows_mark(operator, self.engine.generation(operator))
        return NOTHING if mark is None else mark

    def marks(self, operator: str) -> list[int | None]:
        """Return the newest micro-batches that the manifest, and the table of its rows, have of a query."""
        generation = self.engine.generation(operator)
        return [self.manifest(operator).newest_batch, self._rows_mark(operator, generation)]

    def published(self, generation: int | None = None) -> PublishedMarks:
        """Return how far the histogram is, by default by the commits of the current generation."""
        number = self.engine.generation(RELEASE) if generation is None else generation
        return published_marks(self.histogram, self.run_id, number)

    def _rows_mark(self, operator: str, generation: int) -> int | None:
        if operator == RELEASE:
            return self.published(generation).newest_batch(
                self.manifest(operator, generation).batches()
            )
        return delta_tables.mark(self.contributions, rows_mark(self.run_id, operator, generation))

    @property
    def ticked(self) -> int:
        """The newest micro-batch that a tick covers."""
        mark = delta_tables.mark(self.contributions, ticked_mark(self.run_id))
        return NOTHING if mark is None else mark - 1

    @property
    def closed_us(self) -> int | None:
        """The time of the newest tick."""
        return delta_tables.mark(self.contributions, closed_mark(self.run_id))

    @property
    def released_us(self) -> int:
        """Every tick up to this time has been released: a live job may be at work on the next.

        Spark notes a micro-batch of a live run only when the next one begins. Before, the listing and the histogram tell that it is done.

        Raises:
            LakeError: the run was restored and not started since.
        """
        part = self.engine.parts[RELEASE]
        checkpoint = self.engine.checkpoint(RELEASE)
        published = self.published()
        committed = NOTHING if (newest := checkpoint.newest_commit) is None else newest
        released = {NOTHING: NO_CLOCK}
        for generation in range(1, part.generation + 1):
            for batch, detail in self.manifest(RELEASE, generation).batches().items():
                if batch <= committed or (generation == part.generation and published.have(detail)):
                    released[batch] = max(int(detail["closed_us"]), released.get(batch, NO_CLOCK))
        if part.generation > 1 and checkpoint.oldest_commit is None and max(released) < part.first:
            raise LakeError(
                f"{self.folder.name}: was restored and not started since; start it first, then verify"
            )
        return max(released.values())

    def standing(self) -> tuple[int, ...]:
        """Return versions of the three tables: unequal if a job has written to one of them in between."""
        return tuple(
            DeltaTable(str(path)).version()
            for path in (self.folder / "files", self.contributions, self.histogram)
        )

    def points(self, operator: str) -> Iterator[Point]:
        """Yield every listed micro-batch whose rows are there and whose files can be read, newest first."""
        mark = self.rows_mark(operator)
        for batch, detail, pointers in self.manifest(operator).history():
            arrived = (
                not detail.get("rows") or batch <= mark or batch < self.engine.parts[operator].first
            )
            point = Point(batch, pointers, detail)
            if arrived and self._readable(operator, point):
                yield point

    def newest_number(self, operator: str) -> int:
        """Return the largest number that any micro-batch of an operator may have had, in any generation."""
        return max(
            NOTHING, self.ticked if operator == ADMISSION else NOTHING, *self.numbers(operator)
        )

    def numbers(self, operator: str) -> set[int]:
        """Return the micro-batches of an operator that left a trace, in any generation."""
        numbers: list[int] = []
        for generation in range(1, self.engine.generation(operator) + 1):
            numbers += self.manifest(operator, generation).batches()
            mark = self._rows_mark(operator, generation)
            numbers += [] if mark is None else [mark]
        return {NOTHING, *numbers}

    def deletions(self) -> list[int]:
        """Return versions of contributions at or before which nobody can begin: those that deleted rows of windows long closed, the last one whose
        ticks may have moved, and the last one of which the log knows nothing any more."""
        history = DeltaTable(str(self.contributions)).history()
        first = delta_tables.first_version(self.contributions)
        deleted = [
            int(commit["version"])
            for commit in history
            if str(commit.get("operation", "")).upper().startswith("DELETE")
        ]
        merged = delta_tables.mark(self.contributions, merged_mark(self.run_id))
        return [*deleted, *([first - 1] if first else []), *([merged - 1] if merged else [])]

    def ticks(self) -> set[tuple[int, int, int]]:
        """Return (newest micro-batch covered, closed time, latest accepted event time) of every tick."""
        names = ["batch", "closed_us", latest_column(self.contributions)]
        table = read_rows(self.contributions, names, pc.field("kind") == TICK)
        return set(zip(*(table[name].to_pylist() for name in names), strict=True))

    def files_read(self, until: int) -> dict[str, int]:
        """Return, by path, the time of change (ms) of every file that query 1 had read after a micro-batch."""
        details = listed_details(self.folder / "files", self.engine.void)
        read_details = [detail for batch, detail in details.items() if batch <= until]
        return {
            path: time
            for detail in read_details
            for path, time in zip(detail.get("files", []), detail.get("times", []), strict=True)
        }

    def _readable(self, operator: str, point: Point) -> bool:
        files = state_files(self.engine, operator)
        digests = self.manifest(operator).digests(point.pointers)
        try:
            for bucket, sequence in point.pointers.items():
                files.check(bucket, sequence, True, digests.get(bucket, {}))
        except UnknownStateVersion:
            raise
        except OSError:
            return False
        return True


def tables_of(lake: Lake, run: Run) -> Tables | None:
    """Return the tables of a run; None before its first start."""
    folder = lake.private(run.name)
    engine = read_engine(folder, run.tables)
    if engine is None:
        return None
    histogram = lake.histogram(run.name)
    other_public = {
        name: path for name, path in public_tables(histogram, run).items() if path != histogram
    }
    return Tables(folder, histogram, run.run_id, engine, other_public)
