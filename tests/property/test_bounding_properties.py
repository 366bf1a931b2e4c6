"""Contribution bounding for any stream, cut, bucket count and clock."""

import math
from collections import defaultdict
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.udfs.contributions import Increment
from dpsql.udfs.intake.contribution_bounding import BoundingParameters, admit
from dpsql.udfs.stage import Clock
from tests.property.streams import (
    EVERYTHING,
    FAR,
    INCREMENTS,
    KEYS,
    USERS,
    Stream,
    added,
    bounding,
    cells,
    cut_by_time,
    live_streams,
    records,
    replay_stream,
    run_admission,
    table,
)
from tests.reference import Bounder, Cells, Record, increment, sums

BOUNDS = ("over_max_rows_per_group", "over_max_groups", "over_max_rows")
ROOM = "over_bounds_per_group"


@pytest.mark.parametrize("rooms", [False, True])
@given(st.data(), st.integers(1, 4))
def test_admission_is_the_reference(rooms: bool, data: st.DataObject, buckets: int) -> None:
    """Catches: a bound off by one, an allowance renewed by eviction (the reference never forgets), a wrong rank or trigger, a lost drop."""
    stream = data.draw(live_streams(rooms))
    p = data.draw(bounding(rounds=None, rooms=rooms))
    reference = Bounder(p)
    expected = [
        a
        for batch, c in zip(stream.batches, stream.clocks, strict=True)
        for a in reference.admit(batch, c.closed_us, c.latest_us)
    ]
    found = run_admission(stream, p, buckets)
    assert cells(found.contributions) == sums(expected, p.by_user)
    names = {a.record.key: a.record.key_bytes for a in expected}
    assert all(row["key_bytes"] == names[row["key"]] for row in found.contributions.to_pylist())
    # Which of the bounds is blamed may depend on the cut; how many records they refuse may not. The
    # step fills rooms before it counts rows and keys: a record that these refuse may stand in a room
    # before another one that they refuse, too.
    refused = (*BOUNDS, ROOM)
    assert sum(found.drops[reason] for reason in refused) == (
        reference.drops["bounds"] + reference.drops[ROOM]
    )
    if not reference.drops["bounds"]:
        assert found.drops[ROOM] == reference.drops[ROOM]
    others = {reason: n for reason, n in found.drops.items() if n and reason not in refused}
    assert others == {
        reason: n for reason, n in reference.drops.items() if n and reason not in ("bounds", ROOM)
    }


@given(
    st.lists(records(), max_size=40),
    bounding(rounds=None) | bounding(rounds=None, rooms=True),
    st.data(),
)
def test_cuts_between_event_times_buckets_and_row_order_do_not_matter(
    stream: list[Record], p: BoundingParameters, data: st.DataObject
) -> None:
    """Catches: order taken from arrival, ties broken by row position, state that a micro-batch boundary resets."""
    whole = cells(run_admission(replay_stream([stream]), p).contributions)
    cuts = data.draw(st.lists(st.integers(-31, 31), max_size=6))
    batches = [data.draw(st.permutations(batch)) for batch in cut_by_time(stream, cuts)]
    assert (
        cells(run_admission(replay_stream(batches), p, data.draw(st.integers(1, 5))).contributions)
        == whole
    )


@given(live_streams(), bounding() | bounding(rooms=True))
def test_users_do_not_touch_each_other(stream: Stream, p: BoundingParameters) -> None:
    """What all users add is the sum of what each adds alone: so no record of one user moves another's records or triggers. Catches: a clock
    taken from the data, an allowance shared between users, ties broken across users, weights by global rank."""
    alone: Cells = {}
    for user in USERS:
        alone = added(alone, cells(run_admission(stream.only(user), p).contributions))
    assert cells(run_admission(stream, p).contributions) == alone


