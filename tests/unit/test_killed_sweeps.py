"""A sweep that is killed, after any of its changes of the lake: nothing is lost by it, and the next sweep leaves what it would have left.
Without Spark: `dpsql.lake` sweeps alone. What only Spark can show, that the run goes on, is in `tests/long/streaming/test_clean_up.py`."""

import functools
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

import dpsql
from dpsql.lake import compaction, delta_tables, retention, sorted_file, torn_commits
from dpsql.lake.contributions import Contributions
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.engine_file import Engine, Part
from dpsql.lake.manifest import Manifest
from dpsql.lake.retention import Retention
from dpsql.mechanisms.histogram.stages import admission_stage, grid
from dpsql.schedule import ERA, by_window
from dpsql.sources.config import Source, Sources
from dpsql.udfs.bucket_state import BucketFiles
from dpsql.udfs.stage import OPERATORS, RELEASE, StateFile
from tests.crash.broken_off import BrokenOff, Changes
from tests.sweeps import some

RUN = "5a" * 16
HOUR = 3_600_000_000
ERA_US = ERA * HOUR
NIGHTS = 3
"""Swept, each; the sweep of the next one is what is killed."""
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4)
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 hour'), page
"""
TABLES = {"admission": ("users",), "release": ("groups", "pending", "seen")}


@functools.cache
def plan() -> Any:
    source = Source(
        name="visits",
        format="parquet",
        path="v",
        event_time="ts",
        privacy_unit=("user_id",),
        max_users=9,
        max_keys=9,
    )
    return dpsql.compile(SQL, Sources((source,))).plan


class Public:
    """The histogram, as far as a sweep knows it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.paths = (path,)
        self.application = RUN

    def open_to_readers(self, paths: Iterable[str]) -> None:
        assert all(Path(name).is_file() for name in paths)


