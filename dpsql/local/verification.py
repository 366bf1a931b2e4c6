"""`dpsql verify`: recompute a published run from its stored source and compare every published row, bit for bit.

What Spark read is in the run's private folder: the table `files` lists the source files of every micro-batch that changed state, or how far it
had followed a change feed, and the table `contributions` holds the ticks. A micro-batch that changed nothing admitted nothing, so it needs no
replay. Text is Spark's: it reads the files of such a source once more, into Parquet with their declared types.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dpsql.compiled import Query
from dpsql.description import DUE, LEFT_OUT_ENDING, START
from dpsql.errors import DataError, DpsqlError, LakeError, SparkOnly
from dpsql.files import Place
from dpsql.lake.catch_up import live_pins, read_catch_up
from dpsql.lake.contributions import check_ticks
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.engine_file import FILE as ENGINE_FILE
from dpsql.lake.opening import check_binding
from dpsql.lake.read_files import listed_details
from dpsql.lake.restore_points import Tables, tables_of
from dpsql.lake.runs import Lake, Run, cells_path, neighbour
from dpsql.lake.spark_checkpoint import source_entries
from dpsql.local.connection import connect
from dpsql.local.feed_commits import Commits, changes, read_commits
from dpsql.local.feeder import Feeder, Progress, published_table, recomputed_figures
from dpsql.local.record_reader import RowReader
from dpsql.local.sources import InputFile, in_folders, local_path, source_files
from dpsql.mechanisms import public_groups
from dpsql.mechanisms.protocol import RunFacts
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import read_histogram
from dpsql.published.rows import cell_rows
from dpsql.sources.change_feed import FeedForm
from dpsql.sources.config import Source
from dpsql.udfs.bucket_state import DamagedState
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.stage import ADMISSION, Clock

LIMIT_US = 253_402_300_800_000_000
"""The year 10000."""
NAMED = 10
"""How many names of files are reported."""

TYPED_FORMATS = ("parquet", "delta")
"""Formats that the local engine reads as Spark does; of others Spark reads the files."""

AsParquet = Callable[[Source, Sequence[Path]], Sequence[Path]]
"""Reads files of a source with Spark, and returns them as Parquet with the declared columns."""


@dataclass(frozen=True)
class Verification:
    """The result of a verification.

    Args:
        identical, differences: whether both histograms have the same rows, and how many are only in one of the two.
        published, recomputed: rows of each, those of the table of cells included.
        not_read: files of the source that the run has not read, and the first of their names.
        not_admitted: files of micro-batches of which no record was admitted, and the first of their names: nothing of them is recomputed.
        gone: files that the run has read and the source no longer has, and the first of their names.
        from_us: only windows that start at or after it could be recomputed and are compared, because files are gone; else None.
    """

    identical: bool
    published: int
    recomputed: int
    differences: int
    not_read: int = 0
    not_read_names: tuple[str, ...] = ()
    not_admitted: int = 0
    not_admitted_names: tuple[str, ...] = ()
    gone: int = 0
    gone_names: tuple[str, ...] = ()
    from_us: int | None = None


@dataclass(frozen=True)
class ReadBatch:
    """A micro-batch of query 1: the source files that came with it, or of a change feed the commits, and its clock."""

    files: tuple[Path, ...]
    clock: Clock
    commits: Commits | None = None


@dataclass(frozen=True)
class Ticked:
    """A tick, and the micro-batches between the one before and it."""

    batches: tuple[ReadBatch, ...]
    closed_us: int


@dataclass(frozen=True)
class _StoredRun:
    """A run as its private folder has it: all its ticks, the time up to which they are released, its public groups."""

    tables: Tables
    ticks: Sequence[Ticked]
    released_us: int
    public: PublicGroups | None


@contextmanager
def _recomputable(name: str) -> Iterator[None]:
    """Report what the local engine does not compute as a limit of `verify`."""
    try:
        yield
    except SparkOnly as problem:
        raise LakeError(
            f"`{problem.what}` runs on Spark only, so `dpsql verify` cannot recompute the rows of {name}: they say no more and no less than before. "
            "What can be verified: docs/reference.md, functions"
        ) from None


def verify_run(
    lake: Lake,
    name: str,
    run: Run,
    query: Query,
    secret: Secret,
    progress: Progress | None = None,
    as_parquet: AsParquet | None = None,
) -> Verification:
    """Recompute a run with its own noise key and compare; publishes nothing.

    Args:
        lake, name, run: what to verify.
        query: the run's query, compiled.
        secret: the run's secret.
        progress: told how many records were read.
        as_parquet: lets Spark read text, ORC and Avro; asked for such sources alone (`spark_reads`).

    Raises:
        LakeError: the query or the secret is not the run's; the run is unfinished or its tables are unreadable.
        DataError: a source file that the run has read was changed, or was read twice; or so many are gone that nothing can be recomputed.
    """
    check_binding(run, query, secret, lake)
    secret = secret.of_ledger(run.ledger_id)
    folder = lake.private(name)
    stored = _stored_run(lake, name, run, query)
    ticks = [tick for tick in stored.ticks if tick.closed_us <= stored.released_us]
    if not ticks:
        raise LakeError(
            f"{folder.name}: nothing is released yet, so there is nothing to verify; start the run again, or wait"
        )
    missing, from_us = _missing_files([batch for tick in ticks for batch in tick.batches], query)
    published = read_histogram(lake, name)
    with _recomputable(name):
        reader = _row_reader(query, secret.salt(run.run_id), folder, as_parquet)
        stages = query.mechanism.stages(query.plan, RunFacts(stored.public, run.first_window_us))
        feeder = Feeder(stages, secret.noise_key(run.run_id, query.plan.identity))
        released = _replay(ticks, feeder, reader, missing, query.source, progress, as_parquet)
    pairs = [(published, published_table(query.plan, released, reader.key_types))]
    pairs += _cells(lake, name, query, released)
    pairs += _left_out(lake, name, query, released)
    if run.first_window_us is not None:  # earlier windows are another run's
        pairs = [
            (_from(published, run.first_window_us), recomputed) for published, recomputed in pairs
        ]
    pairs = [_comparable(*pair, stored, from_us, missing) for pair in pairs]
    differences = sum(count_differences(*pair) for pair in pairs)
    if differences:
        read_files = [
            file for tick in stored.ticks for batch in tick.batches for file in batch.files
        ]
        _refuse_changed(folder, [file for file in read_files if file not in missing])
    unread = files_not_read(stored.tables, query.source)
    unadmitted = files_not_admitted(stored.tables, query.source)
    missing_names = sorted(map(str, missing))
    return Verification(
        differences == 0,
        sum(published.num_rows for published, _ in pairs),
        sum(recomputed.num_rows for _, recomputed in pairs),
        differences,
        len(unread),
        tuple(unread[:NAMED]),
        len(unadmitted),
        tuple(unadmitted[:NAMED]),
        len(missing_names),
        tuple(missing_names[:NAMED]),
        from_us,
    )


def spark_reads(source: Source) -> bool:
    """Tell whether a run over a source is recomputed from what Spark reads of its files."""
    return source.format not in TYPED_FORMATS and source.path is not None


def _as_parquet_source(source: Source) -> Source:
    """Return a source as its files are after Spark has read them: images of a change feed have their own columns by then."""
    if not spark_reads(source):
        return source
    feed = FeedForm.DELTA if source.change_feed else None
    return replace(source, format="parquet", options=(), change_feed=feed)


def _row_reader(
    query: Query, salt: bytes, folder: Place, as_parquet: AsParquet | None
) -> RowReader:
    sources = {source.name: _as_parquet_source(source) for source in query.sources.values()}
    inputs = _static_inputs(query, as_parquet)
    return RowReader(query.plan, sources, salt, inputs, _static_versions(folder))


def _cells(
    lake: Lake, name: str, query: Query, released: Sequence[pa.Table]
) -> list[tuple[pa.Table, pa.Table]]:
    """Return the cells of a sketch, published and recomputed; nothing of other queries."""
    sketch = query.shape.sketch
    if sketch is None:
        return []
    with _reading(lake.private(name)):
        cells = read_rows(cells_path(lake.histogram(name)))
    return [(cells, cell_rows(pa.concat_tables(released), query.shape.schedule, sketch))]


def _left_out(
    lake: Lake, name: str, query: Query, released: Sequence[pa.Table]
) -> list[tuple[pa.Table, pa.Table]]:
    """Return the figures of what the limits left out, published and recomputed; nothing of queries without."""
    recomputed = recomputed_figures(query.plan, released)
    if recomputed is None:
        return []
    with _reading(lake.private(name)):
        figures = read_rows(neighbour(lake.histogram(name), LEFT_OUT_ENDING))
    return [(figures, recomputed)]


def _static_inputs(query: Query, as_parquet: AsParquet | None) -> Mapping[str, Sequence[Path]]:
    """Return the files of static tables that Spark reads."""
    files_by_table = {}
    for table in (query.sources[name] for name in query.parsed.static_sources):
        if spark_reads(table):
            files = list(map(Path, source_files(table, {})))
            files_by_table[table.name] = _reader(table, as_parquet)(table, files)
    return files_by_table


def _reader(source: Source, as_parquet: AsParquet | None) -> AsParquet:
    """Return who reads a source that Spark alone reads.

    Raises:
        LakeError: nobody was given.
    """
    if as_parquet is None:
        raise LakeError(
            f"Spark reads files of {source.format}: give verify_run as_parquet, like dpsql.streaming.typed_rows.TypedRows(spark)"
        )
    return as_parquet


def _stored_run(lake: Lake, name: str, run: Run, query: Query) -> _StoredRun:
    """Read what is stored of a run, before its histogram is read: a live job may publish more in the meantime.

    Raises:
        LakeError: it was never started, or something of it is lost or unreadable.
    """
    folder = lake.private(name)
    with _reading(folder):
        tables = tables_of(lake, run)
        if tables is None:
            raise LakeError(
                f"{name}: was never started, or its {ENGINE_FILE} is lost; put back the original file, or start it, then verify"
            )
        ticks = read_ticks(tables, query.source)
        stored = _StoredRun(tables, ticks, tables.released_us, public_groups.load(folder))
    if stored.public is None and query.shape.listed:
        raise LakeError(f"{folder / public_groups.FILE} is lost; put back the original file")
    return stored


def _replay(
    ticks: Sequence[Ticked],
    feeder: Feeder,
    reader: RowReader,
    missing: Collection[Path],
    source: Source,
    progress: Progress | None,
    as_parquet: AsParquet | None,
) -> list[pa.Table]:
    """Read the micro-batches of some ticks again, without missing files, and return what the ticks release."""
    released = []
    for tick in ticks:
        for batch in tick.batches:
            commits = batch.commits
            images = None
            if commits and commits.first <= commits.last:
                images = changes(source, commits)
            if commits is None:
                files = [file for file in batch.files if file not in missing]
                rows = reader.batch_rows(_readable(source, files, as_parquet))
            elif images:
                rows = reader.frame(images)
            else:
                rows = reader.no_records()
            feeder.micro_batch(rows, batch.clock)
            if progress:
                progress(feeder.records)
        released.extend(feeder.tick(tick.closed_us))
    return released


def _readable(
    source: Source, files: Sequence[Path], as_parquet: AsParquet | None
) -> Sequence[InputFile]:
    """Return files as the local engine reads them: what Spark made of them, or themselves with the columns of their folders."""
    if spark_reads(source):
        return _reader(source, as_parquet)(source, files)
    root = _local(str(source.path))
    return [in_folders(file, root, source) for file in files]


def _comparable(
    published: pa.Table,
    recomputed: pa.Table,
    stored: _StoredRun,
    from_us: int | None,
    missing: Collection[Path],
) -> tuple[pa.Table, pa.Table]:
    """Return published and recomputed rows without those that only one of the two can have.

    Raises:
        DataError: so many files are missing that no published row is left.
    """
    ticked_us = max(tick.closed_us for tick in stored.ticks)
    published = _without_newer(published, stored.released_us, ticked_us)
    if from_us is None:
        return published, recomputed
    published = _from(published, from_us)
    if not published.num_rows:
        raise DataError(
            _missing_text(
                missing, f"no row of a window that starts at {_time(from_us)} or later is published"
            )
        )
    return published, _from(recomputed, from_us)


def files_not_read(tables: Tables, source: Source) -> list[str]:
    """Return the files of a source that a run has not read: they came later, or an earlier release of dpsql passed over them."""
    if source.change_feed is FeedForm.DELTA:
        return []
    read_paths = {file for _, batch in _batches(tables, source) for file in batch.files}
    read_paths |= {_local(entry["path"]) for entry in source_entries(tables.folder)}
    try:
        source_paths = source_files(source, {})
    except DataError:  # moved, or not on this disk
        return []
    return sorted(
        os.fspath(file) for file in source_paths if Path(os.path.abspath(file)) not in read_paths
    )


def files_not_admitted(tables: Tables, source: Source) -> list[str]:
    """Return files that Spark has read in finished micro-batches of which the run's book says nothing: no record of them was admitted."""
    checkpoint = tables.engine.checkpoint(ADMISSION)
    if source.change_feed is FeedForm.DELTA or checkpoint.newest_commit is None:
        return []
    admitted = {file for _, batch in _batches(tables, source) for file in batch.files}
    read = {_local(path) for path in checkpoint.files(checkpoint.newest_commit)}
    return sorted(map(os.fspath, read - admitted))