@given(live_streams(), bounding(sliding=False), st.sampled_from(USERS))
def test_no_user_exceeds_the_bounds(stream: Stream, p: BoundingParameters, user: int) -> None:
    """The sensitivity proofs read exactly these inequalities, per user and contribution period. Catches: C, c or G exceeded in any way, a
    user counted twice in a group, weights that add up to more than one user's budget, a value outside its clamp (infinities and NaN
    included), a record put into a trigger that is closed."""
    found = run_admission(stream.only(user), p).contributions.to_pylist()
    for row in found:
        assert (
            p.grid.closed_triggers(
                pa.array([row["window"]]).to_numpy(), stream.clocks[row["batch"]].closed_us
            )[0]
            < row["trigger"]
            <= p.grid.horizon
        )
    periods = defaultdict(list)
    for row in found:
        periods[row["window"] if p.renews else 0].append(row)
    for rows in periods.values():
        groups = defaultdict(list)
        for row in rows:
            groups[row["window"], row["key"]].append(row)
        assert sum(row["v0"] for row in rows) <= p.max_rows
        assert len({row["key"] for row in rows}) <= p.max_groups
        assert len(groups) <= p.max_group_copies
        assert sum(row["weight"] ** 2 for row in rows) <= 2**40
        for group in groups.values():
            count = sum(row["v0"] for row in group)
            assert count <= p.max_rows_per_group
            assert sum(row["users"] for row in group) == sum(row["v2"] for row in group) == 1
            assert (
                count * INCREMENTS[3].lower
                <= sum(row["v3"] for row in group)
                <= count * INCREMENTS[3].upper
            )


@given(live_streams(), bounding(renews=False, rounds=None), st.sampled_from(USERS))
def test_no_user_exceeds_the_copied_bounds(
    stream: Stream, p: BoundingParameters, user: int
) -> None:
    """The same with r windows per record, over a period as long as the stream: what sqrt(r c min(C, G c)), sqrt(K) and the weights rest on.
    Catches: copies that escape the bounds, more than K groups, a weight that two records or two rounds share."""
    found = cells(run_admission(stream.only(user), p).contributions)
    copies = p.grid.windows_per_record * min(p.max_rows, p.max_groups * p.max_rows_per_group)
    assert sum(cell[2] for cell in found.values()) <= copies
    assert sum(cell[0] ** 2 for cell in found.values()) <= 2**40
    groups: dict[tuple[int, int], int] = defaultdict(int)
    for (window, _, key, *_), cell in found.items():
        groups[window, key] += cell[2]
    assert len(groups) <= p.max_group_copies
    assert all(n <= p.max_rows_per_group for n in groups.values())
    assert sum(cell[4] for cell in found.values()) == len(groups)


@given(live_streams(), bounding(renews=True, rounds=None), st.sampled_from(USERS))
def test_no_period_of_a_user_exceeds_the_copied_bounds(
    stream: Stream, p: BoundingParameters, user: int
) -> None:
    """The same per period, where a group can hold two of them: each period alone, and how often the user counts as a user. Catches: a
    period's copies that depend on another period of the user, a user counted twice in a group, or not at all."""
    mine = stream.only(user)
    found = cells(run_admission(mine, p).contributions)
    periods = {p.grid.period(np.array([r.ts]))[0] for r in mine.records if not r.drop}
    together: Cells = {}
    for period in periods:
        only = Stream(
            [
                [r for r in b if not r.drop and p.grid.period(np.array([r.ts]))[0] == period]
                for b in mine.batches
            ],
            mine.clocks,
        )
        alone = cells(run_admission(only, p).contributions)
        copies = p.grid.windows_per_record * min(p.max_rows, p.max_groups * p.max_rows_per_group)
        assert sum(cell[2] for cell in alone.values()) <= copies
        assert sum(cell[0] ** 2 for cell in alone.values()) <= 2**40
        assert len({(window, key) for window, _, key, *_ in alone}) <= p.max_group_copies
        together = added(together, alone)
    without_users = [
        {cell: (*v[:4], *v[5:]) for cell, v in each.items()} for each in (found, together)
    ]
    assert without_users[0] == without_users[1]
    users: dict[tuple[int, int], int] = defaultdict(int)
    for (window, _, key, *_), cell in found.items():
        users[window, key] += cell[4]
    assert set(users.values()) <= {1}


