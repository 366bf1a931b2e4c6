"""What a run may throw away: contributions of windows long closed, and state files that nobody can name any more."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import pyarrow.fs as pafs

from dpsql.files import Place
from dpsql.lake import compaction, delta_tables
from dpsql.lake.contributions import Contributions
from dpsql.lake.engine_file import Engine
from dpsql.lake.manifest import Manifest
from dpsql.lake.release_plans import read_and_noted
from dpsql.lake.sorted_file import sorted_file
from dpsql.udfs.bucket_state import DamagedState, filesystem
from dpsql.udfs.stage import OPERATORS, RELEASE, Clock

SWEEP_SECONDS = 60
SWEEP_BATCHES = 10
TEMPORARY_SECONDS = 86_400
"""A writer that died left its temporary file; no writer works on one for a day."""

VACUUM_HOURS = 1
"""Whoever reads the list of files opens it anew, and is done in seconds."""
SAVEPOINTS = "savepoints"
T = TypeVar("T")


class PublicLog(Protocol):
    """The public tables of a run, as far as they are tidied."""

    @property
    def paths(self) -> tuple[Place, ...]:
        """Where its tables are."""

    @property
    def application(self) -> str:
        """The mark of its commits."""

    def open_to_readers(self, paths: Iterable[str]) -> None:
        """Let everybody read these files of it."""


@dataclass
class Retention:
    """The sweeper of one start.

    Args:
        engine: of the run.
        contributions: the table.
        retention_us: its rows are kept so long after the last trigger of their windows.
        listed: the state files of query 2.
        public: the histogram, and what is beside it.
        damaged: is told of a damaged file in words; a run is not stopped for tidiness.
    """

    engine: Engine
    contributions: Contributions
    retention_us: int
    listed: Manifest
    public: PublicLog
    damaged: Callable[[str], None]
    _next: float = field(default=0.0, init=False)
    _batches: int = field(default=0, init=False)

    def sweep(self, closed_us: int, version: int) -> None:
        """Remove what is due, once a minute at most. Nobody else may write to the run's tables meanwhile.

        Args:
            closed_us: the time of a tick that is released.
            version: of the table `contributions` when that tick was committed.
        """
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SWEEP_SECONDS
        # Deleting is for rows that query 2 has read: it reads the files of a commit even when they were removed later.
        if (position := self._release_position()) is not None and position > version:
            self.contributions.forget(closed_us - self.retention_us)
        self._tidy()

    def with_sweeps(self, on_commit: Callable[[int, Clock], None]) -> Callable[[int, Clock], None]:
        """Return what is called after each micro-batch of query 1, and every SWEEP_BATCHES of them a sweep of its state: a backlog may be long."""

        def swept(batch: int, clock: Clock) -> None:
            on_commit(batch, clock)
            self._batches += 1
            if self._batches % SWEEP_BATCHES == 0:
                self._sweep_state(OPERATORS[0])

        return swept

    def after_catch_up(self) -> None:
        """Remove what is due when a catch-up has released everything. No query is at work, and Spark has noted all that they did."""
        position = self._release_position()
        if position is not None and position > self.contributions.version:
            self.contributions.forget(self.contributions.closed_us - self.retention_us)
            self.contributions.clear_away()
        self._tidy()

    def _tidy(self) -> None:
        for operator in OPERATORS:
            self._sweep_state(operator)
        files = self.engine.folder / "files"
        self._tell(compact, files)
        compaction.shorten(files)
        self._tell(compaction.tidy_contributions, self.contributions, self._needed_version())
        for path in self.public.paths:
            self.public.open_to_readers(
                self._tell(compaction.tidy_public, path, self.public.application) or ()
            )

    def _tell(self, tidy: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return tidy(*arguments)
        except DamagedState as problem:
            self.damaged(str(problem))
            return None

    def _needed_version(self) -> int:
        """Return a version of `contributions` at or after which query 2 begins: as far back as Spark remembers, and not after what is listed."""
        checkpoint = self.engine.checkpoint(RELEASE)
        oldest = checkpoint.oldest_commit
        # Of its first micro-batch Spark does not know where it had begun, and may read it again.
        return (
            (self._next_read(oldest) or 0)
            if oldest is not None and oldest != checkpoint.newest_commit
            else 0
        )

    def _release_position(self) -> int | None:
        """Return the version of `contributions` below which query 2 has read all, and Spark has noted it."""
        return self._next_read(self.engine.checkpoint(RELEASE).newest_commit)

    def _next_read(self, committed: int | None) -> int | None:
        return read_and_noted(self.listed, committed, self.engine.parts[RELEASE].position)

    def _sweep_state(self, operator: str) -> None:
        checkpoint = self.engine.checkpoint(operator)
        buckets = self.engine.buckets[OPERATORS.index(operator)]
        oldest = checkpoint.oldest_commit
        newest = checkpoint.newest_batch
        if oldest is None or newest is None:
            return
        generation = self.engine.generation(operator)
        saved = kept_by_savepoints(self.engine.folder, operator, generation)
        root, folder = filesystem(f"{self.engine.state_root}/{operator}-{buckets}/g{generation}")
        for bucket in root.get_file_info(pafs.FileSelector(folder, allow_not_found=True)):
            number = int(bucket.base_name.removeprefix("bucket="))
            sweep_bucket(root, bucket.path, newest - oldest, saved.get(number, set()))


def kept_by_savepoints(folder: Place, operator: str, generation: int) -> dict[int, set[int]]:
    """Return, for each bucket, the versions of its state that a named savepoint needs; they are never swept.

    Every file `savepoints/*.json` of the run's private folder names some: `{"state": [[operator, generation, bucket, sequence], ...]}`.

    Args:
        folder: the run's private folder.
        operator, generation: whose state.
    """
    versions: dict[int, set[int]] = {}
    saved = folder / SAVEPOINTS
    for path in (
        [found for found in saved.iterdir() if found.name.endswith(".json")]
        if saved.is_dir()
        else []
    ):
        for saved_operator, saved_generation, bucket, sequence in json.loads(path.read_bytes()).get(
            "state", []
        ):
            if (saved_operator, saved_generation) == (operator, generation):
                versions.setdefault(int(bucket), set()).add(int(sequence))
    return versions


def compact(path: Place) -> None:
    """Merge the many small files of a table that nobody streams; the old ones go with the next time, an hour later at least."""
    if compaction.merge(
        path, compaction.small_files(path), lambda rows: sorted_file(path, rows), "merged"
    ):
        delta_tables.vacuum(path, VACUUM_HOURS)


def sweep_bucket(system: pafs.FileSystem, folder: str, batches: int, saved: set[int]) -> None:
    """Keep the newest versions, one per micro-batch that Spark remembers and two more, and those of savepoints.

    A micro-batch makes one version of a bucket at most. So the version that was current at the oldest remembered micro-batch is among them.
    """
    files = system.get_file_info(pafs.FileSelector(folder))
    numbered = {
        file.path: int(number)
        for file in files
        if (number := file.base_name.split(".")[0]).isdigit()
    }
    oldest_kept = max(numbered.values(), default=0) - batches - 2
    for file in files:
        if file.path in numbered:
            old = numbered[file.path] < oldest_kept and numbered[file.path] not in saved
        else:
            old = (
                file.base_name.startswith(".")
                and file.mtime_ns is not None
                and time.time() - file.mtime_ns / 1e9 > TEMPORARY_SECONDS
            )
        if old:
            system.delete_file(file.path)
