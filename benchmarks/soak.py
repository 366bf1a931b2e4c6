"""The soak: the real live job, in a process of its own, on a stream that a generator writes while it runs.

    python benchmarks/soak.py --minutes 32 --out soak

The stream has skewed keys, users that send far more than others, records up to a minute late, records a day ahead, and minutes without any.
At the end it prints what a person on call wants to know: did triggers keep to the grid, in silence too; is memory flat; did old state and
contributions go; is every published row what the local engine recomputes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from benchmarks.processes import ProcessTree  # noqa: E402

TRIGGER = 10
WINDOW = 20
HORIZON = 8
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = '{trigger} seconds',
    allowed_lateness = '{lateness} seconds')
  page, COUNT(*) AS views, COUNT(DISTINCT user_id) AS visitors, SUM(seconds, contribution_bounds_per_row => (0, 60)) AS time_spent
FROM visits GROUP BY window(ts, '{window} seconds'), page
"""
SOURCES = """
sources:
  visits:
    format: json
    path: visits
    schema: user_id STRING, ts TIMESTAMP, page STRING, seconds DOUBLE
    event_time: ts
    privacy_unit: user_id
    max_users: 10000
    max_keys: 10000
"""


@dataclass(eq=False)
class Generator(threading.Thread):
    """Writes one file of records a second; silent in the last third of every third minute."""

    folder: Path
    rows_per_second: int
    silence: tuple[int, int]
    rows: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._random = random.Random(7)
        self._file = 0

    def run(self) -> None:
        while not self.stop.wait(1):
            period, silent = self.silence
            if time.time() % period >= period - silent:
                continue
            lines = [json.dumps(self._record()) for _ in range(self.rows_per_second)]
            temporary = self.folder / f".{self._file:06d}"
            temporary.write_text("\n".join(lines))
            temporary.rename(self.folder / f"{self._file:06d}.json")
            self._file = self._file + 1
            self.rows = self.rows + len(lines)

    def _record(self) -> dict[str, Any]:
        chance = self._random
        user = (
            f"heavy{chance.randrange(5)}" if chance.random() < 0.2 else f"u{chance.randrange(3000)}"
        )
        kind = chance.random()
        late = (
            chance.uniform(0, 60)
            if kind < 0.05
            else -86_400
            if kind < 0.06
            else chance.uniform(0, 1)
        )
        when = datetime.fromtimestamp(time.time() - late, UTC).isoformat(timespec="microseconds")
        page = f"p{min(int(chance.paretovariate(0.7)), 300)}"
        return {
            "user_id": user,
            "ts": when,
            "page": page,
            "seconds": round(chance.uniform(0, 90), 2),
        }


class Job:
    """`dpsql run` in a process group of its own; its query, sources, secret and lake are below `out`."""

    def __init__(
        self,
        out: Path,
        trigger: int = TRIGGER,
        window: int = WINDOW,
        horizon: int = HORIZON,
        interval: int = 5,
    ) -> None:
        self.out = out
        self.log = out / "job.log"
        self.interval = interval
        self.flags = ["--sources", str(out / "sources.yaml"), "--secret-file", str(out / "secret")]
        self.started: float = 0.0
        (out / "soak.sql").write_text(
            SQL.format(trigger=trigger, window=window, lateness=horizon * trigger - window)
        )
        (out / "sources.yaml").write_text(SOURCES)
        (out / "spark.conf").write_text("spark.driver.memory 1g\n")

    def start(self) -> None:
        command = [
            "run",
            str(self.out / "soak.sql"),
            "--lake",
            str(self.out / "lake"),
            "--master",
            "local[2]",
            "--buckets",
            "4",
        ]
        command += [
            "--properties-file",
            str(self.out / "spark.conf"),
            "--interval",
            f"{self.interval} seconds",
            "--retention",
            "1 minute",
            *self.flags,
        ]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self._python(command),
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )
        self.started = time.time()

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def verify(self) -> str:
        return self.command("verify", "soak", *self.flags)

    def command(self, *command: str) -> str:
        """What another command says of the lake."""
        given = self._python([*command, "--lake", str(self.out / "lake")])
        done = subprocess.run(
            given, capture_output=True, text=True, env=self._environment(), check=False
        )
        return (done.stdout or done.stderr).strip()

    def _python(self, command: list[str]) -> list[str]:
        return [sys.executable, "-m", "dpsql.jobs.cli", *command]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(CHECKOUT)}


def lake_sizes(out: Path) -> dict[str, int]:
    """State files, and contribution files that are rows (of eras), on disk."""
    private = out / "lake/private/soak"
    state = [path for path in (private / "state").rglob("*.parquet")]
    eras = {path.parent.name for path in (private / "contributions").glob("era=*/*.parquet")} - {
        f"era={-(1 << 62)}"
    }
    return {
        "state_files": len(state),
        "state_kb": sum(p.stat().st_size for p in state if p.exists()) // 1024,
        "eras": len(eras),
    }