def count_differences(published: pa.Table, recomputed: pa.Table) -> int:
    """Return rows that only one of two histograms has; floating point is compared by its bits."""
    if sorted(published.column_names) != sorted(recomputed.column_names):
        return published.num_rows + recomputed.num_rows
    connection = connect()
    connection.register("published", _by_bits(published.select(recomputed.column_names)))
    connection.register("recomputed", _by_bits(recomputed))
    sides = (("published", "recomputed"), ("recomputed", "published"))
    counts = [
        connection.sql(f"SELECT count(*) FROM (FROM {a} EXCEPT ALL FROM {b})").fetchall()[0][0]
        for a, b in sides
    ]
    return sum(counts)


def read_ticks(tables: Tables, source: Source) -> list[Ticked]:
    """Return the ticks of a run in order, with what was read before each.

    Raises:
        LakeError: no tick yet, or an unfinished catch-up.
        DataError: the source was made neither of files nor of commits, or a file was read twice.
    """
    check_ticks(tables.contributions)
    catch_up = read_catch_up(tables.folder)
    if catch_up is not None and not catch_up.released:
        raise LakeError(
            f"{tables.folder.name}: its last catch-up was interrupted; finish it first with `dpsql run --until-caught-up`"
        )
    ticks = sorted(
        ((batch, closed_us) for batch, closed_us, _ in tables.ticks()),
        key=lambda tick: (tick[1], tick[0]),
    )
    if not ticks:
        raise LakeError(
            f"{tables.folder.name}: no trigger has passed yet, so there is nothing to verify"
        )
    batches = _batches(tables, source)
    _refuse_twice(batches)
    ticked = []
    last_batch = -1
    for last, closed_us in ticks:
        ticked.append(
            Ticked(
                tuple(batch for number, batch in batches if last_batch < number <= last), closed_us
            )
        )
        last_batch = max(last_batch, last)
    return ticked


