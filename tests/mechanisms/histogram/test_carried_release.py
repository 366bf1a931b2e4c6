"""The release step with memory against a plain reference, however time and keys are cut."""

import dataclasses
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql.udfs.grid import NO_CLOCK, Grid
from dpsql.udfs.histogram import carrying
from dpsql.udfs.histogram.key_selection import SelectionParameters
from dpsql.udfs.histogram.memory import CarriedParameters
from dpsql.udfs.histogram.parameters import ReleaseParameters
from dpsql.udfs.histogram.release import ReleaseState, release
from dpsql.udfs.measure.output_columns import OutputColumn
from dpsql.udfs.noise.counters import counter, path_sd
from dpsql.udfs.noise.perturbation import PerturbationParameters
from dpsql.udfs.stage import Tick
from tests.mechanisms.histogram.carried_reference import Contributions, Reference
from tests.sweeps import sweep

UNIT = 1 << 20
KEY = bytes(range(32))


def parameters(
    windows: int,
    triggers: int,
    late: int,
    least: int = 1,
    loud: float = 1.9,
    sigma: float = 1.0,
    name: str = "BLT",
) -> ReleaseParameters:
    """Windows of 40, thresholds of `loud` deviations above the users: low enough that noise alone finds, carries and drops keys."""
    horizon = triggers + late
    grid = Grid(40, 40, 0, 40 // triggers, horizon)
    chosen = counter(name, horizon)
    sd = sigma * np.array(path_sd(chosen))
    lengths = sorted({*(2**i for i in range(1, 7) if 2**i < windows), windows})
    taus = tuple(
        tuple(int((k * least * 0.5 + loud * np.sqrt(k) * sd[-1]) * UNIT) for k in range(1, d + 1))
        for d in lengths
    )
    kept = tuple(
        (d, int((d * taus[-1][-1] / UNIT / windows - 2 * sd[-1] * np.sqrt(d)) * UNIT))
        for d in lengths
        if d >= min(windows, 4)
    )
    own = tuple(int((least * 0.5 + (loud + 0.5) * v) * UNIT) for v in sd)
    carried = CarriedParameters(windows, tuple(lengths), taus, kept, NO_CLOCK)
    selection = SelectionParameters(chosen, sigma, own, least, False, carried)
    column = OutputColumn("count", (0,), (1.0,), ((1.0,) * horizon,))
    return ReleaseParameters(
        grid, selection, (PerturbationParameters(1, chosen, 3.0, 1.0),), (column,)
    )


def history(
    pick: random.Random, p: ReleaseParameters, windows: int, keys: int = 6
) -> dict[tuple[int, int], dict[int, tuple[int, int]]]:
    """What keys of different strength add; some are dead half of the time."""
    given: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    for key in range(keys):
        for window in range(windows):
            if pick.random() < 0.25 + 0.12 * key and not (key % 3 == 2 and window > windows // 2):
                at = pick.sample(
                    range(1, p.grid.horizon + 1), pick.randint(1, min(3, p.grid.horizon))
                )
                given[window * 40, key - 2] = {
                    trigger: (pick.randint(1, UNIT), pick.randint(1, 2)) for trigger in at
                }
    return given


def table(
    given: Contributions,
    only: set[int] | None = None,
    since: int = NO_CLOCK,
    until: int = 1 << 40,
    p: ReleaseParameters | None = None,
) -> pa.Table:
    """Contributions; those of some keys, of grid points in (since, until]."""
    rows = [
        (window, trigger, key, weight, users)
        for (window, key), parts in given.items()
        for trigger, (weight, users) in parts.items()
        if (only is None or key in only)
        and (p is None or since < window + trigger * p.grid.trigger_us <= until)
    ]
    window, trigger, key, weight, users = (
        np.array([row[i] for row in rows], np.int64) for i in range(5)
    )
    names = pa.array([b"%d" % k for k in key], pa.binary())
    columns = {
        "window": window,
        "trigger": trigger,
        "key": key,
        "key_bytes": names,
        "weight": weight,
        "users": users,
    }
    return pa.table(columns | {"v0": users, "batch": np.zeros(len(rows), np.int64)})


def run(
    given: Contributions, p: ReleaseParameters, ticks: list[int], buckets: int = 1
) -> tuple[list[tuple[int, ...]], list[ReleaseState]]:
    out = []
    states = []
    for bucket in range(buckets):
        mine = {key for _, key in given if key % buckets == bucket}
        state = None
        since = NO_CLOCK
        for until in ticks:
            done = release(state, table(given, mine, since, until, p), [Tick(0, until)], p, KEY)
            assert done.rows.equals(
                done.rows.sort_by([(n, "ascending") for n in ("window", "trigger", "key_bytes")])
            )
            out.append(done.rows)
            state = done.state
            since = until
        assert state is not None
        states.append(state)
    rows = pa.concat_tables(out)
    return sorted(
        zip(
            *(rows.column(n).to_pylist() for n in ("window", "trigger", "key_bytes", "c0")),
            strict=True,
        )
    ), states


CASES = [(2, 4, 0), (3, 1, 0), (4, 4, 0), (5, 2, 3), (8, 4, 2), (4, 1, 2), (6, 2, 0)]
SEEDS = (4, 12, *range(sweep(0, 4)))


@pytest.mark.parametrize(("windows", "triggers", "late"), CASES)
def test_rows_are_those_of_the_plain_reference_however_time_and_keys_are_cut(
    windows: int, triggers: int, late: int
) -> None:
    carried = dropped = 0
    for seed in SEEDS:
        pick = random.Random(1000 * windows + 10 * late + seed)
        p = parameters(
            windows, triggers, late, pick.choice([1, 1, 2]), name=pick.choice(["BLT", "HONAKER"])
        )
        given = history(pick, p, 18)
        end = 40 * 18 + p.grid.horizon * p.grid.trigger_us
        expected = Reference(p, KEY, given, end)
        carried = carried + expected.carried
        dropped = dropped + expected.dropped
        grid = list(range(p.grid.trigger_us, end + 1, p.grid.trigger_us))
        one, _ = run(given, p, [end])
        assert {(window, trigger, int(name)) for window, trigger, name, _ in one} == expected.rows
        assert len(one) == len(expected.rows)
        each, _ = run(given, p, grid)
        assert each == one
        some, _ = run(given, p, [*sorted(pick.sample(grid[:-1], 5)), end], buckets=3)
        assert some == one
    assert carried > 0 and dropped > 0


@pytest.mark.parametrize(
    ("windows", "triggers", "late", "old"), [(8, 20, 0, 1), (8, 20, 7, 3), (28, 8, 8, 1)]
)
def test_old_records_cost_passes_of_windows_and_not_of_grid_points(
    windows: int, triggers: int, late: int, old: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record in a window long ago is evidence for L windows: each has one pass. The rows are those of a tick at each grid point."""
    p = parameters(windows, triggers, late)
    passes = 0
    apart = 40 * (windows + 4)

    def counted(*given: Any) -> Any:
        nonlocal passes
        passes += 1
        return done(*given)

    done = carrying._Work.pass_
    monkeypatch.setattr(carrying._Work, "pass_", counted)
    given = {(window * apart, 5): {3: (1, 1)} for window in range(old)} | {
        (old * apart, 7): {1: (UNIT * 9, 9), triggers: (UNIT * 9, 9)}
    }
    end = apart * old + 200
    rows, _ = run(given, p, [end])
    assert rows and old * windows <= passes <= (old + 1) * (windows + 8)
    again, _ = run(given, p, list(range(p.grid.trigger_us, end + 1, p.grid.trigger_us)))
    assert again == rows


def test_a_dropped_key_is_remembered_until_no_range_reaches_back() -> None:
    """Its first record since comes when the longest range is the first that would be a window longer without its epoch: L - 2 windows after it."""
    for windows, triggers, late in ((4, 4, 0), (5, 2, 1), (6, 1, 0)):
        p = parameters(windows, triggers, late)
        strong = {(40 * window, key): {1: (UNIT, 1)} for window in range(3) for key in range(100)}
        dropped = Reference(p, KEY, strong, 40 * 40).silent_since
        assert len(dropped) > 25
        late_again = {
            (epoch + 40 * (windows - 2), key): {1: (UNIT // 2, 1)} for key, epoch in dropped.items()
        }
        expected = Reference(p, KEY, strong | late_again, 40 * 40)
        rows, _ = run(strong | late_again, p, [40 * 40])
        assert {(window, trigger, int(name)) for window, trigger, name, _ in rows} == expected.rows


def test_units_of_several_windows_are_not_added_up() -> None:
    """A key with one unit in each window does not appear where two are asked for, whatever the noise says."""
    p = parameters(4, 1, 0, least=2, loud=0.7)
    assert (
        run(
            {cell: {1: (UNIT, 1)} for cell in history(random.Random(1), p, 30, keys=60)},
            p,
            [40 * 32],
        )[0]
        == []
    )


def test_nothing_is_remembered_when_nothing_is_left_to_say() -> None:
    """Once keys are dropped or forgotten, and as many windows more have closed, the state is empty."""
    p = parameters(4, 4, 2)
    _, (state,) = run(history(random.Random(5), p, 10), p, [400, 40 * 200])
    assert state.memory is not None and state.evidence is not None
    assert (
        state.groups.num_rows,
        state.pending.num_rows,
        state.memory.num_rows,
        state.evidence.num_rows,
    ) == (0, 0, 0, 0)


def test_rows_of_a_window_do_not_hang_on_records_of_later_windows() -> None:
    p = parameters(4, 4, 0)
    given = history(random.Random(7), p, 20)
    early = {cell: parts for cell, parts in given.items() if cell[0] < 400}
    full, _ = run(given, p, [40 * 30])
    part, _ = run(early, p, [40 * 30])
    assert [row for row in full if row[0] < 400] == [row for row in part if row[0] < 400]


@pytest.mark.parametrize("name", ["BLT", "HONAKER"])
def test_doubtful_sums_are_settled_exactly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With error bounds a million times larger every test over several windows goes to its words: the same rows."""
    p = parameters(5, 4, 1, name=name)
    given = history(random.Random(11), p, 12)
    plain, _ = run(given, p, [40 * 14])
    calls = 0

    def counted(*arguments: object) -> bool:
        nonlocal calls
        calls += 1
        return settle(*arguments)  # type: ignore[arg-type]

    import dpsql.udfs.histogram.memory as review

    settle = review.sum_reaches
    monkeypatch.setattr(review, "sum_reaches", counted)
    monkeypatch.setattr(review, "ROOM", 1e30)
    exact, _ = run(given, p, [40 * 14])
    assert exact == plain and calls > 20


def test_one_window_alone_is_what_it_always_was() -> None:
    p = parameters(4, 4, 0)
    assert p.selection is not None
    alone = dataclasses.replace(p, selection=dataclasses.replace(p.selection, window_tests=None))
    assert set(
        release(None, table({(0, 1): {1: (UNIT, 1)}}), [Tick(0, 40)], alone, KEY).state.tables()
    ) == {"groups", "pending", "seen"}
