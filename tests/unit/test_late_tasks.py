"""A task that outlives its driver writes its state file late, over that of the next start: then it must be the same file, or be refused.
The sinks and the tasks are the real ones, in one process; Spark's part is played: it keeps a version of each bucket per finished
micro-batch."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql.files import Place
from dpsql.lake.contributions import Contributions
from dpsql.lake.engine_file import Engine, Part
from dpsql.lake.manifest import Manifest
from dpsql.lake.preflight import lost_state, state_files
from dpsql.lake.read_files import ReadFiles
from dpsql.lake.release_plans import ReleasePlans
from dpsql.lake.restore_points import Tables
from dpsql.local.feeder import split
from dpsql.mechanisms import registry
from dpsql.streaming import admission, release, released
from dpsql.streaming.admission import Clocks, known_clocks
from dpsql.udfs import bucket_state
from dpsql.udfs.noise.randomness import intake_key
from dpsql.udfs.stage import ADMISSION, OPERATORS, RELEASE, Clock, StateFile
from dpsql.udfs.task_files import ReleasedFiles
from dpsql.udfs.worker import StepError, WorkerIntake, WorkerRelease, answer
from tests.contract import LATEST, NOISE_KEY, START, TICKS, records
from tests.crash.broken_off import BrokenOff
from tests.sweeps import some
from tests.unit.test_contract import CASES, stages_of_case

RUN = "5a" * 16
USERS = 2
KEYS = 2
FIRST = {mechanism: case for case, (mechanism, _) in reversed(CASES.items())}
"""The first plan of each mechanism."""
EARLY = START + 6 * 3_600_000_000
"""The latest event time that a start accepts which is killed; the next accepts up to `LATEST`."""


class Group:
    def __init__(self, sequence: int | None) -> None:
        self.exists = sequence is not None
        self.get = (sequence,)

    def update(self, value: tuple[int]) -> None:
        self.exists = True
        self.get = value


class Histogram:
    """What is published, and where it stands."""

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule
        self.query = SimpleNamespace(once=False)
        self.rows = list[str]()
        self.triggers = schedule.points
        self.trigger_time = lambda pair: schedule.due_us(*pair)
        self.newest_trigger_us = lambda: -(1 << 62)
        self.check = lambda *given: set()

    def publish(
        self, rows: released.ReleasedRows, tick: int, due: Mapping[Any, int], has_all: bool
    ) -> None:
        self.rows += map(
            repr, rows.table(None if has_all else due).drop_columns(["key_bytes"]).to_pylist()
        )


class Run:
    def __init__(self, folder: Path, case: str, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.stages = stages_of_case(case)
        shape = registry.shape(CASES[case][1])
        tables = {stage.operator: stage.tables for stage in self.stages}
        self.engine = Engine(
            folder, (USERS, KEYS), {operator: Part() for operator in OPERATORS}, tables=tables
        )
        self.contributions = Contributions(
            folder / "contributions", RUN, shape.schedule, self.stages[0].gives, 1, KEYS
        )
        self.listed = {
            operator: Manifest(folder / "files", RUN, operator, 1) for operator in OPERATORS
        }
        self.contributions.create()
        self.listed[RELEASE].create()
        self.histogram = Histogram(shape.schedule)
        self.spark: dict[str, dict[int, int]] = {operator: {} for operator in OPERATORS}
        takes = self.contributions.rows_for(self.stages[1].takes)
        to = ReleasedFiles(str(folder / released.FOLDER), len(CASES[case][1].query.output_keys))
        self.works: dict[str, Any] = {
            ADMISSION: WorkerIntake(
                self.stages[0],
                state_files(self.engine, ADMISSION),
                {},
                self.contributions.files,
                KEYS,
                intake_key(NOISE_KEY),
            ),
            RELEASE: WorkerRelease(
                self.stages[1], state_files(self.engine, RELEASE), {}, takes, to, NOISE_KEY
            ),
        }
        self.patch = patch
        self.late = list[Callable[[], object]]()
        self.start(EARLY)

    def start(self, latest_us: int) -> None:
        clock = Clock(self.contributions.closed_us, latest_us)
        clocks = Clocks(known_clocks(self.listed[ADMISSION], clock.closed_us), lambda batch: clock)
        read = ReadFiles(self.folder / "files", (), "")
        checkpoint = SimpleNamespace(position=lambda batch: {})
        plans = ReleasePlans(self.contributions, self.listed[RELEASE], None)
        to = self.folder / released.FOLDER
        self.sinks: dict[str, Any] = {
            ADMISSION: admission.AdmissionSink(
                self.listed[ADMISSION],
                self.contributions,
                checkpoint,
                clocks,
                read,
                lambda drops: None,
            ),  # type: ignore[arg-type]
            RELEASE: release.ReleaseSink(
                self.listed[RELEASE],
                self.histogram,
                plans,
                to,
                lambda *n: None,
                lambda closed: None,
            ),  # type: ignore[arg-type]
        }

    def micro_batch(self, operator: str, number: int, rows: pa.Table | None = None) -> None:
        """What Spark does with one: it notes what its buckets have said once the sink is done."""
        told = list[str]()
        after = dict[int, int]()

        def tasks(frame: object) -> list[StateFile]:
            parts = (
                {}
                if rows is None
                else dict(
                    split(rows, "user" if "user" in self.stages[0].takes.names else "key", USERS)
                )
            )
            return [
                self._task(operator, bucket, parts.get(bucket), told, after)
                for bucket in range((USERS, KEYS)[operator == RELEASE])
            ]

        for module in (admission, release):
            self.patch.setattr(
                module, "hand_over", lambda frame, *given: told.extend(map(str, given))
            )
            self.patch.setattr(module, "reports", tasks)
        self.sinks[operator](SimpleNamespace(sparkSession=None), number)
        self.spark[operator] |= after

    def _task(
        self,
        operator: str,
        bucket: int,
        rows: pa.Table | None,
        told: list[str],
        after: dict[int, int],
    ) -> StateFile:
        group = Group(self.spark[operator].get(bucket))
        frames = [] if rows is None else [rows.drop_columns(["drop"]).to_pandas()]
        (row,) = list(answer(self.works[operator], bucket, frames, group, *told))[-1].to_dict(
            "records"
        )
        if group.exists:
            after[bucket] = group.get[0]
        return StateFile(
            row["bucket"], row["sequence"], row["bytes"], json.loads(bytes(row["counted"]))
        )

    def killed(self, operator: str, number: int, rows: pa.Table | None = None) -> None:
        """The driver ends before it lists the micro-batch, while its tasks are about to write."""

        def about_to(system: Any, folder: str, name: str, data: pa.Buffer) -> int:
            self.late.append(lambda: bucket_state.write_whole(system, folder, name, data))
            return int(data.size)

        def end(*given: object) -> None:
            raise BrokenOff

        with self.patch.context() as patch:
            patch.setattr(bucket_state, "write_whole", about_to)
            patch.setattr(Manifest, "commit", end)
            with pytest.raises(BrokenOff):
                self.micro_batch(operator, number, rows)

    def records(self, seed: int, low_us: int, high_us: int) -> pa.Table:
        return records(self.stages[0], seed, 150, low_us, high_us)

    def state(self) -> dict[str, bytes]:
        return {
            str(path): path.read_bytes() for path in (self.folder / "state").rglob("[0-9]*.parquet")
        }


def whole(run: Run, operator: str, late: bool) -> None:
    """A run of two ticks that is killed in the second micro-batch of one operator; its tasks write when that is done again."""
    half = START + (TICKS[0] - START) // 2
    run.start(LATEST)
    run.micro_batch(ADMISSION, 0, run.records(0, START, half))
    run.micro_batch(RELEASE, 0)
    run.start(EARLY)
    rows = run.records(1, START, TICKS[0])
    if operator == ADMISSION:
        run.killed(ADMISSION, 1, rows)
        run.start(LATEST)
    run.micro_batch(ADMISSION, 1, rows)
    if operator == RELEASE:
        run.killed(RELEASE, 1)
        run.start(LATEST)
    run.micro_batch(ADMISSION, 2, run.records(2, START, TICKS[0]))
    run.contributions.tick(1, 2, TICKS[0], LATEST)
    run.micro_batch(RELEASE, 1)
    run.start(LATEST)
    if late:
        before = run.state()
        for write in run.late:
            write()
        assert run.state() == before
    run.micro_batch(RELEASE, 2)
    run.micro_batch(ADMISSION, 3, run.records(3, TICKS[0], TICKS[0] + 10 * 3_600_000_000))
    run.contributions.tick(2, 3, TICKS[1], LATEST)
    run.micro_batch(RELEASE, 3)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("case", some(list(FIRST.values()), 2))
def test_a_late_task_changes_nothing(
    case: str, operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: state of a micro-batch that is done again with another plan or clock, which a task of the first attempt overwrites."""
    found, never = (Run(tmp_path / name, case, monkeypatch) for name in ("late", "never"))
    whole(found, operator, late=True)
    whole(never, operator, late=False)
    assert bool(found.late) == bool(found.engine.tables[operator])
    assert (
        sorted(found.histogram.rows) == sorted(never.histogram.rows)
        and len(never.histogram.rows) > 5
    )


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("case", FIRST.values())
def test_another_whole_file_is_refused(
    case: str, operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the task that loads it, and by a restore. Catches: counts of a version before, in which units have used less than they have."""
    run = Run(tmp_path, case, monkeypatch)
    if not run.engine.tables[operator]:
        return
    for number in range(2):
        run.micro_batch(ADMISSION, number, run.records(number, START, TICKS[0]))
        run.micro_batch(RELEASE, number)
    bucket = max(run.spark[operator], key=lambda each: run.spark[operator][each])
    newest = run.spark[operator][bucket]
    at = Path(run.works[operator].files.folder(bucket))
    for name in run.engine.tables[operator]:
        shutil.copy(at / f"{newest - 1:06d}.{name}.parquet", at / f"{newest:06d}.{name}.parquet")
    published = list(run.histogram.rows)
    listed = run.listed[operator].newest_batch
    run.contributions.tick(1, 1, TICKS[0], LATEST)
    for _ in range(2):  # the start at hand, and the next one
        with pytest.raises(StepError, match="DamagedState"):
            run.micro_batch(operator, 2, run.records(2, START, TICKS[0]))
        run.start(LATEST)
    assert (run.histogram.rows, run.listed[operator].newest_batch) == (published, listed)
    assert f"version {newest} of the state" in str(
        lost_state(run.engine, operator, run.listed[operator])
    )
    place: Place = tmp_path / "public"
    tables = Tables(tmp_path, place, RUN, run.engine)
    monkeypatch.setattr(Tables, "rows_mark", lambda self, of: 9)
    assert [point.pointers.get(bucket) for point in tables.points(operator)] == [newest - 1]


def test_a_flip_of_the_fingerprint_is_another_one() -> None:
    """It tells names from digests, and is a function of both."""
    draw = np.random.default_rng(0)
    digests = [draw.bytes(32).hex() for _ in range(3)]
    given = [{"a": x, "b": y} for x in digests for y in digests] + [
        {"a": digests[0]},
        {"ab": digests[0]},
        {},
    ]
    assert len({bucket_state.fingerprint(each) for each in given}) == len(given)
    assert bucket_state.fingerprint({"b": "2", "a": "1"}) == bucket_state.fingerprint(
        {"a": "1", "b": "2"}
    )
