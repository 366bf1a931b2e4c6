"""The clock of a micro-batch: the driver decides it, the tasks are told it with the micro-batch's number, and the table `files` lists it.

Everything that a micro-batch computes depends on its clock, so a repeated micro-batch must see the same one. The clock of a micro-batch
that is listed is the listed one. One that is not listed has left nothing behind, so it may get another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark import TaskContext
from pyspark.sql import DataFrame

from dpsql.lake.manifest import Manifest
from udfs.histogram.contribution_bounding import Clock

PROPERTY = "dpsql.micro-batch"
"""Spark carries this local property of the thread that starts a job to every task of the job, also when a task is tried again."""


@dataclass(frozen=True)
class Clocks:
    """Micro-batch -> its clock.

    Args:
        listed: clocks that the run has recorded for micro-batches that may be repeated.
        rule: the clock of any other micro-batch.
    """

    listed: Mapping[int, Clock]
    rule: Callable[[int], Clock]

    def of(self, batch: int) -> Clock:
        """The clock of a micro-batch."""
        return self.listed[batch] if batch in self.listed else self.rule(batch)


def listed_clocks(manifest: Manifest) -> dict[int, Clock]:
    """The clock of the newest listed micro-batch: the only one that Spark may repeat."""
    newest = manifest.newest_batch
    if newest is None:
        return {}
    clock = manifest.batches(newest)[newest]["clock"]
    return {newest: Clock(int(clock["closed_us"]), int(clock["latest_us"]))}


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch: its number in the lake, and its clock."""

    number: int
    clock: Clock


def hand_over(frame: DataFrame, micro_batch: MicroBatch) -> None:
    """Tell all tasks of the jobs that this thread starts from here on."""
    clock = micro_batch.clock
    frame.sparkSession.sparkContext.setLocalProperty(PROPERTY, f"{micro_batch.number},{clock.closed_us},{clock.latest_us}")


def handed_over() -> MicroBatch:
    """The micro-batch of the running task.

    Raises:
        RuntimeError: nobody told it.
    """
    context = TaskContext.get()
    told = context.getLocalProperty(PROPERTY) if context else None
    if told is None:
        raise RuntimeError("a task of the admission query was not told its micro-batch")
    number, closed_us, latest_us = map(int, told.split(","))
    return MicroBatch(number, Clock(closed_us, latest_us))
