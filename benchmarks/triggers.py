"""What a trigger costs beside another commit of dpsql, and beside plain counts: all take turns on one machine.

    git worktree add /tmp/before COMMIT && (cd /tmp/before && make setup)   # and this folder's processes.py, if its own is another
    python benchmarks/triggers.py --before /tmp/before
    python benchmarks/triggers.py --before /tmp/before --rows 1000 --turns 12

Each variant is a process of its own with its own lake over the same files, and is at work only in its turns: a micro-batch with its tick and its
release, or a silent trigger. CPU seconds are those of all of its
processes (`benchmarks/processes.py`). Turns of the first half are warming up and do not count.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

CHECKOUT = Path(os.environ.get("DPSQL_CHECKOUT") or Path(__file__).resolve().parents[1])
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

from benchmarks.engines import SCHEMA, session, sql  # noqa: E402
from benchmarks.processes import ProcessTree  # noqa: E402
from benchmarks.stream_files import INTERVAL_US, START_US, Stream  # noqa: E402

USERS = 500_000
KEYS = 100_000
PLAIN = {"noop": "plain count into nothing", "complete": "plain count, the whole table into Delta"}


def closed(batch: int) -> int:
    """The time of the tick after a micro-batch."""
    return START_US + (batch + 1) * INTERVAL_US


class Counters:
    """What Spark has done so far: jobs, and classes compiled."""

    def __init__(self, spark: Any) -> None:
        self._jobs = spark.sparkContext._jsc.sc().dagScheduler()
        self._classes = (
            spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
        )

    def now(self) -> dict[str, int]:
        """Both."""
        return {"classes": self._classes.getCount(), "jobs": self._jobs.numTotalJobs()}

    def since(self, before: dict[str, int]) -> dict[str, int]:
        """Both, since then."""
        return {name: count - before[name] for name, count in self.now().items()}


class Private:
    """A run whose micro-batches, ticks and releases come one after the other, each when it is told."""

    def __init__(
        self, spark: Any, stream: Path, lake: Path, buckets: tuple[int, int] | None
    ) -> None:
        import dpsql
        from dpsql.lake.event_log import EventLog
        from dpsql.lake.opening import open_run
        from dpsql.lake.runs import Lake
        from dpsql.privacy.ledger import Ledger
        from dpsql.privacy.secret import Secret
        from dpsql.sources.config import Source
        from dpsql.streaming.admission import Clocks
        from dpsql.streaming.context import run_context
        from dpsql.streaming.microbatches import drain
        from dpsql.streaming.progress import Tally

        bounds = {"max_users": 5_000_000, "max_keys": 1_000_000}
        options = (("maxFilesPerTrigger", "1"),)
        source = Source(
            "visits",
            "parquet",
            str(stream),
            options,
            SCHEMA,
            event_time="ts",
            privacy_unit=("user_id",),
            start_us=START_US,
            **bounds,
        )
        query = dpsql.compile(sql("dpsql", 32, 100), {"visits": source})
        (lake.parent / "secret").write_bytes(bytes(range(32)))
        (lake.parent / "secret").chmod(0o600)
        secret = Secret.load(lake.parent / "secret")
        ledger = Ledger.beside(lake.parent / "secret")
        opened = Lake(lake)
        # One run id for all: so they must publish the same rows.
        run = replace(
            open_run(opened, "q", query, secret, ledger, source),
            run_id="f" * 32,
            ledger_id="e" * 32,
        )
        stop = threading.Event()
        tally = Tally(None, EventLog(lake / "private/q", run.run_id, run.name))
        self._job = run_context(
            spark, query, run, opened, secret, buckets, tally, stop, None, lambda: None
        )
        self._job.check()
        self._contributions = self._job.tables.contributions
        self._newest = -1
        self._failed = list[BaseException]()
        self._planned = threading.Semaphore(0)
        self._go = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._open = ExitStack()
        queries = self._open.enter_context(self._job.queries({}))
        clocks = Clocks({}, self._clock)
        admission = self._job.admission_sink(clocks, queries.numbers, self._rows_are_there)
        sink = self._job.remembering("admission", admission)

        def read() -> None:
            try:
                drain(
                    queries.admission,
                    sink,
                    self._job.engine.checkpoint("admission"),
                    stop.is_set,
                    self._job.was_read,
                )
            except BaseException as problem:
                self._failed.append(problem)
            self._done.release()
            self._planned.release()

        self._reading = threading.Thread(target=read, daemon=True)
        self._reading.start()
        self._release_up_to = self._open.enter_context(self._job.releasing(queries))
        self._planned.acquire()

    def _clock(self, batch: int) -> Any:
        from dpsql.udfs.stage import Clock

        self._planned.release()
        self._go.acquire()
        return Clock(closed(batch - 1) if batch else self._contributions.closed_us, 1 << 60)

    def _rows_are_there(self, batch: int, _: Any) -> None:
        self._contributions.tick_by_clock(batch, closed(batch), 1 << 60)
        self._newest = batch
        self._done.release()

    def batch(self, number: int) -> None:
        """One micro-batch, until the next is planned."""
        self._go.release()
        self._done.acquire()
        self._planned.acquire()
        if self._failed:
            raise self._failed[0]
        self._release_up_to(closed(number))

    def silent(self, number: int) -> None:
        """A trigger without records."""
        self._contributions.tick_by_clock(self._newest, closed(number), 1 << 60)
        self._release_up_to(closed(number))

    def end(self) -> None:
        """No more turns; a micro-batch that is planned is done."""
        self._job.stop.set()
        self._go.release()
        self._open.close()
        self._reading.join()

    def digest(self) -> str:
        """Of the published rows."""
        from dpsql.lake.delta_rows import read_rows

        rows = read_rows(self._job.histogram_path)
        rows = rows.sort_by([(name, "ascending") for name in ("window_start", "trigger", "page")])
        return f"{rows.num_rows} rows {hashlib.sha256(repr(rows.to_pydict()).encode()).hexdigest()[:16]}"


class Plain:
    """`groupBy(page).count()`: changes into nothing, or the whole result into a Delta table at every micro-batch."""

    def __init__(self, spark: Any, stream: Path, folder: Path, complete: bool) -> None:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        spark.conf.set("spark.sql.adaptive.enabled", "false")
        self._planned = threading.Semaphore(0)
        self._go = threading.Semaphore(0)
        self._done = threading.Semaphore(0)

        def sink(frame: Any, batch: int) -> None:
            self._planned.release()
            self._go.acquire()
            writer = frame.write.mode("overwrite")
            writer.format("delta").save(str(folder / "out")) if complete else writer.format(
                "noop"
            ).save()
            self._done.release()

        counted = (
            spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(stream))
            .groupBy("page")
            .count()
        )
        query = counted.writeStream.outputMode("complete" if complete else "update").foreachBatch(
            sink
        )
        query.option("checkpointLocation", str(folder / "checkpoint")).start()
        self._planned.acquire()

    def batch(self, number: int) -> None:
        """One micro-batch, until the next is planned."""
        self._go.release()
        self._done.acquire()
        self._planned.acquire()


def serve(given: argparse.Namespace) -> int:
    """One variant: does what a line tells it, and answers with a line."""
    spark = session("local[2]")
    counters = Counters(spark)
    tree = ProcessTree(os.getpid())
    with tree.sampled(), tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        work: Any
        if given.serve in PLAIN:
            work = Plain(spark, given.stream, Path(folder), given.serve == "complete")
        else:
            work = Private(
                spark,
                given.stream,
                Path(folder) / "lake",
                tuple(given.buckets) if given.buckets else None,
            )
        print("ready", flush=True)
        for line in sys.stdin:
            what, number = line.split()
            if what == "digest":
                print(work.digest() if given.serve not in PLAIN else "", flush=True)
                continue
            before = tree.sample()
            counted = counters.now()
            began = time.perf_counter()
            getattr(work, what)(int(number))
            wall = time.perf_counter() - began
            after = tree.sample()
            cpu = {
                kind: seconds - before.get(kind, (0, 0.0))[1]
                for kind, (_, seconds) in after.items()
            }
            print(json.dumps({"wall": wall, "cpu": cpu, **counters.since(counted)}), flush=True)
    os._exit(0)


class Variant:
    """A process that serves one variant."""

    def __init__(
        self,
        name: str,
        label: str,
        checkout: Path,
        stream: Path,
        scratch: Path,
        buckets: list[int] | None,
    ) -> None:
        self.label = label
        self.found = {"batch": list[Any](), "silent": list[Any](), "paused": list[Any]()}
        self.plain = name in PLAIN
        command = [
            sys.executable if checkout == CHECKOUT else str(checkout / ".venv/bin/python"),
            str(checkout / "benchmarks/triggers.py"),
        ]
        command += ["--serve", name, "--stream", str(stream), "--scratch", str(scratch)]
        command += ["--buckets", *map(str, buckets)] if buckets else []
        environment = {**os.environ, "DPSQL_CHECKOUT": str(checkout), "PYTHONPATH": str(checkout)}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env=environment,
            start_new_session=True,
        )
        if self._answer() != "ready":
            raise RuntimeError(f"{label} did not start")

    def tell(self, what: str, number: int) -> str:
        """Its answer."""
        assert self._process.stdin
        self._process.stdin.write(f"{what} {number}\n")
        self._process.stdin.flush()
        return self._answer()

    def turn(self, what: str, number: int, counts_as: str = "") -> None:
        """One turn."""
        self.found[counts_as or what].append(json.loads(self.tell(what, number)))

    def end(self) -> None:
        """No more turns."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout
        for line in self._process.stdout:
            if (
                line.strip() == "ready"
                or line.startswith("{")
                or " rows " in line
                or not line.strip()
            ):
                return line.strip()
        raise RuntimeError(f"{self.label} has ended")


