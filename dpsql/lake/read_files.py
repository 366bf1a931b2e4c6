"""Which files a run has read: none is read twice, whatever became of its modification time.

Spark keeps every path that it has handed out, in the log of its file source. Here the run's own list of files says the same once more:
Spark's log may be lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from dpsql.errors import LakeError
from dpsql.files import Place
from dpsql.lake import delta_tables
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.manifest import BATCH_ROW
from dpsql.udfs.stage import ADMISSION

MANY = 10_000
MOST_FILES = 1_000_000
"""Spark's log repeats each path for ever, some 100 bytes each: beyond so many a start takes long."""

Void = Sequence[tuple[int, int]]


def listed_details(table: Place, void: Void) -> dict[int, dict[str, Any]]:
    """Return, for each micro-batch of query 1, its `detail`, of every generation; those that a restored run has read again are left out.

    Args:
        table: the private table `files`.
        void: micro-batches (first, last) that do not count.
    """
    if not delta_tables.exists(table):
        return {}
    condition = (pc.field("operator") == ADMISSION) & (pc.field("bucket") == BATCH_ROW)
    newest: dict[int, tuple[int, str]] = {}
    for row in read_rows(table, ["generation", "batch", "detail"], condition).to_pylist():
        counts = not any(first <= row["batch"] <= last for first, last in void)
        if counts and row["generation"] >= newest.get(row["batch"], (0, ""))[0]:
            newest[row["batch"]] = (row["generation"], row["detail"])
    return {batch: json.loads(detail) for batch, (_, detail) in sorted(newest.items())}


def listed_files(details: Mapping[int, Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """Yield (path, micro-batch) of everything that was read, in order of micro-batches."""
    return ((path, batch) for batch, detail in details.items() for path in detail.get("files", ()))


def readable(uri: str) -> str:
    """Return a path as people write it: Spark has `file:///a%20b` and `file:/a%20b`."""
    return unquote("/" + uri.removeprefix("file:").lstrip("/")) if uri.startswith("file:/") else uri


@dataclass
class ReadFiles:
    """The files of all listed micro-batches of a run; 8 bytes each.

    Args:
        table: the private table `files`.
        void: micro-batches (first, last) that do not count.
        repair: what to do about a file that would be read twice, for the message.
    """

    table: Place
    void: Void
    repair: str

    def __post_init__(self) -> None:
        self._folders: dict[str, str] = {}
        details = listed_details(self.table, self.void)
        hashes = np.fromiter(
            (hash(self._same(path)) for path, _ in listed_files(details)), np.int64
        )
        self._known: npt.NDArray[np.int64] = np.unique(hashes)
        self._new: set[int] = set()
        self.twice = self._listed_twice(details) if len(self._known) < len(hashes) else None
        """A file that the run has read twice already, in words."""

    @property
    def too_many(self) -> str | None:
        """The advice to a run that has read more files than Spark's log of paths is good for; None for others."""
        if len(self._known) <= MOST_FILES:
            return None
        return (
            f"the run has read more than {MOST_FILES:,} files, and Spark reads their names at every start: write fewer and larger files, or use a "
            "Delta table or Kafka"
        )

    def refuse_again(self, paths: Iterable[str], batch: int) -> None:
        """Refuse a micro-batch with a file that another one has read.

        Raises:
            LakeError: it has one.
        """
        if problem := self.repeated_file(paths, batch):
            raise LakeError(f"{problem}; {self.repair}")

    def repeated_file(self, paths: Iterable[str], batch: int) -> str | None:
        """Return which of a micro-batch's files another one has read, in words."""
        path_by_form = {self._same(path): path for path in paths}
        if not self._perhaps(path_by_form):
            return None
        # Almost always a micro-batch that is repeated after a crash. Hashes may collide, too: the list decides.
        earlier_files = listed_files(listed_details(self.table, self.void))
        twice = next(
            (
                (path, other_batch)
                for path, other_batch in earlier_files
                if other_batch != batch and self._same(path) in path_by_form
            ),
            None,
        )
        return (
            f"{readable(twice[0])} would be read twice: in micro-batch {twice[1]}, and again in {batch}"
            if twice
            else None
        )

    def add(self, paths: Iterable[str]) -> None:
        """Add files that a micro-batch has read."""
        self._new.update(hash(self._same(path)) for path in paths)
        if len(self._new) > MANY:
            self._known = np.union1d(self._known, np.fromiter(self._new, np.int64))
            self._new.clear()

    def _listed_twice(self, details: Mapping[int, Mapping[str, Any]]) -> str | None:
        first: dict[str, int] = {}
        for path, batch in listed_files(details):
            if first.setdefault(self._same(path), batch) != batch:
                return f"{readable(path)} was read twice: micro-batches {first[self._same(path)]} and {batch}"
        return None

    def _perhaps(self, forms: Iterable[str]) -> bool:
        hashes = np.fromiter(map(hash, forms), np.int64)
        at = np.minimum(np.searchsorted(self._known, hashes), max(0, len(self._known) - 1))
        return bool(
            len(self._known) and (self._known[at] == hashes).any()
        ) or not self._new.isdisjoint(hashes.tolist())

    def _same(self, path: str) -> str:
        """Return a path in one form: folders may be reached by links."""
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            bare = readable(folder)
            self._folders[folder] = os.path.realpath(bare) if bare.startswith("/") else bare
        return f"{self._folders[folder]}/{name}"
