"""What a micro-batch of query 2 reads: the driver decides it and tells the tasks; they read the files themselves."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from dpsql.udfs.stage import Tick


@dataclass(frozen=True)
class ReleasePlan:
    """Some commits of the table `contributions`, in order.

    Args:
        after, upto: versions of the table: those after the first are read, up to the second.
        files: data files that they have added, below the table.
        ticks: that they have made.
        rows_written: how many rows of each micro-batch of query 1 they have for each bucket of keys, as (batch, bucket, rows); the driver's alone.
    """

    after: int
    upto: int
    files: tuple[str, ...] = ()
    ticks: tuple[Tick, ...] = ()
    rows_written: tuple[tuple[int, int, int], ...] = field(default=(), compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether it can change nothing."""
        return not (self.files or self.ticks)

    def __str__(self) -> str:
        ticks = [(tick.batch, tick.closed_us) for tick in self.ticks]
        return json.dumps([self.after, self.upto, self.files, ticks], separators=(",", ":"))

    @classmethod
    def from_message(cls, task_message: str | None) -> ReleasePlan:
        """Parse the message that a task received.

        Raises:
            RuntimeError: nobody told it.
        """
        if task_message is None:
            raise RuntimeError("a task of the release query was not told what to read")
        after, upto, files, ticks = json.loads(task_message)
        return cls(after, upto, tuple(files), tuple(Tick(*tick) for tick in ticks))
