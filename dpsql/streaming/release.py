"""Query 2: contributions and ticks to released rows. Spark keeps a sequence number per bucket of keys, the lake keeps the counters."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from dpsql.lake.checkpoints import Checkpoint
from dpsql.lake.manifest import Manifest
from dpsql.streaming.histogram import Histogram, Pair
from dpsql.streaming.spreading import bucket_of, spread
from dpsql.streaming.wire import FILE_COLUMNS, STATE, file_row, read_file_rows, to_arrow, to_pandas, without_values
from udfs.bucket_state import BucketFiles
from udfs.grid import NO_CLOCK
from udfs.histogram.release import ReleaseParameters, ReleaseState, Tick, release
from udfs.keys import decode
from udfs.stage import ROW, TICK, StateFile


@dataclass(frozen=True)
class ReleaseStep:
    """What one bucket of keys does in one micro-batch; shipped to the workers, the noise key with it and nowhere else.

    Args:
        files: where its state is.
        parameters: the plan's numbers.
        rows: columns of contributions.
        keys: how many key columns there are.
        noise_key: 32 bytes of this run.
        pointers: sequence numbers of restored buckets that Spark does not know yet.
    """

    files: BucketFiles
    parameters: ReleaseParameters
    rows: pa.Schema
    keys: int
    noise_key: bytes = field(repr=False)
    pointers: Mapping[int, int]

    @property
    def output(self) -> dict[str, str]:
        """Output columns and their Spark types."""
        values: dict[str, str] = {}
        for i, column in enumerate(self.parameters.columns):
            values |= {f"c{i}": "BIGINT" if column.kind == "count" else "DOUBLE", f"s{i}": "DOUBLE"}
        return FILE_COLUMNS | {f"k{i}": "BINARY" for i in range(self.keys)} | values

    def run(self, bucket: int, frames: Iterable[pd.DataFrame], sequence: int | None) -> tuple[StateFile, pa.Table]:
        """Load, release, store: the bucket's report and its released rows with their keys decoded."""
        given = to_arrow(frames, self._contributions)
        rows = given.filter(pc.equal(given["kind"], ROW))
        told = given.filter(pc.equal(given["kind"], TICK))
        ticks = [Tick(*pair) for pair in zip(told["batch"].to_pylist(), told["closed_us"].to_pylist(), strict=True)]
        sequence = self.pointers.get(bucket, 0) if sequence is None else sequence
        before = ReleaseState(**self.files.load(bucket, sequence)) if sequence else None
        if before is not None:
            before.check()
        done = release(before, rows.combine_chunks(), ticks, self.parameters.for_bucket(bucket, self.files.buckets), self.noise_key)
        size, digests = 0, dict[str, str]()
        if before is None or not _same(before, done.state):
            sequence += 1
            size, digests = self.files.store(bucket, sequence, done.state.tables())
        released = done.rows
        for i, column in enumerate(decode(released["key_bytes"], self.keys)):
            released = released.append_column(f"k{i}", column)
        pairs = _pairs(released)
        closed = sorted({tick.closed_us for tick in ticks}) if pairs else []
        counted = {"closed_us": done.state.closed_us, "pairs": pairs, "ticks": closed, "sha256": digests}
        return StateFile(bucket, sequence, size, counted), released

    @property
    def _contributions(self) -> pa.Schema:
        return pa.schema([("kind", pa.int32()), ("batch", pa.int64()), *self.rows, ("closed_us", pa.int64())])


def released(contributions: DataFrame, step: ReleaseStep) -> DataFrame:
    """The stateful part of query 2: released rows and one report per bucket.

    Args:
        contributions: rows and ticks, from `Contributions.stream`.
        step: what each bucket does.
    """
    function = _spark_function(step)
    schema = ", ".join(f"{name} {kind}" for name, kind in step.output.items())
    return spread(contributions, step.files.buckets).applyInPandasWithState(function, schema, STATE, "append", GroupStateTimeout.NoTimeout)


