"""Live runs: query 1 follows its source for ever, and the wall clock closes the grid between its micro-batches.

The clock of a micro-batch is the time of its poll: the last multiple of the polling interval at or before the time at which Spark planned
it, from Spark's own record. When that has reached a grid point, the micro-batch's rows are followed by a tick. When no micro-batch comes, a
poll of the source that found nothing does the same, at the same time: so silence is released too, and an idle query costs no more than its
polls. Time in which nobody polled closes nothing, and neither does a micro-batch that leaves files unread. Every grid point is such a
multiple. Query 2 has a micro-batch when there is a tick, and rests otherwise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame

from dpsql.errors import LakeError
from dpsql.files import Place
from dpsql.lake.catch_up import begin_live, read_catch_up
from dpsql.lake.clock_guard import ClockGuard, check_absence
from dpsql.lake.contributions import Contributions
from dpsql.lake.event_log import BEHIND
from dpsql.lake.overruns import read_overruns, write_overruns
from dpsql.lake.retention import Retention
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.schedule import polling_interval
from dpsql.sources.config import Source
from dpsql.streaming import sources
from dpsql.streaming.admission import Clocks, known_clocks
from dpsql.streaming.away import Watch, watching
from dpsql.streaming.context import RunContext
from dpsql.streaming.microbatches import NEVER_US, POLL_SECONDS, Following, Sink
from dpsql.streaming.progress import Summary, Tally
from dpsql.times import now_us as wall_us
from dpsql.times import timestamp
from dpsql.udfs.stage import ADMISSION, Clock

LATEST_US = 1 << 62
NOTE_SECONDS = 60


@dataclass(frozen=True)
class LiveOptions:
    """The choices of an operator; they change no released number's distribution, only how soon and at what cost it comes.

    Args:
        interval_us: the source is polled at every multiple of it; it divides the trigger interval. None: see `polling_interval`.
        retention_us: contributions are kept so long after their windows have closed.
        accept_clock: the clock is right, though the newest trigger closed days ago.
        accept_folder: the folder of the source is right, though it is empty.
    """

    interval_us: int | None = None
    retention_us: int = 7 * 86_400_000_000
    accept_clock: bool = False
    accept_folder: bool = False


def live(begin: Callable[[], RunContext], options: LiveOptions) -> Summary:
    """Run until somebody asks to stop; begin again where a micro-batch has failed because the folder of the source was away.

    Raises:
        InputError: the polling interval does not fit the query's triggers.
        LakeError: the grid is closed up to a time in the future, as after `--until` with a time to come; or its newest tick is days ago.
        DpsqlError: as in `RunContext.catch_up`.
    """
    while True:
        context = begin()
        summary = _attempt(context, options)
        if context.stop.is_set():
            return summary


def _attempt(context: RunContext, options: LiveOptions) -> Summary:
    query = context.query.parsed
    schedule = context.query.shape.schedule
    interval_us = polling_interval(schedule, options.interval_us)
    catch_up = read_catch_up(context.folder)
    if (
        catch_up is not None
        and not catch_up.released
        and context.catch_up(None, options.retention_us).stopped
    ):
        return context.tally.summary(stopped=True)
    context.check()
    clock = ClockGuard(interval_us, partial(_tell_clock, context.tally), wall_us)
    checkpoint = context.engine.checkpoint(ADMISSION)
    is_cut = UnreadFiles(context.query.source, checkpoint, context.tally)
    contributions = context.tables.contributions
    ticker = Ticker(contributions, checkpoint, query.max_ahead_us, interval_us, clock.time, is_cut)
    _check_grid(context, ticker.closed_us, options)
    static = context.static_pins()
    begin_live(context.folder, static, interval_us)
    is_accepted = options.accept_folder or not context.has_read
    with (
        watching(context.spark, context.query.source, context.tally, is_accepted) as watch,
        watch.excusing(checkpoint, context.stop),
        context.queries(static, live=True) as queries,
    ):
        retention = context.retention(queries, options.retention_us)
        clocks = Clocks(known_clocks(context.tables.admission, ticker.closed_us), ticker.clock)
        sink = context.admission_sink(
            clocks, queries.numbers, retention.with_sweeps(ticker.rows_are_there)
        )
        sink = context.remembering(ADMISSION, ticker.with_lock(sink))
        pace = Pace(context.folder, interval_us, context.tally, clock.time)
        has_read = _read_backlog(context, queries.admission, sink, ticker, pace, watch)
        if not (has_read and context.release(queries)):
            return context.tally.summary(stopped=True)
        context.tally.stage = "running"
        released = ticker.newest
        with context.failing(ADMISSION):
            following = Following(
                queries.following,
                sink,
                checkpoint,
                context.stop,
                context.was_read,
                pace.note,
                interval_us=interval_us,
            )
            ticker.idle_since_us = lambda: watch.idle_us(following.idle_since_us)
            try:
                with context.releasing(queries) as release_up_to:
                    _follow(
                        context.stop, release_up_to, following, ticker, retention, released, clock
                    )
            finally:
                following.finish()
                pace.write()
    return context.tally.summary(stopped=True)


def _check_grid(context: RunContext, closed_us: int, options: LiveOptions) -> None:
    """Refuse a live start whose newest tick is days ago or in the future."""
    schedule = context.query.shape.schedule
    check_absence(context.folder, closed_us, wall_us(), schedule.interval_us, options.accept_clock)
    schedule.check_behind(wall_us(), context.query.source.start_us, closed_us)
    context.tally.tell_long_wait(context.query, wall_us(), closed_us)
    if closed_us - wall_us() > schedule.interval_us:
        raise LakeError(
            f"triggers are closed up to {timestamp(closed_us)}, which is still to come: a live run would drop every record until "
            "then. Wait, or start a new run with another --name"
        )


@dataclass
class Pace:
    """Notes polls that could not be made when they were due, in the run's private folder: the promise assumes that there is none.

    Args:
        folder: the run's private folder.
        interval_us: of the polls.
        tally: is told.
        time: when it was that the wall clock showed a time (`ClockGuard.time`).
    """

    folder: Place
    interval_us: int
    tally: Tally
    time: Callable[[int], int] = lambda shown_us: shown_us
    _free_us: int | None = None
    _is_told: bool = False
    _next: float = 0.0

    def __post_init__(self) -> None:
        self._found = self._written = read_overruns(self.folder)

    def note(self, began_us: int, took_us: int) -> None:
        """Look at a poll and the time before it in which none was made; the first late one is told to the operator.

        Args:
            began_us: when the poll began.
            took_us: how long it and its micro-batch took, if known.
        """
        began_us = self.time(began_us)
        previous_overruns = self._found
        due_us = began_us // self.interval_us * self.interval_us
        if self._free_us is not None:
            self._found = self._found.with_stretch(
                self._free_us, due_us - self._free_us, self.interval_us
            )
        self._found = self._found.with_stretch(began_us, took_us, self.interval_us)
        self._free_us = began_us + took_us
        if self._found == previous_overruns:
            return
        self.tally.overruns += self._found.micro_batches - previous_overruns.micro_batches
        if not self._is_told:
            self._is_told = True
            self.tally.tell(self._found.summary())
        if time.monotonic() >= self._next:
            self.write()

    def write(self) -> None:
        """Keep what was found."""
        if self._found != self._written:
            write_overruns(self.folder, self._found)
            self._written = self._found
            self._next = time.monotonic() + NOTE_SECONDS


@dataclass(frozen=True)
class UnreadFiles:
    """Find micro-batches that may have left files of the source unread, and tell the operator of them."""

    source: Source
    checkpoint: Checkpoint
    tally: Tally

    def __call__(self, batch: int) -> bool:
        """Return whether a micro-batch has as many files as one may have."""
        most_files = sources.most_live_files(self.source)
        if most_files is None:
            return False
        if len(self.checkpoint.position(batch).get("files", ())) < most_files:
            self.tally.events.forget(BEHIND)
            return False
        self.tally.alarm(
            BEHIND,
            f"source {self.source.name!r}: the source brings more files than are read, which is "
            f"{most_files:,} at each poll (maxFilesPerTrigger): no window closes until all are "
            "read. Write fewer and larger files, or set a larger maxFilesPerTrigger or a shorter --interval",
        )
        return True


@dataclass
class Ticker:
    """The clock of one live start: polls of the source, never behind the last tick; closes the grid when it has reached a grid point.

    Its times are multiples of the polling interval. So a poll that finds one record, in a micro-batch that Spark plans a little later, and the
    same poll without it close the same grid points.

    `lock` is held by every micro-batch of query 1 and by whatever else writes to its tables. `time` says when it was that the wall clock showed
    a time (`ClockGuard.time`). `is_cut` says of a micro-batch whether it may have left older records unread.
    """

    contributions: Contributions
    checkpoint: Checkpoint
    max_ahead_us: int
    interval_us: int
    time: Callable[[int], int] = lambda shown_us: shown_us
    is_cut: Callable[[int], bool] = lambda batch: False
    idle_since_us: Callable[[], int] = lambda: NEVER_US
    """When the newest poll began that Spark has reported as idle; microseconds."""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.newest = (self.contributions.closed_us, -1)
        """The time of the newest tick, and the version of `contributions` with it; both at once, for whoever does not hold the lock."""
        self._is_following = False
        self._planned = (-1, 0)
        newest = self.checkpoint.newest_commit
        self._newest = -1 if newest is None else newest

    @property
    def closed_us(self) -> int:
        """The time of the newest tick."""
        return self.newest[0]

    def begin(self, now_us: int) -> None:
        """Let time pass from now on: the backlog is read."""
        with self.lock:
            self._is_following = True
            self.tick(self._poll(self.time(now_us)))

    def clock(self, batch: int) -> Clock:
        """Return the clock of a micro-batch that is about to run: closed is what ticks before it have closed.

        A poll that has found nothing closes the grid before the micro-batches after it, also when nobody has got round to its tick: else
        it would depend on the records of that poll whether others' are late. It has to be a poll that was made: what came in during a long
        release, a slow listing or a slow commit is in time.
        """
        idle_us = self.idle_since_us()
        if self._is_following and idle_us > NEVER_US:
            self.tick(self._poll(self.time(idle_us)))
        return Clock(self.closed_us, self._latest(self._poll_of(batch)))

    def with_lock(self, sink: Sink) -> Sink:
        """Return a sink that holds the lock while it works."""

        def locked(frame: DataFrame, batch: int) -> None:
            with self.lock:
                sink(frame, batch)

        return locked

    def rows_are_there(self, batch: int, clock: Clock) -> None:
        """Tick after the commit of a micro-batch's rows, if its poll has reached a grid point and all that it found is read."""
        self._newest = batch
        if self._is_following and not self.is_cut(batch):
            self.tick(self._poll_of(batch))

    def nothing_came(self, began_us: int) -> None:
        """Tick after a poll that has found nothing new, if it has reached a grid point (a running micro-batch sees to that itself)."""
        polled_us = self._poll(self.time(began_us))
        if self.contributions.schedule.crossed(self.closed_us, polled_us) and self.lock.acquire(
            blocking=False
        ):
            try:
                self.tick(polled_us)
            finally:
                self.lock.release()

    def tick(self, now_us: int) -> None:
        """Close the grid up to a time, if that closes a grid point; the lock is held."""
        if self.contributions.schedule.crossed(self.closed_us, now_us):
            self.newest = (
                now_us,
                self.contributions.tick_by_clock(self._newest, now_us, self._latest(now_us)),
            )

    def _poll_of(self, batch: int) -> int:
        """Return the poll that found a micro-batch: asked twice, the clock might have been set in between."""
        if self._planned[0] != batch:
            self._planned = (batch, self._poll(self.time(self.checkpoint.time_us(batch))))
        return self._planned[1]

    def _poll(self, time_us: int) -> int:
        """Return the time at which the poll was due that a moment belongs to."""
        return time_us // self.interval_us * self.interval_us

    def _latest(self, now_us: int) -> int:
        return min(max(now_us, self.closed_us) + self.max_ahead_us, LATEST_US)


