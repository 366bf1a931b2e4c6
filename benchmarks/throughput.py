"""What privacy costs in speed: plain Spark's count, its exact distinct users, and dpsql, in turn on one machine over the same files.

    python benchmarks/throughput.py                                    # both streams, then the table in docs/performance.md
    python benchmarks/throughput.py --streams small --batches 6 --rounds 1 --no-page     # a quick look
    python benchmarks/throughput.py --table                            # from the stored samples alone

Each run is a process of its own and begins cold: only the second half of its micro-batches counts. Samples are kept in --out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from benchmarks.page import PERFORMANCE, write  # noqa: E402
from benchmarks.stream_files import Stream  # noqa: E402

ENGINES = {
    "count": "plain `groupBy(key).count()`",
    "distinct": "plain exact distinct users",
    "dpsql": "dpsql",
}
SKETCHES = {
    "top-units": "dpsql, `APPROX_TOP_COUNT(page, 100)` of units",
    "top-events": "dpsql, the same of single events",
    "cells-events": "dpsql, `COUNT_SKETCH(page)` of single events",
}
STREAMS = {"small": (500_000, 100_000), "large": (5_000_000, 1_000_000)}
"""Name -> users and keys."""


BATCHES = {"count": 60, "distinct": 16, "dpsql": 96} | dict.fromkeys(SKETCHES, 24)
"""Micro-batches of a run: exact distinct users keep every pair in memory; a window of 100 triggers stays open for a few silent ones."""

SPANS = ((10, 20), (25, 45), (86, 96))
"""Triggers of a window of 100 that the table shows beside the second half: before, at and after the peak of the users' state."""


@dataclass(frozen=True)
class Cost:
    """One micro-batch with its trigger, or a silent trigger: seconds of wall clock and of CPU, bytes of memory and of state."""

    wall: float
    jvm: float
    python: float
    memory: int
    state: int

    @property
    def cpu(self) -> float:
        """All CPU seconds."""
        return self.jvm + self.python


