"""Inputs as they come: missing, empty, malformed, of the wrong type. Messages name files and columns, never values."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from dpsql.errors import DataError

SCHEMA = "user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE"


def json_lines(table: pa.Table) -> list[str]:
    return [json.dumps({**row, "ts": row["ts"].isoformat()}) for row in table.to_pylist()]


def test_a_missing_path(case: Any) -> None:
    with pytest.raises(DataError, match=r"source 'visits': .*/visits does not exist"):
        case().go()
    with pytest.raises(
        DataError,
        match=r"source 'visits': file://nowhere.invalid/visits cannot be read \(IllegalArgumentException\)",
    ):
        case(path="file://nowhere.invalid/visits").go()
    with pytest.raises(
        DataError,
        match=r"source 'visits': hdfs://nowhere.invalid:1/visits cannot be read \(UnknownHostException\)",
    ):
        case(path="hdfs://nowhere.invalid:1/visits").go()


def test_an_empty_folder(case: Any, tmp_path: Path) -> None:
    (tmp_path / "visits").mkdir()
    with pytest.raises(DataError, match="source 'visits': no parquet files in"):
        case().go()
    with pytest.raises(DataError, match="source 'visits': no files in"):
        case(schema=SCHEMA, format="json").go()


def test_a_single_file_and_a_pattern_are_sources_too(
    case: Any, write: Any, visits: Any, tmp_path: Path
) -> None:
    write(visits(days=1), 2)
    assert case(path=str(tmp_path / "visits" / "part-000.parquet")).go().records == 180
    assert case(path=str(tmp_path / "visits" / "*1.parquet")).go().records == 180


def test_a_missing_column_is_named_before_anything_runs(case: Any, write: Any, visits: Any) -> None:
    write(visits(days=1).rename_columns(["user_id", "page", "ts", "duration"]))
    one = case()
    with pytest.raises(DataError, match="no column `seconds`; there are"):
        one.go()
    assert not (one.private / "checkpoints").exists()


def test_zone_less_event_times_and_dates(case: Any, write: Any, visits: Any) -> None:
    table = visits(days=1)
    write(table.set_column(2, "ts", table["ts"].cast(pa.timestamp("us"))), folder="naive")
    write(
        table.set_column(2, "ts", table["ts"].cast(pa.timestamp("us")).cast(pa.date32())),
        folder="days",
    )
    naive = case(folder="naive")
    days = case(folder="days")
    assert naive.go().records == days.go().records == 360
    assert naive.histogram() == naive.of_local_engine(table)
    assert {row["trigger"] for row in days.histogram()} == {1, 2}


def test_a_damaged_parquet_file_loses_nothing(
    case: Any, write: Any, visits: Any, tmp_path: Path
) -> None:
    write(visits(days=1), 3)
    bad = tmp_path / "visits" / "part-001.parquet"
    good = bad.read_bytes()
    bad.write_bytes(b"PAR1 secret-value-4711 PAR1")
    one = case(schema=SCHEMA)
    with pytest.raises(
        DataError, match=r"file 'part-001.parquet' of source 'visits' cannot be read"
    ) as told:
        one.go()
    assert "4711" not in str(told.value) and "\n" not in str(told.value)
    bad.write_bytes(good)
    one.go()
    assert one.histogram() == one.of_local_engine(visits(days=1)) != []


def test_a_delta_table_is_a_source(case: Any, visits: Any, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "table", visits(days=1))
    write_deltalake(tmp_path / "table", visits(days=1, first_day=1), mode="append")
    table = case(folder="table", format="delta")
    assert table.go().records == 720
    assert table.histogram() == table.of_local_engine(visits()) != []
    with pytest.raises(DataError, match="source 'visits'"):
        case(folder="nowhere", format="delta").go()


def test_a_file_with_another_type_is_told(case: Any, write: Any, visits: Any) -> None:
    table = visits(days=1)
    write(table)
    write(table.set_column(3, "seconds", pa.array([f"secret{i}" for i in range(360)])), first=1)
    one = case(schema=SCHEMA)
    with pytest.raises(
        DataError,
        match=r"^file 'part-001.parquet' of source 'visits': column `seconds` has type STRING, but source `visits` declares DOUBLE. Nothing of its "
        "micro-batch was used: write the file with the types of the others and start again, or declare other types in a new run$",
    ):
        one.go()
    write(table, first=1)
    assert one.go().records == 2 * table.num_rows


@pytest.mark.parametrize("form", ["json", "csv"])
def test_malformed_lines_are_counted_and_told(
    case: Any, visits: Any, tmp_path: Path, form: str
) -> None:
    table = visits(days=1)
    (tmp_path / "lines").mkdir()
    good = json_lines(table)
    if form == "csv":
        good = [",".join(map(str, json.loads(line).values())) for line in good]
    bad = ["{not json", '{"user_id": "u1", "ts": "never"}', "17"]
    if form == "csv":
        bad = ["u1,p1", "u1,p1,never,1.0", "," * 30_000]
    (tmp_path / "lines" / "a.txt").write_text("\n".join([bad[0], *good, *bad[1:]]) + "\n")
    told: list[Any] = []
    lines = case(folder="lines", format=form, schema=SCHEMA, max_malformed=2)
    summary = lines.go(told=told)
    assert summary.dropped == {"malformed": 3}
    assert summary.records == 363
    assert [report.warning for report in told if report.warning] == [
        "more malformed records than max_malformed = 2 in micro-batch 0 of source 'visits', at most 1% of all: do they fit `schema`?"
    ]
    assert lines.histogram() == lines.of_local_engine(table) != []


def test_a_where_does_not_hide_malformed_lines(case: Any, visits: Any, tmp_path: Path) -> None:
    sql = """
    SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1)
      page, COUNT(*) AS views
    FROM visits WHERE seconds >= 1
    GROUP BY window(ts, '1 day'), page
    """
    (tmp_path / "visits").mkdir()
    (tmp_path / "visits" / "a.json").write_text("\n".join([*json_lines(visits(days=1)), "{", "no"]))
    assert case(sql, format="json", schema=SCHEMA).go().dropped["malformed"] == 2


def test_missing_values_are_dropped_and_counted(
    case: Any, write: Any, visits: Any, tmp_path: Path
) -> None:
    rows = visits(days=1).to_pylist()
    rows[0]["user_id"] = None
    rows[1]["ts"] = None
    rows[2]["page"] = "x" * 5000
    rows[3]["page"] = None
    rows[4]["seconds"] = None
    rows[5]["seconds"] = float("nan")
    rows[6]["seconds"] = float("-inf")
    write(pa.Table.from_pylist(rows, visits(days=1).schema))
    assert case().go().dropped == {"null_event_time": 1, "null_privacy_unit": 1, "key_too_long": 1}


def test_keys_of_every_type_come_back_as_they_were(case: Any, visits: Any, tmp_path: Path) -> None:
    from datetime import UTC, date, datetime
    from decimal import Decimal

    sql = """
    SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
        epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1)
      t, COUNT(*) AS n, b, i, d, x, s, m, small
    FROM visits
    GROUP BY window(ts, '1 day'), b, i, d, t, m, x, s, small
    """
    value = {
        "b": True,
        "i": -(1 << 63),
        "d": date(1500, 2, 28),
        "t": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    }
    value |= {"m": Decimal("-0.05"), "x": b"\x00\xff", "s": "é, 'q' \x00", "small": 7}
    kinds = {
        "b": pa.bool_(),
        "i": pa.int64(),
        "d": pa.date32(),
        "t": pa.timestamp("us", "UTC"),
        "m": pa.decimal128(9, 2),
    }
    kinds |= {"x": pa.binary(), "s": pa.string(), "small": pa.int16()}
    when = datetime(2024, 1, 1, tzinfo=UTC)
    columns = {
        "user_id": [f"u{i}" for i in range(300)],
        "ts": pa.array([when] * 300, pa.timestamp("us", "UTC")),
    }
    columns |= {
        name: pa.array([value[name]] * 150 + [None] * 150, kind) for name, kind in kinds.items()
    }
    (tmp_path / "visits").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "visits" / "a.parquet")
    one = case(sql)
    one.go()
    found = [{name: row[name] for name in value} for row in one.histogram()]
    assert len(found) == 2
    assert value in found
    assert dict.fromkeys(value) in found
    assert [name for name in one.histogram()[0]][4:] == [
        "t",
        "n",
        "n_stderr",
        "b",
        "i",
        "d",
        "x",
        "s",
        "m",
        "small",
    ]
