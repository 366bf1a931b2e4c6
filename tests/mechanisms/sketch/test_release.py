"""From records to public rows: noiseless tables are exact sketches of what was admitted. Cuts, buckets and orders: `tests/contract.py`."""

import dataclasses
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dpsql.mechanisms.sketch.plan import SketchLimits, SketchPlan, Wanted, WantedPerGroup
from dpsql.mechanisms.sketch.planner import make_plan
from dpsql.parsed_query import ContributionPeriod, WindowSpec
from dpsql.udfs.grid import Grid
from dpsql.udfs.histogram.release import ReleaseParameters, release
from dpsql.udfs.keys import PublicGroups
from dpsql.udfs.measure.output_columns import OutputColumn
from dpsql.udfs.sketch.hashing import hash_key
from dpsql.udfs.stage import Clock, Tick
from tests.mechanisms.sketch import reference
from tests.mechanisms.sketch.reference import Record
from tests.mechanisms.sketch.sketch_runs import (
    COUNT,
    ONLY_ASKED,
    ROOT,
    START,
    Run,
    cells_of,
    event,
    noise_key,
    public,
    query,
    records,
)
from tests.property.plans import DAY, HOUR, source

KEYS = [b"a", b"b", b"c", b"d", b"e"]
SUM = Wanted("spent", 3, "seconds", (-3.0, 9.0))
BOUNDED = WantedPerGroup("spent", 3, "seconds", (-3.0, 9.0))
STREAM = {"contribution_period": ContributionPeriod.STREAM}
BOUNDS = {"bounds": SketchLimits(4, 2, 3), "depth": 3}


def planned(asked: Any, noiseless: bool = False) -> SketchPlan:
    plan = make_plan(asked, source())
    if noiseless:
        plan = dataclasses.replace(
            plan, cells=tuple(dataclasses.replace(c, sigma=c.grid * 2.0**-30) for c in plan.cells)
        )
    return plan


ASKED = {
    "unknown": query(**BOUNDS),
    "unknown, STREAM": query(**BOUNDS, **STREAM),
    "sums, listed": public(**BOUNDS, wanted=(COUNT, SUM)),
    "sliding": public(**BOUNDS, window=WindowSpec(DAY, 8 * HOUR, 0)),
    "sums, bounds per group": public(**BOUNDS, wanted=(BOUNDED,)),
    "sliding, bounds per group": public(
        **BOUNDS, wanted=(COUNT, BOUNDED), window=WindowSpec(DAY, 8 * HOUR, 0)
    ),
    "event, unknown": event(depth=3, wanted=(COUNT, SUM)),
    "event, only asked": event(depth=3, wanted=(ONLY_ASKED,), window=WindowSpec(DAY, 8 * HOUR, 0)),
}
MINUTE = HOUR // 60


def stream(seed: int, size: int = 70) -> list[tuple[int, int, bytes, int]]:
    """(unit, minute, key, value) of two days: few units, so that every bound bites."""
    pick = random.Random(seed)
    return [
        (pick.randint(1, 6), pick.randrange(2 * 24 * 60), pick.choice(KEYS), pick.randint(-5, 12))
        for _ in range(size)
    ]


def table(some: list[tuple[int, int, bytes, int]]) -> pa.Table:
    """In order of event time, no two records of a unit at the same one."""
    some = sorted(
        {(user, minute): (user, minute, key, value) for user, minute, key, value in some}.values(),
        key=lambda r: (r[1], r[0]),
    )
    return records(
        [r[0] for r in some],
        [START + r[1] * MINUTE + r[0] for r in some],
        [r[2] for r in some],
        np.array([float(r[3]) for r in some]),
    )


def done(run: Run, rows: pa.Table, ticks: list[int], pieces: int = 1) -> pa.Table:
    """Feed the records between ticks: all that was released."""
    ts = rows.column("ts").to_numpy()
    low = 0
    for until in ticks:
        high = int(np.searchsorted(ts, until))
        part = rows.slice(low, high - low)
        edges = np.linspace(0, part.num_rows, pieces + 1).astype(int)
        for a, b in pairwise(edges):
            run.feed(part.slice(a, b - a))
        low = high
        run.tick(until)
    return pa.concat_tables(run.released)


