"""Cells that close: which trigger has all records of a value, and that each cell is then measured once."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dpsql
from dpsql.errors import AccountingError, QueryError
from dpsql.local.feeder import Feeder
from dpsql.mechanisms.marginals.accounting import account
from dpsql.mechanisms.marginals.closing import CUTS, closing_triggers
from dpsql.mechanisms.marginals.plan import MarginalsPlan
from dpsql.mechanisms.marginals.planner import make_plan
from dpsql.mechanisms.marginals.stages import domains, intake, release
from dpsql.parsed_query import CounterName
from dpsql.sources.config import Source
from dpsql.sources.domains import Domain
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.keys import encode
from dpsql.udfs.marginals.estimates import LeastSquares
from dpsql.udfs.marginals.release import CLOSED_CELL, OUTSIDE, ClosingKeys
from dpsql.udfs.stage import Clock
from dpsql.udfs.table_grid import TableGrid
from tests.checks.test_sensitivity import strategy
from tests.mechanisms.marginals.dense import split, sums
from tests.mechanisms.marginals.plans import START, numbered, query, source
from tests.property.plans import COUNT, HOUR, SUM

LAST = 5
HOURS = ((1, "hour"),)
NOISE_KEY = bytes(range(32))
DAY = 24 * HOUR


def plan(**changes: Any) -> MarginalsPlan:
    given = {
        "domains": (numbered(3, False), numbered(24, True), numbered(2, True)),
        "grouping_sets": ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)),
        "max_triggers": LAST,
        "aggregates": (COUNT, SUM),
        "cuts": HOURS,
        "trigger_interval_us": HOUR,
    }
    return make_plan(query(**given | changes), source())


def records(size: int, seed: int = 5, units: int = 1 << 40) -> tuple[pa.Table, np.ndarray]:
    """Records of hours 0 to 4 in any order, some before the start, and the places of their values."""
    pick = np.random.default_rng(seed)
    ts = START + pick.integers(-HOUR, LAST * HOUR, size)
    places = np.column_stack(
        [pick.integers(0, 3, size), ts % DAY // HOUR, pick.integers(0, 2, size)]
    )
    names = [encode([b"%d" % value for value in row]) for row in places.tolist()]
    columns = {
        "drop": np.zeros(size, np.int8),
        "user": pick.integers(0, units, size),
        "ts": ts,
        "key": np.zeros(size, np.int64),
        "key_bytes": pa.array(names, pa.binary()),
        "a0": pick.uniform(0, 50, size),
    }
    return pa.table(columns), places


def fed(
    asked: MarginalsPlan, given: pa.Table, clocks: list[int], noise_key: bytes = NOISE_KEY
) -> tuple[pa.Table, dict[str, int]]:
    """Feed the records in as many parts as there are clocks, each before its clock moves on."""
    feeder = Feeder((intake(asked), release(asked)), noise_key, buckets=(2, 3))
    released = []
    closed = NO_CLOCK
    size = -(-given.num_rows // len(clocks))
    for number, clock in enumerate(clocks):
        part = given.slice(number * size, size)
        feeder.micro_batch(part, Clock(closed, 1 << 62))
        closed = START + clock * HOUR
        released += feeder.tick(closed)
    rows = pa.concat_tables(released).sort_by(
        [("trigger", "ascending"), ("key_bytes", "ascending")]
    )
    return rows, dict(feeder.drops)


def cells_of(asked: MarginalsPlan, rows: pa.Table) -> np.ndarray:
    names = domains(asked).names(asked.marginals, np.arange(asked.marginals.first[-1]))
    place = {name: cell for cell, name in enumerate(names.to_pylist())}
    return np.array([place[name] for name in rows["key_bytes"].to_pylist()])


TWELVE = numbered(12, True)


@pytest.mark.parametrize(
    ("function", "domain", "start_us", "interval_us", "last", "expected"),
    [
        ("hour", numbered(4, True), 0, HOUR, 3, (1, 2, 3, 0)),
        ("hour", numbered(4, True), 2 * HOUR, HOUR, 3, (0, 0, 1, 2)),
        ("hour", numbered(4, True), 0, 2 * HOUR, 2, (1, 1, 2, 2)),
        # hour 0 comes again on the next day
        ("hour", numbered(24, True), 0, HOUR, 25, None),
        ("hour", numbered(3, True), 23 * HOUR, HOUR, 24, (2, 3, 4)),
        # a trigger within an hour
        ("hour", numbered(24, True), 0, HOUR // 4, 40, None),
        ("hour", numbered(24, True), HOUR // 2, HOUR, 4, None),
        ("month", TWELVE, 0, DAY, 59, None),
        ("month", TWELVE, 0, 31 * DAY, 1, (0, 1, *[0] * 10)),
        (
            "date",
            Domain(("1970-01-01", "1970-01-02", "else"), True, other=True),
            0,
            DAY,
            3,
            (1, 2, 3),
        ),
        # `else` has two days
        ("date", Domain(("1970-01-01", "1970-01-02", "else"), True, other=True), 0, DAY, 4, None),
        ("minute", numbered(60, True), 0, 60_000_000, 60, tuple(range(1, 61))),
        (
            "text of hour",
            Domain(("1970-01-01 00:00:00", "1970-01-01 01:00:00"), True),
            0,
            HOUR,
            3,
            (1, 2),
        ),
        ("text of day", Domain(("1970-01-02 00:00:00",), True), 0, DAY, 2, (2,)),
        ("text of minute", Domain(("1970-01-01 00:01:00",), True), 0, 60_000_000, 9, (2,)),
    ],
)
def test_which_trigger_has_all_records_of_a_value(
    function: str,
    domain: Domain,
    start_us: int,
    interval_us: int,
    last: int,
    expected: tuple[int, ...] | None,
) -> None:
    grid = TableGrid.from_start(start_us, interval_us, last)
    assert closing_triggers([(CUTS[function], domain)], grid) == expected


@pytest.mark.parametrize("clocks", [[5], [1, 2, 3, 4, 5], [3, 5]])
def test_a_closed_cell_is_measured_once_and_holds_all_that_came_in_time(clocks: list[int]) -> None:
    """Catches: a cell that has new noise at each trigger, and a record that comes late and counts in one table."""
    asked = plan()
    given, places = records(400)
    found, drops = fed(asked, given, clocks)
    trigger = (given["ts"].to_numpy() - START) // HOUR + 1
    size = -(-400 // len(clocks))
    known = np.repeat([0, *clocks[:-1]], size)[:400]
    in_time = (given["ts"].to_numpy() >= START) & (trigger > known)
    assert drops == {CLOSED_CELL: int((~in_time).sum())} and 0 < in_time.sum() < 400
    assert asked.closing is not None
    cells = cells_of(asked, found)
    closing = asked.closing.of_cells(asked.marginals, cells)
    now = found["trigger"].to_numpy()
    assert np.all(closing <= now)
    for last in range(1, LAST + 1):
        moving = asked.marginals.cells[0] + asked.marginals.cells[2] + asked.marginals.cells[4]
        closed_now = last * (1 + 3 + 2 + 6)
        assert (now == last).sum() == moving + closed_now
    exact = sums(asked.marginals, places[in_time], np.ones(int(in_time.sum()), np.int64))
    told = {}
    for cell, at, value in zip(
        cells.tolist(), closing.tolist(), found["c0"].to_pylist(), strict=True
    ):
        if at:
            assert told.setdefault(cell, value) == value
    noise = np.array([value - exact[cell] for cell, value in told.items()])
    sigma = dict(zip(range(7), asked.sums[0].sigmas, strict=True))
    table = np.searchsorted(asked.marginals.first, np.array([*told]), side="right") - 1
    scaled = noise / np.array([sigma[t] for t in table.tolist()])
    assert len(told) == LAST * 12 and 0.6 < scaled.std() < 1.4 and np.abs(scaled).max() < 5
    errors = found["s0"].to_numpy()[closing > 0]
    kinds = np.searchsorted(asked.marginals.first, cells[closing > 0], side="right") - 1
    assert np.allclose(errors, np.sqrt(np.array(asked.sums[0].sigmas)[kinds] ** 2 + 1 / 12))


def test_parts_and_buckets_do_not_matter() -> None:
    asked = plan()
    given, _ = records(200)
    given = given.sort_by("ts")
    at_once, _ = fed(asked, given, [5])
    feeder = Feeder((intake(asked), release(asked)), NOISE_KEY, buckets=(5, 1))
    released = []
    for hour in range(-1, LAST):
        within = (given["ts"].to_numpy() - START) // HOUR == hour
        feeder.micro_batch(
            given.filter(pa.array(within)), Clock(START + max(hour, 0) * HOUR, 1 << 62)
        )
        released += feeder.tick(START + (hour + 1) * HOUR)
    one_by_one = pa.concat_tables(released).sort_by(
        [("trigger", "ascending"), ("key_bytes", "ascending")]
    )
    assert one_by_one.equals(at_once)


def test_a_record_whose_value_is_of_another_time_counts_nowhere() -> None:
    """One that says hour 3 and came in hour 1 would be in a count of all and in no closed cell."""
    asked = plan()
    given, _ = records(60)
    given = given.filter(pa.array(given["ts"].to_numpy() >= START))
    names = [encode([b"0", b"4", b"0"])] * given.num_rows
    given = given.set_column(4, "key_bytes", pa.array(names, pa.binary()))
    found, drops = fed(asked, given, [5])
    of_hour_4 = (given["ts"].to_numpy() - START) // HOUR == 4
    assert drops == {CLOSED_CELL: int((~of_hour_4).sum())}
    unknown = given.set_column(
        4, "key_bytes", pa.array([encode([b"0", b"30", b"0"])] * given.num_rows, pa.binary())
    )
    assert fed(asked, unknown, [5])[1] == {OUTSIDE: given.num_rows}
    assert found.num_rows > 0


def shifted(asked: MarginalsPlan, given: pa.Table) -> float:
    """The square of what the records move, in units of the noise: counters at all triggers, closed cells once."""
    stage = intake(asked)
    rows = stage.step(stage.empty(), given, Clock(NO_CLOCK, 1 << 62), bytes(32)).rows
    cell = rows["key"].to_numpy()
    table = np.searchsorted(asked.marginals.first, cell, side="right") - 1
    assert asked.closing is not None
    closing = asked.closing.of_cells(asked.marginals, np.arange(asked.marginals.first[-1]))
    total = 0.0
    for i, each in enumerate(asked.sums):
        moved = np.zeros((asked.marginals.first[-1], LAST))
        scaled = rows[f"v{i}"].to_numpy() * each.grid / np.array(each.sigmas)[table]
        np.add.at(moved, (cell, rows["trigger"].to_numpy() - 1), scaled)
        total += np.sum((moved[closing == 0] @ strategy(CounterName.BLT, LAST).T) ** 2)
        total += np.sum(moved[closing > 0].sum(axis=1) ** 2)
    return float(total)


def worst(asked: MarginalsPlan, streams: int = 120) -> float:
    """Of one unit's streams; half of them are one record again and again."""
    out = 0.0
    for seed in range(streams):
        given, _ = records(6, seed, units=1)
        given = given.set_column(5, "a0", pa.array(np.full(6, 1e9)))
        if seed % 2:
            given = given.take([0] * 6)
        out = max(out, shifted(asked, given))
    return out


