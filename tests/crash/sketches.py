"""Kill runs of sketches at every point of a catch-up and at random, and compare what they leave with an uninterrupted run.

    python -m tests.crash.sketches [--kills 12] [--seed 1] [--only "release: "]

Unknown values of units: after every kill, nothing outside the private folder may hold the hash key or a cell of a window that is open.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.privacy.secret import Secret
from dpsql.udfs.noise.randomness import intake_key
from dpsql.udfs.sketch.hashing import hash_key
from dpsql.udfs.sketch.intake import UserIntake
from dpsql.udfs.sketch.release import SketchRelease
from tests.crash.kill import NAME, START, Stage, main
from tests.crash.points import SKETCH_POINTS

LAST = 2
"""Trigger of a window, with which its cells come."""


class SketchStage(Stage):
    """As `Stage`, for the largest values of a column."""

    sql: ClassVar[str] = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 3, sketch_width = 64,
    trigger_interval = INTERVAL 12 HOURS)
  APPROX_TOP_COUNT(page, 3) AS top
FROM visits
GROUP BY window(ts, '1 day')
"""
    sources: ClassVar[str] = Stage.sources.replace(
        "    privacy_unit:", "    start: 2100-01-01\n    privacy_unit:"
    )
    tables: ClassVar[Mapping[str, Sequence[str]]] = {
        "admission": tuple(UserIntake.tables),
        "release": tuple(SketchRelease.tables),
    }
    cell: ClassVar[tuple[str, ...]] = ("window_start", "trigger")
    points: ClassVar[Iterable[str]] = tuple(SKETCH_POINTS)

    def hash_keys(self, lake: Path) -> dict[datetime, bytes]:
        """Of every window of the catch-ups, as the run makes them."""
        import dpsql
        from dpsql.lake.runs import Lake, read_run

        query = dpsql.compile(self.sql, dpsql.load_sources(self.folder / "sources.yaml"))
        run = read_run(Lake(lake), NAME)
        secret = Secret.load(self.secret(lake)).of_ledger(run.ledger_id)
        root = intake_key(secret.noise_key(run.run_id, query.plan.identity))
        days = [START + timedelta(days=number) for number in range(self.catch_ups + 1)]
        return {day: hash_key(root, int(day.timestamp()) * 1_000_000) for day in days}

    def wrong(self, lake: Path, number: int) -> list[str]:
        """Also what is outside the private folder of windows that are open: raw bytes of any file, and every binary value of Parquet files."""
        closed = START + timedelta(days=number, hours=12)
        keys = {
            key for day, key in self.hash_keys(lake).items() if day + timedelta(days=1) > closed
        }
        wrong = super().wrong(lake, number)
        for path in sorted(
            path
            for path in lake.rglob("*")
            if path.is_file() and "private" not in path.relative_to(lake).parts
        ):
            wrong += [
                f"{path.relative_to(lake)} holds a hash key"
                for key in keys
                if any(key in part for part in _parts(path))
            ]
            if path.suffix == ".parquet" and f"{NAME}.sketch" in path.parts:
                rows = pq.ParquetFile(path).read(["window_end", "trigger"]).to_pylist()
                early = [row for row in rows if row["window_end"] > closed or row["trigger"] < LAST]
                wrong += (
                    [f"{path.relative_to(lake)} has {len(early)} rows of cells of an open window"]
                    if early
                    else []
                )
        return wrong

    def missing(self, lake: Path) -> list[str]:
        """Also the keys of the closed windows: else `wrong` would find nothing in any case."""
        closed = START + timedelta(days=self.catch_ups - 1, hours=12)
        keys = {
            key for day, key in self.hash_keys(lake).items() if day + timedelta(days=1) <= closed
        }
        files = [path for path in (lake / "public" / f"{NAME}.sketch").rglob("*.parquet")]
        shown = keys and all(
            any(key in part for path in files for part in _parts(path)) for key in keys
        )
        return super().missing(lake) + ([] if shown else ["no closed window has its hash key"])


def _parts(path: Path) -> Iterator[bytes]:
    yield path.read_bytes()
    if path.suffix == ".parquet":
        for column in pq.ParquetFile(path).read().columns:
            if pa.types.is_binary(column.type):
                yield from (value for value in column.to_pylist() if value)


if __name__ == "__main__":
    sys.exit(main({"lists": SketchStage}, __doc__, "crash-out-sketches"))