def _without_newer(published: pa.Table, released_us: int, ticked_us: int) -> pa.Table:
    """Leave out what was published since; rows of triggers that no tick has closed stay, and are found out."""
    due_us = _microseconds(published[DUE])
    return published.filter(
        pc.or_(pc.less_equal(due_us, released_us), pc.greater(due_us, ticked_us))
    )


def _batches(tables: Tables, source: Source) -> list[tuple[int, ReadBatch]]:
    """Return every listed micro-batch that counts."""
    listed = listed_details(tables.folder / "files", tables.engine.void)
    if source.change_feed is FeedForm.DELTA:
        commits = read_commits(listed, source)
        return [
            (batch, ReadBatch((), Clock(**detail["clock"]), commits[batch]))
            for batch, detail in listed.items()
        ]
    if not all("files" in detail for detail in listed.values()):
        raise DataError(
            "only runs over files can be verified: this one read a stream whose messages are not kept with it"
        )
    return [
        (batch, ReadBatch(tuple(map(_local, detail["files"])), Clock(**detail["clock"])))
        for batch, detail in listed.items()
    ]


def _refuse_twice(batches: Sequence[tuple[int, ReadBatch]]) -> None:
    """Refuse a file that is in two micro-batches: recomputing them would count its records twice, as the run has."""
    first: dict[Path, int] = {}
    for number, batch in batches:
        for file in batch.files:
            if first.setdefault(file, number) != number:
                raise DataError(
                    f"{file} was read twice: micro-batches {first[file]} and {number}. Its records count twice in what is published, within "
                    "every unit's bounds; what is published stays. For right figures begin a new run: `dpsql restore NAME --new-run`, or "
                    "another --name"
                )


