"""Releases for any contributions, cut, bucket count and ticks: with the noise replaced by zero, and with all of it."""

import dataclasses
import math
import struct
from functools import lru_cache
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from dpsql.parts.key_selection import selection_weights
from dpsql.udfs.grid import Grid
from dpsql.udfs.histogram.release import ReleaseParameters, release
from dpsql.udfs.intake.contribution_bounding import BoundingParameters
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.stage import Clock, Tick
from tests.property.streams import (
    EVERYTHING,
    INCREMENTS,
    KEYS,
    WINDOW,
    Stream,
    bits,
    bounding,
    cut_by_time,
    identifier,
    joined,
    live_streams,
    records,
    release_parameters,
    releasing,
    replay_stream,
    run_admission,
    run_release,
    selection,
)
from tests.reference import Admitted, Bounder, Record, Row, released

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))


def no_noise(_key: bytes, tag: np.ndarray, *_cell: object) -> np.ndarray:
    """Words whose normal is nearest to zero, from above: 4e-39, in float64 0."""
    return np.full((len(tag), 2), 2**64 - 1, np.uint64)


@lru_cache(maxsize=100_000)
def one_normal(window: int, key: int, mechanism: int, round_: int, step: int, number: int) -> float:
    """The noise of one cell, one AES block at a time."""
    aes = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()
    inner = aes.update(struct.pack("<qq", window, key))
    cell = struct.pack("<IIII", mechanism, number, step, round_)
    first, second = struct.unpack(
        "<QQ", aes.update(bytes(x ^ y for x, y in zip(inner, cell, strict=True)))
    )
    z = float(ndtri(((first % 2**63) + (second + 0.5) * 2.0**-64) * 2.0**-64))
    return -z if first >> 63 else z


def admitted(stream: Stream, b: BoundingParameters) -> list[Admitted]:
    reference = Bounder(b)
    return [
        a
        for batch, c in zip(stream.batches, stream.clocks, strict=True)
        for a in reference.admit(batch, c.closed_us, c.latest_us)
    ]


def plain(rows: pa.Table, p: ReleaseParameters) -> list[Row]:
    """Released rows as the reference writes them."""
    values = [
        [
            None if isinstance(v, float) and math.isnan(v) else v
            for v in rows.column(f"c{i}").to_pylist()
        ]
        for i in range(len(p.columns))
    ]
    return list(
        zip(
            *(rows.column(n).to_pylist() for n in ("window", "trigger", "key_bytes")),
            zip(*values, strict=True),
            strict=True,
        )
    )


@given(live_streams(), bounding(rounds=None), st.data(), st.integers(1, 4))
def test_without_noise_the_released_rows_are_the_reference(
    stream: Stream, b: BoundingParameters, data: st.DataObject, buckets: int
) -> None:
    """Catches: a key that is not tested again, a total that misses a late record, a row before its selection or after the last trigger."""
    p = data.draw(releasing(b))
    with mock.patch("dpsql.udfs.noise.randomness.words", no_noise):
        rows = joined(
            run_release(run_admission(stream, b).contributions, stream.ticks, p, KEY, buckets)
        )
    assert plain(rows, p) == released(admitted(stream, b), p, EVERYTHING)


@given(live_streams(), bounding(rounds=None), st.data())
def test_with_noise_too(stream: Stream, b: BoundingParameters, data: st.DataObject) -> None:
    """The noise of every cell by one AES block, the path by the counter's definition, every group tested at every trigger. Catches: a path
    that starts at a key's first record, steps skipped or done twice across ticks, mechanisms, rounds or windows mixed up, noise rounded
    after it was added, a sleeping group (Algorithm 4) that wakes too late."""
    p = data.draw(releasing(b))
    rows = joined(run_release(run_admission(stream, b).contributions, stream.ticks, p, KEY))
    assert plain(rows, p) == released(admitted(stream, b), p, EVERYTHING, one_normal)


@settings(max_examples=12)
@given(live_streams(), bounding(), st.integers(-40, 20), st.data())
def test_public_groups_are_released_at_every_trigger(
    stream: Stream, b: BoundingParameters, first: int, data: st.DataObject
) -> None:
    """Records or not, from the declared first window on. Catches: a group that only records bring to life, or a window too many."""
    first = int(b.grid.latest_window(np.array([first]))[0])
    keys = tuple(sorted(data.draw(st.sets(st.sampled_from(KEYS), min_size=1))))
    b = dataclasses.replace(b, public_keys=keys, first_window_us=first)
    p = release_parameters(
        b, None, "BLT", PublicGroups(keys, tuple(Record(0, 0, k).key_bytes for k in keys), first)
    )
    ticks = [Tick(t.batch, min(t.closed_us, 80)) for t in stream.ticks]
    contributions = run_admission(stream, b).contributions
    rows = joined(
        run_release(
            contributions, ticks, p, KEY, data.draw(st.integers(1, 4)), range(len(stream.batches))
        )
    )
    assert plain(rows, p) == released(admitted(stream, b), p, 80, one_normal)


@given(live_streams(), bounding(rounds=None), st.data())
def test_cuts_buckets_and_idle_ticks_do_not_matter(
    stream: Stream, b: BoundingParameters, data: st.DataObject
) -> None:
    """The same contributions and clock, cut otherwise. Catches: noise or tests per micro-batch, state lost or shared between buckets. Idle
    ticks fall between the grid points, repeat, or go back in time; each ticks no further than the stream's own next tick."""
    p = data.draw(releasing(b))
    contributions = run_admission(stream, b).contributions
    whole = bits(joined(run_release(contributions, stream.ticks, p, KEY)))
    starts = sorted({0, *data.draw(st.lists(st.integers(0, len(stream.batches)), max_size=4))})
    idle = [
        Tick(i, data.draw(st.integers(-60, closed)) if closed > -60 else closed)
        for i, closed in enumerate(stream.closed)
        if closed < EVERYTHING
    ]
    shuffled = contributions.take(
        pa.array(np.random.default_rng(len(starts)).permutation(contributions.num_rows))
    )
    ticks = data.draw(st.permutations([*stream.ticks, *idle]))
    assert (
        bits(joined(run_release(shuffled, ticks, p, KEY, data.draw(st.integers(1, 5)), starts)))
        == whole
    )