def cpu(turn: Any) -> float:
    """All CPU seconds of a turn."""
    return sum(turn["cpu"].values())


def line(variant: Variant, what: str, base: float) -> str:
    """A row of the table: medians, and quartiles of what matters."""
    turns = variant.found[what]
    if what != "paused":
        turns = turns[len(turns) // 2 :] if what == "batch" else turns[1:]
    used = [cpu(turn) for turn in turns]
    low, middle, high = statistics.quantiles(used, n=4) if len(used) > 1 else used * 3
    parts = " / ".join(
        f"{statistics.median(turn['cpu'].get(kind, 0.0) for turn in turns):.2f}"
        for kind in ("jvm", "workers", "driver")
    )
    wall, jobs, classes = (
        statistics.median(turn[name] for turn in turns) for name in ("wall", "jobs", "classes")
    )
    ratio = f"{middle / base:.2f}" if base else ""
    return f"| {variant.label} | {len(turns)} | {middle:.2f} ({low:.2f} - {high:.2f}) | {ratio} | {parts} | {wall:.2f} s | {jobs:.0f} | {classes:.0f} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="a checkout of another commit, set up")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 1_000_000])
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--silent", type=int, default=12)
    parser.add_argument("--paused", type=int, default=3, help="turns of dpsql that wait")
    parser.add_argument(
        "--pause", type=float, default=70, help="seconds: Spark ends idle workers after 60"
    )
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--out", type=Path, default=Path("triggers-out"))
    parser.add_argument("--no-plain", action="store_true", help="leave plain counts away")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--stream", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--buckets", type=int, nargs=2)
    given = parser.parse_args()
    if given.serve:
        return serve(given)
    lines: list[str] = []
    given.out.mkdir(parents=True, exist_ok=True)
    for rows in given.rows:
        last_batch = given.turns + given.paused
        stream = Stream(given.users, KEYS, rows)
        folder = stream.write(given.out.absolute() / "data", last_batch + 1)
        scratch = Path(tempfile.mkdtemp(dir=given.out.absolute()))
        wanted = [("dpsql", "dpsql", CHECKOUT)] + (
            [("dpsql", "dpsql before", given.before.absolute())] if given.before else []
        )
        wanted += (
            [] if given.no_plain else [(name, label, CHECKOUT) for name, label in PLAIN.items()]
        )
        variants = [Variant(*each, folder, scratch, given.buckets) for each in wanted]
        try:
            for number in range(given.turns):
                first = number % len(variants)
                for variant in (*variants[first:], *variants[:first]):
                    variant.turn("batch", number)
            private = [variant for variant in variants if not variant.plain]
            for number in range(given.turns, last_batch):
                for variant in private:
                    if variant is private[0]:
                        time.sleep(given.pause)
                    variant.turn("batch", number, "paused")
            for number in range(last_batch, last_batch + given.silent):
                for variant in private:
                    variant.turn("silent", number)
            for variant in private:
                print(variant.label, variant.tell("digest", 0), file=sys.stderr)
        finally:
            for variant in variants:
                variant.end()
            shutil.rmtree(scratch, ignore_errors=True)
        base = statistics.median(
            cpu(turn) for turn in variants[0].found["batch"][given.turns // 2 :]
        )
        lines += [
            f"Records per trigger: {rows:,}.",
            "",
            "| | turns | CPU-s | of dpsql's | JVM / workers / driver | wall | jobs | classes compiled |",
        ]
        lines += ["|---|---|---|---|---|---|---|---|"]
        lines += [line(variant, "batch", base) for variant in variants]
        if given.paused:
            paused = line(variants[0], "paused", base)
            lines.append(paused.replace("| dpsql", f"| dpsql, {given.pause:.0f} s apart", 1))
        base = statistics.median(cpu(turn) for turn in variants[0].found["silent"][1:])
        lines += [
            line(variant, "silent", base).replace("| dpsql", "| silent, dpsql", 1)
            for variant in private
        ]
        lines.append("")
        (given.out / f"{rows}.json").write_text(
            json.dumps({variant.label: variant.found for variant in variants})
        )
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
