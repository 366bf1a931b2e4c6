"""Whether polls look at their source: Spark lists a folder that is away as one in which nothing is new.

What is away closes nothing. It may come back, with records that nobody has read.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from dpsql.errors import DpsqlError
from dpsql.lake.event_log import AWAY
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.sources.config import Source
from dpsql.streaming import internals, sources
from dpsql.streaming.microbatches import NEVER_US, POLL_SECONDS
from dpsql.streaming.progress import Tally
from dpsql.times import now_us, timestamp

Folder = tuple[int, int]
"""Device and inode."""

ELSEWHERE = "/"
"""A folder that is never away, for sources whose store says itself that it does not answer."""


def folder_at(path: str) -> Folder | None:
    """Return the folder at a path; None if there is none."""
    try:
        status = os.stat(f"{path}/")
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_idle(
    folder: Folder | None, since_us: int, known_folder: Folder | None, polled_us: int
) -> bool:
    """Tell whether a poll that found nothing has looked at its source: before and after it the root was the folder of the run.

    Args:
        folder: the root after the poll.
        since_us: from then on it was this folder whenever somebody looked.
        known_folder: that of the run; None as long as it is unknown.
        polled_us: when the poll began.
    """
    return folder is not None and folder == known_folder and since_us <= polled_us


@dataclass
class Watch:
    """The root of a source, to be looked at more often than it is polled.

    Args:
        root: the path of a folder.
        has_files: lists the whole source, and tells whether a file is there.
        tell: given the time since when the folder is away, or None while it is there.
        known_folder: that of the run; None as long as it is unknown.
    """

    root: str
    has_files: Callable[[], bool]
    tell: Callable[[int | None], None]
    known_folder: Folder | None

    def __post_init__(self) -> None:
        self._seen = folder_at(self.root), now_us()

    def look(self) -> None:
        """See which folder is there."""
        folder = folder_at(self.root)
        if folder != self._seen[0]:
            self._seen = folder, now_us()

    def idle_us(self, polled_us: int) -> int:
        """Return when a poll that found nothing new began; NEVER_US if it has not looked at the source."""
        self.look()
        folder, since_us = self._seen
        # Of another folder a file that is not new is one of the run.
        if (
            folder != self.known_folder
            and is_idle(folder, since_us, folder, polled_us)
            and self.has_files()
        ):
            self.known_folder = folder
        self.tell(None if folder == self.known_folder else since_us)
        return polled_us if is_idle(folder, since_us, self.known_folder, polled_us) else NEVER_US

    @contextmanager
    def excusing(self, checkpoint: Checkpoint, stop: threading.Event) -> Iterator[None]:
        """Drop what is raised inside if the folder was away during the newest micro-batch; first wait until it is back, or `stop` is set."""
        began_us = now_us()
        try:
            yield
        except DpsqlError:
            batch = checkpoint.newest_batch
            if batch is not None:
                began_us = max(began_us, checkpoint.time_us(batch))
            self.look()
            folder, since_us = self._seen
            if is_idle(folder, since_us, folder, began_us):
                raise
            while self.idle_us(now_us()) == NEVER_US and not stop.wait(1):
                pass


@contextmanager
def watching(
    spark: SparkSession, source: Source, tally: Tally, is_accepted: bool
) -> Iterator[Watch]:
    """Watch the folder of a source; that it is away is an alarm.

    Args:
        spark, source: whose folder.
        tally: is told.
        is_accepted: the folder that is there is that of the run, even if it is empty.
    """
    root = root_of(spark, source)
    is_over = threading.Event()

    def tell(since_us: int | None) -> None:
        if since_us is None:
            tally.events.forget(AWAY)
            return
        tally.alarm(
            AWAY,
            f"source {source.name!r}: since {timestamp(since_us)} {root} is away, or is another folder, without files: no window closes until it "
            "is back, and no record is lost. If it was emptied on purpose, start with --accept-folder",
        )

    def look_on() -> None:
        while not is_over.wait(POLL_SECONDS):
            watch.look()

    watch = Watch(
        root,
        lambda: source.format == "delta" or bool(sources.files_there(spark, source)),
        tell,
        folder_at(root) if is_accepted or root == ELSEWHERE else None,
    )
    threading.Thread(target=look_on, daemon=True).start()
    try:
        yield watch
    finally:
        is_over.set()


def root_of(spark: SparkSession, source: Source) -> str:
    """Return the folder on this machine below which a source is listed, or ELSEWHERE.

    Raises:
        DataError: it is not there.
    """
    if source.format not in (*sources.FILES, "delta"):
        return ELSEWHERE
    location = re.sub(r"/[^/]*[*?\[{].*", "", sources.existing_path(spark, source))
    path, system = internals.hadoop_path(spark, location)
    if system.getUri().getScheme() != "file":
        return ELSEWHERE
    return str(path.toUri().getPath()) + ("/_delta_log" if source.format == "delta" else "")
