"""What whole commands cost over stored files, beside a plain count of Spark over the same: in turn, each in a process of its own.

    python benchmarks/commands.py [--rounds 2]     # writes the table in docs/performance.md

`plain count` is Spark's streaming `groupBy(page).count()` until it has caught up, its result into nothing (`noop`). `dpsql run` writes its tables
and a state that survives a crash; `dpsql try` starts no Spark. A thousandth of the rows tells what the start of each costs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

CHECKOUT = Path(__file__).resolve().parents[1]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from benchmarks.engines import SCHEMA, session  # noqa: E402
from benchmarks.page import PERFORMANCE, write  # noqa: E402
from benchmarks.processes import Measured, measure_command  # noqa: E402
from benchmarks.stream_files import Stream  # noqa: E402
from benchmarks.throughput import machine  # noqa: E402
from dpsql.sources.config import load_sources  # noqa: E402

FILES = 12
USERS = 500_000
KEYS = 100_000
SOURCES = """\
sources:
  visits:
    format: {format}
    path: {path}
    schema: "{schema}"
    event_time: ts
    privacy_unit: user_id
    max_users: 5000000
    max_keys: 1000000
"""
QUERY = """\
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32)
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 day'), page
"""
UNTIL = "2026-01-03"
COMMANDS = {
    "dpsql run": "run q.sql --sources {name}.yaml --secret-file {place}/secret --lake {place}/lake --until-caught-up --until {until}",
    "dpsql try": "try q.sql --sources {name}.yaml --secret-file {place}/secret --until {until}",
}
PLAIN = "plain count"
NAMES = (PLAIN, *COMMANDS)
INPUTS = ("many", "few", "lines")


def count(kind: str, path: str) -> None:
    """Count rows per page with Spark alone, until all files are read."""
    spark = session("local[2]")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    rows = spark.readStream.format(kind).schema(SCHEMA).load(path)
    with tempfile.TemporaryDirectory() as checkpoint:
        counted = rows.groupBy("page").count().writeStream.outputMode("update").format("noop")
        query = counted.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
    spark.stop()


@dataclass(frozen=True)
class Input:
    """One source: how it is called in commands, its format, and its rows."""

    name: str
    kind: str
    rows: int

    def write(self, folder: Path) -> None:
        """Write the files, and the entry of the source."""
        path = Stream(USERS, KEYS, self.rows // FILES).write(folder, FILES)
        if self.kind == "json":
            lines = folder / "lines"
            lines.mkdir()
            for file in sorted(path.iterdir()):
                frame = pq.read_table(file).to_pandas()
                out = lines / f"{file.stem}.json"
                frame.to_json(out, orient="records", lines=True, date_format="iso")
            path = lines
        text = SOURCES.format(format=self.kind, path=path, schema=SCHEMA)
        (folder / f"{self.name}.yaml").write_text(text)


def inputs(rows: int) -> tuple[Input, ...]:
    """Return many rows, few of them, and lines of JSON."""
    return (
        Input("many", "parquet", rows),
        Input("few", "parquet", rows // 1000),
        Input("lines", "json", rows // 12),
    )


def measure(name: str, source: Input, folder: Path) -> Measured:
    """Run a command in a new place, or the plain count."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "TZ": "UTC"}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        words = [str(Path(__file__).resolve()), "--count", source.name]
        if name != PLAIN:
            said = COMMANDS[name].format(name=source.name, place=place, until=UNTIL)
            words = ["-m", "dpsql.jobs.cli", *said.split()]
        return measure_command([sys.executable, *words], cwd=folder, env=environment)


def table(folder: Path, sources: Sequence[Input], rounds: int) -> list[str]:
    """Measure all in turn, and return the lines of the table."""
    found = {(source, name): list[Measured]() for source in sources for name in NAMES}
    for _ in range(rounds):
        for (source, name), turns in found.items():
            turns.append(measure(name, source, folder))
            print(source, name, f"{turns[-1].seconds:.1f} CPU-s", file=sys.stderr, flush=True)
    lines = [
        f"{machine()}. Means of {rounds} turns; of CPU the least and the most.",
        "",
        "| input | command | CPU-s | times plain count |",
        "|---|---|---|---|",
    ]
    for (source, name), turns in found.items():
        cpu = [turn.seconds for turn in turns]
        plain = [turn.seconds for turn in found[source, PLAIN]]
        lines.append(
            f"| {source.rows:,} rows, {source.kind} | {name} | {statistics.mean(cpu):.1f} ({min(cpu):.1f} - {max(cpu):.1f}) | "
            f"{sum(cpu) / sum(plain):.2f} |"
        )
    return lines


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, default=12_000_000, help="of Parquet; a twelfth of it as JSON"
    )
    parser.add_argument("--inputs", nargs="+", choices=INPUTS, default=list(INPUTS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-page", action="store_true", help="do not write docs/performance.md")
    parser.add_argument("--count", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.count:
        source = load_sources(Path(f"{given.count}.yaml"))["visits"]
        count(source.format, source.path)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "q.sql").write_text(QUERY)
        sources = [each for each in inputs(given.rows) if each.name in given.inputs]
        for source in sources:
            source.write(folder)
        lines = table(folder, sources, given.rounds)
    if given.no_page:
        print("\n".join(lines))
    else:
        write("commands", lines, PERFORMANCE)


if __name__ == "__main__":
    main()
