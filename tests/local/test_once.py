"""One-time releases: all records together, in no order, with no time but keys."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpsql
from dpsql.description import NOTE
from dpsql.errors import ConfigError, InputError
from dpsql.local.comparison import check_comparable
from dpsql.local.feeder import run_batches, run_local, try_query
from dpsql.local.record_reader import RowReader
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.published.reader_frames import write_parquet
from dpsql.sources.domains import Domain
from dpsql.tuning import check_tunable
from dpsql.udfs.grid import NO_CLOCK
from dpsql.udfs.stage import Clock
from dpsql.view.plain_table import PlainRows
from tests.local.conftest import RUN, Compile, visits

SELECT = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {epsilon}{more})"
PEOPLE = f"{SELECT.format(epsilon=1, more='')} page, COUNT(DISTINCT user_id) AS people FROM visits GROUP BY page"
ALL = f"""{SELECT.format(epsilon=6, more="")} page, COUNT(*) AS views, COUNT(DISTINCT user_id) AS people,
SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total, AVG(seconds, contribution_bounds_per_row => (0, 60)) AS mean,
STDDEV(seconds, contribution_bounds_per_row => (0, 60)) AS spread,
PERCENTILE_CONT(seconds, 0.5, contribution_bounds_per_row => (0, 60)) AS middle
FROM visits GROUP BY page"""
ONE_ROW = f"{SELECT.format(epsilon=1, more='')} COUNT(*) AS views FROM visits"
HOUR_OF_DAY = f"{SELECT.format(epsilon=6, more='')} hour(ts) AS hour, COUNT(DISTINCT user_id) AS people FROM visits GROUP BY hour"


def test_order_and_buckets_change_nothing(compile_on: Compile, secret: Secret) -> None:
    """Catches: the event time, or the order of rows, as what decides which records of a unit count."""
    query = compile_on(ALL.replace("epsilon = 6", "epsilon = 6, max_rows_contributed = 2"))
    table = visits()
    reversed_table = table.take(pa.array(np.arange(table.num_rows)[::-1]))
    other_times = table.set_column(
        table.schema.get_field_index("ts"), "ts", pa.nulls(table.num_rows, pa.timestamp("us"))
    )
    reader = RowReader(query.plan, query.sources, secret.salt(RUN), {})
    tables = [
        run_batches(
            query.plan,
            [reader.frame(records)],
            noise_key=secret.noise_key(RUN, query.plan.identity),
            key_types=reader.key_types,
            until_us=query.until_us(None),
            buckets=buckets,
            facts=query.facts(None),
        ).histogram
        for records, buckets in ((table, (1, 1)), (reversed_table, (5, 3)), (other_times, (1, 2)))
    ]
    assert tables[0].num_rows > 5
    assert all(other.equals(tables[0]) for other in tables[1:])


def test_a_random_choice_of_records_counts(secret: Secret) -> None:
    """Catches: the earliest keys of a unit, which would make a trend where there is none."""
    people, months = 4_000, 12
    frame = pd.DataFrame(
        {
            "user_id": np.repeat(np.arange(people), months),
            "month": np.tile(np.arange(months), people),
            "ts": np.tile(pd.date_range("2024-01-01", periods=months, freq="MS"), people),
        }
    )
    sql = f"{SELECT.format(epsilon=6, more='')} month, COUNT(DISTINCT user_id) AS people FROM t GROUP BY month"
    rows = dpsql.query(sql, frame, unit="user_id", time="ts", secret=secret).rows
    share = rows["people"] / people
    assert len(rows) == months and share.mean() == pytest.approx(8 / months, abs=0.01)
    assert (share - 8 / months).abs().max() < 0.05


def test_frames_need_no_time(secret: Secret) -> None:
    frame = visits().to_pandas()[["user_id", "page"]]
    answer = dpsql.query(PEOPLE, frame, unit="user_id", secret=secret)
    true = frame.groupby("page")["user_id"].nunique()
    for row in answer.rows.to_dict("records"):
        assert abs(row["people"] - true[row["page"]]) < 6 * row["people_stderr"]
    (line,) = Ledger.beside(secret.path).lines()
    assert line.period == "STREAM"


def test_records_of_any_time_count(secret: Secret) -> None:
    """Catches: a time that is NULL, long ago or to come, by which a record is dropped."""
    moments = [None, datetime(1900, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)]
    table = pa.table(
        {"user_id": np.arange(900), "ts": pa.array(moments * 300, pa.timestamp("us", "UTC"))}
    )
    sql = f"{SELECT.format(epsilon=6, more='')} date_trunc('year', ts) AS year, COUNT(*) AS n FROM t GROUP BY year"
    answer = dpsql.query(sql, table, unit="user_id", time="ts", secret=secret)
    assert sum(answer.dropped.values()) == 0
    assert answer.rows["n"].tolist() == pytest.approx([300] * 3, abs=60)
    years = {None if pd.isna(year) else year.year for year in answer.rows["year"]}
    assert years == {None, 1900, 2100}


def test_a_time_with_a_unit_need_not_be_read(
    compile_on: Compile, secret: Secret, tmp_path: Path
) -> None:
    """Catches: a column of numbers that is made a time where no column is read."""
    schema = "user_id STRING, page STRING, ts BIGINT, seconds DOUBLE"
    table = visits()
    place = table.schema.get_field_index("ts")
    numbers = table.set_column(place, "ts", table["ts"].cast(pa.int64()))
    pq.write_table(numbers, tmp_path / "visits.parquet")
    query = compile_on(PEOPLE, schema=schema, event_time_unit="microseconds")
    files = {"visits": [tmp_path / "visits.parquet"]}
    assert len(try_query(query, files, run_id=RUN, secret=secret).table) > 3


@pytest.mark.parametrize("more", ["", ", privacy_level = EVENT"])
def test_one_row_over_no_record(secret: Secret, more: str) -> None:
    sql = ONE_ROW.replace("epsilon = 1", f"epsilon = 1{more}")
    for records in (visits(), visits()[:0]):
        answer = dpsql.query(sql, records, unit="user_id", secret=secret)
        (count,) = answer.rows["views"]
        error = answer.rows["views_stderr"][0]
        assert abs(count - records.num_rows) < 6 * error


def test_listed_keys_are_all_there(compile_on: Compile, secret: Secret, tmp_path: Path) -> None:
    """Catches: records before the declared start, which would lie before the only window."""
    pages = pa.table(
        {
            "page": ["/p1", "/p2", "/nobody"],
            "topic": ["a"] * 3,
            "rank": pa.array([1] * 3, pa.int32()),
        }
    )
    pq.write_table(pages, tmp_path / "pages")
    listed = SELECT.format(epsilon=6, more=", public_groups = (SELECT page FROM pages)")
    sql = f"{listed} page, COUNT(DISTINCT user_id) AS people FROM visits GROUP BY page"
    for start_us in (None, 4_000_000_000_000_000):
        rows = run_local(compile_on(sql, start_us=start_us), visits(), secret)
        people = dict(zip(rows["page"], rows["people"], strict=True))
        assert set(people) == {"/p1", "/p2", "/nobody"}
        assert people["/p1"] > 200 and abs(people["/nobody"]) < 60


def test_rows_have_no_time_but_keys(compile_on: Compile, secret: Secret, tmp_path: Path) -> None:
    """Catches: the trigger of 1970, which looks like a time of the records."""
    query = compile_on(HOUR_OF_DAY)
    frame = run_local(query, visits(), secret)
    assert list(frame.columns) == ["hour", "people", "people_stderr"]
    pq.write_table(visits(), tmp_path / "visits.parquet")
    result = try_query(query, {"visits": [tmp_path / "visits.parquet"]}, run_id=RUN, secret=secret)
    assert result.table.column_names[:2] == ["trigger", "trigger_time"]
    assert set(result.table["trigger_time"].to_pylist()) == {datetime(1970, 1, 2, tzinfo=UTC)}
    write_parquet(result.table, query.published, tmp_path / "rows.parquet")
    assert pq.read_schema(tmp_path / "rows.parquet").names == [*frame.columns, NOTE]
    assert "1970" not in repr(PlainRows(frame))


def test_a_window_that_has_begun_is_released_whole(secret: Secret) -> None:
    """Catches: a frame of today, of which nothing is released though epsilon is spent."""
    frame = pd.DataFrame({"user_id": np.arange(1_000), "page": "a", "ts": pd.Timestamp.now("UTC")})
    sql = PEOPLE.replace("GROUP BY page", "GROUP BY window(ts, '1 day'), page")
    rows = dpsql.query(sql, frame, unit="user_id", time="ts", secret=secret).rows
    assert rows["people"].tolist() == pytest.approx([1_000], abs=150)


def test_files_are_read_at_once(compile_on: Compile, secret: Secret, tmp_path: Path) -> None:
    """Catches: files in order of their age, which would bring the earliest records back."""
    query = compile_on(PEOPLE.replace("epsilon = 1", "epsilon = 6, max_groups_contributed = 1"))
    people = [f"u{number}" for number in range(1_000)]
    (tmp_path / "visits").mkdir()
    for number in range(66):
        page, visits_each = ("/new", 32) if number > 63 else ("/old", 1)
        size = visits_each * len(people)
        columns = {"user_id": people * visits_each, "page": [page] * size}
        columns |= {
            "ts": pa.nulls(size, pa.timestamp("us")),
            "seconds": pa.nulls(size, pa.float64()),
        }
        pq.write_table(pa.table(columns), tmp_path / "visits" / f"{number:03d}.parquet")
    rows = try_query(query, {}, run_id=RUN, secret=secret).histogram
    people_of = dict(zip(rows["page"], rows["people"], strict=True))
    assert people_of == pytest.approx({"/old": 500, "/new": 500}, abs=100)


@pytest.mark.parametrize("is_grouped", [True, False])
def test_true_values_stand_beside_the_released_ones(
    compile_on: Compile, secret: Secret, tmp_path: Path, is_grouped: bool
) -> None:
    """Catches: a window that the rows of one release lack, and times by which records are left out."""
    table = visits()
    folder = tmp_path / "visits"
    folder.mkdir()
    pq.write_table(table, folder / "a.parquet")
    query = compile_on(PEOPLE if is_grouped else ONE_ROW)
    tried = try_query(query, {}, run_id=RUN, secret=secret, compare=True)
    found = tried.comparison
    assert found is not None
    frame = table.to_pandas()
    if is_grouped:
        true = frame.groupby("page")["user_id"].nunique()
        shown = found["compared"].set_index("page")["people_true"]
        assert shown.astype(int).to_dict() == true.to_dict()
        assert found["keys_kept"] == len(tried.histogram) > 3
    else:
        assert found["compared"]["views_true"].tolist() == [len(frame)]
    assert not {"window_start", "window_end"} & {*found["compared"]}


def test_no_true_values_beside_a_cube(compile_on: Compile) -> None:
    """Catches: a comparison that is refused only when epsilon is spent."""
    cube = ONE_ROW.replace("COUNT(*)", "page, COUNT(*)") + " GROUP BY CUBE (page)"
    with pytest.raises(InputError, match="not supported for running totals and CUBE"):
        check_comparable(compile_on(cube, domains={"page": Domain(("/p1", "/p2"), ordered=False)}))


def test_no_part_can_be_asked_for(compile_on: Compile, secret: Secret) -> None:
    query = compile_on(PEOPLE)
    with pytest.raises(ConfigError, match="a one-time release covers all records: omit until"):
        run_local(query, visits(), secret, until_us=5)
    with pytest.raises(ConfigError, match="WHERE ts < TIMESTAMP"):
        dpsql.query(PEOPLE, visits(), unit="user_id", time="ts", until="2024-03-01", secret=secret)
    with pytest.raises(ConfigError, match="tune measures queries with a window"):
        check_tunable(query)
    assert not Ledger.beside(secret.path).lines()


@pytest.mark.parametrize("rows", [1, 2, 7, 40, 200])
def test_one_unit_moves_sums_within_the_plan(
    compile_on: Compile, secret: Secret, rows: int
) -> None:
    """Catches: limits that hold per time, of a unit whose records have many."""
    query = compile_on(ALL)
    reader = RowReader(query.plan, query.sources, secret.salt(RUN), {})
    intake, _ = query.mechanism.stages(query.plan, query.facts(None))
    moments = pd.date_range("1950-01-01", periods=rows, freq="97D", tz="UTC")
    active = pd.DataFrame(
        {
            "user_id": "active",
            "page": [f"/p{number % 17}" for number in range(rows)],
            "ts": moments.where(np.arange(rows) % 5 > 0),
            "seconds": 60.0,
        }
    )
    others = visits(400).to_pandas()
    sums = []
    for frame in (others, pd.concat([active, others])):
        records = reader.frame(frame)
        stepped = intake.step(intake.empty(), records, Clock(NO_CLOCK, 1 << 60), b"")
        sums.append(stepped.rows.to_pandas().drop(columns="key_bytes").groupby("key").sum())
    shift = (sums[1] - sums[0].reindex(sums[1].index).fillna(0)).fillna(0)
    counted = [part for part in query.plan.perturbations if part.rule != "leaf"]
    assert len(counted) == 8 and shift["users"].sum() > 0
    assert shift["weight"].gt(0).sum() <= query.parsed.asked.max_groups_contributed
    for number, part in enumerate(counted):
        sums = shift[f"v{number}"]
        if part.on_selection:  # what chooses keys pays for their weights
            sums = sums - shift["weight"] / 2**20
        moved = float(np.sqrt((sums**2).sum())) * part.grid
        assert moved <= part.sensitivity * (1 + 1e-9)