@pytest.mark.parametrize("rows", [1, 3])
def test_the_charge_is_reached_and_never_passed(rows: int) -> None:
    asked = plan(max_rows_contributed=rows)
    assert worst(asked) / asked.mu**2 == pytest.approx(1, abs=1e-4)
    account(asked, source())


def test_a_plan_whose_cells_do_not_close_as_it_says_is_refused() -> None:
    asked = plan()
    assert asked.closing is not None
    later = tuple(trigger + 1 if trigger == 2 else trigger for trigger in asked.closing.triggers)
    less = tuple(
        dataclasses.replace(each, sigmas=tuple(sigma * 0.98 for sigma in each.sigmas))
        for each in asked.sums
    )
    wrong = [
        dataclasses.replace(asked, closing=ClosingKeys((1,), later)),
        dataclasses.replace(asked, closing=ClosingKeys((0,), (1, 2, 3))),
        dataclasses.replace(asked, sums=less),
    ]
    open_cells = plan(cuts=())
    wrong.append(dataclasses.replace(open_cells, closing=asked.closing))
    for each in wrong:
        with pytest.raises(AccountingError):
            account(each, source())
    # Without a last trigger, and where the value comes again, nothing closes
    assert plan(max_triggers=None).closing is None
    assert plan(max_triggers=48).closing is None
    # The same noise in cells that do not close costs more than is charged
    with pytest.raises(AccountingError):
        account(dataclasses.replace(asked, closing=None), source())


