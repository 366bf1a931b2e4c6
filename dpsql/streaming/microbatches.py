"""Run one streaming query until its stored input is drained, or for ever; and stop it between two micro-batches."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from types import FrameType
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener

from dpsql.lake.spark_checkpoint import Checkpoint

Sink = Callable[[DataFrame, int], None]
POLL_SECONDS = 0.1
NEVER_US = -(1 << 62)
COMMIT_SECONDS = 30
"""How long Spark may take to note that a micro-batch is finished; one that is not noted is repeated at the next start."""


class _Stopped(Exception):
    """Raised between micro-batches to end a query that was asked to stop."""


def drain(
    frame: DataFrame,
    sink: Sink,
    checkpoint: Checkpoint,
    is_stopped: Callable[[], bool],
    on_report: Callable[[Any], None],
) -> bool:
    """Hand every micro-batch of the stored input to a sink.

    Args:
        frame: the streaming query.
        sink: called with each micro-batch and its number; must be safe to repeat.
        checkpoint: Spark's folder for this query.
        is_stopped: when true, the running micro-batch is finished and no other begun.
        on_report: called with Spark's progress report of every finished micro-batch.

    Returns:
        True if the input was drained, False if the query stopped before.

    Raises:
        Exception: whatever the sink raised, itself; else what Spark raised.
    """
    guard = _Guard(sink, is_stopped)
    query = _writer(frame, guard, checkpoint).trigger(availableNow=True).start()
    reports = _Reports(query, on_report)
    try:
        while not query.awaitTermination(POLL_SECONDS):
            reports.pass_on()
    except BaseException as problem:
        reports.pass_on()
        if guard.stopped:
            return False
        if query.isActive:
            query.stop()
        raise (guard.failure or problem) from None
    reports.pass_on()
    return True


@dataclass
class _Query:
    """A query that runs until `finish`."""

    frame: DataFrame
    sink: Sink
    checkpoint: Checkpoint
    stop: threading.Event
    interval_us: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        self._is_over = False
        self._guard = _Guard(self.sink, self.is_stopped, self._pause)
        self._query = self._start()

    def is_stopped(self) -> bool:
        """Tell whether no other micro-batch is to begin."""
        return self._is_over or self.stop.is_set()

    def _start(self) -> StreamingQuery:
        writer = _writer(self.frame, self._guard, self.checkpoint)
        return writer.trigger(processingTime=f"{self.interval_us} microseconds").start()

    def _pause(self) -> None:
        """Do nothing after a micro-batch."""

    def check(self) -> None:
        """Look whether it still runs.

        Raises:
            Exception: whatever the sink raised, itself; else what Spark raised.
        """
        if not self._query.isActive and not self._guard.stopped:
            raise (
                self._guard.failure
                or self._query.exception()
                or RuntimeError("the query has ended")
            )

    def finish(self) -> None:
        """Let the running micro-batch finish and end the query."""
        self._is_over = True
        # Whatever Spark raises here: it has stopped by itself, or failed after the last check. Nothing is half done.
        with contextlib.suppress(Exception):
            limit = time.monotonic() + COMMIT_SECONDS
            while (
                self._query.isActive
                and time.monotonic() < limit
                and (self._guard.working or not self._is_noted())
            ):
                time.sleep(POLL_SECONDS)
                limit = time.monotonic() + COMMIT_SECONDS if self._guard.working else limit
        with contextlib.suppress(Exception):
            self._query.stop()

    def _is_noted(self) -> bool:
        newest = self.checkpoint.newest_commit
        # The checkpoint numbers micro-batches as the lake does, the guard as Spark.
        return self._guard.newest is None or (
            newest is not None and newest >= self._guard.newest + self.checkpoint.first
        )


@dataclass
class Following(_Query):
    """A query that runs for ever: polls its source at every multiple of an interval, and has a micro-batch when there is something new.

    Args:
        frame, sink, checkpoint, on_report: as in `drain`.
        stop: set to finish the running micro-batch and begin no other.
        on_poll: called with every poll: when it began, and how long it and its micro-batch took; microseconds.
        interval_us: of the polls, in microseconds, at multiples of it since 1970.
    """

    on_report: Callable[[Any], None]
    on_poll: Callable[[int, int], None]

    def __post_init__(self) -> None:
        self._listener = _Listener()
        self._streams = self.frame.sparkSession.streams
        self._streams.addListener(self._listener)
        super().__post_init__()

    @property
    def idle_since_us(self) -> int:
        """When the newest poll that found nothing new began; microseconds."""
        return self._listener.idle_us

    def poll_anew(self) -> bool:
        """Start polling again: Spark waits for the next poll by the wall clock, and waits too long once that has been ahead.

        Returns:
            False if a micro-batch is at work: then nothing was done.
        """
        if self._guard.working or not self._is_noted():
            return False
        self._query.stop()
        self._listener.idle_us = NEVER_US
        self._query = self._start()
        return True

    def check(self) -> None:
        """Pass on Spark's reports, then check that it still runs."""
        self._pass_on()
        super().check()

    def finish(self) -> None:
        """Finish the query, and listen no more."""
        super().finish()
        self._pass_on()
        self._streams.removeListener(self._listener)

    def _pass_on(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                report, time_us = self._listener.polls.get_nowait()
                if report is None:
                    self.on_poll(time_us, 0)
                else:
                    self.on_report(report)
                    self.on_poll(time_us, int(report.durationMs["triggerExecution"]) * 1000)


@dataclass
class Stepping(_Query):
    """A query that runs for ever, and rests until it is told that there is something to read.

    It rests at the end of a micro-batch, before Spark notes that it is finished. So nothing is polled, nothing is read before its time, and
    Spark need not start it for every step: that takes 0.3 CPU-seconds, and leaves behind a connection of py4j with a thread in this
    process. If the process dies meanwhile, the micro-batch is repeated, which changes nothing.

    Args:
        frame, sink, checkpoint, stop: as in `Following`. There is something to read now.
        position: how far the sink has come; asked after every micro-batch.
        target: rest when that is reached.
    """

    position: Callable[[], int]
    target: int

    def __post_init__(self) -> None:
        self._turn = threading.Condition()
        self._done = self.position()
        super().__post_init__()

    def step(self, target: int) -> bool:
        """Go on until `target` is reached; False if the query was stopped before.

        Raises:
            Exception: as `check`.
        """
        with self._turn:
            self.target = target
            self._turn.notify_all()
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._done >= target, POLL_SECONDS)
                if self._done >= target:
                    return True
            self.check()
            if self.stop.is_set() and not self._guard.working:
                return False

    def _pause(self) -> None:
        with self._turn:
            self._done = self.position()
            self._turn.notify_all()
            while self._done >= self.target and not self.is_stopped():
                self._turn.wait(POLL_SECONDS)


