"""The clock of a micro-batch: the driver decides it, the tasks are told it with the micro-batch's number, and the table `files` lists it.

Everything that a micro-batch computes depends on its clock, so a repeated micro-batch must see the same one. The clock of a micro-batch
that is listed is the listed one. One that is not listed may have left tasks, which outlive their driver and write late: so its clock is kept
before they are told it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dpsql import record
from dpsql.lake.manifest import Manifest
from dpsql.udfs.stage import Clock

FILE = "clock.json"
"""In the private folder: the newest clock that tasks were told."""
VERSION = 1


@dataclass(frozen=True)
class KeptClock:
    """Which micro-batch of which generation was told which clock."""

    generation: int
    batch: int
    clock: Clock


@dataclass(frozen=True)
class Clocks:
    """Micro-batch -> its clock.

    Args:
        known: clocks that the run has recorded for micro-batches that may be repeated.
        rule: the clock of any other micro-batch.
    """

    known: Mapping[int, Clock]
    rule: Callable[[int], Clock]

    def of(self, batch: int) -> Clock:
        """The clock of a micro-batch."""
        return self.known[batch] if batch in self.known else self.rule(batch)


def known_clocks(manifest: Manifest, closed_us: int) -> dict[int, Clock]:
    """The clocks of the newest listed micro-batch and of one that was told to tasks after it: Spark may repeat no others.

    Args:
        manifest: of query 1.
        closed_us: the time of the newest tick; a clock from before it is none any more.
    """
    # It is needed for tasks that write late, and then they are found out
    kept = record.read_if_whole(manifest.path.parent / FILE, KeptClock, VERSION)
    newest = manifest.newest_batch
    is_at_hand = kept is not None and (kept.generation, kept.clock.closed_us) == (
        manifest.generation,
        closed_us,
    )
    known = {kept.batch: kept.clock} if kept is not None and is_at_hand else {}
    if newest is not None:
        clock = manifest.batches(newest)[newest]["clock"]
        known[newest] = Clock(int(clock["closed_us"]), int(clock["latest_us"]))
    return known


def keep_clock(manifest: Manifest, batch: int, clock: Clock) -> None:
    """The tasks of a micro-batch are about to be told its clock: if it is done again, then with the same."""
    record.write(manifest.path.parent / FILE, KeptClock(manifest.generation, batch, clock), VERSION)