@contextmanager
def _reading(folder: Place) -> Iterator[None]:
    """Report tables that cannot be read."""
    from deltalake.exceptions import DeltaError  # slow to import

    try:
        yield
    except DpsqlError:
        raise
    except DamagedState as problem:
        raise LakeError(f"{problem}; put back the original file") from None
    except (DeltaError, OSError, ValueError, pa.ArrowException) as problem:
        raise LakeError(f"{folder}: its tables cannot be read ({type(problem).__name__})") from None


def _static_versions(folder: Place) -> dict[str, int]:
    """Return the versions of Delta tables: those of the live run, if it ever was one, else of the newest catch-up."""
    catch_up = read_catch_up(folder)
    pins = live_pins(folder) or ({} if catch_up is None else catch_up.static)
    return {name: pin for name, pin in pins.items() if isinstance(pin, int)}


def _local(uri: str) -> Path:
    return local_path(uri, "the run has read files at {}://, which the local engine does not read")


def _missing_files(batches: Sequence[ReadBatch], query: Query) -> tuple[set[Path], int | None]:
    """Return files that are no longer there, and the first window that nothing in them can have changed (None: all are there).

    A record in them was admitted only if it lay at or before the latest time of its micro-batch's clock.

    Raises:
        DataError: every later row depends on them.
    """
    read_files = [(file, batch.clock.latest_us) for batch in batches for file in batch.files]
    latest_by_file = {file: latest_us for file, latest_us in read_files if not file.is_file()}
    if not latest_by_file:
        return set(), None
    if query.shape.forgets_us is None:
        raise DataError(_missing_text(latest_by_file, "every later row depends on them"))
    return set(latest_by_file), max(latest_by_file.values()) + query.shape.forgets_us + 1


