"""The release step on small histories whose answer can be read off. Every other history: tests/property."""

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from dpsql.udfs.grid import NO_CLOCK, Grid
from dpsql.udfs.histogram.key_selection import SelectionParameters
from dpsql.udfs.histogram.perturbation import finish
from dpsql.udfs.histogram.release import ReleaseParameters, ReleaseState, release
from dpsql.udfs.measure.output_columns import OutputColumn
from dpsql.udfs.noise.counters import Blt
from dpsql.udfs.noise.exact_paths import Redraw
from dpsql.udfs.noise.perturbation import PerturbationParameters, noisy
from dpsql.udfs.stage import Released, Tick

UNIT = 1 << 20
GRID = Grid(40, 40, 0, 10, 4)
KEY = bytes(32)
COUNT = OutputColumn("count", (0,), (1.0,), ((1.0, 2.0, 3.0, 4.0),))
AVG = OutputColumn("avg", (0, 1), (0.25, 1.0), ((2.0,) * 4, (1.0,) * 4), (0.0, 10.0), 5.0)


def parameters(
    thresholds: tuple[int, ...], min_users: int = 1, rounds: bool = False, sigma: float = 1.0
) -> ReleaseParameters:
    counter = Blt.for_horizon(4)
    selection = SelectionParameters(counter, sigma, thresholds, min_users, rounds)
    return ReleaseParameters(
        GRID, selection, (PerturbationParameters(1, counter, 1.0, 1.0),), (COUNT,)
    )


def rows(*history: tuple[int, int, int, int], by_user: bool = False) -> pa.Table:
    """(arrival batch, trigger, key, weight in users); one record and one user each."""
    columns = [np.array(c, dtype=np.int64) for c in zip(*history, strict=True)] or [
        np.zeros(0, np.int64)
    ] * 4
    batch, trigger, key, weight = columns
    ones = np.ones(len(batch), np.int64)
    user = {"user": np.arange(len(batch))} if by_user else {}
    names = pa.array([b"%d" % k for k in key], pa.binary())
    table = {
        "window": 0 * ones,
        "trigger": trigger,
        "key": key,
        "key_bytes": names,
        "weight": weight * UNIT,
        "users": ones,
    }
    return pa.table(table | {"v0": ones, "batch": batch} | user)


def quiet(
    state: ReleaseState | None, table: pa.Table, ticks: list[Tick], p: ReleaseParameters
) -> Released[ReleaseState]:
    """Without noise: every word is the one whose normal is nearest to zero, from above (4e-39, in float64 0)."""
    with mock.patch(
        "dpsql.udfs.noise.randomness.words",
        lambda _key, tag, *_: np.full((len(tag), 2), 2**64 - 1, np.uint64),
    ):
        return release(state, table, ticks, p, KEY)


def shown(out: Released[ReleaseState]) -> list[tuple[int, bytes, int]]:
    return list(
        zip(*(out.rows.column(n).to_pylist() for n in ("trigger", "key_bytes", "c0")), strict=True)
    )


def test_a_key_is_not_tested_before_its_first_record() -> None:
    """Its selection at an earlier trigger would be a release of an empty key that nobody else could have had."""
    p = parameters((-(1 << 40),) * 4)
    assert [t for t, _, _ in shown(quiet(None, rows((0, 3, 7, 1)), [Tick(0, 40)], p))] == [3, 4]


def test_a_tick_covers_its_own_batch_and_the_ones_before() -> None:
    """Catches: rows that arrive after a tick and are released by it."""
    p = parameters((UNIT,) * 4)
    out = quiet(None, rows((0, 1, 7, 1), (1, 1, 8, 1), (2, 2, 9, 1)), [Tick(1, 10)], p)
    assert shown(out) == [(1, b"7", 1), (1, b"8", 1)]
    assert out.state.pending.num_rows == 1
    assert out.state.closed_us == 10
    assert shown(quiet(out.state, rows(), [Tick(2, 20)], p)) == [
        (2, b"7", 1),
        (2, b"8", 1),
        (2, b"9", 1),
    ]


def test_ticks_between_grid_points_and_backwards_do_nothing() -> None:
    p = parameters((UNIT,) * 4)
    out = quiet(None, rows((0, 1, 7, 1)), [Tick(0, 9), Tick(0, NO_CLOCK)], p)
    assert shown(out) == []
    out = quiet(out.state, rows(), [Tick(1, 19)], p)
    assert shown(out) == [(1, b"7", 1)]
    assert shown(quiet(out.state, rows(), [Tick(2, 12), Tick(3, 19)], p)) == []


