"""Where an intake has no state: every task steps over the records it reads, and only what comes of them is shuffled.

The bucket that the rows are sent to writes them to the contributions as they are. Their sums are the same however records were cut into
tasks, so a task or a micro-batch that is done again changes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.bucket_state import BucketFiles
from dpsql.udfs.stage import Clock, Stage, StateFile
from dpsql.udfs.task_files import ContributionFiles, count_values
from dpsql.udfs.worker import Frames, MicroBatch, to_arrow

AT_ONCE = 1_000_000
"""Records that a task steps over together: more of them share a value, and they fit in memory."""
DROPPED = "dropped"
"""A column of bytes: empty in rows that go on, and in one row per step what it counted, as JSON."""


@dataclass(frozen=True)
class TaskIntake:
    """Work of every task of query 1.

    Args:
        stage: of the mechanism; without state.
        buckets: what comes of a task goes to one of them.
        intake_key: of this run (`dpsql.udfs.noise.randomness.intake_key`).
    """

    stage: Stage[Clock]
    buckets: int
    intake_key: bytes = field(repr=False)

    @property
    def output(self) -> pa.Schema:
        """Columns that the stage gives, where they go, and what was counted."""
        return pa.schema([("bucket", pa.int32()), *self.stage.gives, (DROPPED, pa.binary())])

    def run(
        self, batches: Iterable[pa.RecordBatch], task: int, task_message: str | None
    ) -> Iterator[pa.RecordBatch]:
        """Run the stage over the records of one task."""
        clock = MicroBatch.from_message(task_message).clock
        for records in _pieces(
            batches, self.stage.takes.remove(self.stage.takes.get_field_index("drop"))
        ):
            with_drop = records.append_column("drop", pa.array(np.zeros(records.num_rows, np.int8)))
            stepped = self.stage.step(
                self.stage.empty(), with_drop.select(self.stage.takes.names), clock, self.intake_key
            )
            counts = self._row_of(json.dumps(stepped.counted["drops"]).encode())
            rows = stepped.rows.append_column(
                DROPPED, pa.array([b""] * stepped.rows.num_rows, pa.binary())
            )
            table = pa.concat_tables([rows.select(counts.column_names), counts])
            table = table.add_column(
                0, "bucket", pa.array(np.full(table.num_rows, task % self.buckets, np.int32))
            )
            yield from table.cast(self.output).to_batches()

    def _row_of(self, counts: bytes) -> pa.Table:
        neutral = {pa.binary(): b"", pa.float64(): 0.0}
        columns = {
            each.name: pa.array([neutral.get(each.type, 0)], each.type) for each in self.stage.gives
        }
        return pa.table(columns | {DROPPED: pa.array([counts], pa.binary())})


@dataclass(frozen=True)
class Gathered:
    """Query 1 behind the tasks: what they made goes into files of the table `contributions`.

    Args:
        gives: of the stage.
        files, pointers: as in `Work`; there is never a file.
        contributions: where rows go.
        key_buckets: they are labelled with the bucket of their key.
    """

    gives: pa.Schema
    files: BucketFiles
    pointers: Mapping[int, int]
    contributions: ContributionFiles
    key_buckets: int

    def run(
        self, bucket: int, frames: Frames, sequence: int, task_message: str | None
    ) -> StateFile:
        """Write one bucket's contributions; the report is as that of `WorkerIntake`."""
        gathered = to_arrow(frames, pa.schema([*self.gives, (DROPPED, pa.binary())]))
        is_count = pc.not_equal(gathered[DROPPED], b"")
        drops = Counter[str]()
        for counts in gathered.filter(is_count)[DROPPED].to_pylist():
            drops.update(json.loads(counts))
        rows = gathered.filter(pc.invert(is_count)).drop_columns([DROPPED])
        key_bucket = pa.array((rows["key"].to_numpy() % self.key_buckets).astype(np.int32))
        new_files = self.contributions.write(
            rows.append_column("bucket", key_bucket),
            bucket,
            MicroBatch.from_message(task_message).number,
        )
        file = StateFile(bucket, sequence, 0, {"drops": dict(drops), "sha256": {}})
        return file.counting(rows=count_values(key_bucket), files=new_files)


def _pieces(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield records, many at a time."""
    records = list[pa.RecordBatch]()
    size = 0
    for batch in batches:
        records.append(batch)
        size += batch.num_rows
        if size >= AT_ONCE:
            yield _records(records, schema)
            records = []
            size = 0
    if size:
        yield _records(records, schema)


def _records(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return columns by name, as the stage takes them.

    Raises:
        TypeError: one holds a NULL.
    """
    table = pa.Table.from_batches(batches).select(schema.names)
    if any(column.null_count for column in table.columns):
        raise TypeError("a column of records must not hold NULL")
    return table.cast(schema)
