"""A trigger of 10^8 keys and 10^8 units, bucket by bucket: the workers' own work with their files, and the driver's commits, without Spark.

    python benchmarks/scale.py                                    # 1,024 buckets of each: two hours of CPU, 40 GB of disk; writes the page
    python benchmarks/scale.py --keys 1000000 --buckets 64        # smaller; nothing is written

Three triggers of one window. The first one brings four records of every unit; half of the records are of keys that are equally likely, so that
nearly all keys have some. The second one brings a record of every tenth unit, and is done by one process. The third one is like it, and is done
by two. What brings the records is not counted. What Spark adds (reading, the shuffle, publishing) is that of benchmarks/throughput.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import pyarrow as pa  # noqa: E402
import rich.progress  # noqa: E402

import dpsql  # noqa: E402
from benchmarks.page import PERFORMANCE, write  # noqa: E402
from benchmarks.throughput import machine  # noqa: E402
from benchmarks.workload import PAPER_FLAT, PAPER_KEYS, identifiers  # noqa: E402
from dpsql.lake.contributions import Contributions, sum_by_bucket  # noqa: E402
from dpsql.lake.manifest import Manifest  # noqa: E402
from dpsql.mechanisms.histogram.stages import stages  # noqa: E402
from dpsql.mechanisms.registry import shape  # noqa: E402
from dpsql.sources.config import Source  # noqa: E402
from dpsql.udfs.bucket_state import BucketFiles  # noqa: E402
from dpsql.udfs.columns import Int  # noqa: E402
from dpsql.udfs.keys import encode  # noqa: E402
from dpsql.udfs.stage import ADMISSION, RELEASE, Clock, StateFile  # noqa: E402
from dpsql.udfs.task_files import ReleasedFiles  # noqa: E402
from dpsql.udfs.worker import MicroBatch, WorkerIntake, WorkerRelease  # noqa: E402

MINUTE = 60_000_000
TRIGGER = 15 * MINUTE
RECORDS_AT_FIRST = 4
SHARE_LATER = 0.1
RUN_ID = "5a" * 16


@dataclass(frozen=True)
class Size:
    """How many there are of each: keys, units, and buckets of both."""

    keys: int
    units: int
    buckets: int

    def query(self) -> dpsql.Query:
        """A count per page and day, released every 15 minutes."""
        sql = """
            SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-8, privacy_unit_column = user_id, max_rows_contributed = 32,
              trigger_interval = '15 minutes') page, COUNT(*) AS views
            FROM visits GROUP BY window(ts, '1 day'), page"""
        bounds = {"max_users": self.units, "max_keys": self.keys}
        source = Source("visits", "parquet", event_time="ts", privacy_unit=("user_id",), **bounds)
        return dpsql.compile(sql, {"visits": source})

    def batch(self, bucket: int, number: int) -> pd.DataFrame:
        """The records that one bucket of units has in a micro-batch, as Spark hands them over."""
        chance = np.random.default_rng([7, number, bucket])
        units = self.units // self.buckets
        if number == 0:
            unit = np.repeat(np.arange(units), RECORDS_AT_FIRST)
        else:
            unit = chance.choice(units, round(units * SHARE_LATER), replace=False)
        key = self._keys(chance, len(unit))
        ts = number * TRIGGER + chance.integers(0, TRIGGER, len(unit))
        ids = identifiers(unit * self.buckets + bucket)
        return pd.DataFrame(
            {
                "user": ids - ids % self.buckets + bucket,
                "ts": ts,
                "key": identifiers(key),
                "key_bytes": _encoded(key),
            }
        )

    def _keys(self, chance: np.random.Generator, count: int) -> Int:
        """Half of them equally likely, half as popular as the paper's, whose law is continued to more keys."""
        first = (PAPER_FLAT + 0.5) * self.keys / PAPER_KEYS
        ends = np.array([first, first + self.keys]) ** -0.4
        popular = (ends[0] - chance.random(count) * (ends[0] - ends[1])) ** -2.5 - first
        even = chance.integers(0, self.keys, count)
        return np.where(
            chance.random(count) < 0.5, np.minimum(popular, self.keys - 1), even
        ).astype(np.int64)


def _encoded(keys: Int) -> list[bytes]:
    """Keys as texts of eight bytes, as the columns of a query's GROUP BY are encoded."""
    head = encode([bytes(8)])[:-8]
    heads = np.tile(np.frombuffer(head, np.uint8), (len(keys), 1))
    texts = np.hstack([heads, keys.astype(">u8").view(np.uint8).reshape(-1, 8)])
    return [row.tobytes() for row in texts]


@dataclass(frozen=True)
class Done:
    """A bucket's work: its report, CPU and wall seconds, and the most memory that its process has had, in bytes."""

    file: StateFile
    cpu: float
    wall: float
    memory: int


class Run:
    """A run's two operators, and the tables that the driver keeps. Every process makes its own."""

    def __init__(self, size: Size, folder: Path) -> None:
        query = size.query()
        schedule = shape(query.plan)
        intake, release = stages(query.plan)
        state = partial(BucketFiles, str(folder / "state"))
        self.size = size
        self.contributions = Contributions(
            folder / "contributions", RUN_ID, schedule.schedule, schedule.contributions, 1, size.buckets
        )  # fmt: skip
        self.manifests = {
            name: Manifest(folder / "files" / name, RUN_ID, name, 1)
            for name in (ADMISSION, RELEASE)
        }
        self.intake = WorkerIntake(
            intake,
            state(ADMISSION, size.buckets, 1, tuple(intake.tables)),
            {},
            self.contributions.files,
            size.buckets,
            bytes(32),
        )
        self.release = WorkerRelease(
            release,
            state(RELEASE, size.buckets, 1, tuple(release.tables)),
            {},
            self.contributions.rows_for(release.takes),
            ReleasedFiles(str(folder / "released"), 1),
            bytes(32),
        )

    def admit(self, bucket: int, number: int) -> Done:
        """What a task of query 1 does in a micro-batch."""
        frame = self.size.batch(bucket, number)
        told = str(MicroBatch(number, Clock(number * TRIGGER)))
        return _timed(lambda: self.intake.run(bucket, [frame], number, told))

    def close(self, bucket: int, number: int, plan: str) -> Done:
        """What a task of query 2 does at a trigger."""
        return _timed(lambda: self.release.run(bucket, [], number, plan))


