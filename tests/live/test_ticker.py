"""When a live run closes the grid: by the clock of its micro-batches and of polls that find nothing, and only across grid points."""

import json
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import StringType

import dpsql
from dpsql.lake.clock_guard import ClockGuard
from dpsql.lake.contributions import TICK_ERA, Contributions
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.engine_file import Engine, Part
from dpsql.lake.manifest import Manifest
from dpsql.lake.marks import described_mark
from dpsql.lake.retention import Retention, compact, kept_by_savepoints, sweep_bucket
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.mechanisms.describe import described
from dpsql.mechanisms.histogram.plan import PrivacyPlan
from dpsql.mechanisms.registry import shape
from dpsql.parsed_query import AS_RELEASED
from dpsql.sources.config import Source, Sources
from dpsql.streaming.admission import Clocks, known_clocks
from dpsql.streaming.live import Ticker, _follow
from dpsql.streaming.microbatches import NEVER_US
from dpsql.streaming.published_table import PublishedTable
from dpsql.udfs.bucket_state import filesystem
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.stage import OPERATORS, Clock, StateFile

SECOND = 1_000_000
T0 = 1_800_000_000 * SECOND
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 6, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = INTERVAL 10 SECONDS)
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '30 seconds'), page
"""
BUCKETS = 3


@pytest.fixture
def plan() -> PrivacyPlan:
    source = Source(
        name="visits",
        format="parquet",
        path="visits",
        event_time="ts",
        privacy_unit=("user_id",),
        max_users=1000,
        max_keys=1000,
    )
    return dpsql.compile(SQL, Sources((source,))).plan


@pytest.fixture
def contributions(plan: PrivacyPlan, tmp_path: Path) -> Contributions:
    table = Contributions(
        tmp_path / "contributions",
        "5a" * 16,
        shape(plan).schedule,
        shape(plan).contributions,
        1,
        BUCKETS,
    )
    table.create()
    return table


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    (tmp_path / "checkpoint/offsets").mkdir(parents=True)
    (tmp_path / "checkpoint/commits").mkdir()
    return Checkpoint(tmp_path / "checkpoint")


def planned(checkpoint: Checkpoint, batch: int, time_us: int) -> int:
    """What Spark writes before it runs a micro-batch."""
    (checkpoint.path / f"offsets/{batch}").write_text(
        "v1\n" + json.dumps({"batchTimestampMs": time_us // 1000}) + '\n{"logOffset":0}'
    )
    return batch


def ticks(contributions: Contributions) -> list[tuple[int, int]]:
    """(micro-batch, closed second) of every tick; each must be there once per bucket."""
    table = read_rows(contributions.path, ["kind", "batch", "closed_us", "bucket"])
    rows = sorted(
        zip(*(table[name].to_pylist() for name in ("closed_us", "batch", "bucket")), strict=True)
    )
    assert [bucket for _, _, bucket in rows] == list(range(BUCKETS)) * (len(rows) // BUCKETS)
    return [(batch, (closed - T0) // SECOND) for closed, batch, bucket in rows if bucket == 0]


def follow(contributions: Contributions, checkpoint: Checkpoint) -> Ticker:
    """A ticker that has read its backlog; no grid point had passed."""
    ticker = Ticker(contributions, checkpoint, 10 * SECOND, 2 * SECOND)
    ticker.begin(NO_CLOCK)
    return ticker


def test_ticks_are_lazy_and_follow_the_rows_they_cover(
    contributions: Contributions, checkpoint: Checkpoint
) -> None:
    ticker = follow(contributions, checkpoint)
    for batch, second in enumerate([3, 8, 12, 14, 19, 20, 41]):
        clock = ticker.clock(planned(checkpoint, batch, T0 + second * SECOND))
        assert clock.latest_us == T0 + (second // 2 * 2 + 10) * SECOND
        # The micro-batch that is planned after a grid point still counts towards it: the tick comes after its rows.
        assert clock.closed_us == ticker.closed_us
        ticker.rows_are_there(batch, clock)
    assert ticks(contributions) == [(0, 2), (2, 12), (5, 20), (6, 40)]
    assert DeltaTable(contributions.path).version() == 4


def test_silence_ticks_too_and_an_idle_query_writes_nothing(
    contributions: Contributions, checkpoint: Checkpoint
) -> None:
    ticker = follow(contributions, checkpoint)
    ticker.rows_are_there(0, ticker.clock(planned(checkpoint, 0, T0 + 5 * SECOND)))
    for second in (6, 7, 8, 9, 10, 11, 19, 25):
        ticker.nothing_came(T0 + second * SECOND)
    assert ticks(contributions) == [(0, 4), (0, 10), (0, 24)]
    assert DeltaTable(contributions.path).version() == 3


def test_a_poll_does_not_tick_past_a_micro_batch_at_work(
    contributions: Contributions, checkpoint: Checkpoint
) -> None:
    """Its rows belong before the tick; it ticks itself."""
    ticker = follow(contributions, checkpoint)
    planned(checkpoint, 0, T0 + 12 * SECOND)
    inside = threading.Event()
    go_on = threading.Event()

    def sink(frame: object, batch: int) -> None:
        inside.set()
        go_on.wait(10)
        ticker.rows_are_there(batch, ticker.clock(batch))

    worker = threading.Thread(target=ticker.with_lock(sink), args=(None, 0))
    worker.start()
    assert inside.wait(10)
    ticker.nothing_came(T0 + 30 * SECOND)
    assert ticks(contributions) == []
    go_on.set()
    worker.join()
    ticker.nothing_came(T0 + 30 * SECOND)
    assert ticks(contributions) == [(0, 12), (0, 30)]


def test_a_poll_that_found_nothing_closes_the_grid_before_the_next_micro_batch(
    contributions: Contributions, checkpoint: Checkpoint
) -> None:
    """Catches: not whether its tick was seen to, but time in which nobody polled decides."""
    ticker = follow(contributions, checkpoint)
    turns = [(5, None, None), (13, 10, 10), (31, 28, 28), (41, None, 30), (53, None, 40)]
    for batch, (second, idle, closed) in enumerate(turns):
        if idle is not None:
            ticker.idle_since_us = lambda idle_us=T0 + idle * SECOND + 1234: idle_us
        clock = ticker.clock(planned(checkpoint, batch, T0 + second * SECOND))
        ticker.rows_are_there(batch, clock)
        assert clock.closed_us == (NO_CLOCK if closed is None else T0 + closed * SECOND)
    assert ticks(contributions) == [(0, 4), (0, 10), (1, 28), (2, 30), (3, 40), (4, 52)]


def test_the_clock_never_goes_back(contributions: Contributions, checkpoint: Checkpoint) -> None:
    ticker = follow(contributions, checkpoint)
    for batch, second in enumerate([25, 4]):
        clock = ticker.clock(planned(checkpoint, batch, T0 + second * SECOND))
        ticker.rows_are_there(batch, clock)
    assert clock == Clock(T0 + 24 * SECOND, T0 + 34 * SECOND)
    again = follow(contributions, checkpoint)
    assert again.closed_us == T0 + 24 * SECOND
    again.nothing_came(T0 + 9 * SECOND)
    assert ticks(contributions) == [(0, 24)]


def test_while_a_backlog_is_read_nothing_ticks(
    contributions: Contributions, checkpoint: Checkpoint
) -> None:
    ticker = Ticker(contributions, checkpoint, 10 * SECOND, 2 * SECOND)
    for batch in range(3):
        clock = ticker.clock(planned(checkpoint, batch, T0 + batch * 60 * SECOND))
        assert clock == Clock(NO_CLOCK, T0 + (batch * 60 + 10) * SECOND)
        ticker.rows_are_there(batch, clock)
    assert ticks(contributions) == []


def test_a_repeated_micro_batch_has_the_clock_that_is_listed(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path / "files", "5a" * 16, "admission", 1)
    manifest.create()
    assert known_clocks(manifest, NO_CLOCK) == {}
    for batch in (3, 4):
        detail = {"offsets": ["{}"], "clock": {"closed_us": batch, "latest_us": 10 + batch}}
        manifest.commit(batch, [StateFile(0, batch, 100, {})], detail)
    clocks = Clocks(known_clocks(manifest, NO_CLOCK), lambda batch: Clock(-1, -1))
    assert (clocks.clock_of(4), clocks.clock_of(5)) == (Clock(4, 14), Clock(-1, -1))


def rows(contributions: Contributions, window_us: int) -> None:
    era = (window_us - contributions.schedule.eras.first) // (64 * 30 * SECOND)
    neutral = {
        field.name: b"" if field.name == "key_bytes" else 0 for field in contributions.schema
    }
    table = pa.Table.from_pylist(
        [neutral | {"era": era, "window": window_us}], contributions.schema
    )
    write_deltalake(contributions.path, table, mode="append")


def test_contributions_go_when_all_windows_of_their_era_are_closed(
    contributions: Contributions,
) -> None:
    era_us = 64 * 30 * SECOND
    first = T0 // era_us * era_us
    for window in (first, first + era_us - 30 * SECOND, first + era_us):
        rows(contributions, window)
    contributions.tick_by_clock(0, T0, T0)
    # What a failed task of query 1 left behind holds records as well.
    (
        Path(contributions.path) / f"era={first // era_us}/part-00000-of-a-failed-task.parquet"
    ).write_bytes(b"records")
    # The last window of the era starts 30 s before its end and has its third trigger 30 s after its start.
    assert contributions.forget(first + era_us - 1) == 0
    before = DeltaTable(contributions.path).version()
    assert contributions.forget(first + era_us) == 1
    table = DeltaTable(contributions.path)
    left = read_rows(contributions.path, ["era", "window"]).to_pylist()
    assert sorted({row["era"] for row in left}) == [TICK_ERA, first // era_us + 1]
    assert not list(Path(contributions.path).glob(f"era={first // era_us}/*.parquet"))
    for version in range(before + 1, table.version() + 1):
        log = (Path(contributions.path) / f"_delta_log/{version:020d}.json").read_text()
        assert '"add"' not in log, "query 2 could not go on"


def test_old_state_goes_unless_spark_or_a_savepoint_may_name_it(tmp_path: Path) -> None:
    folder = tmp_path / "bucket=0000"
    folder.mkdir()
    for number in range(1, 31):
        (folder / f"{number:06d}.users.parquet").touch()
    (folder / ".000009.users.parquet.0a").touch()
    old = folder / ".000007.users.parquet.0b"
    old.touch()
    os.utime(old, (1, 1))
    (tmp_path / "savepoints").mkdir()
    (tmp_path / "savepoints/before.json").write_text(
        json.dumps(
            {"state": [["admission", 1, 0, 5], ["release", 1, 0, 6], ["admission", 2, 0, 7]]}
        )
    )
    system, path = filesystem(str(folder))
    sweep_bucket(system, path, 10, kept_by_savepoints(tmp_path, "admission", 1)[0])
    assert sorted(int(file.name[:6]) for file in folder.glob("[0-9]*")) == [5, *range(18, 31)]
    assert [file.name for file in folder.glob(".*")] == [".000009.users.parquet.0a"]


def test_a_restored_query_sweeps_before_its_first_commit(
    plan: PrivacyPlan, contributions: Contributions, tmp_path: Path
) -> None:
    """Its first release rests, so Spark has noted none. Catches: looking into offsets that are not there."""
    engine = Engine(tmp_path / "lake", (1, 1), {operator: Part(2, 7) for operator in OPERATORS})
    listed = Manifest(engine.folder / "files", "run", "release", 2)
    listed.create()
    checkpoint = engine.checkpoint("release")
    (checkpoint.path / "offsets").mkdir(parents=True)
    (checkpoint.path / "offsets/0").write_text("v1\n{}\n" + json.dumps({"reservoirVersion": 5}))
    assert (checkpoint.newest_batch, checkpoint.newest_commit) == (7, 6)
    published = described(plan, shape(plan), AS_RELEASED)
    histogram = PublishedTable(
        tmp_path / "public",
        "run",
        plan.query,
        shape(plan),
        (StringType(),),
        published,
        described_mark("run"),
    )
    histogram.create()
    rows(contributions, T0)
    Retention(engine, contributions, 0, listed, histogram, pytest.fail).sweep(T0 + 10**12, -1)
    assert len(DeltaTable(contributions.path).file_uris()) == 1


def test_the_list_of_files_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.lake.compaction.MANY_FILES", 5)
    manifest = Manifest(tmp_path / "files", "5a" * 16, "admission", 1)
    manifest.create()
    for batch in range(7):
        manifest.commit(
            batch, [StateFile(0, batch, 100, {})], {"clock": {"closed_us": 0, "latest_us": batch}}
        )
    before = manifest.batches()
    newest = manifest.newest_batch
    compact(manifest.path)
    assert len(DeltaTable(manifest.path).file_uris()) == 1
    assert (manifest.batches(), manifest.newest_batch) == (before, newest)
    manifest.commit(6, [StateFile(0, 9, 100, {})], {})
    assert manifest.batches() == before


def test_what_is_swept_is_what_spark_has_noted() -> None:
    """The newest release is noted when query 2 wakes from its rest. Catches: sweeping what it has read, so that a crash could not repeat it;
    and the version of now, up to which nobody has read yet where every micro-batch ticks."""
    ticks = [(20, 9), (20, 9), (30, 12), (40, 17)]
    released = list[int]()
    swept = list[tuple[int, int]]()
    stop = threading.Event()
    ticker: Any = SimpleNamespace(
        newest=(10, 4),
        idle_since_us=lambda: 0,
        lock=threading.Lock(),
        nothing_came=lambda polled_us: setattr(ticker, "newest", ticks.pop(0)),
    )

    def release_up_to(closed_us: int) -> bool:
        released.append(closed_us)
        if not ticks:
            stop.set()
        return True

    following: Any = SimpleNamespace(check=lambda: None)
    clock: Any = SimpleNamespace(set_back=False)
    retention: Any = SimpleNamespace(
        sweep=lambda closed_us, version: swept.append((closed_us, version))
    )
    _follow(stop, release_up_to, following, ticker, retention, ticker.newest, clock)
    assert released == [20, 30, 40]
    assert swept == [(10, 4), (20, 9), (30, 12)]


@dataclass
class Machine:
    """A clock that can be set, and one that cannot; both count from T0."""

    wall: float = 0
    passed: float = 0
    alarms: list[str] = field(default_factory=list)

    def guard(self) -> ClockGuard:
        def told(wrong: bool, text: str) -> None:
            self.alarms += [text] if wrong else []

        return ClockGuard(2 * SECOND, told, self.wall_us, lambda: round(self.passed * SECOND))

    def wall_us(self) -> int:
        return T0 + round(self.wall * SECOND)

    def sleep(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds


@pytest.mark.parametrize("step", [86_400, 366 * 86_400, -3600])
def test_a_step_of_the_clock_closes_no_window_early(
    contributions: Contributions, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Polls every 2 seconds, every fifth finds something; the clock is wrong from 15 to 45 seconds."""
    machine = Machine()
    monkeypatch.setattr("dpsql.streaming.live.wall_us", machine.wall_us)
    guard = machine.guard()
    ticker = Ticker(contributions, checkpoint, 10 * SECOND, 2 * SECOND, guard.time)
    idle_us = NEVER_US
    ticker.idle_since_us = lambda: idle_us
    ticker.begin(machine.wall_us())
    wrong = False
    batch = 0
    while machine.passed < 70:
        if wrong is not (15 <= machine.passed < 45):
            wrong = not wrong
            machine.wall += step if wrong else -step
        if machine.passed % 5:
            idle_us = machine.wall_us()
            ticker.nothing_came(idle_us)
        else:
            clock = ticker.clock(planned(checkpoint, batch, machine.wall_us()))
            # Nobody's records are too far ahead, nor taken from a time to come.
            assert clock.latest_us <= T0 + round((machine.passed + 10) * SECOND)
            assert clock.latest_us >= T0 + round((machine.passed + 8 - 45) * SECOND)
            machine.sleep(1)
            ticker.rows_are_there(batch, clock)
            batch += 1
        assert ticker.closed_us <= T0 + round(machine.passed * SECOND)
        machine.sleep(1)
    seconds = [second for _, second in ticks(contributions)]
    # Ahead: the time that has passed goes on ticking. Back: nothing does, and then all that is due.
    assert seconds == ([0, 10, 20, 30, 40, 50, 60] if step > 0 else [0, 10, 44, 50, 60])
    assert guard.set_back
    assert len(machine.alarms) == 1
    assert Ticker(contributions, checkpoint, 10 * SECOND, 2 * SECOND).closed_us == ticker.closed_us


def test_while_the_clock_is_set_back_polling_begins_anew() -> None:
    """Spark waits by the wall clock for the poll after the last one: after a day ahead that is a day. But not while a micro-batch is at work."""
    stop = threading.Event()
    asked = list[bool]()
    forgiven = list[bool]()

    def poll_anew() -> bool:
        asked.append(True)
        return len(asked) == 2

    def forgive() -> None:
        forgiven.append(True)
        clock.set_back = False

    def nothing_came(polled_us: int) -> None:
        turns.append(polled_us)
        if len(turns) == 4:
            stop.set()

    turns = list[int]()
    clock: Any = SimpleNamespace(set_back=True, forgive=forgive)
    ticker: Any = SimpleNamespace(
        newest=(10, 4), idle_since_us=lambda: 0, nothing_came=nothing_came
    )
    following: Any = SimpleNamespace(check=lambda: None, poll_anew=poll_anew)
    _follow(stop, lambda closed_us: True, following, ticker, SimpleNamespace(), (10, 4), clock)  # type: ignore[arg-type]
    assert (len(asked), len(forgiven)) == (2, 1)
