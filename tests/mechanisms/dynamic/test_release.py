"""The release step of tables against plain lists: cuts, order and buckets change nothing, signs or not, with and without noise."""

import dataclasses
import math
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.measure.output_columns import OutputColumn
from dpsql.udfs.noise.blt_inf import BltInf
from dpsql.udfs.noise.counters import Blt
from dpsql.udfs.stage import Released, Tick
from dpsql.udfs.table.release import Perturbation, Selection, TableParameters, release
from dpsql.udfs.table.state import TableState
from dpsql.udfs.table_grid import TableGrid
from tests.mechanisms.dynamic.reference import Change, Noise, keyed, silent
from tests.mechanisms.dynamic.reference import release as reference

KEY = bytes(range(32))
UNIT = 1 << 20
START = 1_000
STEP = 10
COUNT = OutputColumn("count", (0,), (1.0,), ())
SUM = OutputColumn("sum", (1,), (0.25,), ())
AVG = OutputColumn("avg", (1, 0), (0.25, 1.0), (), (-4.0, 4.0), 0.5)
COUNTERS = {"for ever": BltInf(), "to trigger 40": Blt.for_horizon(40)}


def parameters(
    counter: BltInf | Blt = COUNTERS["for ever"],
    sigma: float = 0.8,
    tau: float = 2.5,
    min_users: int = 1,
) -> TableParameters:
    """Two blocks of thresholds; a key is hidden below half of them."""
    last = None if isinstance(counter, BltInf) else counter.horizon
    taus = (int(tau * UNIT), int((tau + 0.5) * UNIT))
    selection = Selection(counter, sigma, (1, 6), taus, tuple(t // 2 for t in taus), min_users)
    paths = (Perturbation(1, counter, 2.5, 1.0), Perturbation(2, counter, 0.7, 0.25))
    return TableParameters(
        TableGrid.from_start(START, STEP, last), selection, paths, (COUNT, SUM, AVG)
    )


def table(changes: list[Change]) -> pa.Table:
    ints = {
        name: [getattr(c, name) for c in changes]
        for name in ("batch", "trigger", "key", "weight", "users")
    }
    ints |= {f"v{j}": [c.values[j] for c in changes] for j in range(2)}
    return pa.table(
        {n: pa.array(v, pa.int64()) for n, v in ints.items()}
        | {"key_bytes": pa.array([c.key_bytes for c in changes], pa.binary())}
    )


def closing(trigger: int) -> int:
    """A clock that has just closed a trigger."""
    return START + trigger * STEP + trigger % STEP


def values(out: pa.Table) -> list[tuple]:
    assert set(out["window"].to_pylist()) <= {START}
    return [
        tuple(None if value != value else value for value in row.values())
        for row in out.drop_columns(["window"]).to_pylist()
    ]


def run(
    changes: list[Change], cuts: list[tuple[int, int]], p: TableParameters, merge: int = 1
) -> tuple[TableState | None, list[tuple]]:
    """Steps of `merge` ticks each. cuts: (batch, trigger that closes after it), ascending."""
    state = None
    rows = []
    given_ = 0
    for i in range(0, len(cuts), merge):
        ticks = [Tick(batch, closing(trigger)) for batch, trigger in cuts[i : i + merge]]
        now = [c for c in changes if given_ <= c.batch <= ticks[-1].batch]
        given_ = ticks[-1].batch + 1
        done: Released[TableState] = release(state, table(now[::-1]), ticks[::-1], p, KEY)
        state = done.state
        rows += values(done.rows)
    return state, rows


def same(found: list[tuple], expected: list[tuple]) -> None:
    assert [row[:3] for row in found] == [row[:3] for row in expected]
    for row, wanted in zip(found, expected, strict=True):
        assert [v is None for v in row] == [v is None for v in wanted]
        numbers = [[v for v in one[2:] if v is not None] for one in (row, wanted)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-9)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Change], list[tuple[int, int]]]:
    """Ticks that close up to three triggers each, and changes of triggers that are open when they arrive; some end again."""
    cuts = []
    closed = 0
    for batch in range(draw(st.integers(1, 7))):
        closed += draw(st.integers(0, 3))
        cuts.append((batch, closed))
    changes = []
    for _ in range(draw(st.integers(0, 25))):
        batch = draw(st.integers(0, len(cuts) - 1))
        trigger = (cuts[batch - 1][1] if batch else 0) + draw(st.integers(1, 4))
        value = draw(st.integers(-9, 9))
        one = Change(
            batch,
            trigger,
            draw(st.integers(-2, 3)),
            draw(st.sampled_from([0, UNIT // 2, UNIT])),
            1,
            (1, value),
        )
        changes.append(one)
        if draw(st.booleans()):
            end = dataclasses.replace(
                one,
                trigger=trigger + draw(st.integers(0, 5)),
                weight=-one.weight,
                users=-1,
                values=(-1, -value),
            )
            changes.append(end)
    return changes, cuts


@pytest.mark.parametrize("counter", COUNTERS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
@given(
    history=histories(), min_users=st.integers(1, 2), merge=st.integers(1, 3), noisy=st.booleans()
)
def test_released_rows_are_the_reference(
    counter: str, history: tuple, min_users: int, merge: int, noisy: bool
) -> None:
    """Catches: an increment at another trigger, noise that starts anew, a test or a hidden key forgotten, state that depends on cuts."""
    changes, cuts = history
    p = parameters(COUNTERS[counter], min_users=min_users)
    noise: Noise = keyed(p, KEY, 40) if noisy else silent
    expected = reference(changes, cuts[-1][1], p, noise)
    if noisy:
        state, found = run(changes, cuts, p, merge)
        assert found == run(changes, cuts, p, len(cuts))[1]
        whole, _ = run(changes, cuts, p)
        assert state is not None and whole is not None and state.groups.equals(whole.groups)
    else:
        with mock.patch(
            "dpsql.udfs.noise.randomness.words",
            lambda _key, tag, *_: np.full((len(tag), 2), 2**64 - 1, np.uint64),
        ):
            _, found = run(changes, cuts, p, merge)
    same(found, expected)


def test_a_key_appears_late_with_the_noise_of_its_trigger() -> None:
    """It catches up 700 steps in one go. Catches: a jump that is not what the steps one by one are."""
    p = parameters(tau=3.0)
    changes = [Change(1, 701, 5, 40 * UNIT, 40, (40, 7)), Change(0, 1, 6, 40 * UNIT, 40, (40, 7))]
    _, found = run(changes, [(0, 700), (1, 703)], p)
    path = keyed(p, KEY, 703)
    for trigger, name, count, *_ in found:
        assert count == 40 + round(2.5 * path(int(name[4:]), 1, trigger))
    assert [row[0] for row in found if row[1][4:] == b"5"] == [701, 702, 703]
    assert [row[0] for row in found if row[1][4:] == b"6"] == list(range(1, 704))


def test_public_keys_are_there_from_the_first_trigger() -> None:
    p = dataclasses.replace(
        parameters(), selection=None, public=PublicGroups((7, -3), (b"00017", b"0002-3"), START)
    )
    changes = [Change(0, 2, 7, 0, 1, (5, 1)), Change(1, 4, 7, 0, -1, (-5, -1))]
    state, found = run(changes, [(0, 1), (1, 4)], p)
    same(found, reference(changes, 4, p, keyed(p, KEY, 10)))
    assert [row[:2] for row in found] == [
        (t, n) for t in (1, 2, 3, 4) for n in (b"00017", b"0002-3")
    ]
    assert state is not None
    parts = [
        run([c for c in changes if c.key % 2 == b], [(0, 1), (1, 4)], p.for_bucket(b, 2))[1]
        for b in (0, 1)
    ]
    assert sorted(parts[0] + parts[1]) == found


def test_state_does_not_grow_with_age() -> None:
    """Bytes of a bucket's tables after 10 and after 1,000 triggers. Catches: anything kept per trigger."""
    changes = [Change(0, 1, key, 40 * UNIT, 40, (1, 1)) for key in range(20)]
    sizes = []
    for last in (10, 1000):
        state, _ = run(changes, [(0, last)], parameters())
        assert state is not None
        sizes.append(sum(t.nbytes for t in state.tables().values()))
    assert sizes[0] == sizes[1]


def test_after_the_last_trigger_nothing_is_released() -> None:
    p = parameters(COUNTERS["to trigger 40"])
    state, found = run([Change(0, 1, 1, 40 * UNIT, 40, (1, 1))], [(0, 39), (0, 41), (0, 90)], p)
    assert max(row[0] for row in found) == 40
    assert state is not None


@pytest.mark.parametrize("trigger", [1, 50, 3000])
def test_stderr_is_that_of_the_trigger(trigger: int) -> None:
    q = Perturbation(1, BltInf(), 3.0, 2.0)
    assert q.stderr(trigger) == pytest.approx(
        math.sqrt(9 * BltInf().path_variance(trigger) + 4 / 12), rel=1e-12
    )