@given(
    live_streams(), bounding(renews=True, rounds=None), st.sampled_from(USERS), st.integers(-4, 4)
)
def test_a_period_that_goes_takes_its_own_and_moves_users_only(
    stream: Stream, p: BoundingParameters, user: int, number: int
) -> None:
    """Neighbouring streams: without one period of a user its copies are gone and all others stay, but that a 1 of COUNT(DISTINCT) may come
    back for the other period of its window. Catches: rounds that know users but not periods (the other one's row would take over)."""
    mine = stream.only(user)
    start = p.grid.offset_us + number * p.grid.window_us

    def part(inside: bool) -> Cells:
        batches = [
            [r for r in b if r.drop or (start <= r.ts < start + p.grid.window_us) is inside]
            for b in mine.batches
        ]
        return cells(run_admission(Stream(batches, mine.clocks), p).contributions)

    whole = cells(run_admission(mine, p).contributions)
    rest = part(False)
    gone = part(True)
    for cell in {*whole, *rest, *gone}:
        nothing = (0,) * len(next(iter(whole.values())))
        a, b, c = (each.get(cell, nothing) for each in (whole, rest, gone))
        assert [x - y for i, (x, y) in enumerate(zip(a, b, strict=True)) if i != 4] == [
            x for i, x in enumerate(c) if i != 4
        ]
    groups = {(window, key) for window, _, key, *_ in gone}
    moved = {
        cell: whole.get(cell, (0,) * 6)[4] - rest.get(cell, (0,) * 6)[4] for cell in {*whole, *rest}
    }
    for window, key in {(cell[0], cell[2]) for cell, by in moved.items() if by}:
        shift = [by for cell, by in moved.items() if by and (cell[0], cell[2]) == (window, key)]
        assert (window, key) in groups
        assert sorted(shift) in ([1], [-1, 1])


@given(live_streams(), bounding(), st.integers(0, 50))
def test_a_record_too_far_ahead_changes_nothing(
    stream: Stream, p: BoundingParameters, user: int
) -> None:
    """Catches: an event time that moves a clock or takes a row of its user's allowance although it is dropped."""
    limited = Stream(
        stream.batches,
        [Clock(c.closed_us, min(c.latest_us, 100)) for c in stream.clocks],
        stream.closed,
    )
    intruder = Record(USERS[user % len(USERS)], FAR + user, KEYS[0], (1.0,))
    more = Stream([[intruder, *batch] for batch in limited.batches], limited.clocks, limited.closed)
    before = run_admission(limited, p)
    after = run_admission(more, p)
    assert cells(after.contributions) == cells(before.contributions)
    assert after.drops["too_far_ahead"] == before.drops["too_far_ahead"] + len(stream.batches)


@given(st.lists(records(), min_size=1, max_size=30), bounding())
def test_state_is_forgotten_exactly_when_the_period_is_over(
    stream: list[Record], p: BoundingParameters
) -> None:
    """Catches: eviction one trigger early (an allowance would renew) and state that grows for ever. Clocks one microsecond before and at a
    period's last trigger are tried for every period."""
    admission = admit(None, table([r for r in stream if not r.drop]), Clock(), p)
    periods = set(admission.state.column("period").to_pylist())
    for period in periods:
        # The newest window that begins in the period; where windows and periods do not fit, the state may stay a little longer.
        starts = [
            start
            for start in range(period, period + p.grid.window_us)
            if (start - p.grid.offset_us) % p.grid.slide_us == 0
        ]
        last = max(starts, default=period) + p.grid.horizon * p.grid.trigger_us
        over = (
            last
            if p.grid.window_us % p.grid.slide_us == 0
            else period + p.grid.window_us + p.grid.horizon * p.grid.trigger_us
        )
        for clock, kept in ((last - 1, True), (over, not p.renews)):
            state = admit(admission.state, table([]), Clock(clock), p).state
            assert (period in state.column("period").to_pylist()) is kept
    if p.renews:
        assert admit(admission.state, table([]), Clock(EVERYTHING), p).state.num_rows == 0