def costs(path: Path, what: str, first: int | None = None, last: int | None = None) -> list[Cost]:
    """The costs between the samples of one run: of micro-batches the second half, or from `first` to `last`; of silent triggers all."""
    noted = json.loads(path.read_text())
    found = []
    for before, after in pairwise(noted):
        if after["what"] == what:
            cpu = {
                kind: after["used"][kind][1] - before["used"].get(kind, (0, 0.0))[1]
                for kind in after["used"]
            }
            python = sum(seconds for kind, seconds in cpu.items() if kind != "jvm")
            found.append(
                Cost(
                    after["time"] - before["time"],
                    cpu.get("jvm", 0.0),
                    python,
                    after["peak"] * 1024,
                    after.get("state", 0) - before.get("state", 0),
                )
            )
    if first is not None:
        return found[first:last]
    return found[len(found) // 2 :] if what == "batch" else found


def measure(given: argparse.Namespace) -> None:
    """Run every engine over every stream, in turn."""
    given.out.mkdir(parents=True, exist_ok=True)
    streams = {name: Stream(*STREAMS[name], given.rows) for name in given.streams}
    folders = {
        name: stream.write(
            given.out / "data", max(batches_of(engine, given) for engine in given.engines)
        )
        for name, stream in streams.items()
    }
    for turn in range(given.rounds):
        for name, folder in folders.items():
            for engine in given.engines:
                out = given.out / f"{name}-{engine}-{turn}.json"
                print(f"{name}, {engine}, round {turn + 1}", file=sys.stderr, flush=True)
                command = [
                    sys.executable,
                    str(CHECKOUT / "benchmarks" / "engines.py"),
                    engine,
                    "--stream",
                    str(folder),
                    "--out",
                    str(out),
                ]
                command += [
                    "--batches",
                    str(batches_of(engine, given)),
                    "--silent",
                    str(given.silent),
                    "--lake",
                    str(given.out / "lake"),
                ]
                command += ["--cores", str(given.cores)]
                environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
                with (given.out / "log").open("a") as log:
                    subprocess.run(
                        command,
                        check=True,
                        env=environment,
                        start_new_session=True,
                        stdout=log,
                        stderr=log,
                    )
                shutil.rmtree(given.out / "lake", ignore_errors=True)


def batches_of(engine: str, given: argparse.Namespace) -> int:
    """Return the micro-batches of a run. Everything is divided by the plain count, so it is never cut short: its JVM has to be warm."""
    if engine == "count":
        return max(given.warm, given.batches or 0)
    return given.batches or BATCHES[engine]


def table(given: argparse.Namespace) -> list[str]:
    """The lines of the table."""
    lines = [
        f"{machine()}. Micro-batches of {given.rows:,} rows, one trigger each; median (quartiles) of the second half of each run.",
        "",
        "| stream | engine | micro-batches | rows/s | CPU-s per million rows | of it JVM / Python | times plain count | peak memory | new state per trigger |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in given.streams:
        base = 0.0
        for engine, label in (ENGINES | SKETCHES).items():
            found = list(runs(given.out, name, engine))
            if not found:
                continue
            millions = given.rows / 1e6
            cpu = [cost.cpu / millions for cost in found]
            base = base or statistics.median(cpu)
            rates = [given.rows / cost.wall for cost in found]
            split = f"{median(c.jvm / millions for c in found):.1f} / {median(c.python / millions for c in found):.1f}"
            users, keys = STREAMS[name]
            lines.append(
                f"| {keys:,} keys, {users:,} users | {label} | {len(found)} | {spread(rates, ',.0f')} | {spread(cpu, '.1f')} | {split} | "
                f"{statistics.median(cpu) / base:.1f} | {max(c.memory for c in found) / 2**30:.1f} GiB | {median(c.state for c in found) / 1e6:.0f} MB |"
            )
        for first, last in SPANS:
            found = [
                cost
                for path in sorted(given.out.glob(f"{name}-dpsql-*.json"))
                for cost in costs(path, "batch", first, last)
            ]
            if found:
                cpu = [cost.cpu / (given.rows / 1e6) for cost in found]
                rates = [given.rows / cost.wall for cost in found]
                split = (
                    f"{median(c.jvm for c in found):.1f} / {median(c.python for c in found):.1f}"
                )
                lines.append(
                    f"| | dpsql, triggers {first} - {last} | {len(found)} | {spread(rates, ',.0f')} | {spread(cpu, '.1f')} | {split} | "
                    f"{statistics.median(cpu) / base:.1f} | | {median(c.state for c in found) / 1e6:.0f} MB |"
                )
        silent = [
            cost
            for path in sorted(given.out.glob(f"{name}-dpsql-*.json"))
            for cost in costs(path, "silent")
        ]
        if silent:
            text = (
                f"{median(c.wall for c in silent):.1f} s, {median(c.cpu for c in silent):.1f} CPU-s"
            )
            lines.append(
                f"| {STREAMS[name][1]:,} keys | dpsql, a silent trigger | {len(silent)} | | {text} | | | | {median(c.state for c in silent) / 1e6:.0f} MB |"
            )
    return lines


def runs(out: Path, stream: str, engine: str) -> Iterator[Cost]:
    """The micro-batches of all rounds that count."""
    for path in sorted(out.glob(f"{stream}-{engine}-*.json")):
        yield from costs(path, "batch")


def median(values: Any) -> float:
    """Of an iterable."""
    return float(statistics.median(list(values)))


def spread(values: Sequence[float], form: str) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:{form}} ({low:{form}} - {high:{form}})"


def machine() -> str:
    """Processor, memory and date; versions are those of requirements.lock on that date."""
    info = Path("/proc/cpuinfo").read_text()
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in info.splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, {datetime.date.today()}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES | SKETCHES, default=list(ENGINES))
    parser.add_argument("--rows", type=int, default=1_000_000, help="per micro-batch")
    parser.add_argument(
        "--batches",
        type=int,
        help="micro-batches of each run; default: as many as each engine needs to be steady",
    )
    parser.add_argument(
        "--warm", type=int, default=BATCHES["count"], help="micro-batches of the plain count"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--silent", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("throughput-out"))
    parser.add_argument("--table", action="store_true", help="only make the table again")
    parser.add_argument(
        "--section", default="throughput", help="of the page: where the table is written"
    )
    parser.add_argument("--no-page", action="store_true", help="do not write docs/performance.md")
    given = parser.parse_args()
    given.out = given.out.absolute()
    if not given.table:
        measure(given)
    lines = table(given)
    if given.no_page:
        print("\n".join(lines))
    else:
        write(given.section, lines, PERFORMANCE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
