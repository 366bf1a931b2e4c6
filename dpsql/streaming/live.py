"""Live runs: query 1 follows its source for ever, and the wall clock closes the grid between its micro-batches.

The clock of a micro-batch is the time at which Spark planned it, from Spark's own record. When that lies beyond a grid point, the
micro-batch's rows are followed by a tick. When no micro-batch comes, a poll of the source that found nothing does the same: so silence is
released too, and an idle query costs no more than its polls. Query 2 has a micro-batch when there is a tick, and rests otherwise.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from dpsql.errors import LakeError
from dpsql.lake import LIVE_FILE
from dpsql.streaming import admission
from dpsql.streaming.catch_up import read_catch_up, timestamp, write_json
from dpsql.streaming.checkpoints import Checkpoint
from dpsql.streaming.clocks import Clocks, listed_clocks
from dpsql.streaming.contributions import Contributions
from dpsql.streaming.microbatches import POLL_SECONDS, Following, Sink
from dpsql.streaming.progress import Summary
from dpsql.streaming.retention import Retention
from udfs.contribution_bounding import Clock

if TYPE_CHECKING:
    from dpsql.streaming.job import Job

VERSION = 1
LONGEST_INTERVAL_US = 60_000_000
SHORTEST_INTERVAL_US = 1_000_000
LATEST_US = 1 << 62


@dataclass(frozen=True)
class LiveOptions:
    """What an operator may choose; it changes no released number's distribution, only how soon and at what cost it comes.

    Args:
        interval_us: the source is polled at every multiple of it; None: a tenth of the trigger interval, 1 second to 1 minute.
        retention_us: contributions are kept so long after their windows have closed.
    """

    interval_us: int | None = None
    retention_us: int = 7 * 86_400_000_000

    def interval(self, trigger_interval_us: int) -> int:
        """The interval of a query."""
        return self.interval_us or min(max(trigger_interval_us // 10, SHORTEST_INTERVAL_US), LONGEST_INTERVAL_US)


def live(job: Job, options: LiveOptions) -> Summary:
    """Run until somebody asks to stop.

    Raises:
        LakeError: the grid is closed up to a time in the future, as after `--until` with a time to come.
        DpsqlError: as in `Job.catch_up`.
    """
    begun = read_catch_up(job.folder)
    if begun is not None and not begun.released and job.catch_up(None).stopped:
        return job.tally.summary(stopped=True)
    job.check()
    query = job.plan.query
    interval_us = options.interval(query.trigger_interval_us)
    ticker = Ticker(job.tables.contributions, job.engine.checkpoint(admission.OPERATOR), query.max_ahead_us, interval_us)
    if ticker.closed_us - wall_us() > query.trigger_interval_us:
        raise LakeError(
            f"triggers are closed up to {timestamp(ticker.closed_us)}, which is still to come: a live run would drop every record until "
            "then. Wait, or start a new run with another --name"
        )
    write_json(job.folder / LIVE_FILE, {"version": VERSION, "static": job.static_versions(), "interval_us": interval_us})
    retention = Retention(job.engine, job.tables.contributions, options.retention_us)
    with job.admission_query(job.static_versions(), live=True) as frame:
        sink = job.admission_sink(Clocks(listed_clocks(job.tables.admission), ticker.clock), ticker.rows_are_there)
        sink = job.remembering(admission.OPERATOR, ticker.alone(sink))
        if not (_read_backlog(job, frame, sink, ticker) and job.release()):
            return job.tally.summary(stopped=True)
        job.tally.stage, released = "running", ticker.newest
        with job.failing(admission.OPERATOR):
            following = Following(frame, sink, ticker.checkpoint, job.stop, job.was_read, interval_us)
            try:
                _follow(job, following, ticker, retention, released)
            finally:
                following.finish()
    return job.tally.summary(stopped=True)


def wall_us() -> int:
    """The wall clock, microseconds since 1970 UTC."""
    return time.time_ns() // 1000


class Ticker:
    """The wall clock of one live start, never behind the last tick; closes the grid when it has passed a grid point.

    `lock` is held by every micro-batch of query 1 and by whatever else writes to its tables.
    """

    def __init__(self, contributions: Contributions, checkpoint: Checkpoint, max_ahead_us: int, interval_us: int) -> None:
        self.checkpoint, self.lock = checkpoint, threading.Lock()
        self.newest = (contributions.closed_us, -1)
        """The time of the newest tick, and the version of `contributions` with it; both at once, for whoever does not hold the lock."""
        self._contributions, self._max_ahead_us, self._interval_us = contributions, max_ahead_us, interval_us
        self._idle_from_us: int | None = None
        newest = checkpoint.newest_commit
        self._newest = -1 if newest is None else newest

    @property
    def closed_us(self) -> int:
        """The time of the newest tick."""
        return self.newest[0]

    def begin(self, now_us: int) -> None:
        """The backlog is read: from now on time passes."""
        with self.lock:
            self._idle_from_us = wall_us()
            self.tick(now_us)

    def clock(self, batch: int) -> Clock:
        """The clock of a micro-batch that is about to run: closed is what ticks before it have closed.

        A poll that has found nothing closes the grid before the micro-batches after it, also when nobody has got round to its tick: else
        it would depend on the records of that poll whether others' are late.
        """
        planned_us = self.checkpoint.time_us(batch)
        polled_us = (planned_us // self._interval_us - 1) * self._interval_us
        if self._idle_from_us is not None and polled_us > self._idle_from_us:
            self.tick(polled_us)
        return Clock(self.closed_us, self._latest(planned_us))

    def alone(self, sink: Sink) -> Sink:
        """A sink that holds the lock while it works."""

        def locked(frame: DataFrame, batch: int) -> None:
            with self.lock:
                sink(frame, batch)

        return locked

    def rows_are_there(self, batch: int, clock: Clock) -> None:
        """The rows of a micro-batch are committed: tick if the time it was planned at lies beyond a grid point."""
        self._newest = batch
        if self._idle_from_us is not None:
            self.tick(self.checkpoint.time_us(batch))
            self._idle_from_us = wall_us()

    def nothing_came(self, polled_us: int) -> None:
        """A poll that began then has found nothing new: tick if it began beyond a grid point (a running micro-batch sees to that itself)."""
        if self._contributions.crossed(self.closed_us, polled_us) and self.lock.acquire(blocking=False):
            try:
                self.tick(polled_us)
            finally:
                self.lock.release()

    def tick(self, now_us: int) -> None:
        """Close the grid up to a time, if that closes a grid point; the lock is held."""
        if self._contributions.crossed(self.closed_us, now_us):
            self.newest = (now_us, self._contributions.tick_by_clock(self._newest, now_us, self._latest(now_us)))

    def _latest(self, now_us: int) -> int:
        return min(max(now_us, self.closed_us) + self._max_ahead_us, LATEST_US)


def _read_backlog(job: Job, frame: DataFrame, sink: Sink, ticker: Ticker) -> bool:
    """Read what is stored, again while that takes long, and only then tick; False if stopped.

    What came in during the last reading is read live. A source that is filled faster than it is read ends the repetition too.
    """
    before_us = 1 << 62
    while True:
        started_us = wall_us()
        if not job.drain(admission.OPERATOR, frame, sink, job.was_read):
            return False
        took_us = wall_us() - started_us
        if took_us <= job.plan.query.trigger_interval_us or took_us > before_us // 2:
            break
        before_us = took_us
    ticker.begin(started_us)
    return True


def _follow(job: Job, following: Following, ticker: Ticker, retention: Retention, released: tuple[int, int]) -> None:
    """Tick in silence, release every tick after `released`, and sweep, until `job.stop` is set."""
    with job.releasing() as release_up_to:
        while not job.stop.wait(POLL_SECONDS):
            following.check()
            ticker.nothing_came(following.idle_since_us)
            tick = ticker.newest
            if tick[0] > released[0]:
                if not release_up_to(tick[0]):
                    return
                before, released = released, tick
                with ticker.lock:
                    # What the last tick but one closed: Spark has not noted the newest release yet and would read its rows again.
                    retention.sweep(*before)