@given(live_streams(), bounding(renews=True, rounds=None), st.integers(1, 3))
def test_resending_everything_admits_nothing_beyond_the_bounds(
    stream: Stream, p: BoundingParameters, again: int
) -> None:
    """Catches: allowances that renew when the same records come once more, also after ticks in between."""
    repeated = Stream(
        stream.batches * (again + 1),
        stream.clocks + stream.clocks[-1:] * (len(stream.batches) * again),
        [],
    )
    for user in USERS:
        rows = defaultdict(int)
        for row in run_admission(repeated.only(user), p).contributions.to_pylist():
            rows[row["window"]] += row["v0"]
        assert all(n <= p.max_rows * (1 + p.periods_meet) for n in rows.values())


@given(st.lists(records(), max_size=30), bounding(), st.integers(1, 2**31))
def test_keys_with_one_fingerprint_share_an_allowance(
    stream: list[Record], p: BoundingParameters, low: int
) -> None:
    """Less may be admitted, never more. Catches: a fingerprint clash that resets or duplicates a user's count or weight."""
    same = [
        Record(r.user, r.ts, (1 << 40) + (r.key % 3) * low % 2**32, r.values, r.drop)
        for r in stream
    ]
    for user in USERS:
        rows = run_admission(
            replay_stream([[r for r in same if r.user == user and not r.drop]]), p
        ).contributions.to_pylist()
        if p.renews:
            for window in {row["window"] for row in rows}:
                mine = [row for row in rows if row["window"] == window]
                assert sum(row["v0"] for row in mine) <= min(p.max_rows, p.max_rows_per_group) * (
                    1 + p.periods_meet
                )
                if p.groups_are_keys:
                    assert sum(row["users"] for row in mine) <= 1
        periods = (
            {p.grid.period(np.array([r.ts]))[0] for r in same if r.user == user and not r.drop}
            if p.renews
            else {0}
        )
        assert sum(row["weight"] ** 2 for row in rows) <= 2**40 * len(periods)


@given(live_streams(), bounding(renews=True), st.sampled_from(USERS), st.integers(-4, 4))
def test_a_period_that_goes_moves_one_user_for_each_of_its_groups_entries(
    stream: Stream, p: BoundingParameters, user: int, number: int
) -> None:
    """Also where groups share their fingerprint, here all: what theorem 2 says of COUNT(DISTINCT). Catches: a group whose entry two
    neighbouring periods look for."""
    mine = stream.only(user)
    start = p.grid.offset_us + number * p.grid.window_us
    rest = [
        [r for r in b if r.drop or not start <= r.ts < start + p.grid.window_us]
        for b in mine.batches
    ]
    gone = [
        [r for r in b if r.drop or start <= r.ts < start + p.grid.window_us] for b in mine.batches
    ]

    def users(batches: list[list[Record]]) -> Cells:
        return {
            cell: (v[4],)
            for cell, v in cells(
                run_admission(Stream(batches, mine.clocks), p).contributions
            ).items()
        }

    with mock.patch(
        "dpsql.udfs.intake.contribution_bounding._fingerprint",
        lambda hashes: np.zeros(len(hashes), np.uint32),
    ):
        whole = users(mine.batches)
        less = users(rest)
        entries = sum(v[0] for v in users(gone).values())
    moved = [whole.get(cell, (0,))[0] - less.get(cell, (0,))[0] for cell in {*whole, *less}]
    assert sum(n for n in moved if n > 0) <= entries
    assert -sum(n for n in moved if n < 0) <= entries


@given(records(), st.sampled_from(INCREMENTS))
def test_an_increment_is_within_its_clamp(record: Record, rule: Increment) -> None:
    """The reference itself: a clamp that the reference got wrong would hide the same mistake in the step."""
    if not record.drop:
        value = increment(record.values, rule, True)
        assert rule.lower <= value <= rule.upper or (value == 0 and math.isnan(record.values[0]))
