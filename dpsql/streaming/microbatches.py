"""Run one streaming query until its stored input is drained, or until somebody asks to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StreamingQuery

from dpsql.places import Place

Sink = Callable[[DataFrame, int], None]
POLL_SECONDS = 0.1


class _Stopped(Exception):
    """Raised between micro-batches to end a query that was asked to stop."""


def drain(frame: DataFrame, sink: Sink, checkpoint: Place, stop: threading.Event, told: Callable[[Any], None]) -> bool:
    """Hand every micro-batch of the stored input to a sink.

    Args:
        frame: the streaming query.
        sink: called with each micro-batch and its number; must be safe to repeat.
        checkpoint: Spark's folder for this query.
        stop: when set, the running micro-batch is finished and no other begun.
        told: called with Spark's progress report of every finished micro-batch.

    Returns:
        True if the input was drained, False if the query stopped before.

    Raises:
        Exception: whatever the sink raised, itself; else what Spark raised.
    """
    failures: list[BaseException] = []

    def guarded(batch_frame: DataFrame, batch: int) -> None:
        try:
            if stop.is_set():
                raise _Stopped
            sink(batch_frame, batch)
        except BaseException as problem:
            failures.append(problem)
            raise

    query = frame.writeStream.foreachBatch(guarded).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    reports = _Reports(query, told)
    try:
        while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
            reports.pass_on()
    except BaseException as problem:
        reports.pass_on()
        if any(isinstance(failure, _Stopped) for failure in failures):
            return False
        if query.isActive:
            query.stop()
        raise (failures[0] if failures else problem) from None
    reports.pass_on()
    return True


class _Reports:
    """Passes on each of Spark's progress reports once."""

    def __init__(self, query: StreamingQuery, told: Callable[[Any], None]) -> None:
        self._query, self._told, self._newest = query, told, -1

    def pass_on(self) -> None:
        last = self._query.lastProgress
        if last is None or last.batchId <= self._newest:
            return
        for report in self._query.recentProgress:
            if report.batchId > self._newest and "addBatch" in report.durationMs:
                self._newest = report.batchId
                self._told(report)


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """While inside, Ctrl-C and SIGTERM set `stop` instead of breaking off (only where Python lets us: in the main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
