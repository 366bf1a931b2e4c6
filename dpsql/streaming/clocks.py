"""The clock of a micro-batch: the driver decides it, the tasks are told it with the micro-batch's number, and the table `files` lists it.

Everything that a micro-batch computes depends on its clock, so a repeated micro-batch must see the same one. The clock of a micro-batch
that is listed is the listed one. One that is not listed has left nothing behind, so it may get another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dpsql.lake.manifest import Manifest
from dpsql.udfs.stage import Clock


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