@dataclass
class _Guard:
    """Around a sink: begins no micro-batch once a stop is asked for, and keeps what the sink raised. `pause` comes after each."""

    sink: Sink
    is_stopped: Callable[[], bool]
    pause: Callable[[], None] = lambda: None
    failure: BaseException | None = None
    stopped: bool = False
    working: bool = False
    newest: int | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.working = True
        try:
            if self.is_stopped():
                self.stopped = True
                raise _Stopped
            self.sink(frame, batch)
            self.newest = batch
        except BaseException as problem:
            self.failure = self.failure or problem
            raise
        finally:
            self.working = False
        self.pause()


class _Listener(StreamingQueryListener):
    """Collects Spark's reports of one session's query."""

    def __init__(self) -> None:
        self.polls: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
        """Report of a finished micro-batch, or None of an idle poll, and when the poll began."""
        self.idle_us = NEVER_US

    def onQueryStarted(self, event: Any) -> None:
        """Pass over the start of a query."""

    def onQueryProgress(self, event: Any) -> None:
        """Put a finished micro-batch among the polls."""
        if "addBatch" in event.progress.durationMs:
            self.polls.put((event.progress, began_us(event.progress.timestamp)))

    def onQueryIdle(self, event: Any) -> None:
        """Put a poll that has found nothing new among the polls."""
        self.idle_us = began_us(event.timestamp)
        self.polls.put((None, self.idle_us))

    def onQueryTerminated(self, event: Any) -> None:
        """Pass over the end of a query."""


def began_us(timestamp: str) -> int:
    """Return when a poll began, from the text in Spark's report; microseconds since 1970 UTC."""
    return round(datetime.fromisoformat(timestamp).timestamp() * 1_000_000)


def _writer(frame: DataFrame, guard: _Guard, checkpoint: Checkpoint) -> Any:
    return frame.writeStream.foreachBatch(guard).option("checkpointLocation", str(checkpoint.path))


@dataclass
class _Reports:
    """Passes on each of Spark's progress reports once."""

    query: StreamingQuery
    on_report: Callable[[Any], None]
    newest: int = -1

    def pass_on(self) -> None:
        last = self.query.lastProgress
        if last is None or last.batchId <= self.newest:
            return
        for report in self.query.recentProgress:
            if report.batchId > self.newest and "addBatch" in report.durationMs:
                self.newest = report.batchId
                self.on_report(report)


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM set `stop` instead of breaking off (only where Python lets us: in the main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()

    previous_handlers = {
        number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
