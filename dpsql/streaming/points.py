"""Points that a run can go back to: a listed micro-batch of each operator whose rows are there, and what it left."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from dpsql.lake import Lake, read_run
from dpsql.places import Place, place
from dpsql.streaming import admission, delta_log
from dpsql.streaming.contributions import closed_mark, ticked_mark
from dpsql.streaming.engine import Engine, read_engine
from dpsql.streaming.manifest import BATCH_ROW, Manifest, rows_mark
from dpsql.streaming.preflight import state_files
from dpsql.streaming.wire import TICK
from udfs.bucket_state import UnknownVersion

NOTHING = -1
"""Number of the micro-batch before the first."""


@dataclass(frozen=True)
class Point:
    """What one operator had done after a micro-batch: versions of its buckets, and the manifest's detail."""

    batch: int
    pointers: dict[int, int]
    detail: dict[str, Any]

    @property
    def position(self) -> str | None:
        """Where the source stands, as Spark's offset (JSON); None at the very beginning."""
        return next((line for line in self.detail.get("offsets", []) if _is_position(line)), None)

    @property
    def version(self) -> int | None:
        """The version of the Delta table to go on from; None if the micro-batch ends inside a commit."""
        if self.position is None:
            return 0
        offset = json.loads(self.position)
        return None if offset.get("index", -1) >= 0 or offset.get("isStartingVersion") else int(offset["reservoirVersion"])


@dataclass(frozen=True)
class Tables:
    """The tables of a run that has been started, read from outside.

    Args:
        folder: private.
        histogram: public table.
        run_id: of the run.
        engine: its settings.
    """

    folder: Place
    histogram: str
    run_id: str
    engine: Engine

    @property
    def contributions(self) -> str:
        """The table between the two queries."""
        return str(self.folder / "contributions")

    def manifest(self, operator: str, generation: int | None = None) -> Manifest:
        """The listed files of an operator, by default of its current generation."""
        of = self.engine.generation(operator) if generation is None else generation
        return Manifest(str(self.folder / "files"), self.run_id, operator, of)

    def rows_mark(self, operator: str) -> int:
        """The newest micro-batch of the current generation whose rows are in their table."""
        path = self.contributions if operator == admission.OPERATOR else self.histogram
        mark = delta_log.mark(path, rows_mark(self.run_id, operator, self.engine.generation(operator)))
        return NOTHING if mark is None else mark

    @property
    def ticked(self) -> int:
        """The newest micro-batch that a tick covers."""
        mark = delta_log.mark(self.contributions, ticked_mark(self.run_id))
        return NOTHING if mark is None else mark - 1

    @property
    def closed_us(self) -> int | None:
        """The time of the newest tick."""
        return delta_log.mark(self.contributions, closed_mark(self.run_id))

    def points(self, operator: str) -> list[Point]:
        """Every listed micro-batch whose rows are there and whose files can be read, newest first."""
        manifest, mark = self.manifest(operator), self.rows_mark(operator)
        details = manifest.batches()
        found = []
        for batch in sorted(details, reverse=True):
            arrived = not details[batch].get("rows") or batch <= mark or batch < self.engine.parts[operator].first
            point = Point(batch, manifest.pointers(batch), details[batch])
            if arrived and self._readable(operator, point):
                found.append(point)
        return found

    def newest_number(self, operator: str) -> int:
        """The largest number that any micro-batch of an operator may have had, in any generation."""
        numbers = [NOTHING, self.ticked if operator == admission.OPERATOR else NOTHING]
        for generation in range(1, self.engine.generation(operator) + 1):
            numbers += self.manifest(operator, generation).batches()
            path = self.contributions if operator == admission.OPERATOR else self.histogram
            mark = delta_log.mark(path, rows_mark(self.run_id, operator, generation))
            numbers += [] if mark is None else [mark]
        return max(numbers)

    def deletions(self) -> list[int]:
        """Versions of contributions that deleted rows of windows long closed."""
        history = DeltaTable(self.contributions).history()
        return [int(commit["version"]) for commit in history if str(commit.get("operation", "")).upper().startswith("DELETE")]

    def ticks(self) -> set[tuple[int, int, int]]:
        """(newest micro-batch covered, closed time, latest accepted event time) of every tick."""
        names = ["batch", "closed_us", "window"]
        table = DeltaTable(self.contributions).to_pyarrow_dataset().to_table(names, filter=pc.field("kind") == TICK)
        return set(zip(*(table[name].to_pylist() for name in names), strict=True))

    def files_read(self, until: int) -> dict[str, int]:
        """Path -> time of change (ms) of every file that query 1 had read after a micro-batch."""
        table = DeltaTable(str(self.folder / "files")).to_pyarrow_table(columns=["operator", "generation", "batch", "bucket", "detail"])
        newest: dict[int, tuple[int, dict[str, Any]]] = {}
        for row in table.to_pylist():
            void = any(first <= row["batch"] <= last for first, last in self.engine.void)
            wanted = row["operator"] == admission.OPERATOR and row["bucket"] == BATCH_ROW and row["batch"] <= until and not void
            if wanted and row["generation"] >= newest.get(row["batch"], (0, {}))[0]:
                newest[row["batch"]] = (row["generation"], json.loads(row["detail"]))
        return {
            path: time for _, detail in newest.values() for path, time in zip(detail.get("files", []), detail.get("times", []), strict=True)
        }

    def _readable(self, operator: str, point: Point) -> bool:
        files = state_files(self.engine, operator)
        try:
            for bucket, sequence in point.pointers.items():
                files.check(bucket, sequence)
        except UnknownVersion:
            raise
        except (OSError, pa.ArrowException):
            return False
        return True


def open_tables(lake: Lake, name: str) -> Tables | None:
    """The tables of a run; None if it has never been started.

    Raises:
        LakeError: no such run, or a small file of it is damaged.
    """
    run, folder = read_run(lake, name), place(lake.private(name))
    engine = read_engine(folder)
    return None if engine is None else Tables(folder, lake.histogram(name), run.run_id, engine)


def _is_position(line: str) -> bool:
    """Not the offset of the clock that a live run reads beside its source."""
    try:
        offset = json.loads(line)
    except ValueError:
        return False
    return isinstance(offset, dict) and set(offset) != {"offset", "timestamp"}
