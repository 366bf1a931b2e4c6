"""Query 1: records to contributions. Spark keeps a sequence number per bucket of users, the lake keeps their counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pyspark.sql import DataFrame

from dpsql.lake.contributions import Contributions
from dpsql.lake.listed_versions import ListedVersions
from dpsql.lake.manifest import Manifest
from dpsql.lake.read_files import ReadFiles
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.streaming.clocks import Clocks, keep_clock
from dpsql.streaming.workers import hand_over, reports
from dpsql.udfs.stage import Clock
from dpsql.udfs.worker import MicroBatch


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
        unseen: how many lines of the files of a micro-batch its reader leaves out.
        done: called with each micro-batch and its clock when its rows are there.
    """

    manifest: Manifest
    contributions: Contributions
    checkpoint: Checkpoint
    clocks: Clocks
    read: ReadFiles
    count: Callable[[Mapping[str, int]], None]
    unseen: Callable[[Sequence[str]], int] = lambda files: 0
    done: Callable[[int, Clock], None] = lambda batch, clock: None
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
        self.read.refuse_again(files_read, batch)
        clock = self.clocks.of(batch)
        keep_clock(self.manifest, batch, clock)
        hand_over(frame, MicroBatch(batch, clock), self.versions.before(batch))
        files = reports(frame)
        rows = sum(file.counted["rows"] for file in files)
        # One that only dropped records counts too: read again under a later clock, they might be admitted. A stage without state writes none.
        if rows or any(file.bytes or file.counted["drops"] for file in files):
            detail = {
                "clock": asdict(clock),
                "rows": rows,
                "contributions": self.contributions.version,
            }
            self.manifest.commit(batch, files, {**position, **detail})
            self.versions.add(files)
            self.read.add(files_read)
        if rows:
            self.contributions.append(
                [entry for file in files for entry in file.counted["files"]], batch
            )
        self.done(batch, clock)
        for file in files:
            self.count(file.counted["drops"])
        self.count({"malformed": self.unseen(files_read)})
