"""Spark's checkpoint of one streaming query, read from outside: how far it is, whose it is, and what it has read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpsql.errors import LakeError
from dpsql.files import Place, replace_file
from dpsql.lake.hadoop_checksums import differs
from dpsql.udfs.bucket_state import filesystem
from dpsql.udfs.stage import ADMISSION

LOG_HEADER = "v1"
NO_LOG = -1
"""Position of a file source that has handed out nothing."""

END_BYTES = 65_536
LOOKS = 5


@dataclass(frozen=True)
class Checkpoint:
    """The folder that Spark keeps for one streaming query.

    Micro-batches are numbered as in the lake: a restored query goes on from `first`, while Spark begins again at 0.
    """

    path: Place
    first: int = 0

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
        return self._newest("offsets")

    @property
    def newest_commit(self) -> int | None:
        """The newest micro-batch that Spark has finished."""
        return self._newest("commits")

    @property
    def oldest_commit(self) -> int | None:
        """The oldest finished micro-batch that Spark still remembers."""
        numbers = _numbers(self.path / "commits")
        return min(numbers) + self.first if numbers else None

    def damaged(self) -> Place | None:
        """Return the first file of what Spark needs to go on that it could not read; None if there is none.

        Looked at are the newest two micro-batches planned and finished, the source's own log from its newest compaction on, and Spark's
        state. That is not more than Spark reads itself when it goes on.
        """
        for folder, check in (("offsets", _is_offsets), ("commits", _is_commit)):
            for number in sorted(_numbers(self.path / folder))[-2:]:
                if not _intact(file := self.path / folder / str(number), check):
                    return file
        metadata = self.path / "metadata"
        if metadata.exists() and not _intact(
            metadata, lambda lines: "id" in json.loads("\n".join(lines))
        ):
            return metadata
        for source in _children(self.path / "sources"):
            for file in _log_files(source):
                # Of a compacted log, which may be long, the checksum must do.
                if differs(file) or (file.name.isdigit() and not _intact(file, _is_log)):
                    return file
        return next((file for file in self._state_files() if differs(file)), None)

    def _state_files(self) -> Iterator[Path]:
        """Yield what Spark loads of its own state. What a micro-batch that is not finished has written is written again."""
        state = self.path / "state"
        committed = self.newest_commit
        version = 0 if committed is None else committed - self.first + 1
        for file in sorted(state.rglob("*")) if isinstance(state, Path) else ():
            number = file.name.partition(".")[0]
            if file.is_file() and number and not (number.isdigit() and int(number) > version):
                yield file

    def time_us(self, batch: int) -> int:
        """Return the wall clock when a micro-batch was planned, as Spark recorded it: a repeated micro-batch has the same."""
        return (
            int(
                json.loads(
                    (self.path / "offsets" / str(batch - self.first)).read_text().splitlines()[1]
                )["batchTimestampMs"]
            )
            * 1000
        )

    def position(self, batch: int, after_batch: int | None = None) -> dict[str, Any]:
        """Return what a micro-batch reads: the sources' end offsets, and for files their names and times of change (ms).

        Args:
            batch: the micro-batch.
            after_batch: files that came in after this one are named; None is the one before it.
        """
        offsets = self._offsets(batch)
        files = self._files(
            offsets, self._offsets(batch - 1 if after_batch is None else after_batch)
        )
        names = sorted(files)
        return (
            {"offsets": offsets, "files": names, "times": [files[name] for name in names]}
            if files
            else {"offsets": offsets}
        )

    def files(self, batch: int | None = None) -> set[str]:
        """Return every file that a file source has handed out, and those that a restored one must not hand out again.

        Args:
            batch: up to this micro-batch (default: the newest planned one).
        """
        folder = self.path / "sources"
        logs = [_log_entries(source) for source in _children(folder)]
        newest = self.newest_batch if batch is None else batch
        planned = self._offsets(-1 if newest is None else newest)
        last = max(0, _log_offset(planned)[1]) if planned else 0
        return (
            {str(entry["path"]) for log in logs for entry in log if int(entry["batchId"]) <= last}
            if planned or self._skips()
            else set()
        )

    def skip_files(self, times: Mapping[str, int], source: int = 0) -> None:
        """Make a query that has not started yet pass over these files (path -> time of change in ms), as if it had read them.

        Spark takes every file in the source's own log for seen, but hands out only those whose entry names the number of its log file.
        So they go into log 1 with the number 0, and log 0 is empty.
        """
        folder = self.path / "sources" / str(source)
        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True)
        entries = [
            json.dumps({"path": path, "timestamp": time, "batchId": 0})
            for path, time in sorted(times.items())
        ]
        replace_file(folder / "0", LOG_HEADER.encode())
        replace_file(folder / "1", "\n".join([LOG_HEADER, *entries]).encode())

    def _skips(self, source: int = 0) -> bool:
        """Tell whether `skip_files` has written to a source's log; Spark never writes an empty one."""
        log = self.path / "sources" / str(source) / "0"
        return log.is_file() and log.read_text().strip() == LOG_HEADER

    def _newest(self, log: str) -> int | None:
        newest = max(_numbers(self.path / log), default=-1) + self.first
        return newest if newest >= 0 else None

    def _offsets(self, batch: int) -> list[str]:
        """Return the lines after version and metadata in Spark's offset log, one per source."""
        path = self.path / "offsets" / str(batch - self.first)
        return path.read_text().splitlines()[2:] if batch >= self.first and path.exists() else []

    def _files(self, offsets: list[str], earlier_offsets: list[str]) -> dict[str, int]:
        """Return paths and times of change in the file source's own log between two offsets."""
        source, last = _log_offset(offsets)
        if last == NO_LOG:
            return {}
        first = (
            _log_offset(earlier_offsets)[1] + 1
            if earlier_offsets
            else 2
            if self._skips(source)
            else 0
        )
        return {
            str(entry["path"]): int(entry["timestamp"])
            for entry in _log_between(self.path / "sources" / str(source), first, last)
        }