def test_intervals_of_answers_hold_the_truth() -> None:
    """Least squares over counters and closed cells, 100 noise keys, at trigger 3."""
    asked = plan(aggregates=(COUNT,))
    given, places = records(300)
    now = 3
    inside = (given["ts"].to_numpy() >= START) & (places[:, 1] < now)
    model = LeastSquares(
        (3, now, 2), asked.marginals.tables, asked.noisy_tables(asked.sums[0]).variances(now)
    )
    predicates = [
        {0: np.array([1.0, 0, 0])},
        {1: np.array([0, 1.0, 1])},
        {0: np.array([1.0, 1, 0]), 1: np.array([1.0, 0, 0])},
        {1: np.array([1.0, 1, 0]), 2: np.array([0, 1.0])},
    ]
    truth = [
        float(np.prod([w[places[inside, key]] for key, w in each.items()], axis=0).sum())
        for each in predicates
    ]
    apart = []
    for number in range(100):
        found, _ = fed(asked, given, [now], number.to_bytes(32, "big"))
        found = found.filter(pa.array(found["trigger"].to_numpy() == now))
        values = np.full(asked.marginals.first[-1], np.nan)
        values[cells_of(asked, found)] = found["c0"].to_numpy()
        tables = [
            table[(slice(None),) * keys.index(1) + (slice(0, now),)] if 1 in keys else table
            for keys, table in zip(
                asked.marginals.tables, split(asked.marginals, values), strict=True
            )
        ]
        answers = [model.estimate(each, tables) for each in predicates]
        apart.append(
            [(each.value - true) / each.stderr for each, true in zip(answers, truth, strict=True)]
        )
    z = np.array(apart)
    assert np.abs(z.mean(axis=0)).max() < 0.4 and 0.85 < z.std() < 1.15


