"""The pane release: whatever the cut into micro-batches, buckets and orders, the same rows; one window per closed pane; constant state."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.udfs.contributions import Increment
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.measure.output_columns import OutputColumn
from dpsql.udfs.sliding.intake import EventParameters, PaneEvents, PaneGrid
from dpsql.udfs.sliding.panes import Measurement, PaneCells, Panes
from dpsql.udfs.sliding.release import SlidingParameters, SlidingState, release_windows
from dpsql.udfs.stage import Clock, Stepped, Tick
from tests.mechanisms.sliding import reference
from tests.mechanisms.sliding.pane_runs import noise_key, plain, retroactive
from tests.mechanisms.sliding.test_window_sqrt import measurement

W = 3
SLIDE = 60
FIRST = 1_000
LATE = 120
PANES = Panes(SLIDE, W, FIRST, LATE)
GRID = PaneGrid(SLIDE, SLIDE, FIRST % SLIDE, SLIDE, 1 + LATE // SLIDE, W * SLIDE)
KEYS = (-(2**60), -7, 12, 5, 2**61)
NAMES = (b"e", b"b", b"d", b"a", b"c")
MEASUREMENTS = {
    "PANES": plain(W, 1.0),
    "WINDOW_SQRT": measurement(W, 3.0),
    "RETROACTIVE": retroactive(W, 1.0),
}
COUNT = OutputColumn("count", (0,), (1.0,), ())
Records = list[tuple[int, int, int]]


def parameters(m: Measurement) -> SlidingParameters:
    return SlidingParameters(PANES, (m,), (0,), (COUNT,), KEYS, NAMES)


def taken_in(
    table: pa.Table, clock: Clock, *increments: Increment, keys: tuple[int, ...] = KEYS
) -> Stepped:
    """The intake of one micro-batch."""
    arguments = sum(name.startswith("a") for name in table.column_names)
    stage = PaneEvents(EventParameters(GRID, tuple(sorted(keys)), increments, FIRST), arguments)
    return stage.step(
        {}, table.append_column("drop", pa.array(np.zeros(table.num_rows, np.int8))), clock, b""
    )


def summed(records: Records, closed_us: int = NO_CLOCK) -> pa.Table:
    """What the intake makes of counts."""
    table = pa.table(
        {
            "ts": pa.array([r[1] for r in records], pa.int64()),
            "key": pa.array([r[2] for r in records], pa.int64()),
        }
    )
    sums = taken_in(table, Clock(closed_us, 1 << 60), Increment("rows")).rows
    return sums.append_column(
        "batch", pa.array([records[0][0] if records else 0] * sums.num_rows, pa.int64())
    )


def run(records: Records, ticks: list[Tick], m: Measurement) -> list[dict[str, object]]:
    """Rows of a stream, all in one micro-batch of query 2."""
    closed = NO_CLOCK
    rows = []
    for b in range(max([t.batch for t in ticks] + [r[0] for r in records]) + 1):
        rows.append(summed([r for r in records if r[0] == b], closed))
        closed = max([closed, *(t.closed_us for t in ticks if t.batch == b)])
    return sorted(
        release_windows(
            None, pa.concat_tables(rows), ticks, parameters(m), noise_key(3)
        ).rows.to_pylist(),
        key=lambda row: (row["window"], row["key_bytes"]),
    )


STREAM = st.lists(
    st.tuples(
        st.integers(0, 5), st.integers(FIRST - 100, FIRST + 900), st.sampled_from((*KEYS, 99))
    ),
    max_size=60,
)
TICKS = [Tick(b, FIRST + 150 * (b + 1)) for b in range(6)] + [Tick(5, FIRST + 1200)]


@pytest.mark.parametrize(("name", "bits"), [("PANES", 0), ("PANES", 10), ("WINDOW_SQRT", 0)])
def test_sums_that_wrap_around_keep_their_noise(name: str, bits: int) -> None:
    """From records to windows, modulo 2^64 units: what a window shows is its true sum plus the noise of an empty stream, against Python's
    integers. All values are whole steps."""
    p = parameters(MEASUREMENTS[name])
    large = Increment("sum", 0, 1.0, -(2**62), 2**62)
    p = dataclasses.replace(p, bits=(bits,), keys=KEYS[:1], key_bytes=NAMES[:1])
    batches = [
        [(pane, 2.0**62 - 1024 * i) for pane in range(6) for i in range(1 + batch)]
        for batch in range(2)
    ]
    rows = []
    for batch, records in enumerate(batches):
        table = pa.table(
            {
                "ts": [FIRST + pane * SLIDE for pane, _ in records],
                "key": [KEYS[0]] * len(records),
                "a0": [v for _, v in records],
            }
        )
        sums = taken_in(table, Clock(NO_CLOCK, 1 << 60), large).rows
        rows.append(sums.append_column("batch", pa.array([batch] * sums.num_rows, pa.int64())))
    ticks = [Tick(1, FIRST + 6 * SLIDE + LATE)]
    shown, silent = (
        release_windows(None, given, ticks, p, noise_key(3)).rows
        for given in (pa.concat_tables(rows), rows[0][:0])
    )
    true = W * sum(int(value) for records in batches for pane, value in records if pane == 0)
    assert true > 2**64 and shown.num_rows == 6 - W + 1
    for window, noise in zip(shown["c0"].to_pylist(), silent["c0"].to_pylist(), strict=True):
        assert (window - noise - (true >> bits)) % 2 ** (64 - bits) == 0


def test_a_pane_is_rounded_once_half_up_when_it_closes() -> None:
    """Whatever came together. To even, round(1536) - round(512) would be two steps for one of 2^10 units; half up it is one."""
    p = dataclasses.replace(
        parameters(dataclasses.replace(plain(1, 1.0), smoother=None)),
        panes=dataclasses.replace(PANES, count=1),
        bits=(10,),
    )
    parts = [
        (512,),
        (511,),
        (1536,),
        (-512,),
        (-513,),
        (700, 700),
        (300, 300, 300),
        (-700, -700, -700),
    ]

    def shown(cuts: int) -> np.ndarray:
        """The parts of pane i in as many micro-batches, calls and rows as there are; or all together."""
        state = None
        rows = []
        for at in range(3):
            mine = [
                (PANES.start(i), KEYS[0], each, at)
                for i, part in enumerate(parts)
                for each in part[at : at + 1]
            ]
            rows.append(
                pa.table(
                    dict(
                        zip(
                            ("window", "key", "v0", "batch"),
                            map(np.array, zip(*mine, strict=True)),
                            strict=True,
                        )
                    )
                )
            )
            if cuts == 3:
                state = release_windows(state, rows.pop(), [], p, noise_key(3)).state
        given = pa.concat_tables(rows) if rows else summed([])
        done = release_windows(
            state, given, [Tick(3, PANES.start(len(parts)) + LATE)], p, noise_key(3)
        ).rows
        return done.filter(pc.equal(done["key_bytes"], NAMES[0]))["c0"].to_numpy()

    silent = release_windows(
        None, summed([]), [Tick(3, PANES.start(len(parts)) + LATE)], p, noise_key(3)
    ).rows
    noise = silent.filter(pc.equal(silent["key_bytes"], NAMES[0]))["c0"].to_numpy()
    for cuts in (1, 3):
        assert (shown(cuts) - noise).tolist() == [1, 0, 2, 0, -1, 1, 1, -2]


@given(records=STREAM)
def test_windows_are_the_noisy_sums_of_the_records_that_came_in_time(records: Records) -> None:
    """Against plain lists: the late rule written out, panes as dictionaries."""
    closed = {b: max([NO_CLOCK, *(t.closed_us for t in TICKS if t.batch < b)]) for b in range(6)}
    in_time = [
        r
        for r in records
        if r[2] in KEYS and FIRST + ((r[1] - FIRST) // SLIDE + 1) * SLIDE + LATE > closed[r[0]]
    ]
    sums = reference.pane_sums(in_time, SLIDE, FIRST)
    rows = run(records, TICKS, MEASUREMENTS["PANES"])
    # One window per pane once a first whole window has passed, for every listed key, records or not.
    panes = PANES.closed(FIRST + 1200)
    assert [(row["window"], row["key_bytes"]) for row in rows] == [
        (FIRST + i * SLIDE, name) for i in range(panes - W + 1) for name in sorted(NAMES)
    ]
    table = MEASUREMENTS["PANES"].table  # type: ignore[attr-defined]
    for key, name in zip(KEYS, NAMES, strict=True):
        x = [sums.get((pane, key), 0) for pane in range(panes)]

        def noise(pane: int, key: int = key) -> int:
            return int(
                PaneCells(noise_key(3), np.array([key]), PANES.start(pane), SLIDE, 1).pane(
                    table, np.arange(1), np.zeros(1, np.int64)
                )[0]
            )

        assert [row["c0"] for row in rows if row["key_bytes"] == name] == reference.plain(
            x, W, noise
        )[W - 1 :]


def test_a_row_of_a_closed_pane_counts_nowhere() -> None:
    """The intake leaves such records out; the release would not measure a pane twice either."""
    p = parameters(MEASUREMENTS["PANES"])
    first = release_windows(
        None, summed([(0, FIRST + 5, 12)]), [Tick(0, FIRST + 600)], p, noise_key(1)
    )
    again = release_windows(
        first.state, summed([(1, FIRST + 5, 12)]), [Tick(1, FIRST + 1200)], p, noise_key(1)
    )
    without = release_windows(first.state, summed([]), [Tick(1, FIRST + 1200)], p, noise_key(1))
    assert again.rows.equals(without.rows)
    assert again.state.pending.num_rows == 0


def test_a_clock_that_does_not_move_releases_nothing_and_a_retry_the_same() -> None:
    p = parameters(MEASUREMENTS["RETROACTIVE"])
    once = [
        release_windows(None, summed([(0, FIRST + 5, 12)]), [Tick(0, FIRST + 600)], p, noise_key(1))
        for _ in range(2)
    ]
    one, other = (each.rows.to_pandas() for each in once)
    assert len(one) and one.equals(other)
    for time in (FIRST + 600, FIRST, 0):
        assert not release_windows(
            once[0].state, summed([]), [Tick(1, time)], p, noise_key(1)
        ).rows.num_rows


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_state_does_not_grow(name: str) -> None:
    p = parameters(MEASUREMENTS[name])
    state = None
    sizes = []
    for step in range(1, 13):
        rows = summed(
            [(step, FIRST + step * 40 * SLIDE - 1000 + i, KEYS[i % 5]) for i in range(500)]
        )
        state = release_windows(
            state, rows, [Tick(step, FIRST + step * 40 * SLIDE)], p, noise_key(1)
        ).state
        sizes.append(state.bins.nbytes)
    assert {*sizes} == {sizes[0]}
    assert state is not None
    assert state.pending.num_rows <= 2 * len(KEYS)  # panes that are still open


def test_averages_and_sums() -> None:
    """SUM: steps of the grid; AVG: the quotient of two noisy sums; NaN where there are no rows."""
    m = dataclasses.replace(plain(W, 5.0), smoother=None)
    columns = (
        OutputColumn("sum", (0,), (0.25,), ()),
        OutputColumn("avg", (1, 2), (0.25, 1.0), (), (0.0, 4.0), 2.0),
    )
    p = SlidingParameters(PANES, (m, m, m), (0, 0, 0), columns, KEYS, NAMES)
    sums = {"window": [PANES.start(i) for i in range(3)], "key": [12] * 3, "batch": [0, 0, 0]}
    sums |= {"v0": [4, 8, 4000], "v1": [2000, 0, 0], "v2": [1000, 0, 0]}
    table = pa.table({name: pa.array(values, pa.int64()) for name, values in sums.items()})
    rows = {
        row["key_bytes"]: row
        for row in release_windows(
            None, table, [Tick(0, FIRST + 300)], p, noise_key(1)
        ).rows.to_pylist()
    }
    assert rows[b"d"]["c0"] == pytest.approx(1003, abs=2)
    assert rows[b"d"]["c1"] == pytest.approx(2.5, abs=0.01)
    assert rows[b"d"]["s1"] < 0.01
    assert rows[b"d"]["c0"] * 4 == int(rows[b"d"]["c0"] * 4)
    assert all(np.isnan(row["c1"]) or 0 <= row["c1"] <= 4 for row in rows.values())
    assert any(np.isnan(row["c1"]) for row in rows.values())


def test_what_the_intake_leaves_out() -> None:
    records = [FIRST - 1, FIRST, FIRST + 59, FIRST + 60, FIRST + 5000, FIRST + 61]
    table = pa.table({"ts": records, "key": pa.array([12, 12, 12, 12, 12, 99], pa.int64())})
    taken = taken_in(table, Clock(FIRST + 180, FIRST + 4000), Increment("rows"))
    assert taken.counted["drops"] == {
        "not_a_public_group": 1,
        "too_far_ahead": 1,
        "window_closed": 3,
    }
    assert taken.rows.to_pylist() == [{"window": FIRST + 60, "key": 12, "v0": 1}]


def test_values_are_clamped_and_rounded_before_they_are_added() -> None:
    values = [1.0, 1.1, 1.13, float("nan"), float("inf"), -float("inf"), 1e300]
    table = pa.table({"ts": [FIRST] * 7, "key": pa.array([12] * 7, pa.int64()), "a0": values})
    each = (Increment("sum", 0, 0.25, -4, 8), Increment("valid", 0), Increment("rows"))
    taken = taken_in(table, Clock(NO_CLOCK, 1 << 60), *each, keys=(12,))
    assert taken.rows.to_pylist() == [
        {"window": FIRST, "key": 12, "v0": 4 + 4 + 5 + 0 + 8 - 4 + 8, "v1": 6, "v2": 7}
    ]


def test_state_that_lacks_a_listed_key_is_refused_once_something_is_closed() -> None:
    """Before, a bucket that was cut anew may know some of its keys only; afterwards a pane would be measured again."""
    p = parameters(plain(W, 1.0))
    for ticks in ([], [Tick(0, FIRST + 600)]):
        state = release_windows(None, summed([(0, FIRST, 12)]), ticks, p, noise_key(1)).state
        lacking = SlidingState(
            state.bins.slice(1).replace_schema_metadata(state.bins.schema.metadata), state.pending
        )
        if ticks:
            with pytest.raises(ValueError, match="not the listed keys"):
                release_windows(lacking, summed([]), [Tick(1, FIRST + 1200)], p, noise_key(1))
        else:
            after = release_windows(lacking, summed([]), [Tick(1, FIRST + 1200)], p, noise_key(1))
            assert after.rows.equals(
                release_windows(state, summed([]), [Tick(1, FIRST + 1200)], p, noise_key(1)).rows
            )
