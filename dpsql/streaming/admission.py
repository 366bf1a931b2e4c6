"""Query 1: records to contributions. Spark keeps a sequence number per bucket of users, the lake keeps their counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from dpsql.lake.checkpoints import Checkpoint
from dpsql.lake.contributions import Contributions
from dpsql.lake.manifest import Manifest
from dpsql.lake.read_files import ReadFiles
from dpsql.streaming.clocks import Clocks, MicroBatch, hand_over, handed_over
from dpsql.streaming.spreading import bucket_of, spread
from dpsql.streaming.wire import FILE_COLUMNS, STATE, file_row, read_file_rows, to_arrow, without_values
from udfs.bucket_state import BucketFiles
from udfs.contribution_files import ContributionFiles
from udfs.histogram import user_state
from udfs.histogram.contribution_bounding import BoundingParameters, Clock, admit
from udfs.stage import StateFile


@dataclass(frozen=True)
class AdmissionStep:
    """What one bucket of users does in one micro-batch; shipped to the workers.

    Args:
        files: where its state is.
        admitted: where its contributions go.
        parameters: the plan's numbers.
        key_buckets: contributions are labelled with the bucket of their key.
        arguments: how many argument columns a record has.
        pointers: sequence numbers of restored buckets that Spark does not know yet.
    """

    files: BucketFiles
    admitted: ContributionFiles
    parameters: BoundingParameters
    key_buckets: int
    arguments: int
    pointers: Mapping[int, int]

    def run(self, bucket: int, frames: Iterable[pd.DataFrame], sequence: int | None, now: MicroBatch) -> StateFile:
        """Load, admit, store: the bucket's report, which names the new files of contributions."""
        records = _with_drop(to_arrow(frames, record_columns(self.arguments)))
        sequence = self.pointers.get(bucket, 0) if sequence is None else sequence
        before = self.files.load(bucket, sequence)["users"] if sequence else None
        if before is not None:
            user_state.check(before)
        done = admit(before, records, now.clock, self.parameters)
        size, digests = 0, dict[str, str]()
        if done.state.num_rows if before is None else not done.state.equals(before):
            sequence += 1
            size, digests = self.files.store(bucket, sequence, {"users": done.state})
        rows = done.contributions
        key_bucket = rows.column("key").to_numpy() % self.key_buckets
        written = self.admitted.write(rows.append_column("bucket", pa.array(key_bucket.astype(np.int32))), bucket, now.number)
        drops = {reason: count for reason, count in done.drops.items() if count}
        return StateFile(bucket, sequence, size, {"drops": drops, "rows": rows.num_rows, "files": written, "sha256": digests})


def record_columns(arguments: int) -> pa.Schema:
    """Columns of a bucket's records (docs/architecture.md), all but `drop`."""
    ints = [(name, pa.int64()) for name in ("user", "ts", "key")]
    return pa.schema([*ints, ("key_bytes", pa.binary()), *((f"a{i}", pa.float64()) for i in range(arguments))])


def contribution_columns(parameters: BoundingParameters, arguments: int) -> pa.Schema:
    """Columns of contributions: what the step makes of no records at all."""
    empty = _with_drop(record_columns(arguments).empty_table())
    return admit(None, empty, Clock(), parameters).contributions.schema.remove_metadata()


def _with_drop(records: pa.Table) -> pa.Table:
    # Dropped records were counted and left behind before the shuffle.
    return records.append_column("drop", pa.array(np.zeros(records.num_rows, np.int8)))


def admitted(records: DataFrame, step: AdmissionStep) -> DataFrame:
    """The stateful part of query 1: one report per bucket.

    Args:
        records: from `rows.records`.
        step: what each bucket does.
    """
    function = _spark_function(step)
    schema = ", ".join(f"{name} {kind}" for name, kind in FILE_COLUMNS.items())
    return spread(records, step.files.buckets).applyInPandasWithState(function, schema, STATE, "append", GroupStateTimeout.NoTimeout)


def _spark_function(step: AdmissionStep) -> Callable[..., Iterator[pd.DataFrame]]:
    def bucket_of_users(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        warnings.filterwarnings("ignore", category=FutureWarning)  # pandas 2 warns of Spark's own concatenations
        file = step.run(bucket_of(int(key[0]), step.files.buckets), frames, int(state.get[0]) if state.exists else None, handed_over())
        if file.bytes:
            state.update((file.sequence,))
        yield file_row(file, FILE_COLUMNS)

    return without_values(bucket_of_users)


@dataclass(frozen=True)
class AdmissionSink:
    """What the driver does with a micro-batch of query 1: list the state files, then append the rows; both at most once.

    Args:
        manifest: of this operator.
        contributions: the table.
        checkpoint: of this query; what it had read is listed beside the files.
        clocks: of the micro-batches; listed too.
        read: the files of the micro-batches before.
        count: told the drop counters of every micro-batch.
        done: called with each micro-batch and its clock when its rows are there.
    """

    manifest: Manifest
    contributions: Contributions
    checkpoint: Checkpoint
    clocks: Clocks
    read: ReadFiles
    count: Callable[[Mapping[str, int]], None]
    done: Callable[[int, Clock], None] = lambda batch, clock: None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Commit one micro-batch; doing it again changes nothing.

        Raises:
            LakeError: it has a file that another one had; nothing was read.
        """
        position = self.checkpoint.position(batch)
        files_read = position.get("files", [])
        self.read.refuse_again(files_read, batch)
        clock = self.clocks.of(batch)
        hand_over(frame, MicroBatch(batch, clock))
        files = read_file_rows(frame)
        rows = sum(file.counted["rows"] for file in files)
        # One that only dropped records counts too: read again under a later clock, they might be admitted.
        if any(file.bytes or file.counted["drops"] for file in files):
            detail = {"clock": asdict(clock), "rows": rows, "contributions": self.contributions.version}
            self.manifest.commit(batch, files, {**position, **detail})
            self.read.add(files_read)
        if rows:
            self.contributions.append([entry for file in files for entry in file.counted["files"]], batch)
        self.done(batch, clock)
        for file in files:
            self.count(file.counted["drops"])
