"""Savepoint and restore of each kind of state, through the tables of a lake and without Spark: rows as if nothing had happened."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from dpsql.lake.contributions import Contributions
from dpsql.lake.engine_file import Engine, Part, read_engine, write_engine
from dpsql.lake.manifest import Manifest
from dpsql.lake.preflight import state_files
from dpsql.lake.restore import restore
from dpsql.lake.runs import Lake, Run
from dpsql.lake.savepoints import take_savepoint
from dpsql.local.feeder import Feeder, Stages
from dpsql.mechanisms.sliding.plan import SlidingPlan
from dpsql.mechanisms.sliding.planner import make_plan
from dpsql.mechanisms.sliding.stages import schedule, stages
from dpsql.parsed_query import ContributionPeriod, changed
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.stage import ADMISSION, OPERATORS, RELEASE, Clock, StateFile
from tests.contract import HOUR, LATEST, NOISE_KEY, START, TICKS, records
from tests.mechanisms.sliding.contract_cases import FACTS, PLANS
from tests.mechanisms.sliding.queries import QUERIES, SOURCE, query_of_hours

NAME, RUN_ID = "edits", "2" * 32
CORRELATED = changed(QUERIES["sqrt, user"], epsilon=4.0, contribution_period=ContributionPeriod.WINDOW)
EDGES = (START, TICKS[0] + HOUR, TICKS[1])
"""Of the two halves: the first brings records of a pane that is still open at its tick."""

KINDS: dict[str, SlidingPlan] = {name: PLANS[name] for name in ("events", "correlated")}
KINDS["correlated, units"] = make_plan(query_of_hours(CORRELATED), SOURCE)


class Started:
    """A run in a lake, fed by the local feeder and listed as the Spark engine does it."""

    def __init__(self, folder: Path, plan: SlidingPlan) -> None:
        self.stages: Stages = stages(plan, FACTS.public)
        tables = {stage.operator: stage.tables for stage in self.stages}
        self.lake, intake = Lake(folder), self.stages[0]
        self.private = self.lake.private(NAME)
        assert isinstance(self.private, Path)
        self.private.mkdir(parents=True)
        self.run = Run(NAME, RUN_ID, plan.identity, "", "", {}, "2026-01-01T00:00:00+00:00", "sliding", (0, 1), tables)
        (self.private / "run.json").write_text(json.dumps({"version": 1, **asdict(self.run)}))
        write_engine(Engine(self.private, (2, 3), {operator: Part() for operator in OPERATORS}, tables=tables), {})
        Manifest(self.private / "files", RUN_ID, RELEASE, 1).create()
        self.contributions = Contributions(self.private / "contributions", RUN_ID, schedule(plan), intake.gives, 1, 3)
        self.contributions.create()
        write_deltalake(str(self.lake.histogram(NAME)), pa.table({"edits": pa.array([], pa.int64())}))
        self.feeder = self.opened()

    def opened(self) -> Feeder:
        """A new process at the newest listed state."""
        engine = read_engine(self.private, self.run.tables)
        assert engine is not None
        stores = tuple(state_files(engine, operator) for operator in OPERATORS)
        feeder = Feeder(self.stages, NOISE_KEY, stores=(stores[0], stores[1]))
        for operator in OPERATORS:
            feeder.sequence[operator] |= engine.parts[operator].pointers
        return feeder

    def half(self, number: int) -> list[tuple[object, ...]]:
        """Micro-batches up to a tick, and what it releases."""
        closed = TICKS[number - 1] if number else NO_CLOCK
        rows = records(self.stages[0], number, 400, EDGES[number], EDGES[number + 1])
        for piece in (rows.slice(0, 150), rows.slice(150)):
            self.feeder.micro_batch(piece, Clock(closed, LATEST))
        out = pa.concat_tables(self.feeder.tick(TICKS[number]))
        # By their bits: NaN is one value.
        return sorted(tuple(value.hex() if isinstance(value, float) else value for value in row.values()) for row in out.to_pylist())

    def list_state(self, closed_us: int) -> None:
        """Write down which versions there are."""
        assert read_engine(self.private, self.run.tables) is not None
        for operator, detail in ((ADMISSION, {"clock": asdict(Clock())}), (RELEASE, {"closed_us": closed_us})):
            files = [StateFile(bucket, version, 1, {}) for bucket, version in self.feeder.sequence[operator].items() if version]
            Manifest(self.private / "files", RUN_ID, operator, 1).commit(self.feeder.batch, files, {**detail, "rows": 0})


@pytest.mark.parametrize("savepoint", ["middle", None], ids=["savepoint", "newest state"])
@pytest.mark.parametrize("name", KINDS)
def test_a_restored_run_goes_on_with_other_buckets_to_the_same_rows(tmp_path: Path, name: str, savepoint: str | None) -> None:
    never = Started(tmp_path / "never", KINDS[name])
    first, second = never.half(0), never.half(1)
    run = Started(tmp_path / "lake", KINDS[name])
    assert run.half(0) == first
    run.list_state(TICKS[0])
    if savepoint:
        take_savepoint(run.lake, NAME, savepoint)
        shutil.rmtree(run.private / "state")
    assert restore(run.lake, NAME, (4, 5), savepoint).buckets == (4, 5)
    run.feeder, before = run.opened(), run.feeder
    run.feeder.batch = before.batch
    assert run.feeder.sequence[RELEASE] == dict.fromkeys(range(5), 1)
    assert run.half(1) == second
    assert len(second) > 300
