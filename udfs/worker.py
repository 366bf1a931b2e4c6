"""What a worker of Spark does around a stage: frames of pandas in, state by reference, and frames out.

What the steps make goes into files. Spark carries one row per bucket and micro-batch to the driver: which state file was written, how large
it is and what was counted.
"""

from __future__ import annotations

import errno
import functools
import gc
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.udfs.bucket_state import BucketFiles
from dpsql.udfs.release_plan import ReleasePlan
from dpsql.udfs.stage import LEFT_OUT, Clock, Stage, StateFile, Tick, run_bucket
from dpsql.udfs.task_files import ContributionFiles, ContributionRows, ReleasedFiles, count_values

Frames = Iterable[pd.DataFrame]


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch: its number in the lake, and its clock."""

    number: int
    clock: Clock

    def __str__(self) -> str:
        return f"{self.number},{self.clock.closed_us},{self.clock.latest_us}"

    @classmethod
    def from_message(cls, task_message: str | None) -> MicroBatch:
        """Parse the message that a task received.

        Raises:
            RuntimeError: nobody told it.
        """
        if task_message is None:
            raise RuntimeError("a task of the admission query was not told its micro-batch")
        number, closed_us, latest_us = map(int, task_message.split(","))
        return cls(number, Clock(closed_us, latest_us))


class Work(Protocol):
    """Work of the buckets of one query, a dataclass; shipped to the workers."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def files(self) -> BucketFiles:
        """Where the state is."""

    @property
    def pointers(self) -> Mapping[int, int]:
        """Sequence numbers of restored buckets that Spark does not know yet."""

    def run(
        self, bucket: int, frames: Frames, sequence: int, task_message: str | None
    ) -> StateFile:
        """Run one bucket in one micro-batch, and return its report."""


@dataclass(frozen=True)
class WorkerIntake:
    """Query 1: the stage's rows go into files of the table `contributions`.

    Args:
        stage: of the mechanism.
        files, pointers: as in `Work`.
        contributions: where its rows go.
        key_buckets: they are labelled with the bucket of their key.
        intake_key: of this run (`dpsql.udfs.noise.randomness.intake_key`).
    """

    stage: Stage[Clock]
    files: BucketFiles
    pointers: Mapping[int, int]
    contributions: ContributionFiles
    key_buckets: int
    intake_key: bytes = field(repr=False)

    def run(
        self, bucket: int, frames: Frames, sequence: int, task_message: str | None
    ) -> StateFile:
        """Run one bucket; the report names the new files of contributions, and says how many rows go to each bucket of keys."""
        batch = MicroBatch.from_message(task_message)
        # Dropped records were counted and left behind before the shuffle.
        counted_records = to_arrow(
            frames, self.stage.takes.remove(self.stage.takes.get_field_index("drop"))
        )
        records = counted_records.append_column(
            "drop", pa.array(np.zeros(counted_records.num_rows, np.int8))
        )
        file, rows = run_bucket(
            self.stage, self.files, bucket, sequence, records, batch.clock, self.intake_key
        )
        key_bucket = pa.array((rows["key"].to_numpy() % self.key_buckets).astype(np.int32))
        new_files = self.contributions.write(
            rows.append_column("bucket", key_bucket), bucket, batch.number
        )
        return file.counting(rows=count_values(key_bucket), files=new_files)


@dataclass(frozen=True)
class WorkerRelease:
    """Query 2: the stage's rows go into files for the driver, with their keys decoded; the noise key is here and nowhere else.

    Args:
        stage: of the mechanism.
        files, pointers: as in `Work`.
        contributions: where the rows come from.
        released: where the rows go.
        noise_key: 32 bytes of this run.
    """

    stage: Stage[Sequence[Tick]]
    files: BucketFiles
    pointers: Mapping[int, int]
    contributions: ContributionRows
    released: ReleasedFiles
    noise_key: bytes = field(repr=False)

    def run(
        self, bucket: int, frames: Frames, sequence: int, task_message: str | None
    ) -> StateFile:
        """Run one bucket; the report tells which triggers have how many rows, in which file, and the ticks that released them; and how many rows
        of each micro-batch were read."""
        for _ in frames:  # they say that there is a micro-batch, and nothing else
            pass
        plan = ReleasePlan.from_message(task_message)
        rows = self.contributions.read(plan.files, bucket)
        file, released = run_bucket(
            self.stage, self.files, bucket, sequence, rows, plan.ticks, self.noise_key
        )
        file = file.counting(read=count_values(rows["batch"]))
        if not released.num_rows:
            return file.counting(pairs=[], ticks=[], released=None)
        file_name = self.released.write(released, bucket)
        return file.counting(
            pairs=_pairs(released),
            ticks=sorted({tick.closed_us for tick in plan.ticks}),
            released=file_name,
        )


