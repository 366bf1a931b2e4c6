"""One start of a run: read what is stored, tick once, release; then everything stored is published up to the given time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dpsql import public_groups
from dpsql.compiled import Query
from dpsql.config import Source
from dpsql.errors import DpsqlError, InputError
from dpsql.lake import Lake, Run
from dpsql.operators import bounding_parameters, release_parameters
from dpsql.secret import Secret
from dpsql.streaming import admission, delta_log, preflight, release, sources
from dpsql.streaming.catch_up import CatchUp, finish, latest_us, open_catch_up
from dpsql.streaming.contributions import Contributions
from dpsql.streaming.engine import Engine
from dpsql.streaming.failures import translate
from dpsql.streaming.histogram import Histogram
from dpsql.streaming.manifest import Manifest, rows_mark
from dpsql.streaming.microbatches import Sink, drain, stop_on_signals
from dpsql.streaming.progress import Listener, Summary, Tally, observed
from dpsql.streaming.rows import listed_keys, records
from dpsql.streaming.session import run_session
from udfs.contribution_bounding import Clock
from udfs.release import PublicGroups

BUCKETS_PER_CORE = 2


@dataclass(frozen=True)
class _Tables:
    """The private tables of a run."""

    contributions: Contributions
    admission: Manifest
    release: Manifest
    histogram_path: str
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
    progress: Listener | None = None,
    stop: threading.Event | None = None,
) -> Summary:
    """Run a query on Spark until its stored input is released.

    Args:
        spark: from `dpsql.streaming.session.session`.
        query: from `dpsql.compile`.
        run: from `dpsql.lake.open_run`: the run id and the name in the lake.
        lake: the lake.
        secret: the run's secret.
        until_caught_up: read what is stored, tick once, release, return.
        until_us: close the grid up to here (microseconds since 1970 UTC); None is the wall clock at the first start of this catch-up.
        buckets: of users and of keys; None takes two per core at the run's first start.
        progress: told after every micro-batch.
        stop: set it from another thread to stop after the running micro-batch, as Ctrl-C and SIGTERM do.

    Returns:
        What this start did. `stopped` tells that it was asked to stop; starting again goes on where it ended.

    Raises:
        InputError: the input, the lake or `until_us` does not fit (exit code 2).
        ReleaseConflict: a published trigger would be published again with other rows.
        DpsqlError: Spark failed.
    """
    if not until_caught_up:
        raise InputError("running for ever is not available yet: add --until-caught-up")
    stop = stop or threading.Event()
    with stop_on_signals(stop):
        return _Job(spark, query, run, lake, secret, buckets, progress, stop).catch_up(until_us)


class _Job:
    """The parts of one start, put together after the checks."""

    def __init__(
        self,
        spark: SparkSession,
        query: Query,
        run: Run,
        lake: Lake,
        secret: Secret,
        buckets: tuple[int, int] | None,
        progress: Listener | None,
        stop: threading.Event,
    ) -> None:
        self.spark, self.query, self.plan, self.run, self.secret, self.stop = spark, query, query.plan, run, secret, stop
        self.folder = Path(lake.private(run.name))
        self.histogram_path = lake.histogram(run.name)
        default = BUCKETS_PER_CORE * spark.sparkContext.defaultParallelism
        self.engine = preflight.open_engine(self.folder, buckets, default)
        self.tables = self._tables()
        self.tally = Tally(progress)

    def catch_up(self, until_us: int | None) -> Summary:
        """Check, read, tick, release."""
        self._check()
        contributions = self.tables.contributions
        catch_up = open_catch_up(self.folder, until_us, contributions.closed_us, self._static_versions())
        if not self._admit(catch_up):
            return self.tally.summary(stopped=True)
        newest = self.engine.checkpoint(admission.OPERATOR).newest_commit
        due = contributions.tick(catch_up.number, -1 if newest is None else newest, catch_up.until_us, self._latest(catch_up))
        if due and (self.stop.is_set() or not self._release()):
            return self.tally.summary(stopped=True)
        finish(self.folder, catch_up)
        self.tally.stage = "done"
        self.tally.tell()
        return self.tally.summary(stopped=self.stop.is_set())

    def _tables(self) -> _Tables:
        engine, run_id = self.engine, self.run.run_id
        generation = {operator: engine.generation(operator) for operator in (admission.OPERATOR, release.OPERATOR)}
        files = str(self.folder / "files")
        columns = admission.contribution_columns(bounding_parameters(self.plan), len(self.plan.arguments))
        return _Tables(
            Contributions(
                str(self.folder / "contributions"),
                run_id,
                self.plan,
                columns,
                generation[admission.OPERATOR],
                engine.buckets[1],
                engine.void,
                engine.relabelled,
            ),
            Manifest(files, run_id, admission.OPERATOR, generation[admission.OPERATOR]),
            Manifest(files, run_id, release.OPERATOR, generation[release.OPERATOR]),
            self.histogram_path,
            rows_mark(run_id, release.OPERATOR, generation[release.OPERATOR]),
        )

    def _check(self) -> None:
        tables = self.tables
        marks = {
            admission.OPERATOR: [tables.admission.newest_batch, tables.contributions.newest_batch],
            release.OPERATOR: [tables.release.newest_batch, delta_log.mark(tables.histogram_path, tables.histogram_application)],
        }
        needed = {"contributions": self.folder / "contributions", "files": self.folder / "files", "histogram": Path(self.histogram_path)}
        preflight.check(self.engine, needed, marks, {admission.OPERATOR: tables.admission, release.OPERATOR: tables.release})
        preflight.check_files(self.engine, self.query.source.name)

    def _static_versions(self) -> dict[str, int]:
        named = {name: self.query.sources[name] for name in self.query.parsed.static_sources}
        return {name: DeltaTable(source.path).version() for name, source in named.items() if source.format == "delta" and source.path}

    def _admit(self, catch_up: CatchUp) -> bool:
        """Query 1."""
        users, keys = self.engine.buckets
        session = run_session(self.spark, users)
        part = self.engine.parts[admission.OPERATOR]
        tables = sources.register(session, self.query.parsed, self._resumed_sources(part.position), catch_up.static)
        given = records(session, self.plan, self.secret.salt(self.run.run_id), users)
        self.public = self._public(session)
        histogram = Histogram(self.histogram_path, self.tables.histogram_application, self.plan, given.key_types)
        self._create(histogram)
        closed_us = self.tables.contributions.closed_us
        step = admission.AdmissionStep(
            preflight.state_files(self.engine, admission.OPERATOR),
            bounding_parameters(self.plan, self.public, self.run.first_window_us),
            Clock(closed_us, self._latest(catch_up)),
            keys,
            len(self.plan.arguments),
            part.pointers,
        )
        checkpoint = self.engine.checkpoint(admission.OPERATOR)
        sink = admission.AdmissionSink(self.tables.admission, self.tables.contributions, checkpoint, step.clock, self.tally.add_dropped)
        self.histogram = histogram
        try:
            return self._drain(admission.OPERATOR, admission.admitted(given.frame, step), sink, self._was_read)
        finally:
            for table in tables:
                table.unpersist()

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

    def _latest(self, catch_up: CatchUp) -> int:
        return latest_us(catch_up, self.plan.query.max_ahead_us)

    def _create(self, histogram: Histogram) -> None:
        self.tables.contributions.create()
        self.tables.admission.create()
        histogram.create()

    def _release(self) -> bool:
        """Query 2."""
        self.tally.stage = "releasing"
        part, keys = self.engine.parts[release.OPERATOR], self.engine.buckets[1]
        session = run_session(self.spark, keys)
        step = release.ReleaseStep(
            preflight.state_files(self.engine, release.OPERATOR),
            release_parameters(self.plan, self.public),
            self.tables.contributions.rows,
            len(self.plan.query.keys),
            self.secret.noise_key(self.run.run_id, self.plan.identity),
            part.pointers,
        )
        checkpoint = self.engine.checkpoint(release.OPERATOR)
        sink = release.ReleaseSink(self.tables.release, self.histogram, checkpoint, self.tally.add_published, part.closed_us)
        stream = self.tables.contributions.stream(session, part.position)
        return self._drain(release.OPERATOR, release.released(stream, step), sink, lambda report: self.tally.tell())

    def _drain(self, operator: str, frame: Any, sink: Sink, told: Callable[[Any], None]) -> bool:
        first = self.engine.parts[operator].first

        def remembering(batch_frame: Any, batch: int) -> None:
            # Before the first commit: from then on another checkpoint must not pass for this one.
            self.engine.remember_query(operator)
            sink(batch_frame, first + batch)

        path = self.engine.checkpoint(operator).path
        try:
            return drain(frame, remembering, path, self.stop, told)
        except DpsqlError:
            raise
        except Exception as problem:
            raise translate(problem, self.query.source.name, f"the {operator} query") from None

    def _was_read(self, report: Any) -> None:
        counted = observed(report)
        self.tally.records += int(report.numInputRows)
        self.tally.rate = float(report.processedRowsPerSecond or 0.0)
        self.tally.add_dropped(counted)
        source, malformed = self.query.source, counted.get("malformed", 0)
        where = f"in micro-batch {report.batchId} of source {source.name!r}"
        warning = f"{malformed} malformed records {where} (max_malformed {source.max_malformed})"
        self.tally.tell(warning if malformed > source.max_malformed else None)


__all__ = ["Engine", "run"]