def _missing_text(missing: Collection[Path], why: str) -> str:
    examples = ", ".join(file.name for file in sorted(missing)[:3]) + (
        ", ..." if len(missing) > 3 else ""
    )
    return f"{len(missing):,} files that the run has read are gone ({examples}), and {why}: put them back, then verify again"


def _from(rows: pa.Table, from_us: int) -> pa.Table:
    return rows.filter(pc.greater_equal(_microseconds(rows[START]), from_us))


def _microseconds(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())


def _time(us: int) -> str:
    return (
        f"{datetime.fromtimestamp(us // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        if us < LIMIT_US
        else "the end of time"
    )


def _refuse_changed(folder: Place, files: Sequence[Path]) -> None:
    """Refuse a file that is no longer the one that Spark saw: so the histograms differ."""
    times_ms = {_local(entry["path"]): entry.get("timestamp") for entry in source_entries(folder)}
    for file in files:
        if (
            times_ms.get(file) is not None
            and file.stat().st_mtime_ns // 1_000_000 != times_ms[file]
        ):
            raise DataError(
                f"{file}: was changed after the run had read it: put the original back, then verify again"
            )


def _by_bits(table: pa.Table) -> pa.Table:
    """Return doubles as the integers of the same bits (NULL stays NULL), times as microseconds."""
    columns = []
    for column in table.columns:
        if pa.types.is_float64(column.type):
            column = column.combine_chunks().view(pa.int64())
        elif pa.types.is_timestamp(column.type):
            column = _microseconds(column)
        columns.append(column)
    return pa.table(columns, names=table.column_names)
