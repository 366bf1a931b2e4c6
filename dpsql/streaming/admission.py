"""Query 1: records to contributions, and the clock that the driver decides for each micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pyspark.sql import DataFrame

from dpsql import record
from dpsql.lake.contributions import Contributions, sum_by_bucket
from dpsql.lake.listed_versions import ListedVersions
from dpsql.lake.manifest import Manifest
from dpsql.lake.read_files import ReadFiles
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.streaming.workers import hand_over, reports
from dpsql.udfs.stage import Clock
from dpsql.udfs.worker import MicroBatch

# The clock of a micro-batch: the driver decides it, the tasks are told it with the micro-batch's
# number, and the table `files` lists it.

# Everything that a micro-batch computes depends on its clock, so a repeated micro-batch must see
# the same one. The clock of a micro-batch
# that is listed is the listed one. One that is not listed may have left tasks, which outlive
# their driver and write late: so its clock is kept
# before they are told it.

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
        clock_by_batch: clocks that the run has recorded for micro-batches that may be repeated.
        rule: the clock of any other micro-batch.
    """

    clock_by_batch: Mapping[int, Clock]
    rule: Callable[[int], Clock]

    def clock_of(self, batch: int) -> Clock:
        """Return the clock of a micro-batch."""
        return self.clock_by_batch[batch] if batch in self.clock_by_batch else self.rule(batch)


def known_clocks(manifest: Manifest, closed_us: int) -> dict[int, Clock]:
    """Return the clocks of the newest listed micro-batch and of one that was told to tasks after it: Spark may repeat no others.

    Args:
        manifest: of query 1.
        closed_us: the time of the newest tick; a clock from before it is none any more.
    """
    # It is needed for tasks that write late, and then they are found out
    told_clock = record.read_if_whole(manifest.path.parent / FILE, KeptClock, VERSION)
    newest = manifest.newest_batch
    is_at_hand = told_clock is not None and (told_clock.generation, told_clock.clock.closed_us) == (
        manifest.generation,
        closed_us,
    )
    clock_by_batch = (
        {told_clock.batch: told_clock.clock} if told_clock is not None and is_at_hand else {}
    )
    if newest is not None:
        clock = manifest.batches(newest)[newest]["clock"]
        clock_by_batch[newest] = Clock(int(clock["closed_us"]), int(clock["latest_us"]))
    return clock_by_batch


# Query 1: records to contributions. Spark keeps a sequence number per bucket of users, the lake
# keeps their counts.


@dataclass(frozen=True)
class AdmissionSink:
    """The driver's work on a micro-batch of query 1: list the state files, then append the rows; both at most once.

    Args:
        manifest: of this operator.
        contributions: the table.
        checkpoint: of this query; what it had read is listed beside the files.
        clocks: of the micro-batches; listed too.
        read_files: the files of the micro-batches before.
        count: told the drop counters of every micro-batch.
        check_files: raises for files whose columns are not those of the source.
        unseen: how many lines of the files of a micro-batch its reader leaves out.
        on_commit: called with each micro-batch and its clock when its rows are there.
    """

    manifest: Manifest
    contributions: Contributions
    checkpoint: Checkpoint
    clocks: Clocks
    read_files: ReadFiles
    count: Callable[[Mapping[str, int]], None]
    check_files: Callable[[Sequence[str]], None] = lambda files: None
    unseen: Callable[[Sequence[str]], int] = lambda files: 0
    on_commit: Callable[[int, Clock], None] = lambda batch, clock: None
    versions: ListedVersions = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", ListedVersions(self.manifest))

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Commit one micro-batch; doing it again changes nothing.

        Raises:
            LakeError: it has a file that another one had; nothing was read.
        """
        position = self.checkpoint.position(batch)
        files_read = position.get("files", [])
        self.read_files.refuse_again(files_read, batch)
        self.check_files(files_read)
        clock = self.clocks.clock_of(batch)
        # If the micro-batch is done again, then with the same clock.
        told_clock = KeptClock(self.manifest.generation, batch, clock)
        record.write(self.manifest.path.parent / FILE, told_clock, VERSION)
        hand_over(frame, MicroBatch(batch, clock), self.versions.versions_before(batch))
        files = reports(frame)
        bucket_rows = sum_by_bucket(files)
        rows = sum(many for _, many in bucket_rows)
        # One that only dropped records counts too: read again under a later clock, they might be admitted. A stage without state writes none.
        if rows or any(file.bytes or file.counted["drops"] for file in files):
            detail = {
                "clock": asdict(clock),
                "rows": rows,
                "written": bucket_rows,
                "contributions": self.contributions.version,
            }
            self.manifest.commit(batch, files, {**position, **detail})
            self.versions.add(files)
            self.read_files.add(files_read)
        if rows:
            self.contributions.append(
                [entry for file in files for entry in file.counted["files"]], batch, bucket_rows
            )
        self.on_commit(batch, clock)
        for file in files:
            self.count(file.counted["drops"])
        self.count({"malformed": self.unseen(files_read)})
