"""The local feeder: a loop over micro-batches that calls the same two stages as the Spark engine.

It splits rows by user bucket (where no user is in them, by key or time), hands them to the intake, splits what was admitted by key bucket and
hands it to the release. It has no bounding, clock or release code of its own.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dpsql.compiled import Query
from dpsql.local.comparison import Truth
from dpsql.local.frames import MISTAKE, without_values
from dpsql.local.local_run import open_local_run
from dpsql.local.record_reader import RowReader, frame_table
from dpsql.local.sources import micro_batches, source_files
from dpsql.local.spark_types import SparkType, arrow_types
from dpsql.mechanisms import registry
from dpsql.mechanisms.protocol import Plan, RunFacts
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.progress import progress_line
from dpsql.published.left_out import last_windows, left_out_rows
from dpsql.published.public_rows import shown_frame
from dpsql.published.rows import cell_rows, published_rows
from dpsql.published.sketches import ReleasedCells
from dpsql.times import now_us
from dpsql.udfs.columns import plain_rows, read_numbers
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.noise.randomness import intake_key
from dpsql.udfs.stage import (
    ADMISSION,
    OPERATORS,
    RELEASE,
    Clock,
    Intake,
    Stage,
    StateStore,
    Tables,
    Tick,
    run_bucket,
)

if TYPE_CHECKING:
    import pandas as pd

Buckets = tuple[int, int]
Stages = tuple[Stage[Clock], Stage[Sequence[Tick]]]
Stores = tuple[StateStore, StateStore]
LATEST_US = 1 << 62
"""No event time lies beyond."""
AT_ONCE = 250_000
"""Records whose units are bounded together where nothing follows: what bounds memory. Columns of more are slower: they do not fit a cache."""

Progress = Callable[[int], None]
"""Called with the number of records read so far."""


@dataclass(frozen=True)
class LocalResult:
    """Rows that a run releases, and exact counts of its records.

    Args:
        histogram: the public table.
        drops: how many records were dropped, by reason.
        records: how many were read.
        cells: of a sketch; None of other queries.
        left_out: rows of the table of figures of what the limits left out; None where there are none.
    """

    histogram: pa.Table
    drops: dict[str, int] = field(repr=False)
    records: int = field(repr=False)
    cells: ReleasedCells | None = None
    left_out: pa.Table | None = None


@dataclass(frozen=True)
class TryResult:
    """A LocalResult for pandas.

    Args:
        histogram, table: the same rows; in the table with their own types.
        drops, misfits: how many records were dropped and why, and of malformed ones the first column that did not fit.
        records: how many were read.
        comparison: with the exact histogram, where it was asked for.
    """

    histogram: pd.DataFrame
    table: pa.Table
    drops: dict[str, int] = field(repr=False)
    misfits: Mapping[str, int] = field(repr=False)
    records: int = field(repr=False)
    comparison: dict[str, Any] | None


class MemoryState:
    """State in memory: the newest version of every bucket.

    Args:
        buckets: how many there are.
    """

    def __init__(self, buckets: int) -> None:
        self.buckets = buckets
        self._tables: dict[int, Tables] = {}

    def load(self, bucket: int, sequence: int) -> Tables:
        """Return the tables of one bucket."""
        return self._tables[bucket]

    def store(self, bucket: int, sequence: int, tables: Tables) -> tuple[int, dict[str, str]]:
        """Keep the tables of one bucket in place of the version before."""
        self._tables[bucket] = tables
        return 1, {}


class Feeder:
    """The two stages of a run with their states, one per bucket.

    Args:
        stages: intake and release.
        noise_key: 32 bytes of the run.
        buckets: user buckets and key buckets; the result does not depend on them.
        stores: where the states are; None: in memory.
        progress: told how many records were bounded.

    `sequence` (operator -> bucket -> version of its state) and `batch` (number of the newest micro-batch) are what an engine has to remember.
    """

    def __init__(
        self,
        stages: Stages,
        noise_key: bytes,
        buckets: Buckets = (1, 1),
        stores: Stores | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._intake, self._release = stages
        self._noise_key = noise_key
        self._intake_key = intake_key(noise_key)
        self._users, self._keys = stores or (MemoryState(buckets[0]), MemoryState(buckets[1]))
        counts = zip(OPERATORS, (self._users.buckets, self._keys.buckets), strict=True)
        self.sequence = {operator: dict.fromkeys(range(count), 0) for operator, count in counts}
        self.batch = -1
        self.drops = Counter[str]()
        self.records = 0
        self._progress = progress

    def micro_batch(self, rows: pa.Table, clock: Clock) -> None:
        """Admit one micro-batch of records and add what was admitted to the groups."""
        self.batch += 1
        admitted = []
        for bucket, part in self._parts(rows, clock):
            report, contributions = run_bucket(
                self._intake,
                self._users,
                bucket,
                self.sequence[ADMISSION][bucket],
                part,
                clock,
                self._intake_key,
            )
            self.sequence[ADMISSION][bucket] = report.sequence
            admitted.append(contributions)
            self.drops.update(report.counted["drops"])
            self.records += part.num_rows
            if self._progress:
                self._progress(self.records)
        if admitted:
            admitted_rows = pa.concat_tables(admitted)
            numbered_rows = admitted_rows.append_column(
                "batch", pa.array(np.full(admitted_rows.num_rows, self.batch, np.int64))
            )
            for bucket, part in split(numbered_rows, "key", self._keys.buckets):
                self._released(bucket, part, [])

    def _parts(self, rows: pa.Table, clock: Clock) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of every bucket that has any; where nothing follows, the one bucket in parts of bounded size."""
        is_numbered = isinstance(self._intake, Intake) and self._intake.is_numbered
        if is_numbered and clock.is_last and self._users.buckets == 1:
            yield from ((0, part) for part in cut_by_unit(rows, AT_ONCE))
            return
        spread_by = next(name for name in ("user", "key", "ts") if name in rows.column_names)
        yield from split(rows if is_numbered else plain_rows(rows), spread_by, self._users.buckets)

    def tick(self, closed_us: int) -> list[pa.Table]:
        """Close the grid up to a time in every key bucket and return what is released."""
        nothing = self._release.takes.empty_table()
        ticks = [Tick(self.batch, closed_us)]
        return [self._released(bucket, nothing, ticks) for bucket in range(self._keys.buckets)]

    def _released(self, bucket: int, rows: pa.Table, ticks: Sequence[Tick]) -> pa.Table:
        sequence = self.sequence[RELEASE][bucket]
        report, released = run_bucket(
            self._release, self._keys, bucket, sequence, rows, ticks, self._noise_key
        )
        self.sequence[RELEASE][bucket] = report.sequence
        return released


