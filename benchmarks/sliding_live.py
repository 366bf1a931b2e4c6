"""Sliding windows live: the real job, in a process of its own, on events of 2,000 listed bins that a producer writes while it runs.

    python benchmarks/sliding_live.py --minutes 30 --out sliding-live

One pane a minute, windows of 15 panes, `privacy_level = EVENT`. The stream is declared to begin a window before the start, so that every
minute has a window from the first one on. At the end: did every pane come, how long after its end, at what cost, and is every row what the
local engine recomputes. "Keeps up": no pane took longer than a pane, and the last ones no longer than the first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

CHECKOUT = Path(__file__).resolve().parent.parent
if str(CHECKOUT) not in sys.path:  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from benchmarks.processes import processes  # noqa: E402
from benchmarks.soak import Job, published  # noqa: E402

W = 15
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 0.1, delta = 0, privacy_level = EVENT,
           public_groups = (SELECT channel FROM channels))
  channel, COUNT(*) AS edits
FROM wiki
GROUP BY window(ts, '{size} seconds', '{slide} seconds'), channel
"""
SOURCES = """
sources:
  wiki:
    format: parquet
    path: visits
    schema: channel STRING, ts TIMESTAMP
    event_time: ts
    start: {start}
  channels: {{format: parquet, path: channels, static: true}}
"""


@dataclass(eq=False)
class Producer(threading.Thread):
    """Writes a file of events every few seconds; bins are chosen with Zipf weights, a few rows are of no listed bin, a few come too late."""

    folder: Path
    bins: int
    rows_per_second: int
    every: float = 2.0
    rows: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.folder.mkdir(parents=True)
        self._random, self._file = np.random.default_rng(7), 0
        weights = 1.0 / (np.arange(self.bins + 20) + 5.0)
        self._weights = weights / weights.sum()

    def run(self) -> None:
        while not self.stop.wait(self.every):
            size = round(self.rows_per_second * self.every)
            bins = self._random.choice(len(self._weights), size, p=self._weights)
            late = np.where(self._random.random(size) < 0.02, self._random.uniform(0, 90, size), self._random.uniform(0, self.every, size))
            when = pa.array(((time.time() - late) * 1e6).astype(np.int64)).cast(pa.timestamp("us", "UTC"))
            temporary = self.folder / f".{self._file:06d}"
            pq.write_table(pa.table({"channel": [name(each) for each in bins.tolist()], "ts": when}), temporary)
            temporary.rename(self.folder / f"{self._file:06d}.parquet")
            self._file, self.rows = self._file + 1, self.rows + size


def name(number: int) -> str:
    return f"channel {number:05d}"


class SlidingJob(Job):
    """The job of the soak with another query."""

    def __init__(self, out: Path, bins: int, slide: int, interval: int) -> None:
        super().__init__(out, interval=interval)
        begin = (int(time.time()) // slide - W) * slide
        (out / "soak.sql").write_text(SQL.format(size=W * slide, slide=slide))
        (out / "sources.yaml").write_text(SOURCES.format(start=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begin))))
        (out / "channels").mkdir()
        pq.write_table(pa.table({"channel": [name(each) for each in range(bins)]}), out / "channels" / "channels.parquet")


def cpu(sample: dict[str, Any]) -> float:
    """Seconds of all processes of the job."""
    return float(sum(sample[kind][1] for kind in ("jvm", "driver", "workers") if kind in sample))


def report(job: SlidingJob, samples: list[dict[str, Any]], rows: int, bins: int, slide: int, code: int) -> tuple[str, bool]:
    """What was measured, and whether the job kept up."""
    times = published(job.out)
    # The first minute has the start and the panes before it.
    steady = [t for t in sorted(times) if t > job.started + 60]
    if not steady:
        return f"nothing was published; exit code {code}", False
    lag = [times[t] - t for t in steady]
    absent = [t for t in range(steady[0], steady[-1] + 1, slide) if t not in times]
    histogram = pq.read_table(job.out / "lake/public/soak", columns=["channel", "trigger_time"])
    newest = histogram.filter(pc.equal(histogram["trigger_time"].cast("int64"), steady[-1] * 1_000_000))
    began = next((s for s in samples if s["time"] > job.started + 60), samples[0])
    seconds = samples[-1]["time"] - began["time"]
    said = job.verify()
    third = max(1, len(lag) // 3)
    first, last = statistics.median(lag[:third]), statistics.median(lag[-third:])
    kept_up = not absent and max(lag) < slide and last < first + 0.1 * slide and newest.num_rows == bins
    lines = [
        ("duration", f"{(samples[-1]['time'] - job.started) / 60:.1f} minutes, panes of {slide} s, {bins:,} bins"),
        ("events written", f"{rows:,}"),
        (
            "panes",
            f"{len(steady)} after the first minute, {len(absent)} missing; {histogram.num_rows:,} rows, {newest.num_rows:,} in the last",
        ),
        ("lag of a pane", f"median {statistics.median(lag):.1f} s, largest {max(lag):.1f} s; first third {first:.1f} s, last {last:.1f} s"),
        ("CPU", f"{(cpu(samples[-1]) - cpu(began)) / seconds:.2f} cores, {(cpu(samples[-1]) - cpu(began)) / seconds * slide:.1f} s a pane"),
        ("RSS", ", ".join(f"{kind} {samples[-1][kind][0] // 1024:,} MB" for kind in ("jvm", "driver", "workers") if kind in samples[-1])),
        ("load of the machine", f"median {statistics.median(s['load'] for s in samples):.1f} on {os.cpu_count()} cores"),
        ("keeps up", "yes" if kept_up else "no"),
        ("exit code of SIGTERM", str(code)),
        ("verify", said),
    ]
    return "\n".join(f"| {head} | {value} |" for head, value in lines), kept_up and code == 0 and said.startswith("identical")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--bins", type=int, default=2_000)
    parser.add_argument("--slide", type=int, default=60, help="seconds of a pane")
    parser.add_argument("--rows", type=int, default=500, help="events a second")
    parser.add_argument("--interval", type=int, default=6, help="seconds between looks for input")
    parser.add_argument("--out", type=Path, default=Path("sliding-live-out"), help="made anew")
    given = parser.parse_args()
    out = given.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    job, samples = SlidingJob(out, given.bins, given.slide, given.interval), list[dict[str, Any]]()
    producer = Producer(out / "visits", given.bins, given.rows)
    producer.start()
    job.start()
    try:
        while time.time() < job.started + given.minutes * 60 and job.process.poll() is None:
            samples.append({"time": time.time(), "load": os.getloadavg()[0], **processes(job.process.pid)})
            time.sleep(5)
    finally:
        producer.stop.set()
        code = job.terminate()
    (out / "samples.json").write_text(json.dumps(samples))
    text, good = report(job, samples, producer.rows, given.bins, given.slide, code)
    (out / "summary.md").write_text(text + "\n")
    print(text if good else f"{text}\n{job.log.read_text()[-2000:]}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
