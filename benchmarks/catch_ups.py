"""Catch-ups one after the other, as a nightly cron makes them: what each costs, and how many files they leave.

    python benchmarks/catch_ups.py [--count 200] [--rows 1000] [--buckets 4] [--fresh] [--folder DIR]

Each has a file of a day more and closes that day. Prints a table after 20, 50, 100, 200: all files of the run on the disk, by what they are for,
and seconds per catch-up since the line before. What is kept for a week or an hour by the clock (replaced files, the public log) is not kept
here: a day takes seconds.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import dpsql
from dpsql.lake import compaction, retention
from dpsql.lake.opening import run_of
from dpsql.lake.runs import Lake
from dpsql.privacy.secret import Secret
from dpsql.sources.config import Source, Sources
from dpsql.streaming.job import run
from dpsql.streaming.live import LiveOptions
from dpsql.streaming.session import RUN, session

DAY = 86_400_000_000
START = 19_700 * DAY
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4)
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 hour'), page
"""
KINDS = (
    "state", "contributions", "ticks", "list of files", "logs of private tables", "Spark's progress", "Spark's sources", "Spark's state",
    "small files", "histogram", "logs of the histogram",
)  # fmt: skip
SHOWN = (20, 50, 100, 200, 500, 1000)


def main() -> None:
    """Run them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--buckets", type=int, default=4)
    parser.add_argument(
        "--fresh", action="store_true", help="each in a process of its own, as cron starts them"
    )
    parser.add_argument("--day", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp())
    if given.day is not None:
        catch_up(folder, given.day, given.rows, given.buckets)
        return
    print(f"| catch-ups | {' | '.join(KINDS)} | in all | seconds each |")
    print("|---" * (len(KINDS) + 3) + "|")
    since = time.monotonic()
    before = 0
    for day in range(given.count):
        if given.fresh:
            subprocess.run(
                [
                    sys.executable,
                    __file__,
                    "--folder",
                    folder,
                    "--rows",
                    str(given.rows),
                    "--buckets",
                    str(given.buckets),
                    "--day",
                    str(day),
                ],
                check=True,
            )
        else:
            catch_up(folder, day, given.rows, given.buckets)
        if day + 1 in SHOWN or day + 1 == given.count:
            each = (time.monotonic() - since) / (day + 1 - before)
            since = time.monotonic()
            before = day + 1
            found = files(folder / "lake/private/demo", folder / "lake/public/demo")
            counts = [found[kind] for kind in KINDS]
            print(
                f"| {day + 1} | {' | '.join(map(str, counts))} | {sum(counts)} | {each:.1f} |",
                flush=True,
            )


def catch_up(folder: Path, day: int, rows: int, buckets: int) -> None:
    """One night: a file more, and its day closed."""
    (folder / "visits").mkdir(parents=True, exist_ok=True)
    write(folder / f"visits/{day:05d}.parquet", rows, day)
    source = Source(
        name="visits", format="parquet", path=str(folder / "visits"), event_time="ts", privacy_unit=("user_id",), max_users=10_000, max_keys=1000
    )  # fmt: skip
    query = dpsql.compile(SQL, Sources((source,)))
    secret = Secret(bytes(range(32)))
    lake = Lake(folder / "lake")
    named = run_of("demo", "5a" * 16, query, secret, "")
    Path(lake.private("demo")).mkdir(parents=True, exist_ok=True)
    # A week and an hour are kept of some things. Here a day takes seconds.
    retention.VACUUM_HOURS = 0
    compaction.KEPT_HOURS = 0
    RUN["spark.sql.streaming.fileSource.log.cleanupDelay"] = "1s"
    run(
        session("local[2]", {}), query, named, lake, secret, until_caught_up=True, until_us=START + (day + 1) * DAY, buckets=(buckets, buckets),
        live=LiveOptions(retention_us=2 * DAY),
    )  # fmt: skip


def files(private: Path, histogram: Path) -> Counter[str]:
    """How many files a run has on the disk, of each of `KINDS`."""
    found = Counter[str]()
    for root in (private, histogram):
        for path in root.rglob("*"):
            if path.is_file():
                found[_kind(path.relative_to(root.parent).parts[1:], root == histogram)] += 1
    return found


def _kind(parts: tuple[str, ...], public: bool) -> str:
    if "_delta_log" in parts:
        return "logs of the histogram" if public else "logs of private tables"
    if public:
        return "histogram"
    if parts[0] == "contributions":
        return "ticks" if parts[1].startswith("era=-") else "contributions"
    if parts[0] == "checkpoints":
        return f"Spark's {parts[2]}" if parts[2] in ("state", "sources") else "Spark's progress"
    return {"state": "state", "files": "list of files"}.get(parts[0], "small files")


def write(path: Path, rows: int, day: int) -> None:
    drawn = random.Random(day)
    times = sorted(drawn.randrange(DAY) for _ in range(rows))
    table = {
        "user_id": [f"u{drawn.randrange(2000)}" for _ in times],
        "page": [f"p{drawn.randrange(5)}" for _ in times],
    }
    ts = pa.array([START + day * DAY + at for at in times], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({**table, "ts": ts}), path)


if __name__ == "__main__":
    main()