def _spark_function(step: ReleaseStep) -> Callable[..., Iterator[pd.DataFrame]]:
    def bucket_of_keys(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        warnings.filterwarnings("ignore", category=FutureWarning)  # pandas 2 warns of Spark's own concatenations
        file, rows = step.run(bucket_of(int(key[0]), step.files.buckets), frames, int(state.get[0]) if state.exists else None)
        if file.bytes:
            state.update((file.sequence,))
        if rows.num_rows:
            yield to_pandas(ROW, rows, list(step.output), bucket=np.int32(file.bucket))
        yield file_row(file, step.output)

    return without_values(bucket_of_keys)


def _same(a: ReleaseState, b: ReleaseState) -> bool:
    # Not with check_metadata: Parquet gives the elements of lists another name.
    return a.closed_us == b.closed_us and all(table.equals(b.tables()[name]) for name, table in a.tables().items())


def _pairs(rows: pa.Table) -> list[list[int]]:
    """Every (window, trigger) with its number of rows."""
    counted = rows.select(["window", "trigger"]).group_by(["window", "trigger"]).aggregate([([], "count_all")])
    return [list(row.values()) for row in counted.select(["window", "trigger", "count_all"]).to_pylist()]


@dataclass
class ReleaseSink:
    """What the driver does with a micro-batch of query 2: list the state files, then publish the rows; both at most once.

    Args:
        manifest: of this operator.
        histogram: the public table.
        checkpoint: of this query.
        count: told the triggers and rows published in every micro-batch.
        publishing: told, before rows are published, up to when the grid is closed.
        closed_us: the time up to which triggers were published before the query was restored.
    """

    manifest: Manifest
    histogram: Histogram
    checkpoint: Checkpoint
    count: Callable[[int, int], None]
    publishing: Callable[[int], None]
    closed_us: int | None = None

    def __post_init__(self) -> None:
        self._closed = {batch: int(detail["closed_us"]) for batch, detail in self.manifest.batches().items()}
        if self.closed_us is not None:
            self._closed[self.checkpoint.first - 1] = self.closed_us
        self._newest_us: int | None = None

    @property
    def released_us(self) -> int:
        """The time up to which triggers are listed as released; when no micro-batch is at work, they are published too."""
        return max(self._closed.values(), default=NO_CLOCK)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Publish one micro-batch; doing it again changes nothing.

        Raises:
            ReleaseConflict: it would publish a trigger otherwise than before; nothing is written.
        """
        frame.persist()
        try:
            files = read_file_rows(frame)
            pairs: dict[Pair, int] = {}
            for window, trigger, rows in (entry for file in files for entry in file.counted["pairs"]):
                pairs[window, trigger] = pairs.get((window, trigger), 0) + rows
            before = max((closed for earlier, closed in self._closed.items() if earlier < batch), default=NO_CLOCK)
            released_rows = frame.where(f"kind = {ROW}")
            known = self._published(released_rows, pairs, before) if pairs else set()
            new = {pair: rows for pair, rows in pairs.items() if pair not in known}
            closed = max((int(file.counted["closed_us"]) for file in files), default=NO_CLOCK)
            if closed > before or pairs:  # a trigger without rows says something too
                self.publishing(closed)
            due = self._by_tick(new, {tick for file in files for tick in file.counted["ticks"]})
            if any(file.bytes for file in files):
                detail = {"closed_us": closed, "rows": sum(new.values())}
                detail |= {"mark": self.histogram.triggers(max(due))} if due else {}
                self.manifest.commit(batch, files, {**self.checkpoint.position(batch), **detail})
                # Micro-batches come in order and never close less: the newest two are enough, also when one is repeated.
                self._closed = dict(sorted({**self._closed, batch: closed}.items())[-2:])
            # One commit per tick, however the ticks were cut into micro-batches: that depends on how many private files there are.
            for tick, of_tick in sorted(due.items()):
                self.histogram.publish(released_rows, tick, of_tick, every=len(of_tick) == len(pairs))
        finally:
            frame.unpersist()
        self.count(len(new), sum(new.values()))

    def _published(self, rows: DataFrame, pairs: Collection[Pair], before: int) -> set[Pair]:
        """Which triggers are published already. Nobody else publishes, so only the first micro-batch looks how far the histogram goes."""
        if self._newest_us is None:
            self._newest_us = self.histogram.newest_trigger_us()
        known = self.histogram.check(rows, pairs, before, self._newest_us)
        self._newest_us = max(self._newest_us, *map(self.histogram.trigger_time, pairs))
        return known

    def _by_tick(self, pairs: Mapping[Pair, int], ticks: Iterable[int]) -> dict[int, dict[Pair, int]]:
        """Closed time of a tick -> the triggers it releases, with their rows: those that are due by then, and were not by the tick before."""
        times, due = sorted(ticks), dict[int, dict[Pair, int]]()
        for pair, rows in pairs.items():
            due.setdefault(times[bisect_left(times, self.histogram.trigger_time(pair))], {})[pair] = rows
        return due
