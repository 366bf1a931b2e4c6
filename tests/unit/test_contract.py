"""The contract (tests/contract.py) over the registry, and broken stages that it must find; and intakes without state, whose tasks add up."""

import importlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.local.feeder import Stages
from dpsql.mechanisms.protocol import RunFacts
from dpsql.mechanisms.registry import MECHANISMS
from dpsql.mechanisms.sketch.mechanism import SKETCH
from dpsql.mechanisms.sliding.mechanism import SLIDING
from dpsql.udfs import task_intake
from dpsql.udfs.bucket_state import BucketFiles
from dpsql.udfs.intake import timeliness
from dpsql.udfs.stage import Clock, Stage, StateFile
from dpsql.udfs.state_table import StateTable
from dpsql.udfs.task_files import ContributionFiles
from dpsql.udfs.task_intake import Gathered, TaskIntake
from dpsql.udfs.worker import MicroBatch
from tests import contract
from tests.contract import AT_ONCE, CONTRACT, LATEST, START, Taken, records
from tests.mechanisms.sketch import contract_cases as sketches
from tests.mechanisms.sliding import contract_cases as windows
from tests.sweeps import WHOLE

Check = Callable[[Stages, Path], None]


@cache
def stages_of_case(case: str) -> Stages:
    """Made once, so that what they release of plain records is computed once."""
    return stages_of(*CASES[case])


def stages_of(name: str, plan: Any) -> Stages:
    (mechanism,) = [each for each in MECHANISMS if each.name == name]
    facts = getattr(_cases(name), "FACTS", RunFacts())
    listed = mechanism.shape(plan).listed and facts.public is None
    return mechanism.stages(plan, RunFacts(contract.listed()) if listed else facts)


def _cases(name: str) -> Any:
    return importlib.import_module(f"tests.mechanisms.{name}.contract_cases")


CASES = {
    f"{mechanism.name}: {case}": (mechanism.name, plan)
    for mechanism in MECHANISMS
    for case, plan in _cases(mechanism.name).PLANS.items()
}


@pytest.mark.parametrize("check", CONTRACT if WHOLE else AT_ONCE, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES)
def test_the_contract(case: str, check: Check, tmp_path: Path) -> None:
    check(stages_of_case(case), tmp_path)


@dataclass(frozen=True, eq=False)
class Broken:
    """A stage around another one: `before` changes what its step is given, `after` what it gives."""

    stage: Any
    before: Callable[..., Any] = lambda state, rows, now: (state, rows, now)
    after: Callable[..., Any] = lambda done, state, rows: done
    layout: Any = None
    bucket: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    @property
    def tables(self) -> Any:
        return self.layout or self.stage.tables

    def for_bucket(self, bucket: int, buckets: int) -> Any:
        return Broken(
            self.stage.for_bucket(bucket, buckets), self.before, self.after, self.layout, bucket
        )

    def step(self, state: Any, rows: Any, now: Any, noise_key: bytes) -> Any:
        return self.after(self.stage.step(*self.before(state, rows, now), noise_key), state, rows)


TURN = itertools.count()


def _random(done: Any, state: Any, rows: Any) -> Any:
    """Noise from a generator: asked twice, another answer."""
    columns = [
        pa.array(np.full(done.rows.num_rows, next(TURN))) if name == "trigger" else done.rows[name]
        for name in done.rows.column_names
    ]
    return replace(done, rows=pa.table(columns, schema=done.rows.schema))


def _refuses_nan(state: Any, rows: Any, now: Any) -> Any:
    if any(
        pa.types.is_floating(kind) and np.isnan(column).any()
        for kind, column in zip(rows.schema.types, rows.columns, strict=True)
    ):
        raise ValueError("NaN")
    return state, rows, now


def _takes_what_is_none(state: Any, rows: Any, now: Any) -> Any:
    return state, rows.set_column(0, "drop", pa.array(np.zeros(rows.num_rows, np.int8))), now


UNSEARCHED = {"users": StateTable(("period", "user", "part", "fingerprint"), "user", order="any")}
BY_KEY = {"users": StateTable(("fingerprint", "user", "period", "part"), "user")}


def _as_the_first_record(state: Any, rows: Any, now: Any) -> Any:
    """Where the first record is late, all are."""
    first = rows["ts"].to_numpy().min(initial=now.closed_us)
    return state, rows if first >= now.closed_us else rows.slice(0, 0), now