TICKS = [START + 5 * HOUR, START + 13 * HOUR, START + 26 * HOUR, START + 2 * DAY]


def expected(plan: SketchPlan, some: pa.Table, window: int, trigger: int) -> np.ndarray:
    """Exact cells as plain lists: what was admitted and owned by this trigger."""
    asked = plan.query.asked
    query = plan.query
    size = query.windows.size_us
    slide = query.windows.slide_us
    given = [Record(r["user"], r["ts"], r["key_bytes"], int(r["a0"])) for r in some.to_pylist()]
    stream = query.contribution_period is ContributionPeriod.STREAM
    if asked.bounds:
        per_period: dict[int, list[Record]] = {}
        for record in given:
            per_period.setdefault(0 if stream else record.ts // size, []).append(record)
        b = asked.bounds
        alone = all(each.rule == "sum_per_group" for each in plan.cells)
        given = []
        for some_of_them in per_period.values():
            rooms = reference.Rooms(
                -3,
                9,
                alone,
                lambda ts: [w for w in range(ts // slide * slide, ts - size, -slide) if w >= START],
            )
            given += reference.admitted(
                some_of_them, b.max_rows, b.max_rows_per_key, b.max_keys, rooms
            )
    out = np.zeros((asked.depth * len(plan.cells), asked.width), np.int64)
    blocks = -(-asked.depth * asked.width.bit_length() // 128)

    def column(record: Record, row: int) -> tuple[int, int]:
        place = (
            record.ts // slide * slide
            if plan.unknown_keys
            else (0 if stream else record.ts // size)
        )
        key = hash_key(ROOT, place if plan.unknown_keys else None)
        return place, reference.place(key, reference.digest(record.key), row, asked.width, blocks)[
            0
        ]

    for row in range(asked.depth):
        for record in reference.owned(given, row, column) if asked.bounds else given:
            if not window <= record.ts < window + size or window < START:
                continue
            key = hash_key(ROOT, window if plan.unknown_keys else None)
            at, sign = reference.place(key, reference.digest(record.key), row, asked.width, blocks)
            if (record.ts - window) // query.trigger_interval_us < trigger:
                for number, each in enumerate(plan.cells):
                    value = (
                        min(max(record.value / each.grid, each.lower), each.upper)
                        if each.rule == "sum"
                        else 1
                    )
                    value = (
                        record.shares[window] / each.grid if each.rule == "sum_per_group" else value
                    )
                    out[number * asked.depth + row, at] += sign * int(value)
    return out


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("seed", [2, 3])
def test_without_noise_the_table_is_the_sketch_of_what_was_admitted(name: str, seed: int) -> None:
    """At every trigger: a record is in its cells from its own trigger on."""
    plan = planned(ASKED[name], noiseless=True)
    rows = table(stream(seed))
    released = done(Run(plan, buckets=(2, 2)), rows, TICKS, pieces=2)
    for window in (START, START + DAY):
        for trigger in range(1, plan.triggers + 1):
            assert np.array_equal(
                cells_of(released, plan, trigger, window), expected(plan, rows, window, trigger)
            )


def test_every_window_has_its_cells_at_every_trigger_whether_it_has_records_or_not() -> None:
    plan = planned(public(depth=3))
    empty = done(Run(plan), table([]), TICKS)
    full = done(Run(plan), table([(1, 3, b"a", 1)]), TICKS)
    names = ["kind", "window", "trigger", "row"]
    assert empty.select(names).equals(full.select(names))
    assert empty.num_rows == 2 * plan.triggers * 3
    changed = np.flatnonzero(
        [
            a != b
            for a, b in zip(empty["payload"].to_pylist(), full["payload"].to_pylist(), strict=True)
        ]
    )
    assert {empty["window"][int(i)].as_py() for i in changed} == {START}


def test_a_sketch_is_a_histogram_over_the_numbers_of_its_cells() -> None:
    """Listed: the same noise key and plan, cells as public groups of the histogram: the same numbers, bit for bit."""
    plan = planned(event(wanted=(ONLY_ASKED,), depth=3))
    rows = table([(user, 40 * user, KEYS[user % 5], 1) for user in range(1, 36)])
    run = Run(plan)
    run.feed(rows)
    run.tick(START + DAY)
    partial = run.stages[0].step({}, rows.select(run.stages[0].takes.names), Clock(), ROOT).rows
    contributions: dict[str, list[int]] = {name: [] for name in ("window", "trigger", "key", "v0")}
    for row in partial.to_pylist():
        values = (
            np.frombuffer(row["payload"], "<i8").reshape(-1, 2)
            if row["form"] == 1
            else np.array([])
        )
        for column, value in values:
            for name, number in (
                ("window", row["window"]),
                ("trigger", row["trigger"]),
                ("key", row["row"] * 64 + column),
                ("v0", value),
            ):
                contributions[name].append(int(number))
    given = {name: pa.array(values, pa.int64()) for name, values in contributions.items()}
    size = len(contributions["key"])
    given |= {name: pa.array([0] * size, pa.int64()) for name in ("weight", "users", "batch")}
    given["key_bytes"] = pa.array([b"%06d" % key for key in contributions["key"]], pa.binary())
    p = run.stages[1].parameters
    grid = Grid(DAY, DAY, 0, 4 * HOUR, 6)
    cells = PublicGroups(tuple(range(3 * 64)), tuple(b"%06d" % key for key in range(3 * 64)), START)
    shown = OutputColumn("count", (0,), (1.0,), ((0.0,) * 6,))
    found = release(
        None,
        pa.table(given),
        [Tick(0, START + DAY)],
        ReleaseParameters(grid, None, p.noise, (shown,), cells),
        noise_key(),
    ).rows
    for trigger in range(1, 7):
        mine = found.filter(pa.array(found["trigger"].to_numpy() == trigger))
        assert np.array_equal(
            mine["c0"].to_numpy().reshape(3, 64), cells_of(run.released[0], plan, trigger)
        )


def test_records_that_count_nowhere() -> None:
    run = Run(planned(query(**BOUNDS)))
    rows = table([(1, 10, b"a", 1), (2, 20, b"b", 1), (3, 30, b"c", 1), (4, 40, b"d", 1)])
    dropped = rows.set_column(0, "drop", pa.array([0, 1, 3, 4], pa.int8()))
    early = rows.set_column(
        rows.column_names.index("ts"),
        "ts",
        pa.array([START - 1, START + 2 * DAY, (1 << 61) - 1, -(1 << 60)]),
    )
    for wrong, reasons in (
        (dropped, {"malformed": 1, "null_privacy_unit": 1, "key_too_long": 1}),
        (early, {"too_far_ahead": 2, "window_closed": 2}),
    ):
        stage = run.stages[0]
        step = stage.step(
            stage.empty(),
            wrong.select(stage.takes.names),
            dataclasses.replace(Clock(), latest_us=START + DAY),
            ROOT,
        )
        assert step.counted["drops"] == reasons
    run.feed(
        table(
            [(1, 10 * i, KEYS[i], 1) for i in range(5)] + [(2, 10 * i, b"a", 1) for i in range(3)]
        )
    )
    users = run.state[0][0]["users"].to_pylist()
    assert sorted((row["user"], row["rows"]) for row in users) == [(1, 1), (1, 1), (1, 1), (2, 2)]


def test_state_does_not_grow_with_values_and_is_forgotten() -> None:
    plan = planned(event(wanted=(ONLY_ASKED,)))
    sizes = []
    for many in (5, 500):
        run = Run(plan)
        run.feed(
            records([1] * many, list(range(START, START + many)), [b"%d" % i for i in range(many)])
        )
        run.tick(START + 5 * HOUR)
        sizes.append(sum(table.nbytes for table in run.state[1][0].values()))
        run.tick(START + 9 * DAY)
        assert run.state[1][0]["cells"].num_rows == 0
    assert sizes[0] == sizes[1]
    for asked in (query(**BOUNDS), public(**BOUNDS, wanted=(BOUNDED,))):
        run = Run(planned(asked))
        run.feed(table([(1, 10, b"a", 1)]))
        assert all(table.num_rows for table in run.state[0][0].values())
        run.tick(START + 5 * DAY)
        run.feed(table([]))
        assert all(table.num_rows == 0 for table in run.state[0][0].values())
        assert all(table.num_rows == 0 for table in run.read.state.values())
