"""A commit that was cut, at every length: noticed, and of `contributions` written again as it was, or not at all."""

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import dpsql
from dpsql.errors import LakeError
from dpsql.lake import restore, torn_commits
from dpsql.lake.contributions import Contributions
from dpsql.lake.engine_file import Engine, Part
from dpsql.lake.hadoop_checksums import differs
from dpsql.lake.manifest import Manifest
from dpsql.lake.release_plans import position
from dpsql.lake.restore_points import Tables
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.mechanisms.histogram.stages import admission_stage
from dpsql.mechanisms.registry import shape
from dpsql.sources.config import Source, Sources
from dpsql.udfs.stage import OPERATORS, StateFile

RUN = "5a" * 16
HOUR = 3_600_000_000
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 6, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = INTERVAL 1 HOUR)
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 day'), page
"""


class Private:
    def __init__(self, folder: Path) -> None:
        source = Source(
            name="visits",
            format="parquet",
            path="v",
            event_time="ts",
            privacy_unit=("user_id",),
            max_users=9,
            max_keys=9,
        )
        plan = dpsql.compile(SQL, Sources((source,))).plan
        self.columns = admission_stage(plan).gives
        self.contributions = Contributions(
            folder / "contributions", RUN, shape(plan).schedule, self.columns, 1, 2
        )
        self.manifest = Manifest(folder / "files", RUN, "admission", 1)
        self.folder = folder
        self.contributions.create()
        self.manifest.create()

    def write(self, batch: int, rows: int) -> list[dict[str, Any]]:
        neutral = {field.name: b"k" if field.name == "key_bytes" else 1 for field in self.columns}
        table = pa.Table.from_pylist([neutral | {"window": 0} for _ in range(rows)], self.columns)
        table = table.append_column("bucket", pa.array(np.arange(rows, dtype=np.int32) % 2))
        return [
            file
            for bucket in (0, 1)
            for file in self.contributions.files.write(table.slice(bucket, rows - 1), bucket, batch)
        ]

    def read(self, batch: int, rows: int) -> None:
        files = self.write(batch, rows)
        written = [(bucket, files[0]["rows"]) for bucket in (0, 1)]
        detail = {"rows": sum(file["rows"] for file in files), "written": written}
        self.manifest.commit(batch, [StateFile(0, batch + 1, 1, {})], detail)
        self.contributions.append(files, batch, written)

    def newest(self) -> Path:
        version = DeltaTable(self.contributions.path).version()
        return Path(self.contributions.path) / "_delta_log" / f"{version:020d}.json"

    def rewritten(
        self, ticks: dict[int, int], released_us: int | None = None
    ) -> list[dict[str, Any]] | None:
        lost = torn_commits.torn(self.contributions.path)
        assert lost is not None
        return torn_commits.rewritten(lost, RUN, self.manifest, ticks, released_us)


@pytest.fixture
def run(tmp_path: Path) -> Private:
    made = Private(tmp_path)
    made.read(0, 3)
    made.contributions.tick(1, 0, HOUR, 9 * HOUR)
    made.read(1, 5)
    return made


def state(table: str) -> tuple[Any, ...]:
    opened = DeltaTable(table)
    names = (f"{RUN}/tick", f"{RUN}/closed_us", f"{RUN}/ticked_batches", f"{RUN}/admission/g1/rows")
    actions = pa.table(opened.get_add_actions(flatten=True)).select(
        ["path", "size_bytes", "num_records", "partition.era"]
    )
    return (
        opened.version(),
        sorted(map(str, actions.to_pylist())),
        [opened.transaction_version(name) for name in names],
    )


def tick_of_a_catch_up(run: Private) -> None:
    run.contributions.tick(2, 1, 2 * HOUR, 9 * HOUR)


def tick_of_a_live_run(run: Private) -> None:
    run.contributions.tick_by_clock(1, 2 * HOUR, 9 * HOUR)


def rows(run: Private) -> None:
    run.read(2, 4)


@pytest.mark.parametrize("commit", [tick_of_a_catch_up, tick_of_a_live_run, rows])
def test_a_cut_commit_is_written_again_as_it_was(
    run: Private, commit: Callable[[Private], None]
) -> None:
    table = run.contributions.path
    # A file that a killed task has left behind is nobody's.
    run.write(7, 3)
    commit(run)
    was = state(table)
    path = run.newest()
    whole = path.read_bytes()
    ends = {
        whole.find(b"\n", at) + more
        for at in range(0, len(whole), 40)
        for more in (0, 1)
        if whole.find(b"\n", at) >= 0
    }
    number = {2 * HOUR: 2} if commit is tick_of_a_catch_up else {HOUR: 1}
    for length in sorted({0, 1, len(whole) // 2, len(whole) - 1, *ends}):
        path.write_bytes(whole[:length])
        lost = torn_commits.torn(table)
        assert lost is not None and lost.path == path, length
        actions = run.rewritten(number)
        assert actions is not None, length
        lost.replace(run.folder, "contributions", actions)
        assert state(table) == was, length
        assert torn_commits.torn(table) is None
    kept = list((run.folder / torn_commits.FOLDER).iterdir())
    assert whole[: len(whole) // 2] in {file.read_bytes() for file in kept}
    assert {file.stat().st_mode & 0o777 for file in kept} == {0o600}


def test_what_cannot_be_told_is_not_written(run: Private) -> None:
    run.contributions.tick(2, 1, 2 * HOUR, 9 * HOUR)
    was = state(run.contributions.path)
    path = run.newest()
    tick = json.loads(path.read_text().splitlines()[1])["add"]["path"]
    head = path.read_text().splitlines()[0].encode()
    path.write_bytes(head)
    # Query 2 has listed another tick.
    assert run.rewritten({}, 3 * HOUR) is None
    # Another tick that was never committed could have been it, unless what is left, or query 2, says which.
    other = replace(run.contributions, path=run.folder / "other")
    other.create()
    other.tick(9, 1, 3 * HOUR, 9 * HOUR)
    strange = next(Path(other.path).glob("era=-*/*.parquet"))
    (Path(run.contributions.path) / strange.relative_to(other.path)).write_bytes(
        strange.read_bytes()
    )
    assert run.rewritten({}) is None
    assert run.rewritten({}, 2 * HOUR) is not None
    path.write_bytes(head + b'\n{"add":{"path":"' + tick.encode() + b'","part')
    assert run.rewritten({}) is not None
    # A bit of its file has changed.
    file = Path(run.contributions.path) / tick
    content = file.read_bytes()
    file.write_bytes(content[:30] + bytes([content[30] ^ 1]) + content[31:])
    assert run.rewritten({}) is None
    file.unlink()
    assert run.rewritten({}, 2 * HOUR) is None
    assert was[0] == 4


def test_rows_of_a_listed_micro_batch_must_be_all_there(run: Private) -> None:
    run.read(2, 4)
    path = run.newest()
    names = [
        action["add"]["path"]
        for line in path.read_text().splitlines()
        if "add" in (action := json.loads(line))
    ]
    path.write_bytes(b"")
    assert run.rewritten({}) is not None
    (Path(run.contributions.path) / names[0]).unlink()
    assert run.rewritten({}) is None


@pytest.mark.parametrize(("upto", "left_out"), [(None, True), (3, True), (4, False), (5, False)])
def test_a_commit_that_cannot_be_told_is_left_out_only_if_query_2_has_not_read_it(
    run: Private, upto: int | None, left_out: bool
) -> None:
    run.contributions.tick(2, 1, 2 * HOUR, 9 * HOUR)
    path = run.newest()
    path.write_bytes(b"")
    max(
        (run.folder / "contributions").glob("era=-*/*.parquet"),
        key=lambda file: file.stat().st_mtime_ns,
    ).unlink()
    if upto is not None:
        Manifest(run.folder / "files", RUN, "release", 1).commit(
            0, [], {"closed_us": HOUR, "rows": 0, **position(upto)}
        )
    tables = Tables(
        run.folder,
        "unused",
        RUN,
        Engine(run.folder, (2, 2), {operator: Part() for operator in OPERATORS}),
    )
    lost = torn_commits.torn(run.contributions.path)
    assert lost is not None
    if left_out:
        assert "it is kept in" in restore._mend_contributions(tables, lost)
        assert (state(run.contributions.path)[0], path.exists()) == (3, False)
        assert run.contributions.closed_us == HOUR
        return
    with pytest.raises(
        LakeError,
        match=r"query 2 has read it, and it cannot be told which files it had added: nothing was touched.* --new-run$",
    ):
        restore._mend_contributions(tables, lost)
    assert path.read_bytes() == b""


def test_the_files_that_spark_needs_are_looked_at(tmp_path: Path) -> None:
    found = Checkpoint(tmp_path)
    good = {"metadata": b'{"id":"x"}', "offsets/1": b'v1\n{"batchTimestampMs":1}\n{"logOffset":1}'}
    good |= {"commits/1": b'v1\n{"nextBatchWatermarkMs":0}', "sources/0/0": b"v1"}
    good |= {
        "sources/0/1": b'v1\n{"path":"a","timestamp":1,"batchId":1}',
        "state/0/0/1.delta": b"x" * 1200,
    }
    for name, content in good.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
        sums = b"".join(
            struct.pack(">I", zlib.crc32(content[at : at + 512]))
            for at in range(0, len(content), 512)
        )
        ((tmp_path / name).parent / f".{(tmp_path / name).name}.crc").write_bytes(
            b"crc\x00" + struct.pack(">I", 512) + sums
        )
    assert found.damaged() is None
    for name, content in good.items():
        path = tmp_path / name
        for bad in (content[:-1], content[: len(content) // 2], b"", content[:-1] + b"#"):
            path.write_bytes(bad)
            assert (differs(path), found.damaged()) == (True, path), (name, bad)
        path.write_bytes(content)
    # Without checksums, as on an object store, what is cut is still noticed.
    for path in tmp_path.rglob(".*.crc"):
        path.unlink()
    assert found.damaged() is None
    for name in ("metadata", "offsets/1", "commits/1", "sources/0/1"):
        path = tmp_path / name
        for bad in (good[name][:-3], b""):
            path.write_bytes(bad)
            assert found.damaged() == path, (name, bad)
        path.write_bytes(good[name])