@given(st.lists(records(), max_size=30), bounding(rounds=None), st.data())
def test_many_ticks_give_the_rows_of_one(
    stream: list[Record], b: BoundingParameters, data: st.DataObject
) -> None:
    """After all input, ticks at any times. Catches: a tick that closes several triggers tests only the last, or advances noise once."""
    p = data.draw(releasing(b))
    contributions = run_admission(replay_stream([stream]), b).contributions
    times = sorted(data.draw(st.lists(st.integers(-40, 60), max_size=6)))
    one = joined(run_release(contributions, [Tick(0, EVERYTHING)], p, KEY))
    many = run_release(
        contributions,
        [Tick(i, t) for i, t in enumerate([*times, EVERYTHING])],
        p,
        KEY,
        1,
        range(len(times) + 1),
    )
    assert bits(joined(many)) == bits(one)


@given(live_streams(), bounding(rounds=None), st.data())
def test_what_is_published_is_never_published_again_or_changed_by_later_records(
    stream: Stream, b: BoundingParameters, data: st.DataObject
) -> None:
    """Catches: a trigger released by two ticks, and releases that depend on what arrives after them."""
    p = data.draw(releasing(b))
    steps = run_release(
        run_admission(stream, b).contributions, stream.ticks, p, KEY, 1, range(len(stream.batches))
    )
    published: set[tuple[int, int]] = set()
    for step in steps:
        points = {(row["window"], row["trigger"]) for row in step.to_pylist()}
        assert not points & published
        published |= points
    so_far = Stream(stream.batches[:-1], stream.clocks[:-1], stream.closed[:-1])
    if so_far.batches:
        early = run_release(
            run_admission(so_far, b).contributions,
            so_far.ticks,
            p,
            KEY,
            1,
            range(len(so_far.batches)),
        )
        assert bits(joined(early)) == bits(joined(steps[:-1]))


@given(live_streams(), bounding())
def test_another_noise_key_changes_every_row(stream: Stream, b: BoundingParameters) -> None:
    """Catches: a key that is ignored, or used for some mechanisms only. Three columns of noise with sd 40 to 160 never agree by chance."""
    p = release_parameters(
        b, selection(b, [-(1 << 40)] * b.grid.horizon)
    )  # everything is certain to be selected
    contributions = run_admission(stream, b).contributions
    one, two = (
        joined(run_release(contributions, stream.ticks, p, key)) for key in (KEY, OTHER_KEY)
    )
    same = ["window", "trigger", "key_bytes"]
    assert one.select(same).equals(two.select(same))
    assert not set(plain(one, p)) & set(plain(two, p))


@given(live_streams(), bounding(rounds=None), st.data())
def test_closed_windows_leave_no_state(
    stream: Stream, b: BoundingParameters, data: st.DataObject
) -> None:
    """Catches: groups or pending increments that outlive their window (state growth), or are dropped before it ends (lost rows)."""
    p = data.draw(releasing(b))
    rows = run_admission(stream, b).contributions
    state = release(None, rows, stream.ticks[:-1], p, KEY).state
    alive = {
        (row["window"], row["key"])
        for row in rows.to_pylist()
        if row["window"] + p.grid.horizon * p.grid.trigger_us > state.closed_us
    }
    assert {(row["window"], row["key"]) for row in state.groups.to_pylist()} == alive
    end = release(state, rows.slice(0, 0), [Tick(len(stream.batches), EVERYTHING)], p, KEY).state
    assert end.groups.num_rows == end.pending.num_rows == end.seen.num_rows == 0
    assert end.closed_us == EVERYTHING


@pytest.mark.parametrize("name", ["BLT", "HONAKER"])
@pytest.mark.parametrize("rounds", [False, True])
def test_busy_groups_under_much_noise_are_the_reference(rounds: bool, name: str) -> None:
    """Two users are enough and the noise is as large as that: groups sleep, are woken by users or by noise, and go through many rounds.
    Catches: a group asleep although somebody joined, a new round with the old noise (its users' weights could be subtracted), a path that
    is not reset, users of an earlier round that count again."""
    generator = np.random.default_rng(3)
    grid = Grid(WINDOW, WINDOW, 0, 2, 6)
    b = BoundingParameters(grid, True, 4, 4, 4, selection_weights(4, 0.0), INCREMENTS, rounds)
    drawn = zip(
        generator.integers(0, 60, 240),
        generator.integers(-12, 24, 240),
        generator.integers(0, 25, 240),
        strict=True,
    )
    batches = cut_by_time(
        [Record(identifier(int(u)), int(t), identifier(int(k)), (0.25,)) for u, t, k in drawn],
        range(-10, 24, 2),
    )
    closed = [-10 + 2 * i for i in range(len(batches))]
    stream = Stream(batches, [Clock(), *(Clock(c) for c in closed[:-1])], closed)
    p = release_parameters(
        b, dataclasses.replace(selection(b, [1 << 20] * 6, name=name), sigma=0.5), name
    )
    rows = run_release(
        run_admission(stream, b).contributions, stream.ticks, p, KEY, 2, range(len(batches))
    )
    expected = released(admitted(stream, b), p, closed[-1], one_normal)
    assert len(expected) > 50
    assert plain(joined(rows), p) == expected