class StepError(Exception):
    """A step failed in a worker; says only with what kind of error."""


Stateful = Callable[..., Iterator[pd.DataFrame]]


def without_values(function: Stateful) -> Stateful:
    """Wrap a function so that its errors quote no record: Spark keeps their texts in event logs, UI and executors' logs."""

    @functools.wraps(function)
    def quiet(*given: Any) -> Iterator[pd.DataFrame]:
        try:
            yield from function(*given)
        except OSError as problem:  # its number says "disk full", and nothing of a record
            raise StepError(
                f"{type(problem).__name__} {errno.errorcode.get(problem.errno or 0, '')}".strip()
            ) from None
        except Exception as problem:
            raise StepError(type(problem).__name__) from None

    return quiet


@without_values
def answer(
    work: Work,
    bucket: int,
    frames: Frames,
    state: Any,
    task_message: str | None,
    listed: str | None,
) -> Iterator[pd.DataFrame]:
    """Yield what a bucket gives back to Spark in one micro-batch: its report.

    Args:
        work: of the query.
        bucket: which.
        frames: its rows.
        state: Spark's own of the bucket (`GroupState`): the version of its files.
        task_message: what the driver has told the tasks of the micro-batch.
        listed: the versions that they go on from, as it knows them (`dpsql.lake.listed_versions`).
    """
    _freeze_modules()
    warnings.filterwarnings(
        "ignore", category=FutureWarning
    )  # pandas 2 warns of Spark's own concatenations
    sequence = int(state.get[0]) if state.exists else work.pointers.get(bucket, 0)
    fingerprints = dict([json.loads(listed).get(str(bucket), (0, ""))]) if listed else {}
    file = replace(work, files=replace(work.files, fingerprints=fingerprints)).run(
        bucket, frames, sequence, task_message
    )
    if file.bytes:
        state.update((file.sequence,))
    counts = json.dumps(file.counted, separators=(",", ":"), sort_keys=True).encode()
    row = pd.DataFrame(
        {
            "bucket": [file.bucket],
            "sequence": [file.sequence],
            "bytes": [file.bytes],
            "counted": [counts],
        }
    )
    yield row.astype({"bucket": np.int32})


@functools.cache
def _freeze_modules() -> None:
    """Make modules exempt from collection.

    Spark collects garbage after every task: a tenth of a CPU-second for all the modules that are loaded for good. Once per worker."""
    gc.freeze()


def to_arrow(frames: Frames, schema: pa.Schema) -> pa.Table:
    """Return one Arrow table of all frames of a group, columns by name.

    Raises:
        TypeError: an integer column arrived as another type: a NULL got in and 64-bit ids were rounded.
    """
    parts = [
        pa.table([_column(frame[field.name], field) for field in schema], schema=schema)
        for frame in frames
        if len(frame)
    ]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _column(series: pd.Series, field: pa.Field) -> pa.Array:
    if pa.types.is_integer(field.type) and series.dtype != field.type.to_pandas_dtype():
        raise TypeError(f"column {field.name} arrived as {series.dtype}, not {field.type}")
    # numpy, not pandas: there a NaN is a NaN and not a NULL
    array = pa.array(series.to_numpy(), type=field.type)
    if array.null_count:
        raise TypeError(f"column {field.name} must not hold NULL")
    return array


def _pairs(rows: pa.Table) -> list[list[int]]:
    """Return every (window, trigger) with its number of rows of groups: figures of what the limits left out are of none."""
    is_group = pa.repeat(1, rows.num_rows)
    if LEFT_OUT.name in rows.column_names:
        is_group = pc.equal(pc.binary_length(rows[LEFT_OUT.name]), 0).cast(pa.int64())
    columns = {"window": rows["window"], "trigger": rows["trigger"], "rows": is_group}
    sizes = pa.table(columns).group_by(["window", "trigger"]).aggregate([("rows", "sum")])
    return [
        list(row.values()) for row in sizes.select(["window", "trigger", "rows_sum"]).to_pylist()
    ]
