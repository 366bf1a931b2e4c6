"""Query 2: contributions and ticks to released rows; its source says only that there is a micro-batch."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from dpsql.files import Place
from dpsql.lake.listed_versions import ListedVersions
from dpsql.lake.manifest import Manifest
from dpsql.lake.release_plans import ReleasePlans, position
from dpsql.streaming import failures
from dpsql.streaming.published_table import PublishedTable
from dpsql.streaming.released import Pair, ReleasedRows
from dpsql.streaming.workers import hand_over, reports
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.release_plan import ReleasePlan
from dpsql.udfs.stage import StateFile

# The source of query 2: it says that there is a micro-batch, once for every bucket, and nothing
# else.

# What a micro-batch reads, the driver tells the tasks (`dpsql.lake.release_plans`). As a stream
# of the table `contributions` every micro-batch
# would cost Spark some jobs over the table's log, and code compiled anew.


def rings(session: SparkSession, buckets: int) -> DataFrame:
    """Return one row per bucket in every micro-batch, with the column `bucket`; there is always a next one."""
    source = (
        session.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", buckets)
        .option("numPartitions", 1)
    )
    return source.load().selectExpr(f"cast(value % {buckets} AS INT) AS bucket")


# Query 2: contributions and ticks to released rows. Spark keeps a sequence number per bucket of
# keys, the lake keeps the counters.


@dataclass
class ReleaseSink:
    """The driver's work on a micro-batch of query 2: list the state files, then publish the rows; both at most once.

    Args:
        manifest: of this operator.
        histogram: the public table.
        plans: what each micro-batch reads.
        released: the folder of the rows that tasks have released.
        count: told the triggers and rows published in every micro-batch.
        publishing: told, before rows are published, up to when the grid is closed.
        restored_from: number of the micro-batch before the first, and the time up to which triggers were published before the query was restored.
    """

    manifest: Manifest
    histogram: PublishedTable
    plans: ReleasePlans
    released: Place
    count: Callable[[int, int], None]
    publishing: Callable[[int], None]
    restored_from: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self._closed = {
            batch: int(detail["closed_us"]) for batch, detail in self.manifest.batches().items()
        }
        if self.restored_from is not None:
            self._closed.update([self.restored_from])
        self._newest_us: int | None = None
        self._versions = ListedVersions(self.manifest)
        self.has_published = False
        """What is listed is published: this start has finished a micro-batch."""

    @property
    def released_us(self) -> int:
        """The time up to which triggers are listed as released; when no micro-batch is at work, they are published too."""
        return max(self._closed.values(), default=NO_CLOCK)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Publish one micro-batch; doing it again changes nothing.

        Raises:
            ReleaseConflict: it would publish a trigger otherwise than before; nothing is written.
            LakeError: its tasks have not read what query 1 has written; nothing is written.
        """
        plan = failures.plan_of(self.plans, batch)
        files = self._run_tasks(frame, batch, plan)
        pairs = _rows_by_pair(files, self.histogram.query.once)
        closed_before_us = self._closed_before(batch)
        names = tuple(file.counted["released"] for file in files if file.counted["released"])
        released = ReleasedRows(frame.sparkSession, self.released, names)
        published_pairs = self._published(released, pairs, closed_before_us) if pairs else set()
        new_pairs = {pair: rows for pair, rows in pairs.items() if pair not in published_pairs}
        closed_us = max((int(file.counted["closed_us"]) for file in files), default=NO_CLOCK)
        if closed_us > closed_before_us or pairs:  # a trigger without rows says something too
            self.publishing(closed_us)
        due = self._by_tick(new_pairs, {tick for file in files for tick in file.counted["ticks"]})
        if not plan.is_empty:
            self._list_batch(batch, plan, files, closed_us, due)
        # One commit per tick, however the ticks were cut into micro-batches: that depends on how many private files there are.
        for tick, of_tick in sorted(due.items()):
            self.histogram.publish(released, tick, of_tick, has_all=len(of_tick) == len(pairs))
        released.remove()
        self.has_published = True
        self.count(len(new_pairs), sum(new_pairs.values()))

    def _run_tasks(self, frame: DataFrame, batch: int, plan: ReleasePlan) -> list[StateFile]:
        """Return the reports of a micro-batch's tasks, which have read what its plan says."""
        if not plan.is_empty:
            self.plans.keep(batch, plan)
        hand_over(frame, plan, self._versions.versions_before(batch))
        files = reports(frame)
        rows_read = [
            (number, file.bucket, rows) for file in files for number, rows in file.counted["read"]
        ]
        self.plans.contributions.check_read(plan, rows_read)
        return files

    def _closed_before(self, batch: int) -> int:
        """Return the time up to which triggers were closed before a micro-batch."""
        earlier = (closed_us for number, closed_us in self._closed.items() if number < batch)
        return max(earlier, default=NO_CLOCK)

    def _list_batch(
        self,
        batch: int,
        plan: ReleasePlan,
        files: Sequence[StateFile],
        closed_us: int,
        due: Mapping[int, Mapping[Pair, int]],
    ) -> None:
        """List a micro-batch: its state files, what it has read and closed, and what is due by which tick."""
        rows = sum(sum(pairs.values()) for pairs in due.values())
        detail = {"closed_us": closed_us, "rows": rows}
        detail |= {"mark": self.histogram.triggers(max(due))} if due else {}
        self.manifest.commit(batch, files, {**position(plan.upto), **detail})
        self._versions.add(files)
        self.plans.list(batch, plan)
        # Micro-batches come in order and never close less: the newest two are enough, also when one is repeated.
        self._closed = dict(sorted({**self._closed, batch: closed_us}.items())[-2:])

    def _published(
        self, rows: ReleasedRows, pairs: Collection[Pair], closed_before_us: int
    ) -> set[Pair]:
        """Return which triggers are published already. Nobody else publishes, so only the first micro-batch looks how far the histogram goes."""
        if self._newest_us is None:
            self._newest_us = self.histogram.newest_trigger_us()
        published_pairs = self.histogram.check(rows, pairs, closed_before_us, self._newest_us)
        self._newest_us = max(self._newest_us, *map(self.histogram.trigger_time, pairs))
        return published_pairs

    def _by_tick(
        self, pairs: Mapping[Pair, int], ticks: Iterable[int]
    ) -> dict[int, dict[Pair, int]]:
        """Return, for each tick by its closed time, the triggers it releases, with their rows: those that are due by then, and were not by the tick before."""
        times = sorted(ticks)
        due = dict[int, dict[Pair, int]]()
        for pair, rows in pairs.items():
            due.setdefault(times[bisect_left(times, self.histogram.trigger_time(pair))], {})[
                pair
            ] = rows
        return due


def _rows_by_pair(files: Iterable[StateFile], with_empty: bool) -> dict[Pair, int]:
    """Return the number of rows of groups that the tasks of a micro-batch have released, by window and trigger.

    Where no group of a window is released, nobody learns that it was there; but of all records that are released once, everybody knows
    (`with_empty`).
    """
    pairs = Counter[Pair]()
    for window, trigger, rows in (entry for file in files for entry in file.counted["pairs"]):
        pairs[window, trigger] += rows
    return {pair: rows for pair, rows in pairs.items() if rows or with_empty}
