"""How long `dpsql status --max-lag` takes, the start of Python included: of a run that is at work, one that was stopped, and a damaged one.

    python benchmarks/watchdog.py [--files 100000] [--times 9]

A run that has become large: so many files in each of its private tables. Prints the exit code, and seconds and CPU-seconds of a call (median, largest).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
if str(CHECKOUT) not in sys.path:  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import pyarrow as pa  # noqa: E402
from deltalake import Schema  # noqa: E402

from benchmarks.throughput import machine  # noqa: E402
from dpsql.lake import delta_tables  # noqa: E402
from dpsql.lake.event_log import EventLog  # noqa: E402
from dpsql.lake.marks import closed_mark  # noqa: E402
from dpsql.lake.running import exclusive  # noqa: E402
from dpsql.lake.runs import Lake, Run  # noqa: E402
from dpsql.times import now_us  # noqa: E402

NAME, RUN, HOUR = "views", "5a" * 16, 3_600_000_000
EXPECTED = {"running": 0, "stopped": 0, "damaged": 5}


def main() -> int:
    """Make the run, then ask; 1 if a call took a second or ended with another exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=9)
    given = parser.parse_args()
    print(f"{machine()}; {given.files:,} files in each private table")
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        make(lake, given.files)
        return max([ask(lake, state, given.times) for state in EXPECTED])


def make(lake: Lake, files: int) -> None:
    """A live run that has just released."""
    private = lake.private(NAME)
    Path(private).mkdir(parents=True)
    plan = {"query": {"window": {"offset_us": 0}, "trigger_interval_us": HOUR}}
    run = Run(NAME, RUN, "identity", "check", "SELECT", plan, "2026-01-01", "histogram", (0, HOUR), {})
    small = {"run": {"version": 1, **asdict(run)}, "engine": {"version": 3, "queries": {"admission": "x"}}, "live": {"version": 1}}
    for name, content in small.items():
        (private / f"{name}.json").write_text(json.dumps(content))
    for path, many in ((private / "contributions", files), (private / "files", files), (lake.histogram(NAME), 40)):
        delta_tables.create(path, Schema.from_arrow(pa.schema([("x", pa.int64())])))
        named = [{"path": f"part-{number:05d}-{'0' * 64}.parquet", "bytes": 1, "rows": 1, "partition": {}} for number in range(many)]
        delta_tables.append_files(path, named, {closed_mark(RUN): now_us()})
        delta_tables.checkpoint(path)
    EventLog(private, RUN, NAME).tell("release", triggers=1, rows=1, closed_us=now_us())


def ask(lake: Lake, state: str, times: int) -> int:
    """Ask so often, and print what it took; 1 if that is not as it should be."""
    seconds, cpu, codes = list[float](), list[float](), set[int]()
    with ExitStack() as held:
        if state == "running":
            held.enter_context(exclusive(lake.private(NAME)))
        if state == "damaged":
            (lake.private(NAME) / "engine.json").write_text("{")
        for _ in range(times):
            began, before = time.monotonic(), os.times()
            command = [sys.executable, "-m", "dpsql.jobs.cli", "status", NAME, "--lake", str(lake.root), "--max-lag", "3 hours"]
            done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
            after = os.times()
            seconds.append(time.monotonic() - began)
            cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
            codes.add(done.returncode)
            assert state in done.stdout, done.stdout + done.stderr
    print(
        f"{state}: exit code {', '.join(map(str, codes))}; {statistics.median(seconds):.2f} s, at most {max(seconds):.2f}; "
        f"{statistics.median(cpu):.2f} CPU-s"
    )
    return int(max(seconds) >= 1 or codes != {EXPECTED[state]})


if __name__ == "__main__":
    sys.exit(main())
