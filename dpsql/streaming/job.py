"""One start of a run on Spark, alone at its lake, once its executors are there: a catch-up, or a live run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from dpsql.compiled import Query
from dpsql.errors import DpsqlError, InputError, LakeError
from dpsql.lake.catch_up import is_released
from dpsql.lake.engine_file import Engine
from dpsql.lake.event_log import EventLog
from dpsql.lake.running import exclusive, stop_requests
from dpsql.lake.runs import Lake, Run, read_run
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.record import RUN_FILE
from dpsql.schedule import polling_interval
from dpsql.streaming import internals
from dpsql.streaming.context import run_context
from dpsql.streaming.live import LiveOptions
from dpsql.streaming.live import live as follow_for_ever
from dpsql.streaming.microbatches import stop_on_signals
from dpsql.streaming.progress import Listener, Summary, Tally
from dpsql.streaming.sources import located

# Whether a cluster gives a run something to work with: Spark itself waits for executors for
# ever, and says nothing.

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_SECONDS = 5.0
SAY_SECONDS = 30.0
END_SECONDS = 300.0
NONE = "this run has no executor: others have all cores or memory of the cluster (spark.cores.max), or its master has forgotten it"


@contextmanager
def watched(
    spark: SparkSession, stop: threading.Event, tell: Callable[[str], None]
) -> Iterator[None]:
    """Watch a run on a cluster: where it has no executor it says so, and it is ended when it has had none for minutes.

    One that was told to stop ends at once: its micro-batch would wait. What then fails is no failure, and is not raised.

    Raises:
        DpsqlError: it was ended, but not told to stop; the same command goes on.
    """
    context = internals.java_context(spark)
    is_over = threading.Event()
    ended = threading.Event()
    broken_off = threading.Event()
    if str(context.master()).startswith("local"):
        yield
        return

    def watch() -> None:
        since = time.monotonic()
        has_warned = False
        while not is_over.wait(LOOK_SECONDS):
            if not (ended.is_set() or broken_off.is_set()) and _served(context):
                since = time.monotonic()
                has_warned = False
            elif broken_off.is_set() or (stop.is_set() and not ended.is_set()):
                broken_off.set()
                context.cancelAllJobs()
            elif time.monotonic() - since > END_SECONDS:
                ended.set()
                stop.set()
                context.cancelAllJobs()
            elif time.monotonic() - since > SAY_SECONDS and not has_warned:
                has_warned = True
                tell(f"{NONE}; it waits")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    except DpsqlError as problem:
        if not broken_off.is_set() or type(problem) is not DpsqlError:
            raise
    finally:
        is_over.set()
        thread.join()
        if ended.is_set():
            raise DpsqlError(
                f"{NONE}, for {END_SECONDS / 60:.0f} minutes. What is published stays; the same command continues from there"
            ) from None


def _served(context: Any) -> bool:
    """Tell whether it has an executor, or needs none: those of an idle run are taken away where they come and go."""
    if context.getExecutorMemoryStatus().size() > 1:  # the first is the driver
        return True
    return bool(context.getConf().getBoolean("spark.dynamicAllocation.enabled", False)) and not len(
        context.statusTracker().getActiveJobIds()
    )


# One start of a run on Spark, alone at its lake: a catch-up, or a live run.


def run(
    spark: SparkSession,
    query: Query,
    run: Run,
    lake: Lake,
    secret: Secret,
    *,
    until_caught_up: bool,
    until_us: int | None = None,
    buckets: tuple[int, int] | None = None,
    live: LiveOptions | None = None,
    progress: Listener | None = None,
    stop: threading.Event | None = None,
    ledger: Ledger | None = None,
    log: Path | None = None,
    metrics: Path | None = None,
) -> Summary:
    """Run a query on Spark: until its stored input is released, or live until somebody asks to stop.

    Args:
        spark: from `dpsql.streaming.session.session`.
        query: from `dpsql.compile`.
        run: from `dpsql.lake.opening.open_run`: the run id and the name in the lake.
        lake: the lake.
        secret: the run's secret.
        until_caught_up: read what is stored, tick once, release, return; else run live.
        until_us: close the grid up to here (microseconds since 1970 UTC); None is the wall clock at the first start of this catch-up.
        buckets: of users and of keys; None takes two and one per core at the run's first start.
        live: of a live run; a catch-up has its retention, too.
        progress: told after every micro-batch.
        stop: set it from another thread to stop after the running micro-batch, as Ctrl-C, SIGTERM and `dpsql stop` do.
        ledger: the run's, from `open_run`; in its register is noted what is published. None only where nobody else sees the lake.
        log: a file to which a JSON line is appended for every event (`dpsql.lake.event_log`).
        metrics: a file that holds the totals for Prometheus, replaced at every event.

    Returns:
        What this start did. `stopped` tells that it was asked to stop; starting again goes on where it ended.

    Raises:
        InputError: the input, the lake or `until_us` does not fit (exit code 2).
        ReleaseConflict: a published trigger would be published again with other rows.
        DpsqlError: Spark failed.
    """
    until_us = _end_us(query, until_us, until_caught_up)
    stop = stop or threading.Event()
    options = live or LiveOptions()
    if not until_caught_up:
        polling_interval(query.shape.schedule, options.interval_us)
    query = replace(
        query,
        sources=located(spark, query.sources, (query.parsed.stream, *query.parsed.static_sources)),
    )
    folder = lake.private(run.name)
    with exclusive(folder) as check_held, stop_requests(folder, stop), stop_on_signals(stop):
        if (folder / RUN_FILE).exists() and read_run(lake, run.name).run_id != run.run_id:
            raise LakeError(
                f"{run.name!r} became a new run while this one was starting; start again"
            )
        events = EventLog(folder, run.run_id, run.name, log, metrics)
        tally = Tally(progress, events)
        summary: Summary | None = None
        with (
            events.of_start("catch_up" if until_caught_up else "live", stop),
            watched(spark, stop, tally.tell),
        ):
            if query.parsed.once and (released := is_released(folder, run.name)):
                tally.tell(released)
                return tally.summary(stopped=False)
            begin = partial(
                run_context,
                spark,
                query,
                run,
                lake,
                secret,
                buckets,
                tally,
                stop,
                ledger,
                check_held,
            )
            summary = (
                begin().catch_up(until_us, options.retention_us)
                if until_caught_up
                else follow_for_ever(begin, options)
            )
        # There is none if it was told to stop and had no executor.
        return summary or tally.summary(stopped=True)


def _end_us(query: Query, until_us: int | None, until_caught_up: bool) -> int | None:
    """Return up to when triggers are closed.

    Raises:
        InputError: a live run has no such time, or the query has another one.
    """
    if until_us is not None and not until_caught_up:
        raise InputError(
            "--until is for stored input: a live run releases every trigger when its time has come; add --until-caught-up"
        )
    query.check_ends(until_caught_up)
    return query.until_us(until_us)


__all__ = ["Engine", "LiveOptions", "run"]