def _read_backlog(
    context: RunContext, frame: DataFrame, sink: Sink, ticker: Ticker, pace: Pace, watch: Watch
) -> bool:
    """Read what is stored, again while that takes long, and only then tick; False if stopped.

    What came in during the last reading is read live. A source that is filled faster than it is read ends the repetition too.
    """
    before_us = 1 << 62
    while True:
        started_us = wall_us()
        if not context.drain(ADMISSION, frame, sink, context.was_read):
            return False
        took_us = wall_us() - started_us
        if took_us <= context.query.shape.schedule.interval_us or took_us > before_us // 2:
            break
        before_us = took_us
    ticker.begin(watch.idle_us(started_us))
    pace.note(started_us, 0)
    return True


def _tell_clock(tally: Tally, wrong: bool, text: str) -> None:
    if wrong:
        tally.events.alarm("clock", text)
    tally.tell(text)


def _follow(
    stop: threading.Event,
    release_up_to: Callable[[int], bool],
    following: Following,
    ticker: Ticker,
    retention: Retention,
    released: tuple[int, int],
    clock: ClockGuard,
) -> None:
    """Tick in silence, release every tick after `released`, and sweep, until `stop` is set."""
    while not stop.wait(POLL_SECONDS):
        following.check()
        ticker.nothing_came(ticker.idle_since_us())
        if clock.set_back and following.poll_anew():
            clock.forgive()
        tick = ticker.newest
        if tick[0] > released[0]:
            if not release_up_to(tick[0]):
                return
            previous_release = released
            released = tick
            with ticker.lock:
                # What the last tick but one closed: Spark has not noted the newest release yet and would read its rows again.
                retention.sweep(*previous_release)
