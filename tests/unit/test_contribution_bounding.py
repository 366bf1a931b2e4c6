"""Contribution bounding on small streams whose answer can be read off. Every other stream: tests/property."""

import dataclasses
import math
import warnings
from collections import Counter
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from dpsql.parts.key_selection import selection_weights
from dpsql.udfs.columns import mix
from dpsql.udfs.contributions import Increment
from dpsql.udfs.grid import Grid
from dpsql.udfs.intake import contribution_bounding
from dpsql.udfs.intake.contribution_bounding import DROP_REASONS, BoundingParameters, admit
from dpsql.udfs.intake.left_out import FigureLimits
from dpsql.udfs.intake.user_state import GROUPS
from dpsql.udfs.stage import Clock
from tests.property.streams import cells, replay_stream, run_admission, table
from tests.reference import Bounder, Record, by_lot, increment

ANN = 11 << 40
BOB = 12 << 40
A, B, C, D = (k << 40 for k in (1, 2, 3, 4))
DAY = Grid(24, 24, 0, 6, 4)
NAN = float("nan")


def parameters(
    rows: int,
    per_key: int | None = None,
    keys: int | None = None,
    grid: Grid = DAY,
    **changes: object,
) -> BoundingParameters:
    keys = keys or rows
    weights = selection_weights(grid.windows_per_record * min(rows, keys), 0.5)
    return dataclasses.replace(
        BoundingParameters(
            grid,
            True,
            rows,
            per_key or rows,
            keys,
            weights,
            (Increment("rows"), Increment("users")),
        ),
        **changes,
    )


NO_TICK = Clock()


def rows_of(
    records: list[Record], p: BoundingParameters, clock: Clock = NO_TICK
) -> dict[tuple[int, ...], int]:
    """(window, trigger, key) -> admitted records."""
    return {
        cell: added[2]
        for cell, added in cells(admit(None, table(records), clock, p).contributions).items()
    }


def test_a_dropped_record_uses_up_nothing() -> None:
    """c = 1, C = 2: two refused repetitions of A leave room for B. Catches: refused records that count towards C or G."""
    records = [Record(ANN, t, key) for t, key in enumerate((A, A, A, B))]
    assert rows_of(records, parameters(2, per_key=1)) == {(0, 1, A): 1, (0, 1, B): 1}


SLIDING = Grid(4, 2, 0, 2, 2)


@pytest.mark.parametrize("cut", [[(3, 5)], [(3,), (5,)], [(5,), (3,)]])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_unit_counts_once_in_a_window_that_meets_two_of_its_periods(
    cut: list[tuple[int, ...]], rows: int
) -> None:
    """90 users with a record on each side of a period's edge are 90, not 180 (also where their rows are used up), in any order; key
    selection counts their periods."""
    p = parameters(rows, grid=SLIDING)
    users = [n << 33 for n in range(1, 91)]
    batches = [[Record(user, t, A) for user in users for t in times] for times in cut]
    found = cells(run_admission(replay_stream(batches), p).contributions)
    totals = {
        window: tuple(sum(v[i] for (w, *_), v in found.items() if w == window) for i in (1, 2, 3))
        for window in (0, 2, 4)
    }
    # (users' periods for selection, COUNT(*), COUNT(DISTINCT)); times 3 and 5 are in windows 0, 2 and 2, 4
    assert totals == {0: (90, 90, 90), 2: (180, 180, 90), 4: (90, 90, 90)}


def test_other_users_and_keys_of_the_window_are_no_reason_not_to_count() -> None:
    p = parameters(2, grid=SLIDING)
    records = [Record(ANN, 3, A), Record(ANN, 5, B), Record(BOB, 5, A), Record(ANN, 9, A)]
    found = cells(run_admission(replay_stream([[r] for r in records]), p).contributions)
    assert all(v[3] == v[1] == 1 for v in found.values())


def test_an_entry_of_the_state_stands_for_one_neighbour_only() -> None:
    """Windows 2, 4 and 6 share their fingerprint. Without period 4 (which comes first) at most one user comes back for each entry that it
    had: the period before looks for the entry of window 2, the one after for that of window 4."""
    right = contribution_bounding._fingerprint
    same = mix(np.array([2, 4, 6]), np.array([A] * 3)).view(np.int64)

    def clash(hashes: np.ndarray) -> np.ndarray:
        return np.where(np.isin(hashes, same), np.uint32(0), right(hashes))

    p = parameters(1, grid=SLIDING)
    records = [[Record(ANN, 5, A)], [Record(ANN, 3, A)], [Record(ANN, 9, A)]]
    with mock.patch.object(contribution_bounding, "_fingerprint", clash):
        whole, alone, rest = (
            run_admission(replay_stream(batches), p)
            for batches in (records, records[:1], [[], *records[1:]])
        )
    entries = sum(row["part"] == GROUPS for row in alone.states[0].to_pylist())
    users = [
        {cell: v[3] for cell, v in cells(each.contributions).items() if v[3]}
        for each in (whole, rest)
    ]
    assert len(set(users[1]) - set(users[0])) <= entries


