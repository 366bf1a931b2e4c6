"""One start of a run. A catch-up reads what is stored, ticks once and releases; `dpsql.streaming.live` goes on for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from dpsql.compiled import Query
from dpsql.config import Source
from dpsql.errors import DpsqlError, InputError, LakeError
from dpsql.files import ObjectPath, Place
from dpsql.lake import preflight, remedies
from dpsql.lake.catch_up import CatchUp, finish, latest_us, live_pins, open_catch_up
from dpsql.lake.contributions import Contributions
from dpsql.lake.engine_file import Engine
from dpsql.lake.event_log import EventLog
from dpsql.lake.manifest import Manifest
from dpsql.lake.published import published_marks, triggers_mark
from dpsql.lake.read_files import ReadFiles, readable
from dpsql.lake.retention import Retention
from dpsql.lake.running import exclusive, stop_requests
from dpsql.lake.runs import RUN_FILE, Lake, Run, read_run
from dpsql.mechanisms.histogram import public_groups
from dpsql.mechanisms.histogram.stages import admission_stage, grid, release_parameters
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.streaming import intact, long_lines, sources, static_tables
from dpsql.streaming.admission import AdmissionSink
from dpsql.streaming.catalog import located
from dpsql.streaming.clocks import Clocks, listed_clocks
from dpsql.streaming.contribution_stream import stream
from dpsql.streaming.histogram import Histogram
from dpsql.streaming.live import LiveOptions
from dpsql.streaming.live import live as follow_for_ever
from dpsql.streaming.microbatches import Sink, Stepping, drain, stop_on_signals
from dpsql.streaming.progress import Listener, Summary, Tally
from dpsql.streaming.release import ReleaseSink
from dpsql.streaming.rows import listed_keys, records
from dpsql.streaming.session import CATCH_UP, check_s3, run_session
from dpsql.streaming.workers import stateful
from udfs.histogram.release import PublicGroups
from udfs.histogram.stages import ReleaseStage
from udfs.stage import ADMISSION, OPERATORS, RELEASE, Clock
from udfs.worker import Intake, Release

BUCKETS_PER_CORE = 2


@dataclass(frozen=True)
class _Tables:
    """The private tables of a run."""

    contributions: Contributions
    admission: Manifest
    release: Manifest
    histogram_path: Place
    histogram_application: str


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
        run: from `dpsql.lake.runs.open_run`: the run id and the name in the lake.
        lake: the lake.
        secret: the run's secret.
        until_caught_up: read what is stored, tick once, release, return; else run live.
        until_us: close the grid up to here (microseconds since 1970 UTC); None is the wall clock at the first start of this catch-up.
        buckets: of users and of keys; None takes two per core at the run's first start.
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
    if until_us is not None and not until_caught_up:
        raise InputError("--until is for stored input: a live run releases every trigger when its time has come; add --until-caught-up")
    stop, options = stop or threading.Event(), live or LiveOptions()
    if not until_caught_up:
        options.interval(query.plan.query)
    query = replace(query, sources=located(spark, query.sources, (query.parsed.stream, *query.parsed.static_sources)))
    folder = lake.private(run.name)
    with exclusive(folder), stop_requests(folder, stop), stop_on_signals(stop):
        if (folder / RUN_FILE).exists() and read_run(lake, run.name).run_id != run.run_id:
            raise LakeError(f"{run.name!r} became a new run while this one was starting; start again")
        events = EventLog(folder, run.run_id, run.name, log, metrics)
        with events.of_start("catch_up" if until_caught_up else "live", stop):
            job = Job(spark, query, run, lake, secret, buckets, Tally(progress, events), stop, ledger)
            return job.catch_up(until_us, options.retention_us) if until_caught_up else follow_for_ever(job, options)


class Job:
    """The parts of one start, put together after the checks."""

    def __init__(
        self,
        spark: SparkSession,
        query: Query,
        run: Run,
        lake: Lake,
        secret: Secret,
        buckets: tuple[int, int] | None,
        tally: Tally,
        stop: threading.Event,
        ledger: Ledger | None,
    ) -> None:
        self.spark, self.query, self.plan, self.run, self.stop = spark, query, query.plan, run, stop
        self.secret = secret.of_ledger(run.ledger_id)
        self.register = ledger.register if ledger else None
        self.folder = lake.private(run.name)
        if isinstance(self.folder, ObjectPath):
            check_s3(spark)
        self.histogram_path = lake.histogram(run.name)
        default = BUCKETS_PER_CORE * spark.sparkContext.defaultParallelism
        self.engine = preflight.open_engine(self.folder, buckets, default)
        self.tables = self._tables()
        self.tally = tally
        self._release_query: tuple[Any, ReleaseSink] | None = None

    def catch_up(self, until_us: int | None, retention_us: int) -> Summary:
        """Check, read, tick, release, sweep."""
        self.check()
        retention = self.retention(retention_us)
        static = self.static_pins()
        catch_up = open_catch_up(self.folder, until_us, self.tables.contributions.closed_us, static)
        static_tables.check_unchanged(catch_up.static, static)
        latest = latest_us(catch_up, self.plan.query.max_ahead_us)
        if not self._admit(catch_up, latest, retention):
            return self.tally.summary(stopped=True)
        newest = self.engine.checkpoint(ADMISSION).newest_commit
        due = self.tables.contributions.tick(catch_up.number, -1 if newest is None else newest, catch_up.until_us, latest)
        if (due or self._unreleased()) and (self.stop.is_set() or not self.release()):
            return self.tally.summary(stopped=True)
        finish(self.folder, catch_up)
        retention.after_catch_up()
        self.tally.stage = "done"
        self.tally.tell()
        read = map(readable, self.engine.checkpoint(ADMISSION).files())  # and not what came while it was at work
        not_read = sorted(set(sources.files_there(self.spark, self.query.source)).difference(read))
        return self.tally.summary(stopped=self.stop.is_set(), not_read=not_read)

    def _tables(self) -> _Tables:
        engine, run_id = self.engine, self.run.run_id
        generation = {operator: engine.generation(operator) for operator in OPERATORS}
        files = self.folder / "files"
        return _Tables(
            Contributions(
                self.folder / "contributions",
                run_id,
                grid(self.plan),
                admission_stage(self.plan).gives,
                generation[ADMISSION],
                engine.buckets[1],
                engine.void,
                engine.relabelled,
            ),
            Manifest(files, run_id, ADMISSION, generation[ADMISSION]),
            Manifest(files, run_id, RELEASE, generation[RELEASE]),
            self.histogram_path,
            triggers_mark(run_id, generation[RELEASE]),
        )

    def check(self) -> None:
        """Refuse a lake, checkpoints or a source that do not belong together."""
        tables = self.tables
        needed = {"contributions": self.folder / "contributions", "files": self.folder / "files", "histogram": self.histogram_path}
        preflight.check_logs(self.engine, needed)
        published = published_marks(tables.histogram_path, self.run.run_id, self.engine.generation(RELEASE))
        marks = {
            ADMISSION: [tables.admission.newest_batch, tables.contributions.newest_batch],
            RELEASE: [tables.release.newest_batch, published.newest_batch(tables.release.batches())],
        }
        preflight.check(self.engine, needed, marks, {ADMISSION: tables.admission, RELEASE: tables.release})
        preflight.check_files(self.engine, self.query.source.name)
        if self.register:
            self.register.check(self.run.run_id, tables.contributions.closed_us)

    def retention(self, kept_us: int) -> Retention:
        """The sweeper of this start."""
        return Retention(self.engine, self.tables.contributions, kept_us, self.tables.release, lambda: self.histogram)

    def _publishing(self, closed_us: int) -> None:
        self.tally.publishing(closed_us)
        if self.register:
            self.register.publishing(self.run.run_id, self.folder, closed_us)

    def static_pins(self) -> dict[str, int | str]:
        """The static tables to read: those that a live run began with, else as they are."""
        now = static_tables.pins(self.spark, [self.query.sources[name] for name in self.query.parsed.static_sources])
        begun = live_pins(self.folder)
        static_tables.check_unchanged(begun, now)
        return {**now, **begun}

    def _admit(self, catch_up: CatchUp, latest: int, retention: Retention) -> bool:
        """Query 1."""
        clock = Clock(self.tables.contributions.closed_us, latest)
        with self.admission_query(catch_up.static) as frame:
            clocks = Clocks(listed_clocks(self.tables.admission), lambda batch: clock)
            sink = self.admission_sink(clocks, retention.after(lambda batch, clock: None))
            return self.drain(ADMISSION, frame, self.remembering(ADMISSION, sink), self.was_read)

    @contextmanager
    def admission_query(self, static: static_tables.Pins, live: bool = False) -> Iterator[Any]:
        """Query 1 as a frame, to be started inside; every table of the run is there.

        Args:
            static: what pins the static tables.
            live: the source may still be empty, and few reports are kept.
        """
        users, keys = self.engine.buckets
        session = run_session(self.spark, users, {} if live else CATCH_UP)
        part = self.engine.parts[ADMISSION]
        tables = sources.register(
            session, self.query.parsed, self._resumed_sources(part.position), static_tables.versions(static), may_be_empty=live
        )
        given = records(session, self.plan, self.secret.salt(self.run.run_id), users)
        self.public = self._public(session)
        self.histogram = Histogram(self.histogram_path, self.tables.histogram_application, self.plan, given.key_types)
        self._create(self.histogram)
        work = Intake(
            admission_stage(self.plan, self.public, self.run.first_window_us),
            preflight.state_files(self.engine, ADMISSION),
            part.pointers,
            self.tables.contributions.files,
            keys,
        )
        try:
            yield stateful(given.frame, work)
        finally:
            for table in tables:
                table.unpersist()

    def admission_sink(self, clocks: Clocks, done: Callable[[int, Clock], None] = lambda batch, clock: None) -> Sink:
        """The sink of query 1."""
        tables, checkpoint = self.tables, self.engine.checkpoint(ADMISSION)
        read = ReadFiles(tables.admission.path, self.engine.void, remedies.repairable(self.folder))
        if read.twice:
            self.tally.tell(f"{read.twice}; `dpsql verify` says what to do")
        count, unseen = self.tally.add_dropped, partial(long_lines.count, self.spark, self.query.source)
        return AdmissionSink(tables.admission, tables.contributions, checkpoint, clocks, read, count, unseen, done)

    def _public(self, session: SparkSession) -> PublicGroups | None:
        """The public groups, computed at the run's first start and kept with it."""
        if self.plan.selection is not None:
            return None
        kept = public_groups.load(self.folder)
        if kept is None:
            salt = self.secret.salt(self.run.run_id)
            listed = listed_keys(session, self.plan)
            kept = public_groups.public_groups(self.plan, self.query.source, salt, listed, self.run.first_window_us)
            public_groups.save(kept, self.folder)
        return kept

    def _resumed_sources(self, position: str | None) -> dict[str, Source]:
        """All sources; the stream begins where a restored query goes on."""
        stream = self.query.source
        return {**self.query.sources, stream.name: sources.resumed(stream, position)}

    def _create(self, histogram: Histogram) -> None:
        self.tables.contributions.create()
        self.tables.admission.create()
        histogram.create()

    def _unreleased(self) -> bool:
        """Whether a live run died between a tick and its release."""
        checkpoint, (_, sink) = self.engine.checkpoint(RELEASE), self._query_2()
        return checkpoint.newest_batch != checkpoint.newest_commit or self.tables.contributions.closed_us > sink.released_us

    def release(self) -> bool:
        """Run query 2 until everything in `contributions` is released; False if stopped before."""
        stage, self.tally.stage = self.tally.stage, "releasing"
        frame, sink = self._query_2()
        done = self.drain(RELEASE, frame, self._release_sink(sink), lambda report: self.tally.tell())
        self.tally.stage = stage
        return done

    @contextmanager
    def releasing(self) -> Iterator[Callable[[int], bool]]:
        """Query 2 kept running: inside, a call with the time of a newer tick releases up to it; it returns False if stopped before."""
        running: list[Stepping] = []

        def release_up_to(closed_us: int) -> bool:
            stage, self.tally.stage = self.tally.stage, "releasing"
            self.tally.tell()
            with self.failing(RELEASE):
                if not running:
                    running.append(self._start_releasing(closed_us))
                done = running[0].step(closed_us)
            self.tally.stage = stage
            self.tally.tell()
            return done

        try:
            yield release_up_to
        finally:
            for query in running:
                query.finish()

    def _start_releasing(self, closed_us: int) -> Stepping:
        frame, sink = self._query_2()
        checkpoint = self.engine.checkpoint(RELEASE)
        return Stepping(frame, self._release_sink(sink), checkpoint, self.stop, lambda: sink.released_us, closed_us)

    def _query_2(self) -> tuple[Any, ReleaseSink]:
        self._release_query = self._release_query or self._make_release_query()
        return self._release_query

    def _make_release_query(self) -> tuple[Any, ReleaseSink]:
        part, keys = self.engine.parts[RELEASE], self.engine.buckets[1]
        session = run_session(self.spark, keys)
        work = Release(
            ReleaseStage(release_parameters(self.plan, self.public)),
            preflight.state_files(self.engine, RELEASE),
            part.pointers,
            len(self.plan.query.keys),
            self.secret.noise_key(self.run.run_id, self.plan.identity),
        )
        checkpoint = self.engine.checkpoint(RELEASE)
        sink = ReleaseSink(self.tables.release, self.histogram, checkpoint, self.tally.add_published, self._publishing, part.closed_us)
        return stateful(stream(session, self.tables.contributions, part.position), work), sink

    def _release_sink(self, sink: ReleaseSink) -> Sink:
        checkpoint, start = self.engine.checkpoint(RELEASE), self.engine.parts[RELEASE].position
        return self.remembering(RELEASE, intact.checking(sink, self.tables.contributions, checkpoint, start))

    def remembering(self, operator: str, sink: Sink) -> Sink:
        """A sink for Spark's own numbers of micro-batches. It first records whose checkpoint this is: from the first commit on, another must
        not pass for it."""
        recorded, first = False, self.engine.parts[operator].first

        def remember(frame: Any, batch: int) -> None:
            nonlocal recorded
            if not recorded:
                self.engine.remember_query(operator)
                recorded = True
            if operator == ADMISSION:
                self.tally.begin(batch)
            sink(frame, first + batch)

        return remember

    def drain(self, operator: str, frame: Any, sink: Sink, told: Callable[[Any], None]) -> bool:
        """Hand every stored micro-batch of a query to its sink; False if stopped before."""
        with self.failing(operator):
            return drain(frame, sink, self.engine.checkpoint(operator), self.stop, told)

    @contextmanager
    def failing(self, operator: str) -> Iterator[None]:
        """Inside, what Spark raises is told in our words."""
        try:
            yield
        except DpsqlError:
            raise
        except Exception as problem:
            manifest = self.tables.admission if operator == ADMISSION else self.tables.release
            raise intact.failure(problem, self.query.source.name, self.engine, operator, manifest) from None

    def was_read(self, report: Any) -> None:
        """A micro-batch of query 1 is finished."""
        source, malformed, alarm = self.query.source, self.tally.malformed(report), self.tally.was_read(report)
        where = f"in micro-batch {report.batchId} of source {source.name!r} (max_malformed {source.max_malformed})"
        self.tally.tell(f"{malformed} malformed records {where}" if malformed > source.max_malformed else alarm)


__all__ = ["Engine", "LiveOptions", "run"]
