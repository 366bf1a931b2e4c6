"""`dpsql verify`: recompute a published run from its stored source and compare every published row, bit for bit.

What Spark read is in the run's private folder: the table `files` lists the source files of every micro-batch that changed state, and the
table `contributions` holds the ticks. A micro-batch that changed nothing admitted nothing, so it needs no replay.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from dpsql import public_groups
from dpsql.compiled import Query
from dpsql.delta_rows import read_rows
from dpsql.errors import DataError, LakeError
from dpsql.lake import Lake, Run, check_binding, read_histogram
from dpsql.local.connection import connect
from dpsql.local.engine import Feeder, Progress
from dpsql.local.histogram import histogram
from dpsql.local.rows import RowReader, no_records
from dpsql.places import Place, place
from dpsql.secret import Secret
from udfs.contribution_bounding import Clock
from udfs.grid import NO_CLOCK

TICK = 1
OPERATOR = "admission"
WHOLE_BATCH = -1


@dataclass(frozen=True)
class Verification:
    """What `verify` found: row counts, and how many rows are only in one of the two."""

    identical: bool
    published: int
    recomputed: int
    differences: int


@dataclass(frozen=True)
class ReadBatch:
    """A micro-batch of query 1: the source files that came with it, and its clock."""

    files: tuple[Path, ...]
    clock: Clock


@dataclass(frozen=True)
class Ticked:
    """A tick, and the micro-batches between the one before and it."""

    batches: tuple[ReadBatch, ...]
    closed_us: int


def verify_run(lake: Lake, name: str, run: Run, query: Query, secret: Secret, progress: Progress | None = None) -> Verification:
    """Recompute a run with its own noise key and compare; publishes nothing.

    Args:
        lake, name, run: what to verify.
        query: the run's query, compiled.
        secret: the run's secret.
        progress: told how many records were read.

    Raises:
        LakeError: the query or the secret is not the run's; the run is unfinished or its tables are unreadable.
        DataError: a source file that the run has read is gone or was changed.
    """
    check_binding(run, query, secret, lake)
    folder = place(lake.private(name))
    # Before the histogram is read: a live job may publish more in the meantime.
    ticked, released_us = read_ticks(folder), released_until_us(folder, lake.histogram(name), run.run_id)
    published = read_histogram(lake, name)
    if run.first_window_us is not None:  # earlier windows are another run's
        published = published.filter(pc.greater_equal(published["window_start"].cast(pa.int64()), run.first_window_us))
    reader = RowReader(query.plan, query.sources, secret.salt(run.run_id), {}, _static_versions(folder))
    noise_key, public = secret.noise_key(run.run_id, query.plan.identity), public_groups.load(folder)
    feeder = Feeder(query.plan, noise_key, public=public, first_window_us=run.first_window_us)
    released = []
    for tick in ticked:
        if tick.closed_us > released_us:
            break
        for batch in tick.batches:
            _check_present(batch.files)
            feeder.micro_batch(pa.concat_tables([no_records(len(query.plan.arguments)), *reader.files(batch.files)]), batch.clock)
            if progress:
                progress(feeder.records)
        released.extend(feeder.tick(tick.closed_us))
    recomputed = histogram(query.plan, released, reader.key_types)
    published = _without_newer(published, released_us, max(tick.closed_us for tick in ticked))
    differences = count_differences(published, recomputed)
    if differences:
        _refuse_changed(folder, [file for tick in ticked for batch in tick.batches for file in batch.files])
    return Verification(differences == 0, published.num_rows, recomputed.num_rows, differences)


def count_differences(published: pa.Table, recomputed: pa.Table) -> int:
    """Rows that only one of two histograms has; floating point is compared by its bits."""
    if sorted(published.column_names) != sorted(recomputed.column_names):
        return published.num_rows + recomputed.num_rows
    connection = connect()
    connection.register("published", _by_bits(published.select(recomputed.column_names)))
    connection.register("recomputed", _by_bits(recomputed))
    sides = (("published", "recomputed"), ("recomputed", "published"))
    counts = [connection.sql(f"SELECT count(*) FROM (FROM {a} EXCEPT ALL FROM {b})").fetchall()[0][0] for a, b in sides]
    return sum(counts)


def read_ticks(folder: Place) -> list[Ticked]:
    """The ticks of a run in order, with what was read before each.

    Raises:
        LakeError: no tick yet, an unfinished catch-up, or unreadable tables.
        DataError: the source was not made of files.
    """
    catch_up = _small_file(folder / "catch_up.json")
    if not catch_up.get("released", True):
        raise LakeError(f"{folder.name}: its last catch-up was interrupted; finish it first with `dpsql run --until-caught-up`")
    ticks = _ticks(folder / "contributions")
    if not ticks:
        raise LakeError(f"{folder.name}: no trigger has passed yet, so there is nothing to verify")
    batches = _batches(folder / "files")
    out, before = [], -1
    for last, closed_us in ticks:
        out.append(Ticked(tuple(batch for number, batch in batches if before < number <= last), closed_us))
        before = max(before, last)
    return out


def released_until_us(folder: Place, histogram: str, run_id: str) -> int:
    """Every tick up to this time has been released: a live job may be at work on the next.

    Spark notes a micro-batch of a live run only when the next one begins. Before, the listing and the histogram tell that it is done.

    Raises:
        LakeError: the run was restored and not started since.
    """
    part = _engine(folder).get("parts", {}).get("release", {})
    generation, first = int(part.get("generation", 1)), int(part.get("first", 0))
    noted = folder / "checkpoints" / ("release" if generation == 1 else f"release-g{generation}") / "commits"
    commits = [int(path.name) for path in noted.iterdir() if path.name.isdigit()] if noted.is_dir() else []
    done = first + max(commits, default=-1)
    whole = (pc.field("operator") == "release") & (pc.field("bucket") == WHOLE_BATCH)
    listed = _delta(folder / "files", ["operator", "bucket", "batch", "generation", "detail"], whole).to_pylist()
    published = _mark(histogram, f"{run_id}/release/g{generation}/rows")
    newest, closed_us = -1, NO_CLOCK
    for row in listed:
        detail = json.loads(row["detail"])
        rows_are_there = row["generation"] == generation and (not detail["rows"] or row["batch"] <= published)
        if row["batch"] <= done or rows_are_there:
            newest, closed_us = max(newest, row["batch"]), max(closed_us, int(detail["closed_us"]))
    if generation > 1 and not commits and newest < first:
        raise LakeError(f"{folder.name}: was restored and not started since; start it first, then verify")
    return closed_us


def _without_newer(published: pa.Table, released_us: int, ticked_us: int) -> pa.Table:
    """Leave out what was published since; rows of triggers that no tick has closed stay, and are found out."""
    due_us = pc.cast(pc.cast(published["trigger_time"], pa.timestamp("us", "UTC")), pa.int64())
    return published.filter(pc.or_(pc.less_equal(due_us, released_us), pc.greater(due_us, ticked_us)))


def _ticks(table: Place) -> list[tuple[int, int]]:
    """(last micro-batch, closed time) of every tick, in order."""
    names = ("batch", "closed_us")
    found = _delta(table, ["kind", *names], pc.field("kind") == TICK)
    ticks = set(zip(*(found.column(name).to_pylist() for name in names), strict=True))
    return sorted(ticks, key=lambda tick: (tick[1], tick[0]))


def _batches(table: Place) -> list[tuple[int, ReadBatch]]:
    """Every listed micro-batch, of the newest generation that lists it."""
    void = _void_batches(table.parent)
    listed = (pc.field("operator") == OPERATOR) & (pc.field("bucket") == WHOLE_BATCH)
    found = _delta(table, ["operator", "bucket", "batch", "generation", "detail"], listed)
    newest: dict[int, tuple[int, ReadBatch]] = {}
    for row in found.to_pylist():
        if any(first <= row["batch"] <= last for first, last in void):
            continue
        detail = json.loads(row["detail"])
        if "files" not in detail:
            raise DataError("only runs over files can be verified: this one read a stream whose messages are not kept with it")
        if row["batch"] not in newest or newest[row["batch"]][0] < row["generation"]:
            read = ReadBatch(tuple(_local(uri) for uri in detail["files"]), Clock(**detail["clock"]))
            newest[row["batch"]] = (row["generation"], read)
    return [(batch, read) for batch, (_, read) in sorted(newest.items(), key=lambda entry: entry[0])]


def _void_batches(folder: Place) -> list[tuple[int, int]]:
    """Micro-batches that a restored run has read again under other numbers."""
    return [(int(first), int(last)) for first, last in _engine(folder).get("void", ())]


def _engine(folder: Place) -> dict[str, Any]:
    return _small_file(folder / "engine.json")


def _mark(table: str, application: str) -> int:
    """The newest micro-batch that an application has committed to a table; -1 before the first."""
    from deltalake import DeltaTable  # slow to import

    found = DeltaTable(table).transaction_version(application) if DeltaTable.is_deltatable(table) else None
    return -1 if found is None else found


def _delta(table: Place, columns: Sequence[str], condition: pc.Expression) -> pa.Table:
    from deltalake.exceptions import DeltaError  # slow to import

    try:
        return read_rows(str(table), columns, condition)
    except (DeltaError, OSError, pa.ArrowException) as problem:
        raise LakeError(f"{table}: cannot be read ({type(problem).__name__})") from None


def _small_file(path: Place) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError):
        raise LakeError(f"{path}: damaged; put back the original file") from None


def _static_versions(folder: Place) -> dict[str, int]:
    """Those of the live run, if it ever was one, else of the newest catch-up."""
    live = _small_file(folder / "live.json")
    return dict((live or _small_file(folder / "catch_up.json")).get("static", {}))


def _local(uri: str) -> Path:
    """A path from Spark's log: `file:///a%20b/c` or a plain path."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        raise DataError(f"the run has read files at {parts.scheme}://, which the local engine does not read")
    return Path(unquote(parts.path) if parts.scheme else uri)


