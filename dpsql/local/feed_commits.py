"""What a run over a change feed has read: commits of a Delta table, which has them until they are vacuumed away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsql.errors import DataError
from dpsql.local.delta_files import ON_SPARK, snapshot
from dpsql.local.sources import local_path
from dpsql.sources.change_feed import CHANGE, POSITION, TIME
from dpsql.sources.config import Source


@dataclass(frozen=True)
class Commits:
    """The commits that came with one micro-batch; `snapshot`: not what they changed, but the whole table as it was at the last of them."""

    first: int
    last: int
    snapshot: bool = False


def read_commits(details: Mapping[int, Mapping[str, Any]], source: Source) -> dict[int, Commits]:
    """Return the commits of every micro-batch that changed state. Those of the others come with the next one, where they change nothing either.

    Args:
        details: of the micro-batches, in order.
        source: the change feed.

    Raises:
        DataError: where the run began is not known, or it is still reading the table as it was then.
    """
    commits_by_batch = dict[int, Commits]()
    next_version = _start(source)
    for batch, detail in details.items():
        position = json.loads(detail["offsets"][0])
        if position["isStartingVersion"]:
            raise DataError(
                f"the run is still reading table `{source.name}` as it was at its first start: verify when it follows the changes"
            )
        is_read = int(position["index"]) >= 0  # a commit is taken whole or not at all
        last = int(position["reservoirVersion"]) - (not is_read)
        if next_version is None and is_read:
            raise DataError(
                f"the run began with table `{source.name}` as it was then, and at which commit is not known: to verify a run, declare "
                "`options: {startingVersion: ...}` before its first start"
            )
        commits_by_batch[batch] = Commits(
            last if next_version is None else next_version, last, snapshot=next_version is None
        )
        next_version = last + 1
    return commits_by_batch


def changes(source: Source, commits: Commits) -> pa.Table | None:
    """Return the images of some commits, with the times that Spark gives them; None where they change no row.

    Each commit is read alone: `deltalake` refuses all of them where the feed is off for one, which Spark reads from its files.

    Raises:
        DataError: the table is not on this disk, or no longer has them.
    """
    from deltalake import DeltaTable  # slow to import
    from deltalake.exceptions import DeltaError

    path = _local(source)
    try:
        times, changed_versions, has_deleted = _read_log(path, commits)
        if commits.snapshot:
            snapshot_rows = snapshot(path, commits.last)
            images = snapshot_rows.append_column(
                CHANGE, pa.array(["insert"] * snapshot_rows.num_rows, pa.string())
            )
            images = images.append_column(
                POSITION, pa.array(np.full(snapshot_rows.num_rows, commits.last))
            )
        elif changed_versions:
            delta_table = DeltaTable(path)
            images = pa.concat_tables(
                pa.table(delta_table.load_cdf(version, version)) for version in changed_versions
            )
        else:
            return None
    except (DeltaError, OSError, ValueError) as problem:
        raise DataError(
            f"{path}: commits {commits.first} to {commits.last}, which the run has read, cannot be read ({type(problem).__name__}): a Delta table "
            "keeps them until VACUUM, and its log for `delta.logRetentionDuration`"
        ) from None
    if has_deleted and not commits.snapshot:
        raise DataError(
            f"{path}: commits {commits.first} to {commits.last} have deletion vectors, {ON_SPARK}"
        )
    commit_index = pc.cast(images[POSITION], pa.int64()).to_numpy() - commits.first
    commit_times = pa.array(times[commit_index], pa.timestamp("us", "UTC"))
    return images.drop_columns([TIME] if TIME in images.column_names else []).append_column(
        TIME, commit_times
    )


def _start(source: Source) -> int | None:
    """Return the first commit whose changes are read; None: the table as it was at first is read before them."""
    options = {name.lower(): value for name, value in source.options}
    version_text = options.get("startingversion")
    if "startingtimestamp" in options or not (version_text is None or version_text.isdigit()):
        raise DataError(
            f"the run over `{source.name}` began at a commit that only Spark knows: to verify a run, declare `options: {{startingVersion: "
            "NUMBER}}` before its first start"
        )
    return None if version_text is None else int(version_text)


def _local(source: Source) -> Path:
    if not source.path:
        raise DataError(
            f"source `{source.name}` is a table of Spark's catalog: to verify, declare its format and path"
        )
    return local_path(
        source.path, f"source `{source.name}` is at {{}}://, which the local engine does not read"
    )


def _read_log(path: Path, commits: Commits) -> tuple[np.ndarray, list[int], bool]:
    """Read the times of commits in microseconds, those that change rows, and whether one of them deletes rows by a vector.

    A time is what the commit says itself if the table keeps such times, else when its file was written. They ascend.
    """
    times_ms = []
    changed_versions = []
    has_deleted = False
    for version in range(commits.first, commits.last + 1):
        file = path / "_delta_log" / f"{version:020d}.json"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        commit_info: dict[str, Any] = next(
            (line["commitInfo"] for line in lines if "commitInfo" in line), {}
        )
        actions = [
            line[action] for line in lines for action in ("add", "remove", "cdc") if action in line
        ]
        if actions:
            changed_versions.append(version)
        has_deleted |= any(action.get("deletionVector") for action in actions)
        times_ms.append(
            int(commit_info.get("inCommitTimestamp", file.stat().st_mtime_ns // 1_000_000))
        )
    steps = np.arange(len(times_ms))
    times_us = (np.maximum.accumulate(np.array(times_ms, np.int64) - steps) + steps) * 1000
    return times_us, changed_versions, has_deleted