@pytest.mark.parametrize("grid", [DAY, SLIDING], ids=["tumbling", "sliding"])
def test_groups_with_one_fingerprint_have_no_rooms_of_their_own(grid: Grid) -> None:
    """They count as one of G and of K, and what is charged is the bound of one. In one micro-batch, in several, and when all comes again."""
    p = parameters(9, keys=1, grid=grid, increments=(Increment("rows_per_group", upper=1),))
    records = [Record(ANN, 3, key) for key in (A, B, C)]
    with mock.patch.object(
        contribution_bounding, "_fingerprint", lambda hashes: np.zeros(len(hashes), np.uint32)
    ):
        for batches in ([records], [[r] for r in records] * 2):
            assert (
                sum(
                    v[2]
                    for v in cells(run_admission(replay_stream(batches), p).contributions).values()
                )
                == 1
            )


def test_rooms_of_groups_beyond_all_that_count_do_not_depend_on_the_cut() -> None:
    """Catches: a record that is refused for a room of a group that does not count, or admitted, by whether it came with the one that filled it."""
    p = parameters(
        3, keys=1, grid=DAY, increments=(Increment("rows_per_group", upper=1),), renews=False
    )
    records = [
        Record(ANN, day * DAY.window_us + 3 + i, A)
        for day, i in ((0, 0), (1, 0), (1, 1), (2, 0), (3, 0))
    ]
    drops = [
        run_admission(replay_stream(batches), p).drops
        for batches in ([records[:1], records[1:]], [[r] for r in records])
    ]
    assert drops[0] == drops[1]


@pytest.mark.parametrize("renews", [True, False])
def test_rooms_are_gone_when_their_window_closes(renews: bool) -> None:
    """For ever, too, where the unit itself is remembered. Catches: state that grows with the age of a run."""
    p = parameters(3, keys=2, increments=(Increment("rows_per_group", upper=1),), renews=renews)
    before = admit(None, table([Record(ANN, 3, A)]), Clock(), p)
    after = admit(before.state, table([]), Clock(DAY.window_us * 3), p, before.sums)
    assert before.sums is not None and after.sums is not None
    assert (before.sums.num_rows, after.sums.num_rows, after.state.num_rows > 0) == (
        1,
        0,
        not renews,
    )


def test_rounds_count_a_user_once_per_period_where_periods_meet() -> None:
    """Else the later period's row would stand in for the one that is left out. Users with other ids never meet: not by 63 of their bits."""
    p = dataclasses.replace(parameters(1, grid=SLIDING), by_user=True)
    rows = run_admission(
        replay_stream([[Record(ANN, 3, A), Record(ANN, 5, A)]]), p
    ).contributions.to_pylist()
    who = {row["window"]: {r["user"] for r in rows if r["window"] == row["window"]} for row in rows}
    assert who == {0: {ANN | 1}, 2: {ANN & ~1, ANN | 1}, 4: {ANN | 1}}


def test_rounds_keep_the_user_and_weigh_by_record() -> None:
    """Catches: one weight that a user could use in two rounds."""
    p = dataclasses.replace(parameters(3), by_user=True)
    records = [Record(ANN, 1, A), Record(ANN, 7, A), Record(BOB, 2, A), Record(ANN, 8, A)]
    rows = (
        admit(None, table(records), Clock(), p)
        .contributions.select(["trigger", "user", "weight", "v0"])
        .to_pylist()
    )
    assert [tuple(row.values()) for row in rows] == [
        (1, ANN, p.weights[0], 1),
        (1, BOB, p.weights[0], 1),
        (2, ANN, p.weights[1], 2),
    ]


def test_public_groups_and_windows_before_the_first() -> None:
    p = dataclasses.replace(parameters(5), public_keys=(A, C), first_window_us=24)
    records = [Record(ANN, t, k) for t, k in ((1, A), (25, A), (26, B), (27, C))]
    admission = admit(None, table(records), Clock(), p)
    assert cells(admission.contributions).keys() == {(24, 1, A), (24, 1, C)}
    assert (admission.drops["not_a_public_group"], admission.drops["window_closed"]) == (1, 1)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (0.0, 0), (NAN, 0), (float("inf"), 8), (float("-inf"), -4), (0.124, 0), (0.126, 1), (0.375, 2), (-0.125, 0), (-9.0, -4),
        (1e300, 8), (5e-324, 0),
    ],
)  # fmt: skip
def test_values_are_rounded_then_clamped(x: float, expected: int) -> None:
    """Grid 0.25, clamp -1..2. Catches: NULL that adds the centre or the lower bound, an infinity that is skipped."""
    p = parameters(1, increments=(Increment("sum", 0, 0.25, -4, 8), Increment("valid", 0)))
    found = admit(None, table([Record(ANN, 0, A, (x,))]), Clock(), p).contributions
    assert found.column("v0").to_pylist() == [expected]
    assert found.column("v1").to_pylist() == [int(x == x)]


