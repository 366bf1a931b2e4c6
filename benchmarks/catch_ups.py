"""Catch-ups one after the other, as a nightly cron makes them: what each costs, and how many files they leave.

    python benchmarks/catch_ups.py [--count 200] [--rows 1000] [--folder DIR]

Each has a file of a day more and closes that day. Prints a table after 20, 50, 100, 200: files of state and of the two private tables (on disk,
and still named by the tables), files of the Delta logs, and seconds per catch-up since the line before.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

import dpsql
from dpsql.config import Source, Sources
from dpsql.lake.runs import Lake, Run
from dpsql.privacy.secret import Secret
from dpsql.streaming.job import run
from dpsql.streaming.live import LiveOptions
from dpsql.streaming.session import session

DAY = 86_400_000_000
START = 19_700 * DAY
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, max_ahead = INTERVAL 1 HOUR)
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 hour'), page
"""
SHOWN = (20, 50, 100, 200, 500, 1000)


def main() -> None:
    """Run them and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp())
    input_folder = folder / "visits"
    input_folder.mkdir(parents=True, exist_ok=True)
    source = Source(
        name="visits", format="parquet", path=str(input_folder), event_time="ts", privacy_unit=("user_id",), max_users=10_000, max_keys=1000
    )
    query, secret, lake = dpsql.compile(SQL, Sources((source,))), Secret(bytes(range(32))), Lake(folder / "lake")
    named = Run("demo", "5a" * 16, query.plan.identity, secret.check(), query.text, {}, "2026-01-01T00:00:00+00:00")
    private = lake.private("demo")
    private.mkdir(parents=True)
    spark = session("local[2]", {})
    print("| catch-ups | state | contributions | ticks | list of files | on disk in all | Delta logs | seconds each |")
    print("|---|---|---|---|---|---|---|---|")
    since, before = time.monotonic(), 0
    for day in range(given.count):
        _write(input_folder / f"{day:05d}.parquet", given.rows, day)
        run(
            spark, query, named, lake, secret, until_caught_up=True, until_us=START + (day + 1) * DAY, buckets=(4, 4),
            live=LiveOptions(retention_us=2 * DAY),
        )  # fmt: skip
        if day + 1 in SHOWN or day + 1 == given.count:
            each = (time.monotonic() - since) / (day + 1 - before)
            since, before = time.monotonic(), day + 1
            print(f"| {day + 1} | {' | '.join(map(str, _files(private)))} | {each:.1f} |", flush=True)
    spark.stop()


def _files(private: Path) -> tuple[int, ...]:
    contributions = DeltaTable(str(private / "contributions")).file_uris()
    ticks = sum("era=-" in uri for uri in contributions)
    listed = len(DeltaTable(str(private / "files")).file_uris())
    data = [path for name in ("state", "contributions", "files") for path in (private / name).rglob("*") if path.is_file()]
    logs = sum("_delta_log" in path.parts for path in data)
    state = sum(1 for path in (private / "state").rglob("*") if path.is_file())
    return state, len(contributions) - ticks, ticks, listed, len(data) - logs, logs


def _write(path: Path, rows: int, day: int) -> None:
    drawn = random.Random(day)
    times = sorted(drawn.randrange(DAY) for _ in range(rows))
    table = {"user_id": [f"u{drawn.randrange(2000)}" for _ in times], "page": [f"p{drawn.randrange(5)}" for _ in times]}
    ts = pa.array([START + day * DAY + at for at in times], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({**table, "ts": ts}), path)


if __name__ == "__main__":
    main()
