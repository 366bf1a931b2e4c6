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
from dpsql.mechanisms.protocol import RunFacts
from dpsql.published.cubes import open_marginals, tables_in
from dpsql.published.questions import answer
from dpsql.sources.config import Source, Sources
from dpsql.sources.domains import Domain
from dpsql.udfs.marginals.release import CLOSED_CELL, ClosingKeys
from dpsql.udfs.stage import Clock
from dpsql.udfs.table_grid import TableGrid
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


def asked() -> Query:
    return dpsql.compile(TEXT, Sources((SOURCE,)))


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