def _log_offset(offsets: list[str]) -> tuple[int, int]:
    """Return (number of the source, position in its log) of the file source among the sources of a query; position -1 if there is none."""
    found = [(i, json.loads(line)) for i, line in enumerate(offsets) if "logOffset" in line]
    return (found[0][0], int(found[0][1]["logOffset"])) if found else (0, NO_LOG)


def source_entries(folder: Place) -> Iterator[dict[str, Any]]:
    """Yield what Spark has noted of the files that query 1 has read, in every generation of it.

    Args:
        folder: the run's private folder.
    """
    checkpoints = (
        path for path in _children(folder / "checkpoints") if path.name.startswith(ADMISSION)
    )
    return (entry for path in checkpoints for entry in _log_entries(path / "sources" / "0"))


def _log_entries(folder: Place) -> list[dict[str, Any]]:
    """Return the entries of a file source's log: the newest compaction and every file after it.

    Raises:
        LakeError: they go while they are read, again and again.
    """
    for _ in range(LOOKS):
        # A live run removes what is compacted: then there is a newer compaction by now.
        with contextlib.suppress(FileNotFoundError):
            return _entries(
                [line for path in _log_files(folder) for line in path.read_text().splitlines()[1:]]
            )
    raise LakeError(f"{folder}: cannot be read; try again")


def _log_files(folder: Place) -> list[Place]:
    """Return the newest compaction of a source's log and every file after it."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    compacted = [name.removesuffix(".compact") for name in names if name.endswith(".compact")]
    compact = max((int(number) for number in compacted if number.isdigit()), default=-1)
    newer = sorted(int(n) for n in names if n.isdigit() and int(n) > compact)
    return ([folder / f"{compact}.compact"] if compact >= 0 else []) + [
        folder / str(n) for n in newer
    ]


def _intact(path: Place, is_right: Callable[[list[str]], bool]) -> bool:
    """Tell whether a small file of Spark's can be read: by its checksum if it has one, and by its lines."""
    try:
        return not differs(path) and is_right(path.read_text().splitlines())
    except (OSError, ValueError, TypeError):
        return False


def _is_offsets(lines: list[str]) -> bool:
    return (
        len(lines) > 2
        and "batchTimestampMs" in json.loads(lines[1])
        and all(_is_json(line) for line in lines[2:])
    )


def _is_commit(lines: list[str]) -> bool:
    return len(lines) > 1 and isinstance(json.loads(lines[1]), dict)


def _is_log(lines: list[str]) -> bool:
    return bool(lines) and all(_is_json(line) for line in lines[1:] if line)


def _is_json(line: str) -> bool:
    # A source that has nothing yet is a dash; a number is an offset of Spark's own rate source.
    return line == "-" or json.loads(line) is not None


def _log_between(folder: Place, first: int, last: int) -> list[dict[str, Any]]:
    """Return the entries of a file source's log from one number to another. Of long logs only the end is read: every tenth file repeats them all."""
    entries: list[dict[str, Any]] = []
    for number in range(first, last + 1):
        if (folder / str(number)).is_file():
            entries += _entries((folder / str(number)).read_text().splitlines()[1:])
        elif (folder / f"{number}.compact").is_file():
            entries += [
                entry
                for entry in _end_of_log(folder / f"{number}.compact", number)
                if entry["batchId"] == number
            ]
        else:  # compacted since
            return [
                entry for entry in _log_entries(folder) if first <= int(entry["batchId"]) <= last
            ]
    return entries


def _end_of_log(path: Place, number: int) -> list[dict[str, Any]]:
    """Return the last entries of a compacted log, at least those with its own number: they come last."""
    system, name = filesystem(str(path))
    with system.open_input_file(name) as file:
        size = int(file.size())
        end = END_BYTES
        while True:
            file.seek(max(0, size - end))
            # The first line may be cut, or be the header.
            entries = _entries(file.read().decode(errors="replace").splitlines()[1:])
            if end >= size or (entries and int(entries[0]["batchId"]) < number):
                return entries
            end *= 4


def _entries(lines: list[str]) -> list[dict[str, Any]]:
    entries = (json.loads(line) for line in lines if line)
    # A Kafka source keeps its first offsets there.
    return [entry for entry in entries if "batchId" in entry]


def _children(folder: Place) -> list[Place]:
    found: list[Place] = list(folder.iterdir()) if folder.is_dir() else []
    return sorted(found, key=str)


def _numbers(folder: Place) -> list[int]:
    return (
        [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
        if folder.is_dir()
        else []
    )
