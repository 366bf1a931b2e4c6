"""Sixteen mistakes that sketches invite: each is found by a test that is named here, and those without one elsewhere are planted below."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dpsql.mechanisms.sketch.asked import Wanted
from dpsql.mechanisms.sketch.planner import make_plan
from dpsql.udfs.columns import Int
from dpsql.udfs.noise.randomness import intake_key
from dpsql.udfs.sketch import publishing, reading, release
from dpsql.udfs.sketch.hashing import Field, Shape, digests, hash_key
from dpsql.udfs.sketch.partial import add_cells
from dpsql.udfs.sketch.publishing import SketchRelease
from dpsql.udfs.sketch.refresh import Schedule
from dpsql.udfs.stage import Clock, Tick
from tests.mechanisms.sketch.sketch_runs import COUNT, ROOT, START, Run, cells_of, event, noise_key, public, records
from tests.mechanisms.sketch.test_hashing import KEY, some
from tests.mechanisms.sketch.test_reading import WIDE, keys_of, many
from tests.property.plans import DAY, HOUR, source
from tests.sql.golden import goldens, refusal

HERE = Path(__file__).parent
FOUND_BY = {
    "1 one-cell rule off": "test_sensitivity.test_no_unit_moves_more_than_theorem_21_says",
    "2 columns by arrival": "test_planted_bugs.test_a_record_moves_its_own_cells_alone",
    "3 replacement calibrated with 2 d": "test_plan.test_planted_calibrations_are_refused",
    "4 so many standard deviations in the place of the floor": "test_floor.test_standard_deviations_of_the_noise_are_no_floor",
    "5 hash key before the close": "test_planted_bugs.test_the_hash_key_of_an_open_window_is_nowhere",
    "6 quiet keys are not tested": "test_planted_bugs.test_the_list_does_not_tell_who_came_again",
    "7 noise step of the trigger": "test_noise.test_noise_is_as_large_as_planned",
    "8 candidates of this micro-batch only": "test_planted_bugs.test_the_list_does_not_tell_who_came_again",
    "9 floats are added, then rounded": "test_planted_bugs.test_sums_do_not_know_the_order_of_records",
    "10 one noise tag for two rows": "test_noise.test_rows_columns_sketches_windows_and_runs_are_independent",
    "11 64 bits of the digest": "test_planted_bugs.test_values_that_agree_in_64_bits_have_cells_of_their_own",
    "12 nothing is flushed": "test_planted_bugs.test_at_the_last_trigger_nothing_waits",
    "13 one ownership for all windows": "test_sensitivity.test_with_a_hash_key_per_window_each_window_has_an_ownership_of_its_own",
    "14 floor at the query's epsilon": "test_plan.test_planted_calibrations_are_refused",
    "15 rows of windows with records": "test_planted_bugs.test_rows_do_not_tell_which_windows_have_records",
    "16 c for a count without key": "test_planted_bugs.test_a_count_beside_a_sketch_is_refused",
}
"""What would be wrong: the test that fails if it is. The page on sketches has the same list."""


def test_every_one_has_its_test_and_the_page_says_so() -> None:
    page = (HERE.parents[2] / "docs/privacy/sketch.md").read_text()
    for bug, test in FOUND_BY.items():
        module, _, function = test.partition(".")
        tree = ast.parse((HERE / f"{module}.py").read_text())
        assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body), test
        assert f"| {bug} | `{function}` |" in page
    assert [int(bug.split()[0]) for bug in FOUND_BY] == list(range(1, 17))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[object, str, object], None]:
    """Put a mistake in the place of a name."""
    return monkeypatch.setattr


def summed(rows: pa.Table) -> np.ndarray:
    """Exact cells that the intake of single events makes of records, triggers together."""
    plan = make_plan(event(depth=3, strategy=None, wanted=(COUNT, Wanted("spent", 3, "seconds", (-3.0, 9.0)))), source())
    stage = Run(plan).stages[0]
    out = np.zeros((6, 64), np.int64)
    for row in stage.step({}, rows.select(stage.takes.names), Clock(), ROOT).rows.to_pylist():
        add_cells(out[row["row"]], row["form"], row["payload"])
    return out


def some_records(count: int = 40) -> pa.Table:
    g = np.random.default_rng(5)
    names = [b"page %d" % i for i in g.integers(0, 15, count)]
    return records(list(range(count)), (START + np.arange(count)).tolist(), names, g.uniform(-3, 9, count).round(3))


def test_a_record_moves_its_own_cells_alone(planted: Callable[..., None]) -> None:
    """Bug 2: with columns given out as records arrive, one record less moves all that come after it."""

    def moved() -> int:
        rows = some_records()
        return int(np.count_nonzero(summed(rows) - summed(rows.slice(1))))

    assert moved() == 6  # a cell in each of 3 rows of two sketches

    def by_arrival(self: Shape, key: bytes, values: Int) -> Field:
        return np.tile((np.arange(len(values)) % self.width << 1).astype(np.uint32), (self.depth, 1))

    planted(Shape, "fields", by_arrival)
    assert moved() > 60


def test_sums_do_not_know_the_order_of_records() -> None:
    """Bug 9: values are rounded to the grid one by one and added as integers. The same values as floats: their sum depends on their order, and
    then the cell that is rounded, which tells of records that cancel out."""
    rows = some_records(400)
    orders = [np.random.default_rng(seed).permutation(400) for seed in range(20)]
    exact = {summed(rows.take(pa.array(order))).tobytes() for order in orders}
    assert len(exact) == 1
    values = rows.column("a0").to_numpy()
    floats = {float(np.add.accumulate(values[order])[-1]) for order in orders}
    assert len(floats) > 1


def test_values_that_agree_in_64_bits_have_cells_of_their_own() -> None:
    """Bug 11: two values that agree in a part of the digest can be searched for; then they share all cells, whatever the hash key."""
    shape, one = Shape(9, 8192), digests(some(1))
    for word in range(4):
        twin = one.copy()
        twin[0, word] ^= 12345
        assert (shape.fields(KEY, one) != shape.fields(KEY, twin)).sum() >= 8
        short, other = one.copy(), twin.copy()
        short[0, 1:] = other[0, 1:] = 0  # planted: 64 bits of it
        assert (shape.fields(KEY, short) == shape.fields(KEY, other)).all() == (word > 0)


def released_of_open_window() -> list[bytes]:
    """All bytes that a release of an open window gives out."""
    plan = make_plan(event(**WIDE), source())
    run = Run(plan)
    run.feed(many(b"a", 900, 0))
    stage = SketchRelease(run.stages[1], run.p)
    rows = pa.concat_tables(run.waiting)
    done = stage.step(stage.empty(), rows, [Tick(run.batch, START + 8 * HOUR)], noise_key())
    assert done.rows.num_rows == 2
    return [bytes(value) for column in done.rows.columns for value in column.to_pylist() if isinstance(value, bytes)]


def test_the_hash_key_of_an_open_window_is_nowhere(planted: Callable[..., None]) -> None:
    """Bug 5: who knows it can bring values that meet another's in all cells, and sees in the list whether that other one is there."""
    secret = hash_key(intake_key(noise_key()), START)
    assert not any(secret in found for found in released_of_open_window())
    original = reading.read

    def early(state: object, released: pa.Table, p: reading.ReadParameters, root: bytes) -> reading.Read:
        done = original(state, released, p, root)  # type: ignore[arg-type]
        published = released.filter(pa.array(released.column("kind").to_numpy() == release.CELLS))
        rows = reading._sketch_rows(published, hash_key(root, START))
        return reading.Read(done.state, done.lists, rows)

    planted(publishing, "read", early)
    assert any(secret in found for found in released_of_open_window())


