"""Query 1: records to contributions. Spark keeps a sequence number per bucket of users, the lake keeps their counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from dpsql.streaming.checkpoints import Checkpoint
from dpsql.streaming.clocks import Clocks, hand_over, handed_over
from dpsql.streaming.contributions import Contributions
from dpsql.streaming.manifest import Manifest
from dpsql.streaming.wire import ROW, STATE, StateFile, file_row, read_file_rows, to_arrow, to_pandas, without_values
from udfs import user_state
from udfs.bucket_state import BucketFiles
from udfs.contribution_bounding import BoundingParameters, Clock, admit

OPERATOR = "admission"
TABLES = ("users",)


@dataclass(frozen=True)
class AdmissionStep:
    """What one bucket of users does in one micro-batch; shipped to the workers.

    Args:
        files: where its state is.
        parameters: the plan's numbers.
        key_buckets: contributions are labelled with the bucket of their key.
        arguments: how many argument columns a record has.
        pointers: sequence numbers of restored buckets that Spark does not know yet.
    """

    files: BucketFiles
    parameters: BoundingParameters
    key_buckets: int
    arguments: int
    pointers: Mapping[int, int]

    @property
    def output(self) -> dict[str, str]:
        """Output columns and their Spark types."""
        sql = {pa.int64(): "BIGINT", pa.binary(): "BINARY"}
        return {"kind": "INT", "bucket": "INT"} | {column.name: sql[column.type] for column in self.rows}

    @property
    def rows(self) -> pa.Schema:
        """Columns of contributions, as the step makes them."""
        return contribution_columns(self.parameters, self.arguments)

    @property
    def neutral(self) -> dict[str, Any]:
        """A value for every output column that says nothing; never NULL."""
        return {name: b"" if kind == "BINARY" else 0 for name, kind in self.output.items()}

    def run(self, bucket: int, frames: Iterable[pd.DataFrame], sequence: int | None, clock: Clock) -> tuple[StateFile, pa.Table]:
        """Load, admit, store: the bucket's report and its contributions (with their key's `bucket`)."""
        records = _with_drop(to_arrow(frames, record_columns(self.arguments)))
        sequence = self.pointers.get(bucket, 0) if sequence is None else sequence
        before = self.files.load(bucket, sequence)["users"] if sequence else None
        if before is not None:
            user_state.check(before)
        done = admit(before, records, clock, self.parameters)
        size = 0
        if done.state.num_rows if before is None else not done.state.equals(before):
            sequence += 1
            size = self.files.store(bucket, sequence, {"users": done.state})
        rows = done.contributions
        key_bucket = rows.column("key").to_numpy() % self.key_buckets
        rows = rows.append_column("bucket", pa.array(key_bucket.astype(np.int32)))
        drops = {reason: count for reason, count in done.drops.items() if count}
        return StateFile(bucket, sequence, size, {"drops": drops, "rows": rows.num_rows}), rows


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
    """The stateful part of query 1: contributions and one report per bucket.

    Args:
        records: from `rows.records`.
        step: what each bucket does.
    """
    function = _spark_function(step)
    schema = ", ".join(f"{name} {kind}" for name, kind in step.output.items())
    return records.groupBy("bucket").applyInPandasWithState(function, schema, STATE, "append", GroupStateTimeout.NoTimeout)


def _spark_function(step: AdmissionStep) -> Callable[..., Iterator[pd.DataFrame]]:
    def bucket_of_users(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        warnings.filterwarnings("ignore", category=FutureWarning)  # pandas 2 warns of Spark's own concatenations
        file, rows = step.run(int(key[0]), frames, int(state.get[0]) if state.exists else None, handed_over())
        if file.bytes:
            state.update((file.sequence,))
        if rows.num_rows:
            yield to_pandas(ROW, rows, list(step.output))
        yield file_row(file, step.neutral)

    return without_values(bucket_of_users)


@dataclass(frozen=True)
class AdmissionSink:
    """What the driver does with a micro-batch of query 1: list the state files, then append the rows; both at most once.

    Args:
        manifest: of this operator.
        contributions: the table.
        checkpoint: of this query; what it had read is listed beside the files.
        clocks: of the micro-batches; listed too.
        count: told the drop counters of every micro-batch.
        done: called with each micro-batch and its clock when its rows are there.
    """

    manifest: Manifest
    contributions: Contributions
    checkpoint: Checkpoint
    clocks: Clocks
    count: Callable[[Mapping[str, int]], None]
    done: Callable[[int, Clock], None] = lambda batch, clock: None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Commit one micro-batch; doing it again changes nothing."""
        clock = self.clocks.of(batch)
        hand_over(frame, clock)
        frame.persist()
        try:
            files = read_file_rows(frame)
            rows = sum(file.counted["rows"] for file in files)
            # One that only dropped records counts too: read again under a later clock, they might be admitted.
            if any(file.bytes or file.counted["drops"] for file in files):
                detail = {"clock": asdict(clock), "rows": rows, "contributions": self.contributions.version}
                self.manifest.commit(batch, files, {**self.checkpoint.position(batch), **detail})
            if rows:
                self.contributions.append(frame.where(f"kind = {ROW}"), batch, rows)
        finally:
            frame.unpersist()
        self.done(batch, clock)
        for file in files:
            self.count(file.counted["drops"])
