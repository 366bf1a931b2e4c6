"""What one start of a run works with, and the two queries made of it. A catch-up reads what is stored, ticks once and releases;
`dpsql.streaming.live` goes on for ever with the same parts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from dpsql.compiled import Query
from dpsql.errors import DataError, DpsqlError, Unreachable
from dpsql.files import ObjectPath, Place
from dpsql.lake import preflight, remedies, unreadable
from dpsql.lake.catch_up import CatchUp, finish, latest_us, live_pins, open_catch_up
from dpsql.lake.contributions import Contributions
from dpsql.lake.delta_rows import damage
from dpsql.lake.engine_file import Engine
from dpsql.lake.event_log import DAMAGED, share_text
from dpsql.lake.manifest import Manifest
from dpsql.lake.marks import described_mark, triggers_mark
from dpsql.lake.published_marks import published_marks
from dpsql.lake.read_files import ReadFiles, readable
from dpsql.lake.release_plans import ReleasePlans
from dpsql.lake.retention import Retention
from dpsql.lake.runs import Lake, Run, public_tables
from dpsql.mechanisms.protocol import RunFacts
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.register import RunRegister
from dpsql.privacy.secret import Secret
from dpsql.sources.config import Source
from dpsql.streaming import failures, file_columns, formats, released, sources
from dpsql.streaming.admission import AdmissionSink, Clocks, known_clocks
from dpsql.streaming.away import watching
from dpsql.streaming.footers import Units, check_units
from dpsql.streaming.left_out_table import TablesWithFigures
from dpsql.streaming.microbatches import Sink, Stepping, drain
from dpsql.streaming.progress import Summary, Tally, malformed_question
from dpsql.streaming.published_table import PublishedTable
from dpsql.streaming.release import ReleaseSink, rings
from dpsql.streaming.rows import groups_of, records
from dpsql.streaming.session import CATCH_UP, check_s3, run_session
from dpsql.streaming.sketch_tables import SketchTables
from dpsql.streaming.workers import by_task, stateful
from dpsql.times import now_us
from dpsql.udfs.noise import randomness
from dpsql.udfs.stage import ADMISSION, OPERATORS, RELEASE, Clock, Stage, Tick
from dpsql.udfs.task_files import ReleasedFiles
from dpsql.udfs.task_intake import Gathered, TaskIntake
from dpsql.udfs.worker import WorkerIntake, WorkerRelease

PER_CORE = 2, 1
"""Buckets of users and of keys, in a new run. Of keys every bucket has its task at every trigger, also at a silent one; with one of users larger
arrays make the intake a tenth dearer."""


@dataclass(frozen=True)
class RunTables:
    """The private tables of a run."""

    contributions: Contributions
    admission: Manifest
    release: Manifest
    histogram_application: str


@dataclass(frozen=True)
class Queries:
    """The two queries of a start, made when the schema of the source is known; every table of the run is there.

    Args:
        admission: query 1 as a frame.
        following: query 1 as a frame for polls, each of which reads all that is there or shows that it did not.
        release: query 2 as a frame.
        sink: of query 2.
        numbers: columns of the stream that are read as numbers, and their units.
    """

    admission: DataFrame
    following: DataFrame
    release: DataFrame
    sink: ReleaseSink
    numbers: Units


@dataclass(frozen=True)
class RunContext:
    """One start of a run, made whole by `run_context`.

    Args:
        spark: the session.
        query: its sources are located.
        run: the name's binding.
        folder, histogram_path: where its tables are, private and public.
        secret: of the ledger in which the run began.
        register: what has been published is noted there; None where nobody else sees the lake.
        engine: buckets, generations, restored state.
        tables: of the run.
        tally: what this start did, and whoever is told.
        stop: set to stop after the running micro-batch.
        check_held: refuses to go on where another start may be at work (`dpsql.lake.running.exclusive`); asked before every micro-batch.
    """

    spark: SparkSession
    query: Query
    run: Run
    folder: Place
    histogram_path: Place
    secret: Secret
    register: RunRegister | None
    engine: Engine
    tables: RunTables
    tally: Tally
    stop: threading.Event
    check_held: Callable[[], None]

    def catch_up(self, until_us: int | None, retention_us: int) -> Summary:
        """Check, read, tick, release, sweep."""
        self.check()
        contributions = self.tables.contributions
        static = self.static_pins()
        latest_us = now_us() if until_us is None else until_us
        self.query.shape.schedule.check_behind(
            latest_us, self.query.source.start_us, contributions.closed_us
        )
        if until_us is None:
            self.tally.tell_long_wait(self.query, latest_us, contributions.closed_us)
        catch_up = open_catch_up(
            self.folder, until_us, contributions.closed_us, contributions.newest_tick, static
        )
        sources.check_unchanged(catch_up.static, static)
        with self.queries(catch_up.static) as queries:
            retention = self.retention(queries, retention_us)
            read_all = self._admit(queries, catch_up, retention)
        if not read_all:
            return self.tally.summary(stopped=True)
        newest = self.engine.checkpoint(ADMISSION).newest_commit
        due = contributions.tick(
            catch_up.number,
            -1 if newest is None else newest,
            catch_up.until_us,
            self._latest(catch_up),
        )
        if (due or self._unreleased(queries.sink)) and (
            self.stop.is_set() or not self.release(queries)
        ):
            return self.tally.summary(stopped=True)
        finish(self.folder, catch_up)
        retention.after_catch_up()
        self.tally.stage = "done"
        self.tally.tell()
        not_read = self._not_read()  # a stop may come meanwhile
        return self.tally.summary(stopped=self.stop.is_set(), not_read=not_read)

    def _not_read(self) -> list[str]:
        """Return the files of the source that came while this start was at work."""
        checkpoint = self.engine.checkpoint(ADMISSION)
        # After a crash Spark plans one more micro-batch of a one-time release, which is never read.
        read_paths = map(readable, checkpoint.files(checkpoint.newest_commit))
        return sorted(
            set(sources.files_there(self.spark, self.query.source)).difference(read_paths)
        )

    def check(self) -> None:
        """Refuse a lake, checkpoints or a source that do not belong together."""
        tables = self.tables
        table_paths = {
            "contributions": self.folder / "contributions",
            "files": self.folder / "files",
        }
        public = public_tables(self.histogram_path, self.run)
        table_paths |= public
        with unreadable.reading(self.folder, table_paths):
            preflight.check_logs(self.engine, table_paths)
            published = published_marks(
                self.histogram_path, self.run.run_id, self.engine.generation(RELEASE)
            )
            marks = {
                ADMISSION: [tables.admission.newest_batch, tables.contributions.newest_batch],
                RELEASE: [
                    tables.release.newest_batch,
                    published.newest_batch(tables.release.batches()),
                ],
            }
            preflight.check(
                self.engine,
                table_paths,
                marks,
                {ADMISSION: tables.admission, RELEASE: tables.release},
            )
            preflight.check_beside(self.folder, public, tables.histogram_application)
        for path in public.values():
            if problem := damage(path, reads_bytes=isinstance(path, Path)):
                self.tally.alarm(DAMAGED, problem)
        if self.register:
            self.register.check(self.run.run_id, tables.contributions.closed_us)

    def retention(self, queries: Queries, kept_us: int) -> Retention:
        """Return the sweeper of this start."""
        return Retention(
            self.engine,
            self.tables.contributions,
            kept_us,
            self.tables.release,
            queries.sink.histogram,
            partial(self.tally.alarm, DAMAGED),
        )

    def _publishing(self, closed_us: int) -> None:
        self.tally.publishing(closed_us)
        if self.register:
            self.register.publishing(self.run.run_id, self.folder, closed_us)

    def static_pins(self) -> dict[str, int | str]:
        """Return the static tables to read: those that a live run began with, else as they are."""
        current = sources.pins(
            self.spark, [self.query.sources[name] for name in self.query.parsed.static_sources]
        )
        live = live_pins(self.folder)
        sources.check_unchanged(live, current)
        return {**current, **live}

    def _admit(self, queries: Queries, catch_up: CatchUp, retention: Retention) -> bool:
        """Read what is stored by query 1; False if stopped before. A one-time release is one micro-batch, and reads nothing after it."""
        if self._has_read_once():
            return True
        clock = Clock(self.tables.contributions.closed_us, self._latest(catch_up))
        clocks = Clocks(known_clocks(self.tables.admission, clock.closed_us), lambda batch: clock)
        on_commit = retention.with_sweeps(lambda batch, clock: None)
        sink = self.admission_sink(clocks, queries.numbers, on_commit)
        sink = self.remembering(ADMISSION, sink)
        with watching(self.spark, self.query.source, self.tally, is_accepted=True) as watch:
            started_us = now_us()
            has_read = self.drain(
                ADMISSION,
                queries.admission,
                sink,
                self.was_read,
                lambda: self.stop.is_set() or self._has_read_once(),
            )
            if watch.idle_us(started_us) != started_us:
                raise Unreachable(
                    f"source {self.query.source.name!r}: its folder was away while it was read, so no window is closed; start again when it is back"
                )
        return has_read or self._has_read_once()

    def _has_read_once(self) -> bool:
        """Tell whether the only micro-batch of a one-time release is finished."""
        return self.query.parsed.once and self.has_read

    @property
    def has_read(self) -> bool:
        """Whether a micro-batch of query 1 is finished, perhaps before a restore."""
        is_begun = self.engine.parts[ADMISSION].first > 0
        return is_begun or self.engine.checkpoint(ADMISSION).newest_commit is not None

    @contextmanager
    def queries(self, static: sources.Pins, live: bool = False) -> Iterator[Queries]:
        """Make both queries; query 1 is to be started inside, where its static tables are cached.

        Args:
            static: what pins the static tables.
            live: the source may still be empty, and few reports are kept.
        """
        query = self.query
        users = self.engine.buckets[0]
        session = run_session(self.spark, users, {} if live else CATCH_UP)
        stream = self._stream()
        registered = sources.register(
            session,
            query.parsed,
            {**query.sources, stream.name: stream},
            sources.versions(static),
            may_be_empty=live,
        )
        salt = self.secret.salt(self.run.run_id)
        first_window_us = self.run.first_window_us
        stream_records = records(session, query.plan, salt, users)
        facts = RunFacts(
            groups_of(session, query, self.engine, first_window_us, salt), first_window_us
        )
        intake, release = query.mechanism.stages(query.plan, facts)
        histogram = self._histogram(stream_records.key_types)
        self.tables.contributions.create()
        self.tables.admission.create()
        histogram.create()
        admission = following = self._admission_query(intake, stream_records.frame)
        if live and sources.has_hidden_limit(query.source):
            sources.register_stream(session, sources.without_limit(stream), may_be_empty=True)
            following = self._admission_query(
                intake, records(session, query.plan, salt, users).frame
            )
        try:
            yield Queries(
                admission, following, *self._release_query(release, histogram), registered.numbers
            )
        finally:
            for table in registered.tables:
                table.unpersist()

    def _stream(self) -> Source:
        """Return the stream as query 1 reads it: a restored one from where it goes on, a one-time release at once."""
        stream = sources.resumed(self.query.source, self.engine.parts[ADMISSION].position)
        return sources.read_at_once(stream) if self.query.parsed.once else stream

    def _histogram(self, key_types: tuple[T.DataType, ...]) -> PublishedTable:
        """Return the public table of the run, or both of a sketch, or of one that says what its limits left out."""
        query = self.query
        kind = PublishedTable if query.shape.sketch is None else SketchTables
        kind = TablesWithFigures if query.shape.left_out else kind
        return kind(
            self.histogram_path,
            self.tables.histogram_application,
            query.parsed,
            query.shape,
            key_types,
            query.published,
            described_mark(self.run.run_id),
        )

    def _admission_query(self, intake: Stage[Clock], frame: DataFrame) -> DataFrame:
        """Return query 1 over the records of its source."""
        users, keys = self.engine.buckets
        files = preflight.state_files(self.engine, ADMISSION)
        pointers = self.engine.parts[ADMISSION].pointers
        outputs = self.tables.contributions.files
        key = randomness.intake_key(
            self.secret.noise_key(self.run.run_id, self.query.plan.identity)
        )
        if intake.tables:
            return stateful(frame, WorkerIntake(intake, files, pointers, outputs, keys, key))
        of_tasks = by_task(frame, TaskIntake(intake, users, key))
        return stateful(of_tasks, Gathered(intake.gives, files, pointers, outputs, keys))

    def _release_query(
        self, stage: Stage[Sequence[Tick]], histogram: PublishedTable
    ) -> tuple[DataFrame, ReleaseSink]:
        part = self.engine.parts[RELEASE]
        keys = self.engine.buckets[1]
        session = run_session(self.spark, keys)
        released_folder = self.folder / released.FOLDER
        work = WorkerRelease(
            stage,
            preflight.state_files(self.engine, RELEASE),
            part.pointers,
            self.tables.contributions.rows_for(stage.takes),
            ReleasedFiles(str(released_folder), len(self.query.parsed.output_keys)),
            self.secret.noise_key(self.run.run_id, self.query.plan.identity),
        )
        released.sweep(released_folder)
        plans = ReleasePlans(self.tables.contributions, self.tables.release, part.position)
        published_before = None if part.closed_us is None else (part.first - 1, part.closed_us)
        sink = ReleaseSink(
            self.tables.release,
            histogram,
            plans,
            released_folder,
            self.tally.add_published,
            self._publishing,
            published_before,
        )
        return stateful(rings(session, keys), work), sink

    def admission_sink(
        self, clocks: Clocks, numbers: Units, on_commit: Callable[[int, Clock], None]
    ) -> Sink:
        """Return the sink of query 1."""
        tables = self.tables
        source = self.query.source

        def check_files(uris: Sequence[str]) -> None:
            # Spark leaves out what has vanished since its listing.
            if problem := preflight.missing_files(f"source {source.name!r}", uris):
                raise Unreachable(f"{problem}: put them back, or start a new run as another --name")
            file_columns.check_files(self.spark, source, uris)
            file_columns.check_types(self.spark, source, uris)
            check_units(self.spark, source, numbers, uris)

        read_files = ReadFiles(
            tables.admission.path, self.engine.void, remedies.repairable(self.folder)
        )
        if read_files.twice:
            self.tally.tell(f"{read_files.twice}; `dpsql verify` says what to do")
        if read_files.too_many:
            self.tally.alarm("files", read_files.too_many)
        return AdmissionSink(
            tables.admission,
            tables.contributions,
            self.engine.checkpoint(ADMISSION),
            clocks,
            read_files,
            self.tally.add_dropped,
            check_files,
            partial(formats.count, self.spark, source),
            on_commit,
        )

    def _latest(self, catch_up: CatchUp) -> int:
        return latest_us(catch_up, self.query.parsed.max_ahead_us)

    def _unreleased(self, sink: ReleaseSink) -> bool:
        """Tell whether there is a tick that is not released, or a start died between the listing of released rows and their publication."""
        return self.tables.contributions.closed_us > sink.released_us or not (
            sink.has_published or self._is_published()
        )

    def _is_published(self) -> bool:
        """Tell whether the rows of the newest listed micro-batch of query 2 are in the histogram."""
        newest = self.tables.release.newest_batch
        if newest is None:
            return True
        published = published_marks(
            self.histogram_path, self.run.run_id, self.engine.generation(RELEASE)
        )
        return published.have(self.tables.release.batches(newest)[newest])

    def release(self, queries: Queries) -> bool:
        """Run query 2 until every tick in `contributions` is released; False if stopped before."""
        stage, self.tally.stage = self.tally.stage, "releasing"
        sink = self.remembering(RELEASE, queries.sink)

        def is_enough() -> bool:
            # A query that has repeated a micro-batch would begin one more, in which there is nothing to read.
            return self.stop.is_set() or not self._unreleased(queries.sink)

        while not is_enough():
            self.drain(RELEASE, queries.release, sink, lambda report: self.tally.tell(), is_enough)
        self.tally.stage = stage
        return not self._unreleased(queries.sink)

    @contextmanager
    def releasing(self, queries: Queries) -> Iterator[Callable[[int], bool]]:
        """Keep query 2 running: inside, a call with the time of a newer tick releases up to it; it returns False if stopped before."""
        running: list[Stepping] = []
        sink = queries.sink

        def release_up_to(closed_us: int) -> bool:
            stage, self.tally.stage = self.tally.stage, "releasing"
            self.tally.tell()
            with self.failing(RELEASE):
                if not running:
                    running.append(
                        Stepping(
                            queries.release,
                            self.remembering(RELEASE, sink),
                            self.engine.checkpoint(RELEASE),
                            self.stop,
                            lambda: sink.released_us,
                            closed_us,
                        )
                    )
                is_released = running[0].step(closed_us)
            self.tally.stage = stage
            self.tally.tell()
            return is_released

        try:
            yield release_up_to
        finally:
            for query in running:
                query.finish()

    def remembering(self, operator: str, sink: Sink) -> Sink:
        """Return a sink for Spark's own numbers of micro-batches. It first records whose checkpoint this is: from the first commit on, another must
        not pass for it."""
        recorded = False
        first = self.engine.parts[operator].first

        def remember(frame: Any, batch: int) -> None:
            nonlocal recorded
            self.check_held()
            if not recorded:
                self.engine.remember_query(operator)
                recorded = True
            if operator == ADMISSION:
                self.tally.begin(batch)
            sink(frame, first + batch)

        return remember

    def drain(
        self,
        operator: str,
        frame: Any,
        sink: Sink,
        on_report: Callable[[Any], None],
        is_stopped: Callable[[], bool] | None = None,
    ) -> bool:
        """Hand every stored micro-batch of a query to its sink; False if stopped before."""
        with self.failing(operator):
            return drain(
                frame,
                sink,
                self.engine.checkpoint(operator),
                is_stopped or self.stop.is_set,
                on_report,
            )

    @contextmanager
    def failing(self, operator: str) -> Iterator[None]:
        """Translate what Spark raises into our words."""
        try:
            yield
        except DpsqlError:
            raise
        except Exception as problem:
            file = failures.unreadable_file(problem) if operator == ADMISSION else None
            source = self.query.source
            if file and (text := file_columns.later_problem(self.spark, source, file)):
                raise DataError(text) from None
            manifest = self.tables.admission if operator == ADMISSION else self.tables.release
            raise failures.failure(problem, source.name, self.engine, operator, manifest) from None

    def was_read(self, report: Any) -> None:
        """Count a finished micro-batch of query 1, and warn of too many malformed records."""
        source = self.query.source
        malformed = self.tally.malformed(report)
        alarm = self.tally.was_read(report)
        if malformed > source.max_malformed and self.tally.is_news():
            where = f"in micro-batch {report.batchId} of source {source.name!r}"
            share = share_text(malformed, int(report.numInputRows))
            alarm = f"more malformed records than max_malformed = {source.max_malformed} {where}, {share}: {malformed_question(report)}{_registry_hint(source)}"
            self.tally.events.tell("alarm", alarm="malformed", text=alarm)
        self.tally.tell(alarm)


def _registry_hint(source: Source) -> str:
    """Return a hint for messages that may have a header."""
    if source.value_format != "avro" or source.schema_registry:
        return ""
    return (
        " If a registry of schemas puts five bytes before each value, write schema_registry: true"
    )


def run_context(
    spark: SparkSession,
    query: Query,
    run: Run,
    lake: Lake,
    secret: Secret,
    buckets: tuple[int, int] | None,
    tally: Tally,
    stop: threading.Event,
    ledger: Ledger | None,
    check_held: Callable[[], None],
) -> RunContext:
    """Return all that a start works with; a new run gets its number of buckets.

    Raises:
        LakeError: the run has other numbers of buckets, or its settings are lost or damaged.
    """
    folder = lake.private(run.name)
    histogram_path = lake.histogram(run.name)
    if isinstance(folder, ObjectPath):
        check_s3(spark)
    cores = spark.sparkContext.defaultParallelism
    engine = preflight.open_engine(
        folder, buckets, (PER_CORE[0] * cores, PER_CORE[1] * cores), query.shape.state
    )
    generation = {operator: engine.generation(operator) for operator in OPERATORS}
    contributions = Contributions(
        folder / "contributions",
        run.run_id,
        query.shape.schedule,
        query.shape.contributions,
        generation[ADMISSION],
        engine.buckets[1],
        engine.void,
        engine.relabelled,
    )
    admission, release = (
        Manifest(folder / "files", run.run_id, operator, generation[operator])
        for operator in OPERATORS
    )
    tables = RunTables(
        contributions, admission, release, triggers_mark(run.run_id, generation[RELEASE])
    )
    return RunContext(
        spark,
        query,
        run,
        folder,
        histogram_path,
        secret.of_ledger(run.ledger_id),
        ledger.register if ledger else None,
        engine,
        tables,
        tally,
        stop,
        check_held,
    )