def passed_late(again: bool) -> int:
    """How many values that are below the floor at trigger 1 are listed later; `again`: each comes once more at trigger 2."""
    plan = make_plan(event(**WIDE), source())
    sd = plan.cells[0].sd[0] * plan.stderr
    out = 0
    for seed in range(1, 5):
        run = Run(plan, seed)
        keys = [b"quiet %d" % i for i in range(12)]
        run.feed(pa.concat_tables([many(key, round((4.6 + 0.05 * i) * sd), 1_000 * i) for i, key in enumerate(keys)]))
        first = {*keys_of(run.tick(START + 4 * HOUR), 1)}
        if again:
            run.feed(records([0] * 12, [START + 5 * HOUR + i for i in range(12)], keys))
        run.tick(START + 8 * HOUR)
        out += len({*keys_of(run.tick(START + DAY), 6)} - first)
    return out


def test_the_list_does_not_tell_who_came_again(planted: Callable[..., None]) -> None:
    """Bugs 6 and 8: every value of the window is tested at every trigger. If only those of this trigger, or of this micro-batch, were, a value that
    passes late would have to have come again."""
    assert passed_late(again=False) > 5
    original = reading._with

    def newest(brought: pa.Table, keys: pa.Table) -> pa.Table:
        passed = brought.filter(pa.array(brought.column("passed_at").to_numpy() > 0)).combine_chunks()
        return original(passed, keys)

    planted(reading, "_with", newest)
    assert passed_late(again=False) == 0 < passed_late(again=True)


