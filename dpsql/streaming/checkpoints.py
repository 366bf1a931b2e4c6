"""Spark's checkpoint of one streaming query, read from outside: how far it is, whose it is, and what it has read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dpsql.places import Place


@dataclass(frozen=True)
class Checkpoint:
    """The folder that Spark keeps for one streaming query."""

    path: Place

    @property
    def query_id(self) -> str | None:
        """Spark's id of the query, the same over restarts; None before the first start."""
        try:
            return str(json.loads((self.path / "metadata").read_text())["id"])
        except (OSError, ValueError, KeyError):
            return None

    @property
    def newest_batch(self) -> int | None:
        """The newest micro-batch that was planned (its offsets are recorded)."""
        return max(_numbers(self.path / "offsets"), default=None)

    @property
    def newest_commit(self) -> int | None:
        """The newest micro-batch that Spark has finished."""
        return max(_numbers(self.path / "commits"), default=None)

    @property
    def oldest_commit(self) -> int | None:
        """The oldest finished micro-batch that Spark still remembers."""
        return min(_numbers(self.path / "commits"), default=None)

    def time_us(self, batch: int) -> int:
        """The wall clock when a micro-batch was planned, as Spark recorded it: a repeated micro-batch has the same."""
        return int(json.loads((self.path / "offsets" / str(batch)).read_text().splitlines()[1])["batchTimestampMs"]) * 1000

    def position(self, batch: int) -> dict[str, Any]:
        """What a micro-batch reads: the sources' end offsets, and for files the names of those that came in with it."""
        offsets = self._offsets(batch)
        files = sorted(self._files(offsets, self._offsets(batch - 1)))
        return {"offsets": offsets, "files": files} if files else {"offsets": offsets}

    def files(self) -> set[str]:
        """Every file that a file source has handed out so far."""
        newest = self.newest_batch
        return self._files(self._offsets(newest), []) if newest is not None else set()

    def _offsets(self, batch: int) -> list[str]:
        """The lines after version and metadata in Spark's offset log, one per source."""
        path = self.path / "offsets" / str(batch)
        return path.read_text().splitlines()[2:] if batch >= 0 and path.exists() else []

    def _files(self, offsets: list[str], before: list[str]) -> set[str]:
        """Paths in the file source's own log between two offsets."""
        if len(offsets) != 1 or "logOffset" not in offsets[0]:
            return set()
        last = int(json.loads(offsets[0])["logOffset"])
        first = int(json.loads(before[0])["logOffset"]) + 1 if before else 0
        entries = _log_entries(self.path / "sources" / "0")
        return {str(entry["path"]) for entry in entries if first <= int(entry["batchId"]) <= last}


def _log_entries(folder: Place) -> list[dict[str, Any]]:
    """The entries of a file source's log: the newest compaction and every file after it."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    compact = max((int(n.removesuffix(".compact")) for n in names if n.endswith(".compact")), default=-1)
    newer = sorted(int(n) for n in names if n.isdigit() and int(n) > compact)
    paths = ([folder / f"{compact}.compact"] if compact >= 0 else []) + [folder / str(n) for n in newer]
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()[1:] if line]


def _numbers(folder: Place) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