def _check_present(files: Sequence[Path]) -> None:
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: the run has read this file, and it is gone: put it back, then verify again")


def _refuse_changed(folder: Place, files: Sequence[Path]) -> None:
    """The histograms differ: say so if a file is no longer the one that Spark saw."""
    checkpoints: list[Place] = sorted((folder / "checkpoints").iterdir(), key=str)
    logs = [log for path in checkpoints if path.name.startswith(OPERATOR) for log in _source_log(path / "sources" / "0")]
    seen = {_local(entry["path"]): entry.get("timestamp") for entry in logs}
    for file in files:
        if seen.get(file) is not None and file.stat().st_mtime_ns // 1_000_000 != seen[file]:
            raise DataError(f"{file}: was changed after the run had read it: put the original back, then verify again")


def _source_log(folder: Place) -> list[dict[str, Any]]:
    """Entries of Spark's file source log; a compacted file repeats the ones before it."""
    paths: list[Place] = sorted(folder.iterdir(), key=str) if folder.is_dir() else []
    lines = [line for path in paths if path.name.removesuffix(".compact").isdigit() for line in path.read_text().splitlines()[1:]]
    return [json.loads(line) for line in lines if line.startswith("{")]


def _by_bits(table: pa.Table) -> pa.Table:
    """Doubles as the integers of the same bits (NULL stays NULL), times as microseconds."""
    columns = []
    for column in table.columns:
        column = column.combine_chunks()
        if pa.types.is_float64(column.type):
            bits = pa.Array.from_buffers(pa.int64(), len(column), column.buffers(), column.null_count, column.offset)
            columns.append(bits)
        elif pa.types.is_timestamp(column.type):
            columns.append(column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()))
        else:
            columns.append(column)
    return pa.table(columns, names=table.column_names)