PLANTED: dict[str, tuple[Check, Callable[[Any, Any], Any]]] = {
    "the first row is lost": (
        contract.cut_order_and_buckets,
        lambda admission, release: (
            Broken(admission, lambda state, rows, now: (state, rows.slice(1), now)),
            release,
        ),
    ),
    "what was used is forgotten": (
        contract.cut_order_and_buckets,
        lambda admission, release: (
            Broken(admission, after=lambda done, state, rows: replace(done, state=state)),
            release,
        ),
    ),
    "tables in another order": (
        contract.rescale,
        lambda admission, release: (Broken(admission, layout=BY_KEY), release),
    ),
    "a generator": (
        contract.retry_and_restart,
        lambda admission, release: (admission, Broken(release, after=_random)),
    ),
    "what is none counts": (
        contract.what_is_dropped_moves_nothing,
        lambda admission, release: (Broken(admission, _takes_what_is_none), release),
    ),
    "NaN raises": (
        contract.strange_values_move_no_others,
        lambda admission, release: (Broken(admission, _refuses_nan), release),
    ),
    "disorder is taken": (
        contract.damaged_state_is_refused,
        lambda admission, release: (Broken(admission, layout=UNSEARCHED), release),
    ),
    "one late record takes all others with it": (
        contract.units_add_up,
        lambda admission, release: (Broken(admission, _as_the_first_record), release),
    ),
    "stages of two plans": (
        contract.the_stages_fit,
        lambda admission, release: (
            replace(admission, parameters=replace(admission.parameters, increments=())),
            release,
        ),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_broken_stage_is_found(name: str, tmp_path: Path) -> None:
    check, broken = PLANTED[name]
    with pytest.raises((AssertionError, ValueError)):
        check(broken(*stages_of(*CASES["histogram: every trigger"])), tmp_path)


def test_units_add_up_finds_a_look_at_the_earliest_record_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a table with a last trigger the later records are the closed ones: whether others' count was one record's to decide."""
    sees_both = timeliness._all_in_time
    monkeypatch.setattr(
        timeliness,
        "_all_in_time",
        lambda ts, clock, p: sees_both(ts[:0] if not len(ts) else ts[ts == ts.min()], clock, p),
    )
    for case in ("dynamic: to trigger 40", "marginals: to trigger 40, others too"):
        with pytest.raises(AssertionError):
            contract.units_add_up(stages_of_case(case), tmp_path)


def test_every_part_of_the_contract_has_a_broken_stage() -> None:
    assert {check for check, _ in PLANTED.values()} == set(CONTRACT)


INTAKES: dict[str, Stage[Clock]] = {
    "cells": SKETCH.stages(sketches.PLANS["events, only asked"], sketches.FACTS)[0],
    "cells of unknown values": SKETCH.stages(sketches.PLANS["events, unknown"], sketches.FACTS)[0],
    "panes": SLIDING.stages(windows.PLANS["events"], windows.FACTS)[0],
}
KEY_OF_RUN = bytes(range(32))
HOUR = 3_600_000_000
NOW = Clock(START + 2 * HOUR, START + 40 * HOUR)


def gathered(
    stage: Stage[Clock], rows: pa.Table, cuts: Sequence[int], folder: Path
) -> tuple[StateFile, pa.Table]:
    """One bucket, to which some tasks give what they made."""
    tasks = TaskIntake(stage, 1, KEY_OF_RUN)
    told = str(MicroBatch(3, NOW))
    edges = [0, *cuts, rows.num_rows]
    out = []
    for task, (low, high) in enumerate(pairwise(edges)):
        given = rows.slice(low, high - low).select(
            [name for name in stage.takes.names if name != "drop"]
        )
        out += list(tasks.run(given.combine_chunks().to_batches(max_chunksize=50), task, told))
    names = [name for name in tasks.output.names if name != "bucket"]
    frames = [batch.to_pandas()[names] for batch in out]
    schema = pa.schema(
        [
            ("kind", pa.int32()),
            ("bucket", pa.int32()),
            *stage.gives,
            ("batch", pa.int64()),
            ("closed_us", pa.int64()),
        ]
    )
    to = ContributionFiles(str(folder), schema, "window", START, 1 << 40)
    work = Gathered(stage.gives, BucketFiles(str(folder), "admission", 1, 1, ()), {}, to, 2)
    file = work.run(0, frames, 0, told)
    return file, pa.concat_tables(
        [pq.read_table(folder / each["path"], partitioning=None) for each in file.counted["files"]]
    )


def sums(rows: pa.Table) -> Taken:
    """What contributions say together."""
    taken = Taken()
    taken.add_rows(rows)
    return taken


def late(stage: Stage[Clock]) -> pa.Table:
    """Records of which some are too late, and some too far ahead."""
    return records(stage, 7, 400, START - 3 * HOUR, LATEST)


@pytest.mark.parametrize("name", INTAKES)
def test_tasks_add_up(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = INTAKES[name]
    rows = late(stage)
    whole = stage.step(stage.empty(), rows.select(stage.takes.names), NOW, KEY_OF_RUN)
    one = gathered(stage, rows, [], tmp_path / "one")
    many = gathered(stage, rows, [1, 90, 91, 300], tmp_path / "many")
    monkeypatch.setattr(task_intake, "AT_ONCE", 60)
    pieces = gathered(stage, rows, [200], tmp_path / "pieces")
    want = sums(whole.rows)
    assert len(want.sums) > 20
    for file, made in (one, many, pieces):
        assert sums(made) == want
        assert (
            file.counted["drops"] == whole.counted["drops"]
            and sum(file.counted["drops"].values()) > 20
        )
        assert dict(file.counted["rows"]) == Counter(made["bucket"].to_pylist())
        assert file.bytes == 0


def test_a_task_without_records_says_nothing() -> None:
    assert not list(TaskIntake(INTAKES["cells"], 4, KEY_OF_RUN).run([], 0, str(MicroBatch(0, NOW))))


def test_a_null_and_a_forgotten_clock_are_refused() -> None:
    stage = INTAKES["panes"]
    work = TaskIntake(stage, 4, KEY_OF_RUN)
    given = late(stage).select([name for name in stage.takes.names if name != "drop"])
    with pytest.raises(RuntimeError, match="not told its micro-batch"):
        list(work.run(given.to_batches(), 0, None))
    broken = given.set_column(
        given.column_names.index("ts"), "ts", pa.array([None] * given.num_rows, pa.int64())
    )
    with pytest.raises(TypeError, match="NULL"):
        list(work.run(broken.to_batches(), 0, str(MicroBatch(0, NOW))))
    assert KEY_OF_RUN.hex() not in repr(work) and repr(KEY_OF_RUN) not in repr(work)