def published(out: Path) -> dict[int, float]:
    """Grid point -> when the commit that published it was written, from the histogram's log."""
    import pyarrow.parquet as pq

    table = out / "lake/public/soak"
    found = {}
    for log in sorted((table / "_delta_log").glob("*.json")):
        written = log.stat().st_mtime
        for line in log.read_text().splitlines():
            if "add" in (action := json.loads(line)):
                rows = pq.read_table(
                    table / action["add"]["path"], columns=["trigger_time"], partitioning=None
                )
                for time_us in set(rows["trigger_time"].cast("int64").to_pylist()):
                    found.setdefault(time_us // 1_000_000, written)
    return found


def report(
    job: Job,
    samples: list[dict[str, Any]],
    generator: Generator,
    starts: list[tuple[float, float]],
    codes: list[int],
) -> str:
    from deltalake import DeltaTable

    from dpsql.lake.delta_rows import read_rows

    out = job.out
    times = published(job.out)
    if not times:
        return f"nothing was published; exit codes {codes}"
    first = min(times)
    last = max(times)
    steady = [t for t in times if any(begin + 60 < t < end for begin, end in starts)]
    delays = sorted(times[t] - t for t in steady)
    period, silent = generator.silence
    # The last window before the silence has triggers in it, and its keys are to be refreshed there.
    quiet = [t for t in steady if t % period >= period - silent + TRIGGER or t % period == 0]
    due = [
        t
        for t in range(first, last + 1, TRIGGER)
        if any(begin + 60 < t < end for begin, end in starts)
    ]
    due = [t for t in due if t % period >= period - silent + TRIGGER or t % period == 0]
    table = out / "lake/public/soak"
    pairs = read_rows(table, ["window_start", "trigger", "page"])
    doubled = (
        pairs.num_rows - pairs.group_by(["window_start", "trigger", "page"]).aggregate([]).num_rows
    )
    lines = [
        ("duration", f"{(samples[-1]['time'] - samples[0]['time']) / 60:.1f} minutes"),
        ("records written", f"{generator.rows:,}"),
        (
            "triggers published",
            f"{len(times):,} grid points of {(last - first) // TRIGGER + 1:,}; {DeltaTable(table).version():,} commits",
        ),
        ("rows published", f"{pairs.num_rows:,}, of these twice: {doubled}"),
        (
            "delay of a trigger",
            f"median {statistics.median(delays):.1f} s, 99% {delays[int(0.99 * len(delays))]:.1f} s, "
            f"largest {delays[-1]:.1f} s (without the first minute after a start)",
        ),
        ("silent grid points", f"{len(quiet)} of {len(due)} released"),
        (
            "load of the machine",
            f"median {statistics.median(s['load'] for s in samples):.1f} on {os.cpu_count()} cores",
        ),
        ("exit codes of SIGTERM", ", ".join(map(str, codes))),
    ]
    thirds = [samples[len(samples) // 8], samples[len(samples) // 2], samples[-1]]
    for kind in ("jvm", "driver", "workers"):
        lines.append(
            (
                f"RSS of {kind}",
                ", ".join(f"{s[kind][0] // 1024:,} MB" for s in thirds if kind in s)
                + " (start, middle, end)",
            )
        )
    for name in ("state_files", "state_kb", "eras"):
        lines.append(
            (
                name.replace("_", " "),
                ", ".join(f"{s[name]:,}" for s in thirds)
                + f"; most {max(s[name] for s in samples):,}",
            )
        )
    idle = [
        (a, b)
        for a, b in itertools.pairwise(samples)
        if a["silent"] and b["silent"] and "jvm" in a and "jvm" in b
    ]
    seconds = sum(b["time"] - a["time"] for a, b in idle)
    if seconds:
        cpu = sum(
            b[kind][1] - a[kind][1]
            for a, b in idle
            for kind in ("jvm", "driver", "workers")
            if kind in a and kind in b
        )
        lines.append(
            (
                "CPU in silence",
                f"{cpu / seconds:.2f} cores; {cpu / seconds * TRIGGER:.2f} CPU-seconds per silent trigger",
            )
        )
    lines.append(("verify", job.verify()))
    return "\n".join(f"| {name} | {value} |" for name, value in lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=32)
    parser.add_argument("--rows", type=int, default=1000, help="records a second")
    parser.add_argument(
        "--restarts",
        type=int,
        default=1,
        help="how often the job is ended by SIGTERM and started again",
    )
    parser.add_argument("--out", type=Path, default=Path("soak-out"))
    given = parser.parse_args()
    out = given.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    generator = Generator(out / "visits", given.rows, (180, 60) if given.minutes > 5 else (40, 15))
    job = Job(out)
    samples = []
    starts = []
    codes = []
    generator.start()
    begun = time.time()
    for turn in range(given.restarts + 1):
        job.start()
        tree = ProcessTree(job.process.pid)
        end = begun + given.minutes * 60 * (turn + 1) / (given.restarts + 1)
        while time.time() < end:
            if job.process.poll() is not None:
                print(job.log.read_text()[-3000:], file=sys.stderr)
                return 1
            period, silent = generator.silence
            quiet = time.time() % period >= period - silent + TRIGGER
            samples.append(
                {
                    "time": time.time(),
                    "load": os.getloadavg()[0],
                    "silent": quiet,
                    **tree.sample(),
                    **lake_sizes(out),
                }
            )
            time.sleep(min(5, max(0.1, end - time.time())))
        if turn == given.restarts:
            generator.stop.set()
            time.sleep(WINDOW + HORIZON * TRIGGER)
        codes.append(job.terminate())
        starts.append((job.started, time.time()))
    (out / "samples.json").write_text(json.dumps(samples))
    text = report(job, samples, generator, starts, codes)
    (out / "summary.md").write_text(text + "\n")
    print(text)
    return 0 if codes == [0] * len(codes) and "identical: all" in text and "twice: 0" in text else 1


if __name__ == "__main__":
    sys.exit(main())