def test_at_the_last_trigger_nothing_waits(planted: Callable[..., None]) -> None:
    """Bug 12: without the flush a record of a column that is not due at T is never shown, and its column has one refresh less than planned."""

    def missing() -> int:
        plan = make_plan(event(depth=3, strategy=None, cycle=4, wanted=(Wanted("cells", 0),)), source())
        quiet, full = Run(plan), Run(plan)
        rows = records(list(range(64)), (START + 23 * HOUR + np.arange(64)).tolist(), [b"%d" % i for i in range(64)])
        full.feed(rows)
        for run in (quiet, full):
            run.tick(START + DAY)
        shown = cells_of(full.released[0], plan, 6) - cells_of(quiet.released[0], plan, 6)
        expected = np.zeros((3, 64), np.int64)
        for row in pa.concat_tables([full.stages[0].step({}, rows.select(full.stages[0].takes.names), Clock(), ROOT).rows]).to_pylist():
            add_cells(expected[row["row"]], row["form"], row["payload"])
        return int(np.count_nonzero(shown != expected))

    assert missing() == 0

    def never(self: Schedule, trigger: int) -> Iterator[tuple[int, int, int]]:
        block = trigger % self.cycle
        yield block, self.cycle, (trigger - block) // self.cycle + (block > 0)

    planted(Schedule, "due", never)
    assert missing() > 50


def test_rows_do_not_tell_which_windows_have_records(planted: Callable[..., None]) -> None:
    """Bug 15: a window, and a trigger in it, without records has its rows all the same."""

    def pairs(rows: pa.Table) -> set[tuple[int, int]]:
        run = Run(make_plan(public(depth=3), source()))
        if rows.num_rows:
            run.feed(rows)
        run.tick(START + 2 * DAY)
        return set(zip(*(run.released[0].column(name).to_pylist() for name in ("window", "trigger")), strict=True))

    one = records([1], [START + 5], [b"a"])
    assert pairs(one) == pairs(one.slice(0, 0))
    original = release._begun
    full = {START}

    def begun(before_us: int, now_us: int, p: release.ReleaseParameters) -> list[int]:
        return [start for start in original(before_us, now_us, p) if start in full]

    planted(release, "_begun", begun)
    with_record = pairs(one)
    full.clear()
    assert with_record != pairs(one.slice(0, 0))


def test_a_count_beside_a_sketch_is_refused() -> None:
    """Bug 16: COUNT(*) without a key beside a sketch has min(C, G c) rows of a unit in one group, not c. Until its noise has a proof it is
    refused, and nothing can be calibrated with c."""
    golden = next(each for each in goldens("refused") if each.stem == "sketch_beside_count")
    assert "COUNT has no place beside a sketch" in str(refusal(golden))