def test_sleeping_groups_wake_for_their_noise() -> None:
    """Algorithm 4 is an optimisation: with it or with every group awake the rows are the same. Catches: a group that sleeps through."""
    p = parameters((3 * UNIT,) * 4, sigma=2.0)
    history = rows(*[(0, 1 + i % 2, 100 + i, 1) for i in range(400)])
    together = release(None, history, [Tick(0, 40)], p, KEY).rows
    state = None
    parts = []
    for i, table in enumerate([history, rows(), rows(), rows()]):
        step = release(state, table, [Tick(i, 10 * (i + 1))], p, KEY)
        state = step.state
        parts.append(step.rows)
    assert together.num_rows > 50
    assert (
        pa.concat_tables(parts)
        .sort_by([("trigger", "ascending"), ("key_bytes", "ascending")])
        .equals(together)
    )
    asleep = release(None, history, [Tick(0, 20)], p, KEY).state.groups.column("wake").to_pylist()
    assert {w for w in asleep if w} == {3, 4, 5}


@pytest.mark.parametrize(
    ("total", "count"),
    [
        (16, 8),
        (0, 5),
        (40, 30),
        (-90, 5),
        (600, 80),
        (-400, 8),
        (400, 8),
        (-220, 9),
        (220, 9),
        (9, 4),
        (9, 7),
        (-30, 3),
        (9, 0),
        (9, -8),
    ],
)
def test_an_average_has_the_farther_end_of_what_two_sums_allow(total: int, count: int) -> None:
    """Grid 0.25, centre 5, bounds 0..10: against all averages at which (S - r N)^2 <= 1.96^2 (sd_S^2 + r^2 sd_N^2), one by one. Catches: an interval
    that is cut to the bounds, the nearer end, division by a noisy zero, a centre added twice."""
    (value,), (stderr,) = finish(AVG, [np.array([total]), np.array([count])], np.array([1]))
    if count < -2:
        assert np.isnan(value) and np.isnan(stderr)
        return
    r = np.linspace(-60, 60, 120_001)
    allowed = r[(total / 4 - r * count) ** 2 <= 1.96**2 * (4 + r**2)]
    quotient = total / 4 / max(count, 1)
    error = np.abs(allowed - quotient).max()
    if 0 <= count < 3:
        assert 0 < value < 10 and 3 < 1.96 * stderr < 5 + 1e-4
    elif error >= 5 or count < 0:
        assert (value, stderr * 1.96) == pytest.approx((5, 5), rel=1e-4)
    else:
        assert value == 5 + np.clip(quotient, -5, 5)
        assert 1.96 * stderr == pytest.approx(error, rel=0.02)


def test_noise_is_rounded_before_it_is_added() -> None:
    """To whole grid units. Catches: a float added to the exact sum, whose low bits would show it."""
    p = PerturbationParameters(1, Blt.for_horizon(4), 2.0, 0.5)
    exact = np.array([10, 2**53 + 1, -3])
    again = Redraw(KEY, np.zeros((3, 2), np.uint64), np.arange(3), 1, 0, p.counter)
    assert noisy(exact, np.array([0.3, 0.3, -0.12]), 1, p, again).tolist() == [11, 2**53 + 2, -3]
    assert noisy(exact, np.zeros(3), 1, p, again).dtype == np.int64


def test_rows_are_sorted_by_key_bytes_not_by_hash_or_arrival() -> None:
    p = parameters((UNIT,) * 4)
    out = quiet(None, rows((0, 1, 30, 1), (0, 1, 4, 1), (0, 1, 21, 1)), [Tick(0, 10)], p)
    assert [name for _, name, _ in shown(out)] == [b"21", b"30", b"4"]


def test_an_old_state_is_not_changed_in_place() -> None:
    """A retried micro-batch reads it again. Catches: arrays of the old state that the new one writes to."""
    p = parameters((UNIT,) * 4, sigma=2.0)
    state = release(None, rows((0, 1, 7, 1), (0, 3, 8, 1)), [Tick(0, 10)], p, KEY).state
    kept = {name: table.to_pydict() for name, table in state.tables().items()}
    one, two = (release(state, rows((1, 2, 9, 1)), [Tick(1, 30)], p, KEY) for _ in range(2))
    assert one.rows.equals(two.rows)
    assert {name: table.to_pydict() for name, table in state.tables().items()} == kept
