"""Cells that close by two keys together, a day and an hour: through SQL, the reader of records, the release and the published table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import dpsql
from dpsql.compiled import Query
from dpsql.errors import AccountingError, LakeError
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.runs import Lake
from dpsql.local.feeder import Feeder, published_table
from dpsql.local.record_reader import RowReader
from dpsql.mechanisms.marginals.accounting import account
from dpsql.mechanisms.marginals.closing import CUTS, closing_triggers
from dpsql.mechanisms.marginals.stages import intake
from dpsql.mechanisms.protocol import RunFacts
from dpsql.parsed_query import CounterName
from dpsql.published.cubes import open_marginals, tables_in
from dpsql.published.questions import answer
from dpsql.sources.config import Source, Sources
from dpsql.sources.domains import Domain
from dpsql.udfs.columns import plain_rows
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.marginals.release import CLOSED_CELL, ClosingKeys
from dpsql.udfs.noise.counters import column_norm
from dpsql.udfs.stage import Clock
from dpsql.udfs.table_grid import TableGrid
from tests.checks.test_sensitivity import strategy
from tests.described import write
from tests.matrix.same_rows import RUN_ID, SECRET
from tests.mechanisms.marginals.plans import START, numbered
from tests.property.plans import HOUR

DAY = 24 * HOUR
DAYS = Domain(("12", "13"), True, whole=True)
TRIGGERS = 8
EACH = DAY // 4
NOW = 6
"""At this trigger half of the second day is over."""
TEXT = """
    SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1,
        trigger_interval = '6 hours', max_triggers = 8)
      url, day, hour, COUNT(*) AS n
    FROM (SELECT user_id, url, ts, day(ts) AS day, hour(ts) AS hour FROM visits) GROUP BY CUBE(url, day, hour)
