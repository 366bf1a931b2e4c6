"""Kill runs of sketches at every point of a catch-up and at random, and compare what they leave with an uninterrupted run.

    python -m tests.crash.sketches [--kills 12] [--seed 1] [--only "release: "]

Unknown values of units: after every kill, nothing outside the private folder may hold the hash key or a cell of a window that is open.
"""

import argparse
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.privacy.secret import Secret
from dpsql.udfs.noise.randomness import intake_key
from dpsql.udfs.sketch.hashing import hash_key
from dpsql.udfs.sketch.intake import UserIntake
from dpsql.udfs.sketch.publishing import SketchRelease
from tests.crash.kill import BUCKETS, NAME, START, Stage, at_random, broken, differences, left, whole_run
from tests.crash.points import SKETCH_POINTS
from tests.crash.sliding import verified

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
    sources: ClassVar[str] = Stage.sources.replace("    privacy_unit:", "    start: 2100-01-01\n    privacy_unit:")
    tables: ClassVar[Mapping[str, Sequence[str]]] = {"admission": tuple(UserIntake.tables), "release": tuple(SketchRelease.tables)}
    cell: ClassVar[tuple[str, ...]] = ("window_start", "trigger")

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


def exposed(stage: SketchStage, lake: Path, closed: datetime) -> list[str]:
    """What is outside the private folder of windows that are open: raw bytes of any file, and every binary value of Parquet files."""
    keys = {key for day, key in stage.hash_keys(lake).items() if day + timedelta(days=1) > closed}
    wrong = []
    for path in sorted(path for path in lake.rglob("*") if path.is_file() and "private" not in path.relative_to(lake).parts):
        wrong += [f"{path.relative_to(lake)} holds a hash key" for key in keys if any(key in part for part in _parts(path))]
        if path.suffix == ".parquet" and f"{NAME}.sketch" in path.parts:
            rows = pq.ParquetFile(path).read(["window_end", "trigger"]).to_pylist()
            early = [row for row in rows if row["window_end"] > closed or row["trigger"] < LAST]
            wrong += [f"{path.relative_to(lake)} has {len(early)} rows of cells of an open window"] if early else []
    return wrong


def _parts(path: Path) -> Iterator[bytes]:
    yield path.read_bytes()
    if path.suffix == ".parquet":
        for column in pq.ParquetFile(path).read().columns:
            if pa.types.is_binary(column.type):
                yield from (value for value in column.to_pylist() if value)


def shows_keys(stage: SketchStage, lake: Path, closed: datetime) -> bool:
    """Whether the keys of the closed windows are there: else `exposed` would find nothing in any case."""
    keys = {key for day, key in stage.hash_keys(lake).items() if day + timedelta(days=1) <= closed}
    files = [path for path in (lake / "public" / f"{NAME}.sketch").rglob("*.parquet")]
    return all(any(key in part for path in files for part in _parts(path)) for key in keys)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("crash-out-sketches"), help="made anew; everything is below it")
    parser.add_argument("--catch-ups", type=int, default=2)
    parser.add_argument("--kills", type=int, default=12, help="at random, in a third lake")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="points whose name begins so")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    stage = SketchStage(given.folder.resolve(), given.catch_ups)
    stage.prepare()
    kills, lake = Counter[str](), stage.lake("killed")
    for number in range(stage.catch_ups):
        stage.bring(number)
        for turn, name in enumerate(name for name in SKETCH_POINTS if name.startswith(given.only)):
            code = stage.start(stage.command(lake, number), name, bucket=(number + turn) % BUCKETS)
            wrong = broken(lake, tables=stage.tables, cell=stage.cell) + exposed(stage, lake, START + timedelta(days=number, hours=12))
            wrong += [] if code == -9 else [f"ended with {code}, not killed"]
            print(f"catch-up {number + 1}, {name}: {'; '.join(wrong) or 'lake in order'}", flush=True)
            if wrong:
                return 1
            kills[name] += code == -9
        if (code := stage.start(stage.command(lake, number))) != 0:
            print(f"the last start of catch-up {number + 1} ended with {code}; see {stage.folder / 'log'}")
            return 1
    shuffled = stage.lake("random")
    at_random(stage, shuffled, given.kills, random.Random(given.seed), kills)
    shutil.rmtree(stage.arrivals)
    stage.arrivals.mkdir()
    whole = whole_run(stage)
    closed = START + timedelta(days=stage.catch_ups - 1, hours=12)
    wrong = differences(left(whole), left(lake)) + differences(left(whole), left(shuffled)) + exposed(stage, lake, closed)
    wrong += [] if shows_keys(stage, lake, closed) and left(whole)["cells"] else ["no closed window has its hash key"]
    said = verified(stage, lake)
    print("\n| point | kills |\n|---|---|")
    for name, count in kills.items():
        print(f"| {name} | {count} |")
    print(f"\n{sum(kills.values())} kills; {len(left(whole)['histogram'])} lists; wrong: {', '.join(wrong) or 'nothing'}; {said}")
    return int(bool(wrong) or not said.startswith("identical"))


if __name__ == "__main__":
    sys.exit(main())