def split(rows: pa.Table, column: str, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of every bucket that has any: id mod buckets, never negative."""
    if not rows.num_rows:
        return
    if buckets == 1:
        yield 0, rows.combine_chunks()
        return
    bucket = rows.column(column).to_numpy() % buckets
    order = np.argsort(bucket, kind="stable")
    edges = np.searchsorted(bucket[order], np.arange(buckets + 1))
    ordered = rows.take(pa.array(order)).combine_chunks()
    for number in range(buckets):
        if edges[number + 1] > edges[number]:
            yield number, ordered.slice(edges[number], edges[number + 1] - edges[number])


def cut_by_unit(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    """Yield the records of some units at a time, about so many: each unit is in one part, and a record without one is its own."""
    if rows.num_rows <= size or "user" not in rows.column_names:
        yield from (rows.slice(start, size) for start in range(0, rows.num_rows, size))
        return
    user = read_numbers(rows, "user")
    part_of_user = np.cumsum(np.bincount(user.numbers, minlength=len(user.values))) // size
    part_of_user = part_of_user.astype(np.int16)
    part = part_of_user[user.numbers]
    for number in np.unique(part_of_user):
        if len(chosen := np.flatnonzero(part == number)):
            yield rows.take(chosen).combine_chunks()


def run_batches(
    plan: Plan,
    batches: Iterable[pa.Table],
    *,
    noise_key: bytes,
    key_types: Sequence[SparkType] | Callable[[], Sequence[SparkType]],
    until_us: int,
    buckets: Buckets = (1, 1),
    progress: Progress | None = None,
    facts: RunFacts,
    count: int | None = None,
) -> LocalResult:
    """Replay micro-batches without a clock, then tick once.

    Args:
        plan: the plan.
        batches: `rows` tables, in event-time order or not.
        noise_key: 32 bytes of the run.
        key_types: Spark types of the keys, or how to learn them once all batches are read.
        until_us: the time of the tick, microseconds since 1970 UTC.
        buckets: user and key buckets.
        progress: told how many records were read.
        facts: of the run.
        count: how many micro-batches there are, where that is known.
    """
    stages = registry.mechanism_named(plan.mechanism).stages(plan, facts)
    feeder = Feeder(stages, noise_key, buckets, progress=progress)
    clock = Clock(NO_CLOCK, min(max(until_us, now_us()) + plan.query.max_ahead_us, LATEST_US))
    for number, rows in enumerate(batches, start=1):
        feeder.micro_batch(rows, replace(clock, is_last=number == count))
    released = feeder.tick(until_us)
    kinds = key_types() if callable(key_types) else key_types
    drops = {reason: feeder.drops[reason] for reason in registry.shape(plan).drops}
    histogram = published_table(plan, released, kinds)
    cells = _cells(plan, released, kinds)
    return LocalResult(histogram, drops, feeder.records, cells, recomputed_figures(plan, released))


def recomputed_figures(plan: Plan, released: Sequence[pa.Table]) -> pa.Table | None:
    """Return the figures of what the limits left out; None where a plan has none."""
    shape = registry.shape(plan)
    if not shape.left_out:
        return None
    rows = pa.concat_tables(released)
    horizon = shape.schedule.grid.horizon
    windows = {shape.schedule.offset_us} if plan.query.once else last_windows(rows, horizon)
    return left_out_rows(rows, windows, shape.schedule, shape.left_out)


def _cells(
    plan: Plan, released: Sequence[pa.Table], key_types: Sequence[SparkType]
) -> ReleasedCells | None:
    """Return the cells of a sketch; None of other queries."""
    shape = registry.shape(plan)
    if shape.sketch is None:
        return None
    names = (key.name for key in plan.query.keys)
    kinds = (str(kind).lower().replace(" ", "") for kind in key_types)
    value = tuple(zip(names, kinds, strict=False))
    rows = cell_rows(pa.concat_tables(released), shape.schedule, shape.sketch)
    return ReleasedCells(replace(shape.sketch, value=value), rows)


@without_values(MISTAKE)
def run_local(
    query: Query,
    frame: Any,
    secret: Secret,
    run_id: str | None = None,
    *,
    until_us: int | None = None,
    buckets: Buckets = (1, 1),
    ledger: Ledger | None = None,
    schema: str | None = None,
) -> pd.DataFrame:
    """Return the private histogram of a frame, without Spark. It is a run: it writes a ledger line before anything is computed.

    Args:
        query: from `dpsql.compile`.
        frame: the records: a frame of pandas, polars, Arrow, DuckDB or Spark with the columns of the source.
        secret: your secret; with the run id it makes the noise.
        run_id: 128 random bits in hex; a fresh one unless given. Given again it costs nothing, and has to have the same input:
            records, types, list of public groups, start of the stream, static tables. Only `until_us` may differ.
        until_us: releases happen up to this time, microseconds since 1970 UTC (default: the last trigger of every window that has begun).
        buckets: user and key buckets; they change nothing.
        ledger: where the line goes (default: beside the file that the secret was loaded from).
        schema: types of columns of Python objects, like `amount DECIMAL(12, 2)` (default: those of the source).

    Returns:
        The histogram, one row per released (window, trigger, key).

    Raises:
        DataError: a column is missing or has a wrong type.
        InputError: the query uses something that only Spark computes, or too many triggers are due.
        BudgetError: the source's cap would be exceeded, or there is no ledger.
        LakeError: the run id has seen another input, or is another run's.
    """
    result = run_frame(query, frame, secret, run_id, until_us, buckets, ledger, schema)
    return shown_frame(result.histogram, query.published, result.left_out)


def run_frame(
    query: Query,
    frame: Any,
    secret: Secret,
    run_id: str | None = None,
    until_us: int | None = None,
    buckets: Buckets = (1, 1),
    ledger: Ledger | None = None,
    schema: str | None = None,
) -> LocalResult:
    """Return the histogram of a frame with what was dropped; arguments and errors as in `run_local`."""
    records = frame_table(query, frame, schema)
    until_us = query.until_us(until_us)
    if until_us is None:
        until_us = query.shape.schedule.end_us(now_us())
        if long := query.long_wait("until", until_us):
            print(long, file=sys.stderr)
    query.shape.schedule.check_behind(until_us, query.source.start_us)
    run = open_local_run(query, secret, run_id, ledger)
    run_id = run.run_id
    reader = RowReader(query.plan, query.sources, run.secret.salt(run_id), {})
    show_share = progress_line(records.num_rows)
    rows = reader.frame(records, lambda count: show_share(count / records.num_rows / 2))
    facts = query.facts(reader.public_groups(query.source))
    run.check_input(rows, reader.key_types, facts)
    result = run_batches(
        query.plan,
        [rows],
        noise_key=run.secret.noise_key(run_id, query.plan.identity),
        key_types=reader.key_types,
        until_us=until_us,
        buckets=buckets,
        progress=lambda count: show_share((1 + count / rows.num_rows) / 2),
        facts=facts,
        count=1,
    )
    show_share(1)
    return result


def try_query(
    query: Query,
    inputs: Mapping[str, Sequence[Path]],
    *,
    run_id: str,
    secret: Secret,
    until_us: int | None = None,
    progress: Progress | None = None,
    compare: bool = False,
) -> TryResult:
    """Run a query over files with the local engine; publishes nothing. The files are cut into micro-batches as a run cuts them.

    Args:
        query: from `dpsql.compile`.
        inputs: files or folders by source name; sources not named here are read where sources.yaml says.
        run_id: 128 random bits in hex, fresh for every try.
        secret: your secret.
        until_us: releases happen up to this time, microseconds since 1970 UTC (default: now).
        progress: told how many records were read.
        compare: also compute the exact histogram and the errors. Not private: only for data that one may look at.

    Raises:
        DataError: a file is missing or unreadable, or does not fit the query.
        InputError: the query uses something that only Spark computes.
    """
    plan = query.plan
    until_us = query.until_us(until_us)
    until_us = now_us() if until_us is None else until_us
    files = source_files(query.source, inputs)
    reader = RowReader(plan, query.sources, secret.salt(run_id), inputs)
    truth = Truth(query, until_us) if compare else None
    batches = [files] if plan.query.once else micro_batches(query.source, files)
    rows = (reader.batch_rows(batch) for batch in batches)
    result = run_batches(
        plan,
        truth.watch(rows) if truth else rows,
        noise_key=secret.noise_key(run_id, plan.identity),
        key_types=lambda: reader.key_types,
        until_us=until_us,
        progress=progress,
        facts=query.facts(reader.public_groups(query.source)),
        count=len(batches),
    )
    comparison = truth.compare(result.histogram, result.drops, reader.key_types) if truth else None
    frame = shown_frame(result.histogram, query.published, result.left_out)
    return TryResult(
        frame, result.histogram, result.drops, reader.misfits, result.records, comparison
    )


def published_table(
    plan: Plan, released: Sequence[pa.Table], key_types: Sequence[SparkType]
) -> pa.Table:
    """Return the public table of all released rows, sorted by (window_start, trigger, key bytes).

    Args:
        plan: the plan.
        released: tables of the release stage, of any buckets and ticks.
        key_types: the Spark type of each key; none if no input was read at all: then there are no rows, and keys are strings.
    """
    shape = registry.shape(plan)
    return published_rows(
        plan.query,
        shape.schedule,
        shape.columns,
        pa.concat_tables(released),
        arrow_types(key_types, len(plan.query.keys)),
    )
