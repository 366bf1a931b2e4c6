"""How the cost of a trigger grows: the two steps with their state files, on one core, without Spark.

    python benchmarks/growth.py                # every sweep (a few minutes), then the table and the figure in docs/performance.md
    python benchmarks/growth.py --only rows    # one of them; nothing is written

One parameter is varied around 100,000 keys, 500,000 users, 500,000 rows, T = 100 and one open window. A trigger is everything that a worker does
for it: load the state, admit, store; load, release, store. What it costs per trigger is fitted as a + b x.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

import dpsql  # noqa: E402
from benchmarks.charts import Line, Panel, draw  # noqa: E402
from benchmarks.page import FIGURES, PERFORMANCE, write  # noqa: E402
from benchmarks.throughput import machine  # noqa: E402
from benchmarks.workload import PAPER_FLAT, PAPER_KEYS, records, zipf_mandelbrot  # noqa: E402
from dpsql.local.feeder import split  # noqa: E402
from dpsql.mechanisms.histogram.stages import stages  # noqa: E402
from dpsql.sources.config import Source  # noqa: E402
from dpsql.udfs.bucket_state import BucketFiles  # noqa: E402
from dpsql.udfs.stage import Clock, Stage, Tick, run_bucket  # noqa: E402

SECOND = 1_000_000
NOISE_KEY = b"growth" * 5 + b"!!"
BUCKETS = 4
WARM = 3
MEASURED = 3


@dataclass(frozen=True)
class Load:
    """One point of a sweep; windows: how many are open at once."""

    keys: int = 100_000
    users: int = 500_000
    rows: int = 500_000
    triggers: int = 100
    windows: int = 1

    def query(self) -> dpsql.Query:
        """A count per page; every trigger is a second long. Several windows are open because records may be late."""
        window = self.triggers // self.windows
        sql = f"""
            SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32,
              trigger_interval = '1 second', allowed_lateness = '{self.triggers - window} seconds') page, COUNT(*) AS views
            FROM visits GROUP BY window(ts, '{window} seconds'), page"""
        bounds = {"max_users": self.users, "max_keys": self.keys}
        return dpsql.compile(
            sql,
            {
                "visits": Source(
                    "visits", "parquet", event_time="ts", privacy_unit=("user_id",), **bounds
                )
            },
        )

    def batch(self, number: int) -> pa.Table:
        """The records of one trigger, spread over the open windows."""
        generator = np.random.default_rng([7, number])
        popularity = zipf_mandelbrot(
            self.keys, (PAPER_FLAT + 0.5) * self.keys / PAPER_KEYS - 0.5, 1.4
        )
        window = self.triggers // self.windows
        ts = (self.triggers + number) * SECOND + generator.integers(0, SECOND, self.rows)
        ts -= generator.integers(0, self.windows, self.rows) * window * SECOND
        key = np.searchsorted(popularity, generator.random(self.rows))
        return records(generator.integers(0, self.users, self.rows), key, ts)


SWEEPS: dict[str, list[Load]] = {
    "keys": [Load(keys=n) for n in (10_000, 100_000, 1_000_000)],
    "users": [Load(users=n) for n in (50_000, 500_000, 5_000_000)],
    "rows": [Load(rows=n) for n in (200_000, 500_000, 1_000_000, 2_000_000)],
    "triggers": [Load(triggers=n) for n in (10, 100, 1000)],
    "windows": [Load(windows=n) for n in (1, 4, 20)],
}
SECONDS = "CPU seconds per trigger"
LABELS = {
    "keys": "keys",
    "users": "users",
    "rows": "rows per micro-batch",
    "triggers": "triggers per window (T)",
    "windows": "open windows",
}


@dataclass
class Steps:
    """Both stages of one load with their state in files."""

    load: Load
    folder: Path

    def __post_init__(self) -> None:
        self.stages = stages(self.load.query().plan)
        self.files = tuple(
            BucketFiles(str(self.folder), stage.operator, BUCKETS, 1, tuple(stage.tables))
            for stage in self.stages
        )
        self.versions: Counter[tuple[int, int]] = Counter()
        self.bytes = 0

    def trigger(self, number: int, rows: pa.Table) -> None:
        """One micro-batch and the tick after it."""
        self.bytes = 0
        start = self.load.triggers + number
        contributions = self._run(0, rows, "user", Clock(start * SECOND))
        given = contributions.append_column(
            "batch", pa.array(np.full(contributions.num_rows, number))
        )
        self._run(1, given, "key", [Tick(number, (start + 1) * SECOND)])

    def _run(self, which: int, rows: pa.Table, by: str, timing: Any) -> pa.Table:
        """Run a stage over all buckets; returns the rows that go on."""
        stage: Stage[Any] = self.stages[which]
        parts = [stage.gives.empty_table()]
        for bucket, mine in split(rows.select(stage.takes.names), by, BUCKETS):
            version = self.versions[which, bucket]
            file, part = run_bucket(
                stage, self.files[which], bucket, version, mine, timing, NOISE_KEY
            )
            self.versions[which, bucket] = file.sequence
            self.bytes += file.bytes
            parts.append(part)
        return pa.concat_tables(parts)

    def user_rows(self) -> int:
        """Return how many rows the state of units has."""
        state = (self.files[0].load(b, self.versions[0, b]) for b in range(BUCKETS))
        return sum(tables["users"].num_rows for tables in state)


def cost(load: Load) -> tuple[float, float]:
    """(CPU seconds, megabytes of state written) per trigger: medians."""
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(load, Path(folder))
        spent = []
        written = []
        for number in range(WARM + MEASURED):
            rows = load.batch(number)
            begun = time.process_time()
            steps.trigger(number, rows)
            spent.append(time.process_time() - begun)
            written.append(steps.bytes / 1e6)
    return statistics.median(spent[WARM:]), statistics.median(written[WARM:])


def steady(load: Load) -> tuple[list[str], Panel]:
    """Every trigger of a whole window: does its cost decay or grow?"""
    spent = []
    written = []
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(load, Path(folder))
        for number in range(load.triggers):
            rows = load.batch(number)
            begun = time.process_time()
            steps.trigger(number, rows)
            spent.append(time.process_time() - begun)
            written.append(steps.bytes / 1e6)
    lines = ["| around trigger | CPU-s per trigger | state written |", "|---|---|---|"]
    for n in sorted({max(1, round(share * load.triggers)) for share in (0.1, 0.3, 0.5, 0.95)}):
        seconds = statistics.median(spent[max(0, n - 6) : n + 5])
        lines.append(f"| {n} | {seconds:.2f} | {written[n - 1]:.1f} MB |")
    lines.append(f"| all | {sum(spent):.1f} | |")
    return lines, Panel(
        "Over a window", "trigger", SECONDS, [Line("measured", range(1, len(spent) + 1), spent)]
    )


def sweep(name: str) -> Iterator[tuple[int, float, float]]:
    """(value, CPU seconds, MB) of every point."""
    for load in SWEEPS[name]:
        value = getattr(load, name)
        found = cost(replace(load, users=max(load.users, 1)))
        print(
            f"{name} = {value:,}: {found[0]:.2f} CPU-s, {found[1]:.1f} MB",
            file=sys.stderr,
            flush=True,
        )
        yield value, *found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=SWEEPS)
    given = parser.parse_args()
    pa.set_cpu_count(1)
    lines = [
        f"{machine()}; one core.",
        "",
        "| what grows | CPU-s per trigger | fit | state written per trigger |",
        "|---|---|---|---|",
    ]
    panels = []
    for name in [given.only] if given.only else SWEEPS:
        points = list(sweep(name))
        x = np.array([p[0] for p in points], float)
        y = np.array([p[1] for p in points])
        slope, constant = np.polyfit(x, y, 1)
        unit = 10 ** int(np.floor(np.log10(x[-1])))
        seconds = ", ".join(f"{value:,}: {spent:.2f}" for value, spent, _ in points)
        written = ", ".join(f"{size:.1f}" for _, _, size in points)
        lines.append(
            f"| {LABELS[name]} | {seconds} | {constant:.2f} + {slope * unit:.2f} per {unit:,} | {written} MB |"
        )
        panels.append(
            Panel(
                f"By {LABELS[name]}",
                LABELS[name],
                SECONDS,
                [Line("measured", x, y), Line("fit", x, constant + slope * x)],
            )
        )
    lasting, panel = ([], None) if given.only else steady(Load())
    if panel is None:
        print("\n".join(lines))
    else:
        draw(FIGURES / "growth.svg", [*panels, panel])
        write("growth", [*lines, "", *lasting], PERFORMANCE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
