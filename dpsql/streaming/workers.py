"""Spark's side of the stages: one bucket per partition, and each a group of one stateful function."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming.state import GroupStateTimeout

from dpsql.udfs.release_plan import ReleasePlan
from dpsql.udfs.stage import StateFile
from dpsql.udfs.task_intake import TaskIntake
from dpsql.udfs.worker import MicroBatch, Work

# One bucket per partition: Spark groups by a label whose hash is the bucket's own partition.

# Spark gives a group to the partition `hash(label) mod partitions`, and there are as many
# partitions as buckets. With the buckets' own numbers as
# labels those hashes collide: of four buckets three would fall into one partition, of two both,
# and cores would idle.

LABEL = "label"
_WORD = (1 << 32) - 1


def spread(frame: DataFrame, buckets: int) -> GroupedData:
    """Return a frame with a column `bucket` (0 to buckets - 1), grouped by the labels of the buckets."""
    listed = ", ".join(map(str, labels(buckets)))
    return (
        frame.selectExpr(f"element_at(array({listed}), bucket + 1) AS {LABEL}", "*")
        .drop("bucket")
        .groupBy(LABEL)
    )


@functools.cache
def labels(buckets: int) -> tuple[int, ...]:
    """Return, for each bucket, the smallest number from 0 whose partition, of as many as there are buckets, is the bucket."""
    label_by_bucket: dict[int, int] = {}
    label = 0
    while len(label_by_bucket) < buckets:
        label_by_bucket.setdefault(bucket_of(label, buckets), label)
        label += 1
    return tuple(label_by_bucket[bucket] for bucket in range(buckets))


def bucket_of(label: int, buckets: int) -> int:
    """Return the bucket that a label stands for: Spark's `pmod(hash(label), buckets)` of an INT, MurmurHash3 (x86, 32 bits) with seed 42."""
    word = _rotated(label * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    hashed = _rotated(42 ^ word, 13) * 5 + 0xE6546B64 & _WORD
    hashed ^= 4
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _WORD
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _WORD
    hashed ^= hashed >> 16
    return (hashed - (hashed >> 31 << 32)) % buckets


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _WORD


# Spark's side of the stages: each bucket is a group of one stateful function, which a worker
# unpickles and runs.

# Workers import `udfs` and nothing of `dpsql`: the shipped function stands inside another one,
# so it is pickled by value, and what it needs
# of Spark it imports there.

MICRO_BATCH = "dpsql.micro-batch"
"""Spark carries this local property of the thread that starts a job to every task of the job, also when a task is tried again."""

LISTED = "dpsql.listed-versions"
"""Another one."""

STATE = "sequence BIGINT"
"""Spark's own state of a bucket: which version of its files is current."""

REPORT = "bucket INT, sequence BIGINT, bytes BIGINT, counted BINARY"

TYPES = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.binary(): "BINARY"}


def stateful(frame: DataFrame, work: Work) -> DataFrame:
    """Return the stateful part of a query: the report of every bucket.

    Args:
        frame: rows with the column `bucket`.
        work: what each bucket does.
    """
    grouped = spread(frame, work.files.buckets)
    return grouped.applyInPandasWithState(
        shipped(work), REPORT, STATE, "append", GroupStateTimeout.NoTimeout
    )


def shipped(work: Work) -> Callable[..., Iterator[pd.DataFrame]]:
    """Return the function that Spark pickles."""
    bucket_of = {label: bucket for bucket, label in enumerate(labels(work.files.buckets))}
    properties = MICRO_BATCH, LISTED

    def of_bucket(key: tuple[int], frames: Iterable[Any], state: Any) -> Iterator[Any]:
        from pyspark import TaskContext

        from dpsql.udfs.worker import answer

        context = TaskContext.get()
        message, listed = (
            context.getLocalProperty(name) if context else None for name in properties
        )
        yield from answer(work, bucket_of[int(key[0])], frames, state, message, listed)

    return of_bucket


def by_task(frame: DataFrame, work: TaskIntake) -> DataFrame:
    """Return what every task makes of the records that it reads, with the column `bucket`; before anything is shuffled."""
    schema = ", ".join(f"{field.name} {TYPES[field.type]}" for field in work.output)
    micro_batch = MICRO_BATCH

    def of_task(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        from dpsql.udfs.worker import without_values

        context = TaskContext.get()
        assert context is not None
        yield from without_values(work.run)(
            batches, context.partitionId(), context.getLocalProperty(micro_batch)
        )

    return frame.select(*(name for name in work.stage.takes.names if name != "drop")).mapInArrow(
        of_task, schema
    )


def hand_over(frame: DataFrame, message: MicroBatch | ReleasePlan, listed: str) -> None:
    """Tell all tasks of the jobs that this thread starts from here on: what they do, and from which versions of their state."""
    for name, value in ((MICRO_BATCH, str(message)), (LISTED, listed)):
        frame.sparkSession.sparkContext.setLocalProperty(name, value)


def reports(frame: DataFrame) -> list[StateFile]:
    """Return the reports of a micro-batch's buckets, by bucket (this is the action that makes Spark run the function)."""
    files = [
        StateFile(row.bucket, row.sequence, row.bytes, json.loads(bytes(row.counted)))
        for row in frame.collect()
    ]
    return sorted(files, key=lambda file: file.bucket)