DECLARED = Source(
    "visits",
    "parquet",
    schema="user_id STRING, ts TIMESTAMP, other TIMESTAMP, url STRING",
    event_time="ts",
    privacy_unit=("user_id",),
    start_us=START,
    domains=(
        ("hour", numbered(24, True)),
        ("day", Domain(("2015-09-12", "2015-09-13"), True)),
        ("midnight", Domain(("2015-09-12 00:00:00", "2015-09-13 00:00:00"), True)),
        ("url", Domain(("a", "b"), False)),
    ),
)
SQL = """
    SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1,
        trigger_interval = '{}', max_triggers = {})
      url, {}, COUNT(*) AS n
    FROM {} GROUP BY CUBE(url, {})
"""


@pytest.mark.parametrize(
    ("interval", "last", "key", "table", "closes"),
    [
        ("1 hour", 24, "hour(ts) AS hour", "visits", True),
        ("1 hour", 24, "hour", "(SELECT user_id, ts, url, hour(ts) AS hour FROM visits)", True),
        ("1 hour", 25, "hour(ts) AS hour", "visits", False),
        ("1 hour", 24, "hour(other) AS hour", "visits", False),
        # the column `ts` of the query is another one than the event time
        (
            "1 hour",
            24,
            "hour",
            "(SELECT user_id, other AS ts, url, hour(other) AS hour FROM visits)",
            None,
        ),
        ("1 day", 2, "CAST(DATE(ts) AS STRING) AS day", "visits", True),
        ("1 day", 3, "CAST(DATE(ts) AS STRING) AS day", "visits", True),
        ("1 hour", 48, "CAST(DATE(ts) AS STRING) AS day", "visits", False),
        ("1 day", 2, "CAST(DATE_TRUNC('DAY', ts) AS STRING) AS midnight", "visits", True),
        ("1 day", 2, "CAST(DATE_TRUNC('DAY', other) AS STRING) AS midnight", "visits", False),
        ("1 day", 2, "CAST(DATE_TRUNC('WEEK', ts) AS STRING) AS midnight", "visits", False),
    ],
)
def test_a_key_of_the_query_closes(
    interval: str, last: int, key: str, table: str, closes: bool | None
) -> None:
    name = key.rsplit(maxsplit=1)[-1]
    sql = SQL.format(interval, last, key, table, name)
    if closes is None:
        with pytest.raises(QueryError):
            dpsql.compile(sql, {"visits": DECLARED})
        return
    compiled = dpsql.compile(sql, {"visits": DECLARED})
    assert (compiled.plan.closing is not None) == closes
    assert ("cell_closed" in compiled.explain()) == closes