"""


SOURCE = Source(
    "visits",
    "parquet",
    path="visits",
    event_time="ts",
    privacy_unit=("user_id",),
    start_us=START,
    domains=(("url", Domain(("a", "b"), False)), ("day", DAYS), ("hour", numbered(24, True))),
)


SETS = TEXT.replace("CUBE(url, day, hour)", "GROUPING SETS ((day, hour), (day, url), (hour))")
"""Two tables that close never, and have one of the keys."""


def asked(text: str = TEXT) -> Query:
    return dpsql.compile(text, Sources((SOURCE,)))


def records(size: int = 2_000) -> pa.Table:
    """Two days of records in order of time."""
    pick = np.random.default_rng(4)
    ts = np.sort(START + pick.integers(0, 2 * DAY, size))
    return pa.table(
        {
            "user_id": [f"u{number}" for number in range(size)],
            "url": pick.choice(["a", "b"], size),
            "ts": pa.array(ts).cast(pa.timestamp("us", "UTC")),
        }
    )


def released(
    query: Query, now: int, noise_key: bytes | None = None
) -> tuple[pa.Table, dict[str, int], RowReader]:
    """Feed all records, but those of the first trigger late, after it has closed; release up to a trigger."""
    reader = RowReader(query.plan, query.sources, SECRET.salt(RUN_ID), {})
    feeder = Feeder(
        query.mechanism.stages(query.plan, RunFacts(None)),
        noise_key or SECRET.noise_key(RUN_ID, query.plan.identity),
    )
    given = records()
    ts = given["ts"].cast(pa.int64()).to_numpy()
    first = feeder.tick(START + EACH)
    feeder.micro_batch(
        reader.frame(given.filter(pa.array(ts < START + now * EACH))), Clock(START + EACH)
    )
    rows = pa.concat_tables([*first, *feeder.tick(START + now * EACH)])
    return rows, dict(feeder.drops), reader


@pytest.mark.parametrize(
    ("interval_us", "last", "days", "expected"),
    [
        (HOUR, 48, DAYS, (*range(1, 25), *range(25, 49))),
        (DAY // 2, 4, DAYS, (*[1] * 12, *[2] * 12, *[3] * 12, *[4] * 12)),
        # the run is longer than the days that are declared
        (HOUR, 72, DAYS, (*range(1, 25), *range(25, 49))),
        # a month later the day comes again
        (HOUR, 24 * 32, DAYS, None),
        # `other` is several days
        (HOUR, 72, Domain(("12", "13"), True, other=True), None),
        (HOUR // 2, 96, DAYS, None),
    ],
)
def test_which_trigger_has_all_records_of_two_values(
    interval_us: int, last: int, days: Domain, expected: tuple[int, ...] | None
) -> None:
    grid = TableGrid.from_start(START, interval_us, last)
    cuts = [(CUTS["day"], days), (CUTS["hour"], numbered(24, True))]
    assert closing_triggers(cuts, grid) == expected


def test_only_tables_with_both_keys_close_and_late_records_count_nowhere() -> None:
    query = asked()
    plan = query.plan
    assert plan.closing_keys == (1, 2)
    rows, drops, _ = released(query, TRIGGERS)
    first = records()["ts"].cast(pa.int64()).to_numpy() < START + EACH
    assert drops == {CLOSED_CELL: int(first.sum())}
    closing = {
        cells
        for keys, cells in zip(plan.marginals.tables, plan.marginals.cells, strict=True)
        if {1, 2} <= {*keys}
    }
    assert closing == {48, 96}
    counters = sum(plan.marginals.cells) - sum(closing)
    many = np.bincount(rows["trigger"].to_numpy(), minlength=TRIGGERS + 1)[1:]
    assert many.tolist() == [counters + 18 * trigger for trigger in range(1, TRIGGERS + 1)]
    assert "Cells of day and hour close" in query.explain()


def test_a_charge_for_cells_that_close_needs_all_their_keys() -> None:
    plan = asked().plan
    assert plan.closing is not None
    account(plan, SOURCE)
    later = (plan.closing.triggers[0] + 1, *plan.closing.triggers[1:])
    for closing in (ClosingKeys((1, 2), later), ClosingKeys((2,), plan.closing.triggers[:24])):
        with pytest.raises(AccountingError, match="closed"):
            account(dataclasses.replace(plan, closing=closing), SOURCE)


def shifted(query: Query, given: pa.Table, reader: RowReader) -> float:
    """The square of what records of one unit move, in units of the noise: counters at all triggers, closed cells once."""
    plan = query.plan
    stage = intake(plan)
    rows = stage.step(
        stage.empty(), plain_rows(reader.frame(given)), Clock(NO_CLOCK, 1 << 62), bytes(32)
    ).rows
    cell, trigger = rows["key"].to_numpy(), rows["trigger"].to_numpy()
    table = np.searchsorted(plan.marginals.first, cell, side="right") - 1
    is_closing = np.array([{1, 2} <= {*keys} for keys in plan.marginals.tables])
    of_cell = np.repeat(is_closing, plan.marginals.cells)
    total = 0.0
    for i, each in enumerate(plan.sums):
        moved = np.zeros((plan.marginals.first[-1], TRIGGERS))
        np.add.at(
            moved,
            (cell, trigger - 1),
            rows[f"v{i}"].to_numpy() * each.grid / np.array(each.sigmas)[table],
        )
        total += np.sum((moved[~of_cell] @ strategy(CounterName.BLT, TRIGGERS).T) ** 2)
        total += np.sum(moved[of_cell].sum(axis=1) ** 2)
    return float(total)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_charge_is_reached_and_never_passed(rows: int) -> None:
    """One unit's streams over both days, half of them one record again and again. Catches: cells of one of the keys charged as if they closed."""
    query = asked(TEXT.replace("max_rows_contributed = 1", f"max_rows_contributed = {rows}"))
    reader = RowReader(query.plan, query.sources, SECRET.salt(RUN_ID), {})
    worst = 0.0
    for seed in range(80):
        pick = np.random.default_rng(seed)
        ts = START + pick.integers(0, 2 * DAY, 6)
        if seed % 2:
            ts[:] = ts[0] % (DAY // 4)  # of the first trigger, which moves counters most
            ts += START
        given = pa.table(
            {
                "user_id": ["u"] * 6,
                "url": ["a"] * 6 if seed % 2 else pick.choice(["a", "b"], 6),
                "ts": pa.array(ts).cast(pa.timestamp("us", "UTC")),
            }
        )
        worst = max(worst, shifted(query, given, reader))
    assert worst / query.plan.mu**2 == pytest.approx(1, abs=1e-4)


def test_noise_of_a_closed_cell_in_a_counter_is_refused() -> None:
    """A table with one of the two keys is a counter: the noise of one measurement is too little for it."""
    plan = asked(SETS).plan
    counters = [{1, 2} - {*keys} != set() for keys in plan.marginals.tables]
    assert any(counters) and not all(counters)
    norm = column_norm(plan.counter)
    less = tuple(
        dataclasses.replace(
            each,
            sigmas=tuple(
                sigma / norm if is_counter and {1, 2} & {*keys} else sigma
                for sigma, is_counter, keys in zip(
                    each.sigmas, counters, plan.marginals.tables, strict=True
                )
            ),
        )
        for each in plan.sums
    )
    assert less != plan.sums
    account(plan, SOURCE)
    with pytest.raises(AccountingError):
        account(dataclasses.replace(plan, sums=less), SOURCE)


def test_answers_amid_a_day_hold_as_often_as_they_say(tmp_path: Path) -> None:
    """An hour of the second day that is not over has no row; 60 noise keys. Catches: an open cell taken for one that is lost, or for noise."""
    query = asked()
    given = records()
    ts = given["ts"].cast(pa.int64()).to_numpy()
    hour, day = ts % DAY // HOUR, 12 + (ts - START) // DAY
    counted = (ts >= START + EACH) & (ts < START + NOW * EACH)
    is_a = np.array(given["url"].to_pylist()) == "a"
    questions = {
        "": counted,
        "WHERE hour = 7": counted & (hour == 7),
        "WHERE day = 13 AND hour BETWEEN 3 AND 20": counted
        & (day == 13)
        & (hour >= 3)
        & (hour <= 20),
        "WHERE day = 12 AND url = 'a'": counted & (day == 12) & is_a,
        "WHERE day = 13 AND hour = 22": counted & (day == 13) & (hour == 22),
    }
    apart = []
    for number in range(60):
        all_rows, _, reader = released(query, NOW, number.to_bytes(32, "big"))
        is_now = pa.array(all_rows["trigger"].to_numpy() == NOW)
        rows = published_table(query.plan, [all_rows.filter(is_now)], reader.key_types)
        found = tables_in(rows, query.published)
        told = [answer(found, f"SELECT COUNT(*) FROM q {text}").rows[0] for text in questions]
        apart.append(
            [
                (row["n"] - is_asked.sum()) / row["stderr"]
                for row, is_asked in zip(told, questions.values(), strict=True)
            ]
        )
    z = np.array(apart)
    assert np.abs(z.mean(axis=0)).max() < 0.6
    assert (np.abs(z) < 1.96).mean() > 0.9 and z[:, :4].std() > 0.8
    # In Delta, and a cell that is lost is told
    lake = Lake(tmp_path)
    write(lake.histogram("q"), rows, query.published)
    assert open_marginals(lake, "q").trigger == NOW
    kept = read_rows(lake.histogram("q"))
    with pytest.raises(LakeError, match="not all cells"):
        tables_in(kept.slice(0, kept.num_rows - 1), query.published)
