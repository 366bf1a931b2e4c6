"""One measured run of the throughput benchmark, in a process group of its own: plain Spark or dpsql over the files of a stream.

    python benchmarks/engines.py count --stream FOLDER --batches 10 --out SAMPLES.json

Every file is a micro-batch. After each, wall clock, CPU seconds and resident memory of the JVM and of Python are noted. dpsql runs its real
job as in live mode, query 1 followed by a tick and query 2 at every micro-batch; only the clock is scripted: the end of each file's interval.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
if (
    str(CHECKOUT) not in sys.path
):  # `python benchmarks/...` puts this folder first, not the checkout
    sys.path.insert(0, str(CHECKOUT))

import dpsql  # noqa: E402
from benchmarks.processes import ProcessTree  # noqa: E402
from benchmarks.stream_files import INTERVAL_US, START_US  # noqa: E402
from dpsql.sources.config import Source  # noqa: E402

SCHEMA = "user_id STRING, ts TIMESTAMP, page STRING"
MEMORY = "6g"


OPTIONS = "epsilon = 6, delta = 1e-9, trigger_interval = '{interval} microseconds'"
UNIT = "privacy_unit_column = user_id, max_rows_contributed = {rows}"
QUERIES = {
    "dpsql": f"OPTIONS ({OPTIONS}, {UNIT}) page, COUNT(*) AS views FROM visits GROUP BY window(ts, '{{window}} microseconds'), page",
    "top-units": f"OPTIONS ({OPTIONS}, {UNIT}, max_rows_per_group = 1) "
    "APPROX_TOP_COUNT(page, 100) AS top FROM visits GROUP BY window(ts, '{window} microseconds')",
    "top-events": f"OPTIONS ({OPTIONS}, privacy_level = EVENT) "
    "APPROX_TOP_COUNT(page, 100) AS top FROM visits GROUP BY window(ts, '{window} microseconds')",
    "cells-events": f"OPTIONS ({OPTIONS}, privacy_level = EVENT) COUNT_SKETCH(page) AS cells FROM visits "
    "GROUP BY window(ts, '{window} microseconds')",
}
"""The private queries, each with one window of T triggers: a count per page; the largest pages, of units and of single events; cells alone."""


def sql(engine: str, rows: int, triggers: int) -> str:
    """A private query."""
    filled = QUERIES[engine].format(interval=INTERVAL_US, rows=rows, window=triggers * INTERVAL_US)
    return f"SELECT WITH DIFFERENTIAL_PRIVACY {filled}"


def stored(folder: Path) -> int:
    """Bytes of all files below a folder; versions of state are never deleted during a run."""
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # Spark deletes old versions of its own state
            size += path.stat().st_size if path.is_file() else 0
    return size


class Samples:
    """What was noted, in order; `state` is called for the bytes of state so far read and written."""

    def __init__(self, out: Path, tree: ProcessTree, state: Callable[[], dict[str, int]]) -> None:
        self._out = out
        self._tree = tree
        self._state = state
        self._noted = list[dict[str, Any]]()
        self.note("started", -1)

    def note(self, what: str, batch: int) -> None:
        """Note the resources used so far."""
        used = self._tree.sample()
        noted = {"what": what, "batch": batch, "time": time.time(), "used": used}
        self._noted.append({**noted, "peak": self._tree.peak, **self._state()})
        self._out.write_text(json.dumps(self._noted))


def session(master: str) -> Any:
    """The session that dpsql makes, for all engines alike."""
    from dpsql.streaming import session as made

    properties = {
        "spark.driver.memory": MEMORY,
        "spark.driver.extraJavaOptions": "-Xss4m " + os.environ.get("JAVA_FLAGS", ""),
    }
    if master.startswith("local-cluster"):
        properties["spark.authenticate.secret"] = secrets.token_hex(32)
    return made.session(master, properties)


def plain(
    spark: Any,
    stream: Path,
    batches: int,
    distinct: bool,
    samples_of: Callable[..., Samples],
    cores: int,
) -> None:
    """Plain Spark: rows per page, or distinct users per page; results go nowhere."""
    spark.conf.set("spark.sql.shuffle.partitions", str(cores))
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    given = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(stream))
    given = given.dropDuplicates(["user_id", "page"]) if distinct else given
    with tempfile.TemporaryDirectory() as checkpoint:
        state = Path(checkpoint, "state")
        samples = samples_of(lambda: {"state": stored(state)})
        counted = given.groupBy("page").count().writeStream.outputMode("update").format("noop")
        query = counted.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        done = -1
        while done < batches - 1:
            if query.awaitTermination(0.02) and query.lastProgress is None:
                break
            last = query.lastProgress
            if last is not None and last.batchId > done:
                done = last.batchId
                samples.note("batch", done)
        query.stop()


def private(
    spark: Any,
    engine: str,
    stream: Path,
    batches: int,
    rows: int,
    lake: Path,
    samples_of: Callable[..., Samples],
    silent: int,
    triggers: int,
) -> None:
    """dpsql: as `dpsql.streaming.live`, with a scripted clock; at most one micro-batch ahead of its release."""
    from dpsql.lake.event_log import EventLog
    from dpsql.lake.opening import open_run
    from dpsql.lake.runs import Lake
    from dpsql.privacy.ledger import Ledger
    from dpsql.privacy.secret import Secret
    from dpsql.streaming.admission import Clocks
    from dpsql.streaming.context import run_context
    from dpsql.streaming.microbatches import drain
    from dpsql.streaming.progress import Tally
    from dpsql.udfs.stage import Clock

    for folder in (lake, lake.parent / "ledger"):
        shutil.rmtree(folder, ignore_errors=True)
    options = (("maxFilesPerTrigger", "1"),)
    bounds = {"max_users": 5_000_000, "max_keys": 1_000_000}
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
    query = dpsql.compile(sql(engine, rows, triggers), {"visits": source})
    secret = Secret.load(lake.parent / "secret")
    ledger = Ledger.beside(lake.parent / "secret")
    opened = Lake(lake)
    run = open_run(opened, "q", query, secret, ledger, source)
    stop = threading.Event()
    tally = Tally(None, EventLog(lake / "private/q", run.run_id, run.name))
    job = run_context(
        spark, query, run, opened, secret, None, tally, threading.Event(), ledger, lambda: None
    )
    job.check()
    state = lake / "private/q/state"
    samples = samples_of(lambda: {"state": stored(state)})
    ready = threading.Semaphore(0)
    room = threading.Semaphore(2)
    contributions = job.tables.contributions
    clock = Clock(closed_us=contributions.closed_us, latest_us=1 << 60)

    def done(batch: int, _: Clock) -> None:
        contributions.tick_by_clock(batch, closed(batch), 1 << 60)
        if batch == batches - 1:
            stop.set()
        ready.release()

    def closed(batch: int) -> int:
        return START_US + (batch + 1) * INTERVAL_US

    def clock_of(batch: int) -> Clock:
        room.acquire()
        return Clock(closed(batch - 1), 1 << 60) if batch else clock

    with job.queries({}) as queries:
        admission = job.admission_sink(Clocks({}, clock_of), queries.numbers, done)
        sink = job.remembering("admission", admission)
        failed: list[BaseException] = []

        def read() -> None:
            try:
                drain(
                    queries.admission,
                    sink,
                    job.engine.checkpoint("admission"),
                    stop.is_set,
                    job.was_read,
                )
            except BaseException as problem:
                failed.append(problem)
                ready.release()

        reading = threading.Thread(target=read)
        reading.start()
        with job.releasing(queries) as release_up_to:
            for batch in range(batches):
                ready.acquire()
                if failed:
                    raise failed[0]
                release_up_to(closed(batch))
                room.release()
                samples.note("batch", batch)
            reading.join()
            for batch in range(batches, batches + silent):
                contributions.tick_by_clock(batches - 1, closed(batch), 1 << 60)
                release_up_to(closed(batch))
                samples.note("silent", batch)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=["count", "distinct", *QUERIES])
    parser.add_argument("--stream", type=Path, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lake", type=Path, default=Path("lake"))
    parser.add_argument("--rows-contributed", type=int, default=32)
    parser.add_argument("--triggers", type=int, default=100)
    parser.add_argument("--silent", type=int, default=0, help="ticks without records at the end")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument(
        "--master",
        help="instead of local[cores]; with executors of their own: local-cluster[executors,cores,MiB]",
    )
    given = parser.parse_args()
    tree = ProcessTree(os.getpid())
    with tree.sampled():
        measure(given, lambda state: Samples(given.out, tree, state))
    return 0


def measure(given: argparse.Namespace, samples_of: Callable[..., Samples]) -> None:
    """Run one engine."""
    spark = session(given.master or f"local[{given.cores}]")
    if given.engine in QUERIES:
        private(
            spark,
            given.engine,
            given.stream,
            given.batches,
            given.rows_contributed,
            given.lake,
            samples_of,
            given.silent,
            given.triggers,
        )
    else:
        plain(
            spark, given.stream, given.batches, given.engine == "distinct", samples_of, given.cores
        )
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