def _timed(work: Callable[[], StateFile]) -> Done:
    cpu = time.process_time()
    wall = time.perf_counter()
    file = work()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Done(file, time.process_time() - cpu, time.perf_counter() - wall, usage.ru_maxrss * 1024)


@dataclass(frozen=True)
class Figures:
    """What one operator did at one trigger. `wall`: of the process that worked longest; `driver`: CPU seconds of the driver."""

    rows: int
    cpu: float
    wall: float
    driver: float
    state: int
    files: int
    memory: int


def trigger(run: Run, folder: Path, number: int, processes: int) -> tuple[Figures, Figures]:
    """A micro-batch of query 1, a tick, and a micro-batch of query 2."""
    admitted, wall = _by_bucket(run, folder, processes, "admit", number)
    began = time.process_time()
    after = run.contributions.version
    files = [done.file for done in admitted]
    new_files = [entry for file in files for entry in file.counted["files"]]
    written = sum_by_bucket(files)
    rows = sum(many for _, many in written)
    run.manifests[ADMISSION].commit(number, files, {"rows": rows, "written": written})
    run.contributions.append(new_files, number, written)
    intake = _figures(admitted, wall, time.process_time() - began, new_files)
    began = time.process_time()
    upto = run.contributions.tick_by_clock(number, (number + 1) * TRIGGER, 0)
    plan = run.contributions.plan(after, upto)
    run.contributions.check(plan)
    driver = time.process_time() - began
    closed, wall = _by_bucket(run, folder, processes, "close", number, str(plan))
    began = time.process_time()
    run.manifests[RELEASE].commit(number, [done.file for done in closed], {})
    released = [
        {"rows": pairs[2], "bytes": 0} for done in closed for pairs in done.file.counted["pairs"]
    ]
    driver += time.process_time() - began
    return intake, _figures(closed, wall, driver, released)


def _figures(
    buckets: Sequence[Done], wall: float, driver: float, files: Iterable[dict[str, int]]
) -> Figures:
    found = list(files)
    return Figures(
        rows=sum(file["rows"] for file in found),
        cpu=sum(done.cpu for done in buckets),
        wall=wall,
        driver=driver,
        state=sum(done.file.bytes for done in buckets),
        files=sum(file["bytes"] for file in found),
        memory=max(done.memory for done in buckets),
    )


def _by_bucket(
    run: Run, folder: Path, processes: int, name: str, number: int, *told: str
) -> tuple[list[Done], float]:
    """All buckets' work, and the wall seconds of the process that worked longest."""
    walls = Counter[int]()
    results = []
    pool = multiprocessing.get_context("spawn").Pool(processes, _begin, (run.size, folder))
    with pool, rich.progress.Progress(transient=True) as bar:
        task = bar.add_task(f"{name}, trigger {number + 1}", total=run.size.buckets)
        work = partial(_work, name=name, number=number, told=told)
        for process, done in pool.imap_unordered(work, range(run.size.buckets)):
            walls[process] += done.wall  # type: ignore[assignment]
            results.append(done)
            bar.advance(task)
    return sorted(results, key=lambda done: done.file.bucket), max(walls.values())


def _begin(size: Size, folder: Path) -> None:
    global own  # noqa: PLW0603
    pa.set_cpu_count(1)
    own = Run(size, folder)


def _work(bucket: int, name: str, number: int, told: tuple[str, ...]) -> tuple[int, Done]:
    return os.getpid(), getattr(own, name)(bucket, number, *told)


def measure(size: Size, folder: Path) -> list[str]:
    """Three triggers; lines of the table."""
    run = Run(size, folder)
    run.contributions.create()
    for manifest in run.manifests.values():
        manifest.create()
    lines = [
        "| trigger | processes | step | rows | CPU-s | the driver's | wall s | state written, GB | other files, GB | peak memory of a process, GB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for number, processes in enumerate((2, 1, 2)):
        for name, figures in zip(
            ("intake", "release"), trigger(run, folder, number, processes), strict=True
        ):
            lines.append(
                f"| {number + 1} | {processes} | {name} | {figures.rows:,} | {figures.cpu:,.1f} | {figures.driver:.1f} | {figures.wall:,.0f} "
                f"| {figures.state / 1e9:.2f} | {figures.files / 1e9:.2f} | {figures.memory / 1e9:.2f} |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
        for path in (folder / "state").glob(f"*/*/*/{number:06d}.*"):
            path.unlink()
        shutil.rmtree(folder / "released", ignore_errors=True)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=100_000_000, help="of units there are as many")
    parser.add_argument("--buckets", type=int, default=1024)
    parser.add_argument("--folder", help="where its files go for the time")
    given = parser.parse_args()
    size = Size(given.keys, given.keys, given.buckets)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        lines = measure(size, Path(folder))
    if given.keys == parser.get_default("keys"):
        write("scale", [f"{machine()}.", "", *lines], PERFORMANCE)
    else:
        print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
