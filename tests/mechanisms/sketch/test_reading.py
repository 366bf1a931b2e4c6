"""What becomes public: who passes is tested at every trigger, what passed stays, and nothing of a window's hash key or cells before it closes."""

import dataclasses

import numpy as np
import pyarrow as pa

from dpsql.mechanisms.sketch.plan import SketchLimits
from dpsql.mechanisms.sketch.planner import make_plan
from dpsql.udfs.sketch.estimates import estimate
from dpsql.udfs.sketch.hashing import digest, digests, hash_key
from tests.mechanisms.sketch.sketch_runs import (
    COUNT,
    ONLY_ASKED,
    ROOT,
    START,
    Run,
    cells_of,
    event,
    public,
    query,
    records,
)
from tests.property.plans import DAY, HOUR, source

WIDE = {"depth": 9, "width": 256}


def many(key: bytes, count: int, first: int, user: int = 0) -> pa.Table:
    """One record each of so many units."""
    return records(
        list(range(user, user + count)), [START + first + i for i in range(count)], [key] * count
    )


def keys_of(lists: pa.Table, trigger: int) -> list[bytes]:
    return [row["key_bytes"] for row in lists.to_pylist() if row["trigger"] == trigger]


def test_what_passed_once_stays_and_a_quiet_key_is_tested_at_every_trigger() -> None:
    """A key that is below the floor at trigger 1 and brings nothing afterwards is tested at 2, 3, ..: not only keys of this micro-batch, or of this
    trigger (planted bugs 6 and 8, whose lists would tell that somebody brought it again)."""
    plan = make_plan(event(**WIDE), source())
    sd = plan.cells[0].sd[0] * plan.stderr
    tested = []
    for seed in range(1, 7):
        run = Run(plan, seed)
        run.feed(many(b"often", 900, 0))
        run.feed(many(b"quiet", round(4.9 * sd), 0))
        run.feed(records([1], [START + 1], [b"once"]))
        seen = [run.tick(START + 4 * HOUR * trigger) for trigger in range(1, 7)]
        shown = [{*keys_of(lists, trigger)} for trigger, lists in enumerate(seen, 1)]
        assert all(b"often" in each for each in shown)
        assert not any(b"once" in each for each in shown)
        first = next((i for i, each in enumerate(shown) if b"quiet" in each), None)
        tested.append(first)
        if first is not None:
            assert all(b"quiet" in each for each in shown[first:])
    # Noise moves between triggers: some pass late, without a new record.
    assert any(first not in (None, 0) for first in tested)


def test_a_catch_up_shows_what_a_live_run_shows() -> None:
    """Also a key that comes again: it has been there since its first trigger."""
    plan = make_plan(query(**WIDE, bounds=SketchLimits(4, 2, 4)), source())
    rows = pa.concat_tables(
        [
            many(b"a", 200, 0),
            many(b"b", 60, 100),
            many(b"b", 90, 9 * HOUR, 100),
            many(b"c", 300, 17 * HOUR),
        ]
    )
    live = Run(plan)
    late = Run(plan)
    ts = rows.column("ts").to_numpy()
    shown = []
    low = 0
    rows = rows.take(pa.array(np.argsort(ts, kind="stable")))
    ts = np.sort(ts)
    for trigger in range(1, 8):
        until = START + 4 * HOUR * trigger
        high = int(np.searchsorted(ts, until))
        live.feed(rows.slice(low, high - low))
        shown.append(live.tick(until))
        low = high
    late.feed(rows)
    assert late.tick(START + 28 * HOUR).equals(pa.concat_tables(shown).combine_chunks())
    assert pa.concat_tables(shown).num_rows > 8


def test_hash_key_and_cells_of_unknown_keys_wait_for_the_close() -> None:
    plan = make_plan(event(**WIDE), source())
    run = Run(plan)
    run.feed(many(b"a", 900, 0))
    for trigger in range(1, 6):
        run.tick(START + 4 * HOUR * trigger)
        assert run.read.sketches.num_rows == 0
        secret = hash_key(ROOT, START)
        for name, column in zip(run.read.lists.column_names, run.read.lists.columns, strict=True):
            assert secret not in column.to_pylist(), name
    run.tick(START + DAY)
    rows = run.read.sketches.to_pylist()
    assert [row["row"] for row in rows] == list(range(9))
    assert {row["hash_key"] for row in rows} == {hash_key(ROOT, START)}
    cells = np.stack([np.frombuffer(row["cells"], "<i8") for row in rows])
    assert np.array_equal(cells, cells_of(pa.concat_tables(run.released), plan, 6))
    # Anyone can now ask for a key that was never shown.
    shape = run.p.shape
    fields = shape.fields(
        rows[0]["hash_key"], digests(pa.array([digest(b"a"), digest(b"never")], pa.binary(32)))
    )
    found = estimate(shape, shape.scores(cells, fields))
    assert abs(found[0] - 900) < 40 > abs(found[1])


def test_listed_keys_and_only_asked_sketches_are_published_at_every_trigger() -> None:
    run = Run(
        make_plan(public(**WIDE, level=event().asked.level, bounds=None), source()),
        keys=[b"a", b"b", b"none"],
    )
    run.feed(
        pa.concat_tables([many(b"a", 500, 0), many(b"b", 700, 600), many(b"not listed", 800, 2000)])
    )
    lists = run.tick(START + DAY)
    assert keys_of(lists, 6) == [b"b", b"a"]  # what stands out, largest first
    assert [(row["trigger"], row["row"]) for row in run.read.sketches.to_pylist()] == [
        (t, row) for t in range(1, 7) for row in range(9)
    ]
    last = {row["key_bytes"]: row for row in lists.to_pylist() if row["trigger"] == 6}
    assert all(
        row["low"] <= count <= row["high"] for row, count in ((last[b"a"], 500), (last[b"b"], 700))
    )
    only = Run(make_plan(event(wanted=(ONLY_ASKED,)), source()))
    assert only.tick(START + DAY).num_rows == 0
    assert only.read.sketches.num_rows == 6 * 5


def test_equal_estimates_are_listed_by_value_and_lists_have_their_length() -> None:
    plan = make_plan(
        public(
            **WIDE,
            level=event().asked.level,
            bounds=None,
            wanted=(dataclasses.replace(COUNT, number=3),),
        ),
        source(),
    )
    keys = [b"%d" % i for i in range(8)]
    run = Run(plan, keys=keys)
    run.feed(pa.concat_tables([many(key, 400, 500 * i) for i, key in enumerate(keys)]))
    rows = [row for row in run.tick(START + DAY).to_pylist() if row["trigger"] == 6]
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert [(-row["value"], row["key_bytes"]) for row in rows] == sorted(
        (-row["value"], row["key_bytes"]) for row in rows
    )