class Nights:
    """A run of catch-ups, and Spark's checkpoints beside it; an era of contributions a night."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.columns = admission_stage(plan()).gives
        self.public = Public(folder / "public")
        self.contributions = Contributions(
            folder / "contributions", RUN, by_window(grid(plan())), self.columns, 1, 2
        )
        self.listed = {
            operator: Manifest(folder / "files", RUN, operator, 1) for operator in OPERATORS
        }
        self.engine = Engine(folder, (2, 2), {operator: Part() for operator in OPERATORS})
        self.contributions.create()
        self.listed[RELEASE].create()
        delta_tables.create(self.public.path, Schema.from_arrow(pa.schema([("x", pa.int64())])))

    def night(self, number: int) -> None:
        neutral = {
            field.name: b"k" if field.name == "key_bytes" else number for field in self.columns
        }
        rows = pa.Table.from_pylist([neutral | {"window": number * ERA_US}] * 4, self.columns)
        rows = rows.append_column("bucket", pa.array(np.arange(4, dtype=np.int32) % 2))
        files = [
            file
            for bucket in (0, 1)
            for file in self.contributions.files.write(rows, bucket, number)
        ]
        self._step("admission", number, {"rows": 8, "written": [(0, 4), (1, 4)]})
        self.contributions.append(files, number, [(0, 4), (1, 4)])
        self.contributions.tick(number + 1, number, (number + 1) * ERA_US, (number + 2) * ERA_US)
        self._step(
            "release", number, {"offsets": [self._position()], "closed_us": (number + 1) * ERA_US}
        )
        # Two ticks have released rows.
        for mark in (2 * number, 2 * number + 1):
            file = sorted_file.sorted_file(self.public.path, pa.table({"x": [mark]}))
            delta_tables.append_files(self.public.path, [file], {RUN: mark})

    def _position(self) -> str:
        return json.dumps({"reservoirVersion": self.contributions.version + 1, "index": -1})

    def _step(self, operator: str, number: int, detail: dict[str, Any]) -> None:
        """A micro-batch in which bucket 0 has changed; Spark remembers two."""
        state = BucketFiles(self.engine.state_root, operator, 2, 1, TABLES[operator])
        state.store(0, number + 1, {name: pa.table({"x": [number]}) for name in TABLES[operator]})
        self.listed[operator].commit(number, [StateFile(0, number + 1, 1, {})], detail)
        for log, lines in {"offsets": ["{}", self._position()], "commits": ["{}"]}.items():
            written = self.folder / "checkpoints" / operator / log / str(number)
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_text("\n".join(["v1", *lines]))
            written.with_name(str(number - 2)).unlink(missing_ok=True)

    def savepoint(self) -> None:
        """The oldest state that is there gets a name."""
        kept = self.folder / retention.SAVEPOINTS / "x.json"
        kept.parent.mkdir()
        oldest = min(
            int(path.name.partition(".")[0]) for path in self.folder.glob("state/*/g1/*/*")
        )
        kept.write_text(json.dumps({"state": [[operator, 1, 0, oldest] for operator in OPERATORS]}))

    def sweep(self) -> None:
        Retention(
            self.engine, self.contributions, HOUR, self.listed[RELEASE], self.public, pytest.fail
        ).after_catch_up()

    def tables(self) -> dict[str, Path]:
        return {name: self.folder / name for name in ("contributions", "files", "public")}

    def kept(self) -> dict[str, Any]:
        """What no sweep may change, or leave otherwise than another: rows, marks, state; but not names and numbers of commits."""
        marks = [
            f"{RUN}/{name}"
            for name in (
                "tick",
                "closed_us",
                "ticked_batches",
                "forgotten",
                *(f"{o}/g1/files" for o in OPERATORS),
            )
        ]
        found: dict[str, Any] = {
            str(path): path.read_bytes()
            for path in sorted(self.folder.glob("state/*/g1/*/*.parquet"))
        }
        found = {name.removeprefix(str(self.folder)): content for name, content in found.items()}
        for name, path in self.tables().items():
            table = DeltaTable(str(path))
            found[name] = sorted(
                re.sub(r"reservoirVersion\D*\d+", "", repr(row))
                for row in read_rows(path).to_pylist()
            )
            found[f"marks of {name}"] = [
                table.transaction_version(mark)
                for mark in (*marks, RUN, f"{RUN}/admission/g1/rows")
            ]
        return found

    def files(self) -> Counter[str]:
        return Counter(
            str(path.parent.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if path.is_file()
        )

    def check(self, public: list[str], newest: int) -> None:
        """In order at any moment: every table can be read, so can the one before its newest commit, and the newest state is there."""
        for path in self.tables().values():
            table = DeltaTable(str(path))
            assert torn_commits.torn(path) is None
            before = (
                table.version() - 1
            )  # where a restore that puts the newest commit aside opens the table
            assert (
                not torn_commits.unreadable(path, table.version())
                and DeltaTable(str(path), version=before).version() == before
            )
        assert sorted(map(repr, read_rows(self.public.path).to_pylist())) == public
        for operator in OPERATORS:
            pointers = self.listed[operator].pointers()
            assert pointers == {0: newest + 1}
            BucketFiles(self.engine.state_root, operator, 2, 1, TABLES[operator]).check(
                0, pointers[0], all_bytes=True
            )
        for path in self.folder.glob(f"{retention.SAVEPOINTS}/*.json"):
            for operator, _, bucket, version in json.loads(path.read_text())["state"]:
                BucketFiles(self.engine.state_root, operator, 2, 1, TABLES[operator]).check(
                    bucket, version, all_bytes=True
                )


@pytest.fixture
def swept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "VACUUM_HOURS", 0)
    for name, value in (("MANY_FILES", 2), ("LOG_COMMITS", 3), ("KEPT_HOURS", 0)):
        monkeypatch.setattr(compaction, name, value)
    monkeypatch.setattr(delta_tables, "sync", lambda path: Path(path).exists() or _gone(path))


def _gone(path: str) -> None:
    raise FileNotFoundError(path)


@pytest.mark.usefixtures("swept_often")
def test_a_sweep_may_be_killed_anywhere(tmp_path: Path) -> None:
    run = Nights(tmp_path / "run")
    for number in range(NIGHTS):
        run.night(number)
        run.sweep()
    run.night(NIGHTS)
    run.savepoint()
    public = run.kept()["public"]

    def twin(name: str) -> Nights:
        shutil.copytree(run.folder, tmp_path / name)
        return Nights(tmp_path / name)

    whole = twin("whole")
    with Changes() as made:
        whole.sweep()
    # Each kind of change is among them: else these kills would show less than they seem to.
    assert set(made.kinds) == {
        "file written",
        "commit",
        "commit on the disk",
        "rows deleted",
        "checkpoint",
        "file removed",
    }
    # Of each table a merge and a checkpoint.
    assert made.kinds.count("checkpoint") == made.kinds.count("commit") == 3
    whole.night(NIGHTS + 1)
    whole.sweep()
    expected = whole.kept()
    files = sum(whole.files().values())
    # Where the disk is as nowhere else: before each change but syncs, and of files that are removed one after the other, after the first.
    kinds = ["", "", *made.kinds]
    points = [
        at
        for at, kind in enumerate(made.kinds)
        if kind != "commit on the disk" and len(set(kinds[at : at + 3])) > 1
    ]
    assert len(points) > 16
    for at in some(points, 3):
        killed = twin(f"killed{at}")
        with pytest.raises(BrokenOff), Changes(until=at):
            killed.sweep()
        killed.check(public, NIGHTS)
        # The next start.
        killed = Nights(killed.folder)
        killed.night(NIGHTS + 1)
        killed.sweep()
        assert killed.kept() == expected, (at, made.kinds[at])
        # What was broken off is made up for: a merge or a checkpoint may have come at another time, and that is all.
        assert sum(killed.files().values()) <= 1.2 * files, (
            at,
            made.kinds[at],
            killed.files(),
            whole.files(),
        )
        shutil.rmtree(killed.folder)