def test_a_null_adds_nothing_to_a_centred_sum_but_still_counts_as_a_record() -> None:
    p = parameters(1, increments=(Increment("sum", 0, 0.25, -4, 4, 1.0), Increment("rows")))
    found = admit(None, table([Record(ANN, 0, A, (NAN,))]), Clock(), p).contributions
    assert (found.column("v0").to_pylist(), found.column("v1").to_pylist()) == ([0], [1])


@pytest.mark.parametrize("x", [1.7e308, -1.7e308])
def test_no_value_makes_a_warning(x: float) -> None:
    """A value over a fine grid leaves float64: numpy would write a line to the log that says so, and the log is not private."""
    p = parameters(1, increments=(Increment("sum", 0, 2.0**-20, -4, 8),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = admit(None, table([Record(ANN, 0, A, (x,))]), Clock(), p).contributions
    assert found.column("v0").to_pylist() == [8 if x > 0 else -4]


def test_every_drop_has_its_reason_and_none_is_lost() -> None:
    p = dataclasses.replace(parameters(3, per_key=1, keys=2), public_keys=(A, B, C))
    live = [
        Record(ANN, t, k) for t, k in ((0, A), (1, A), (2, B), (3, C), (4, D), (900, A), (-30, A))
    ]
    dropped = [Record(0, 0, 0, (), code) for code in (1, 2, 2, 3, 4)]
    admission = admit(None, table(live + dropped), Clock(0, 100), p)
    assert tuple(admission.drops) == DROP_REASONS
    assert list(admission.drops.values()) == [1, 2, 1, 1, 1, 1, 1, 1, 0, 1, 0]
    assert sum(admission.drops.values()) + 2 == len(live) + len(dropped)


def test_nulls_are_refused_loudly() -> None:
    """A NULL id would be a float on its way through pandas. Catches: silent rounding of 64-bit hashes."""
    rows = table([Record(ANN, 0, A)]).set_column(1, "user", pa.array([None], pa.int64()))
    with pytest.raises(TypeError, match="user must not hold NULL"):
        admit(None, rows, Clock(), parameters(1))


def test_state_is_what_it_says_and_never_changed_in_place() -> None:
    """A retried micro-batch reads the old state again. Catches: arrays shared between the old state and the new."""
    p = parameters(4)
    first = admit(None, table([Record(ANN, 0, A)]), Clock(), p).state
    kept = first.to_pydict()
    second = admit(first, table([Record(ANN, 1, A), Record(BOB, 1, B)]), Clock(), p).state
    assert first.to_pydict() == kept
    assert second.column("rows").to_pylist() == [2, 1]
    assert [str(t) for t in second.schema.types] == ["int64", "int64", "uint8", "uint32", "int32"]
    assert admit(first, table([]), Clock(), p).state.equals(first)


def test_rows_that_are_not_counted_leave_one_entry_each() -> None:
    """However many there are. Catches: a number of 32 bits that goes over."""
    for grid in (DAY, dataclasses.replace(DAY, slide_us=DAY.window_us // 2)):
        p = dataclasses.replace(
            parameters(4, keys=2, grid=grid), max_rows=math.inf, max_rows_per_group=math.inf
        )
        state = None
        for start in range(0, 40, 10):
            done = admit(
                state,
                table([Record(ANN, 1, (A, B, C)[t % 3]) for t in range(start, start + 10)]),
                Clock(),
                p,
            )
            state = done.state
        assert (
            set(state.column("rows").to_pylist()) == {1}
            and done.drops["over_max_rows"] == 0 < done.drops["over_max_groups"]
        )


@pytest.mark.parametrize("later", [[], [Record(ANN, 1, A, (0.5,))]])
def test_the_tie_break_is_the_references(later: list[Record]) -> None:
    """Equal times are taken by lots of what is used later. Catches: another mix on another day."""
    p = parameters(1, increments=(Increment("sum", 0, 0.25, -400, 400), Increment("rows")))
    records = [Record(ANN, 0, k, (x,)) for k in (A, B, C) for x in (0.25, 0.5)]
    first = by_lot(records, lambda r: [increment(r.values, rule, True) for rule in p.increments])[0]
    stream = replay_stream([records[::-1] + later])
    assert [c[2] for c in cells(run_admission(stream, p).contributions)] == [first.key]
    assert Bounder(p).admit(records, -(1 << 62), 1 << 62)[0].record == first


def test_a_million_rows_of_one_user_fit_the_state() -> None:
    """max_rows_contributed goes up to a million. Catches: counts that wrap in the state's int32."""
    p = parameters(1_000_000, keys=1)
    state = admit(None, table([Record(ANN, 0, A)]), Clock(), p).state
    state = state.set_column(4, "rows", pa.array([999_999], pa.int32()))
    admission = admit(state, table([Record(ANN, 1, A), Record(ANN, 2, A)]), Clock(), p)
    assert admission.state.column("rows").to_pylist() == [1_000_000]
    assert admission.drops["over_max_rows"] == 1


def test_a_user_whose_rows_are_used_up_keeps_one_row_of_state() -> None:
    """Catches: state that grows with users who may add nothing more, an allowance that comes back when entries are merged."""
    p = parameters(3)
    state = admit(
        None, table([Record(ANN, 0, A), Record(ANN, 1, B), Record(BOB, 1, A)]), Clock(), p
    ).state
    assert state.num_rows == 3
    used = admit(state, table([Record(ANN, 2, C), Record(BOB, 2, B)]), Clock(), p).state
    rows = {user: [r["rows"] for r in used.to_pylist() if r["user"] == user] for user in (ANN, BOB)}
    assert rows == {ANN: [3], BOB: [1, 1]}
    at_once = admit(
        None, table([Record(ANN, n, key) for n, key in enumerate((A, B, C, A))]), Clock(), p
    ).state
    assert at_once.column("rows").to_pylist() == [3]
    for before in (used, at_once):
        after = admit(before, table([Record(ANN, 9, key) for key in (A, B, C)]), Clock(), p)
        assert after.contributions.num_rows == 0
        assert after.drops["over_max_rows"] == 3
        assert after.state.equals(before)


def test_a_unit_whose_rows_are_used_up_keeps_two_entries() -> None:
    """Figures ask of it how many rows were lost, up to their limit: an entry per key would grow with busy units."""
    p = dataclasses.replace(parameters(3), figures=FigureLimits(0, 6))
    state = None
    totals = Counter[str]()
    rows = []
    for batch in range(5):
        done = admit(state, table([Record(ANN, batch, key) for key in (A, B, C)]), Clock(), p)
        state = done.state
        rows.append(state.column("rows").to_pylist())
        assert done.left_out is not None
        for figures in done.left_out.to_pylist():
            totals.update({name: n for name, n in figures.items() if name != "period"})
    assert rows == [[3], [3, 3], [3, 6], [3, 6], [3, 6]]
    assert dict(totals) == {"units": 1, "units_over": 1, "rows": 3, "rows_left_out": 6}


def test_left_out_keys_are_not_those_that_count() -> None:
    """A unit whose rows are used up, and whose keys are forgotten."""
    D = A ^ (1 << 40)
    p = dataclasses.replace(parameters(3), figures=FigureLimits(6, 6))
    first = admit(None, table([Record(ANN, 0, key) for key in (A, B, C)]), Clock(), p)
    again = admit(first.state, table([Record(ANN, 1, key) for key in (A, B, D)]), Clock(), p)
    assert again.left_out is not None
    figures = again.left_out.to_pylist()
    assert sum(row["rows_left_out"] for row in figures) == 3
    assert sum(row["pairs_left_out"] for row in figures) == 1


def test_why_a_record_is_dropped_does_not_depend_on_the_cut() -> None:
    """Catches: a reason that asks for keys which state has forgotten, as those of a user whose rows are used up."""
    records = [
        Record(user, t, (A, B, C)[(t * 7 + user) % 3])
        for t in range(22)
        for user in (ANN, BOB, ANN + 2)
    ]
    met = set()
    for bounds in (
        parameters(5, per_key=2, keys=2),
        parameters(3, per_key=2, keys=2),
        parameters(4, per_key=2),
    ):
        whole = admit(None, table(records), Clock(), bounds).drops
        met |= {reason for reason, count in whole.items() if count}
        for size in (1, 4, 30):
            state = None
            cut = dict.fromkeys(whole, 0)
            for start in range(0, len(records), size):
                done = admit(state, table(records[start : start + size]), Clock(), bounds)
                state = done.state
                cut = {reason: count + done.drops[reason] for reason, count in cut.items()}
            assert cut == whole
    assert met == {"over_max_rows", "over_max_rows_per_group", "over_max_groups"}
