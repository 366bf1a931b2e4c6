"""The `rows` table against a plain reference: ids, encoded keys, drop codes, arguments."""

import datetime as dt
import hashlib
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.errors import DataError
from dpsql.local.record_reader import RowReader
from dpsql.published.rows import typed_keys
from dpsql.udfs.keys import encode
from tests.local.conftest import DAY, SCHEMA, Compile

SALT = bytes(range(16))
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
UTC_MICROS = pa.timestamp("us", tz="UTC")


def read(query: Any, table: pa.Table) -> tuple[pa.Table, RowReader]:
    reader = RowReader(query.plan, query.sources, SALT, {})
    return reader.frame(table), reader


def reference_id(tag: bytes, values: list[bytes | None]) -> int:
    return int.from_bytes(
        hashlib.sha256(SALT + tag + encode(values)).digest()[:8], "big", signed=True
    )


def visit(**columns: Any) -> pa.Table:
    values = {"user_id": ["u"], "page": ["/p"], "ts": [NOON], "seconds": [1.0]} | columns
    types = {"user_id": pa.string(), "page": pa.string(), "ts": UTC_MICROS, "seconds": pa.float64()}
    size = max(len(column) for column in columns.values())
    return pa.table(
        {
            name: pa.array(column * (size if len(column) == 1 else 1), types[name])
            for name, column in values.items()
        }
    )


def test_ids_and_keys_are_those_of_the_reference(compile_on: Compile) -> None:
    names = ["u1", "u2", "", "ü", "\U0001f600" * 5, "a" * 4000]
    rows, _ = read(
        compile_on(), visit(user_id=names, page=[None, "", "/ä", "b" * 9, "\u0000", "long" * 900])
    )
    assert rows.column("user").to_pylist() == [
        reference_id(b"u", [name.encode()]) for name in names
    ]
    keys = [None, b"", "/ä".encode(), b"b" * 9, b"\0", b"long" * 900]
    assert rows.column("key").to_pylist() == [reference_id(b"k", [key]) for key in keys]
    assert rows.column("key_bytes").to_pylist() == [encode([key]) for key in keys]
    assert rows.column("ts").to_pylist() == [DAY + 12 * 3_600_000_000] * 6


def test_a_query_without_keys_has_the_id_of_the_empty_encoding(compile_on: Compile) -> None:
    query = compile_on()
    parsed = type(query.parsed)(**{**vars(query.parsed), "keys": ()})
    plan = type(query.plan)(**{**vars(query.plan), "query": parsed})
    rows = RowReader(plan, query.sources, SALT, {}).frame(visit(page=["x"]))
    assert rows.column("key").to_pylist() == [reference_id(b"k", [])]
    assert rows.column("key_bytes").to_pylist() == [b""]


def test_why_records_are_dropped(compile_on: Compile) -> None:
    far = pa.array(
        [253_402_300_799_999_999, -62_135_596_800_000_001, 253_402_300_800_000_000], pa.int64()
    ).cast(UTC_MICROS)
    table = pa.concat_tables(
        [
            visit(ts=[None]), visit(user_id=[None]), visit(page=["x" * 4097, "x" * 4096, "x" * 4095]),
            visit(user_id=["x" * 4097, "x" * 4096, "x" * 20_000]), visit(ts=[None], user_id=[None]),
            visit(page=["x"] * 3).set_column(2, "ts", far),
        ]
    )  # fmt: skip
    rows, _ = read(compile_on(), table)
    assert rows.column("drop").to_pylist() == [2, 3, 4, 0, 0, 4, 0, 4, 2, 0, 2, 2]
    dropped = rows.filter(pa.compute.not_equal(rows.column("drop"), 0))
    assert set(dropped.column("user").to_pylist()) | set(dropped.column("ts").to_pylist()) | set(
        dropped.column("key").to_pylist()
    ) == {0}
    assert set(dropped.column("key_bytes").to_pylist()) == {b""}
    assert all(math.isnan(value) for value in dropped.column("a0").to_pylist())
    assert all(column.null_count == 0 for column in rows.columns)


def test_arguments_are_doubles_and_missing_is_nan(compile_on: Compile) -> None:
    rows, _ = read(compile_on(), visit(seconds=[1.5, None, math.nan, math.inf, -math.inf, -0.0]))
    values = rows.column("a0").to_pylist()
    assert values[0] == 1.5 and math.isnan(values[1]) and math.isnan(values[2])
    assert values[3:5] == [math.inf, -math.inf] and math.copysign(1, values[5]) == -1


def test_an_argument_that_is_only_counted_says_present_or_not(compile_on: Compile) -> None:
    sql = compile_on().text.replace(
        "SUM(seconds, contribution_bounds_per_row => (0, 60)) AS time_spent",
        "COUNT(seconds) AS timed",
    )
    rows, _ = read(compile_on(sql), visit(seconds=[7.0, None, math.nan, 0.0]))
    assert [None if math.isnan(value) else value for value in rows.column("a0").to_pylist()] == [
        1.0,
        None,
        None,
        1.0,
    ]


KEYS = {
    "BOOLEAN": (pa.bool_(), [True, False, None], [b"true", b"false", None]),
    "TINYINT": (pa.int8(), [-128, 0, None], [b"-128", b"0", None]),
    "BIGINT": (
        pa.int64(),
        [-(2**63), 2**63 - 1, None],
        [b"-9223372036854775808", b"9223372036854775807", None],
    ),
    "STRING": (pa.string(), ["", "é", None], [b"", "é".encode(), None]),
    "BINARY": (pa.binary(), [b"", b"\xff\x00", None], [b"", b"\xff\x00", None]),
    "DATE": (pa.date32(), [dt.date(1970, 1, 1), dt.date(1969, 12, 31), None], [b"0", b"-1", None]),
    "TIMESTAMP": (
        UTC_MICROS,
        [dt.datetime(1970, 1, 1, 0, 0, 0, 5, dt.UTC), NOON, None],
        [b"5", b"1709208000000000", None],
    ),
    "DECIMAL(10, 2)": (
        pa.decimal128(10, 2),
        [Decimal("1.50"), Decimal("-0.05"), None],
        [b"1.50", b"-0.05", None],
    ),
    "DECIMAL(9, 6)": (
        pa.decimal128(9, 6),
        [Decimal("0.000000"), Decimal("123.000001"), None],
        [b"0.000000", b"123.000001", None],
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_every_type_are_encoded_and_decoded(compile_on: Compile, name: str) -> None:
    kind, values, encoded = KEYS[name]
    query = compile_on(schema=f"user_id STRING, page {name}, ts TIMESTAMP, seconds DOUBLE")
    table = pa.table(
        {
            "user_id": ["u"] * 3,
            "page": pa.array(values, kind),
            "ts": pa.array([NOON] * 3, UTC_MICROS),
            "seconds": [1.0] * 3,
        }
    )
    rows, reader = read(query, table)
    assert rows.column("key_bytes").to_pylist() == [encode([value]) for value in encoded]
    assert rows.column("key").to_pylist() == [reference_id(b"k", [value]) for value in encoded]
    decoded = typed_keys(
        query.parsed, rows.column("key_bytes"), [kind.arrow for kind in reader.key_types]
    )["page"]
    assert decoded.type == kind and decoded.to_pylist() == values


def test_several_unit_and_key_columns_do_not_run_together(compile_on: Compile) -> None:
    sql = compile_on().text.replace(
        "privacy_unit_column = user_id", "privacy_unit_column = (user_id, page)"
    )
    sql = sql.replace(
        "page, COUNT(*) AS views, COUNT(DISTINCT user_id) AS visitors",
        "lower(user_id) AS person, page, COUNT(*) AS views",
    )
    query = compile_on(
        sql.replace("'1 day'), page", "'1 day'), person, page"), unit=("user_id", "page")
    )
    rows, _ = read(
        query, visit(user_id=["a", "", "ab", None, "a"], page=["b", "ab", "", "a", None])
    )
    assert rows.column("drop").to_pylist() == [0, 0, 0, 3, 3]
    pairs = [[b"a", b"b"], [b"", b"ab"], [b"ab", b""]]
    long, _ = read(
        query,
        visit(user_id=["u" * 2000, "u" * 2000, "u"], page=["p" * 2096, "p" * 2097, "p" * 4095]),
    )
    assert long.column("drop").to_pylist() == [0, 4, 0]  # of all columns together, without headers
    assert rows.column("user").to_pylist()[:3] == [reference_id(b"u", list(pair)) for pair in pairs]
    assert rows.column("key_bytes").to_pylist()[:3] == [encode(list(pair)) for pair in pairs]


@pytest.mark.parametrize(("page", "kind"), [([1.0], "DOUBLE"), ([["a"]], "NESTED")])
def test_keys_of_other_types_are_refused(compile_on: Compile, page: list[Any], kind: str) -> None:
    query = compile_on(schema=None)
    table = pa.table(
        {"user_id": ["u"], "page": page, "ts": pa.array([NOON], UTC_MICROS), "seconds": [1.0]}
    )
    with pytest.raises(DataError, match=f"`page` has type {kind}, which cannot be a key") as found:
        read(query, table)
    assert ("lost digits" in str(found.value)) == (kind == "DOUBLE")


def test_the_event_time_must_be_a_time(compile_on: Compile) -> None:
    query = compile_on(schema=None)
    table = pa.table({"user_id": ["u"], "page": ["p"], "ts": ["2024-02-29"], "seconds": [1.0]})
    with pytest.raises(DataError, match="event time `ts` has type STRING"):
        read(query, table)


@pytest.mark.parametrize(
    "kind",
    [
        pa.timestamp("ns"),
        pa.timestamp("ms"),
        pa.timestamp("us"),
        pa.timestamp("us", tz="America/New_York"),
        pa.date32(),
    ],
)
def test_times_of_every_resolution_become_microseconds_of_utc(
    compile_on: Compile, kind: pa.DataType
) -> None:
    moment = DAY if pa.types.is_date(kind) else DAY + 1_500_000
    column = (
        pa.array([moment // 86_400_000_000], pa.int32()).cast(kind)
        if pa.types.is_date(kind)
        else pa.array([moment], pa.timestamp("us")).cast(pa.timestamp(kind.unit))
    )
    if pa.types.is_timestamp(kind) and kind.tz:
        column = column.cast(pa.int64()).cast(kind)
    rows, _ = read(compile_on(schema=None), visit(page=["p"]).set_column(2, "ts", column))
    assert rows.column("ts").to_pylist() == [moment]


def test_files_are_read_in_tables_of_bounded_size(
    compile_on: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr("dpsql.local.delta_files.ROWS", 5000)
    query = compile_on()
    pq.write_table(
        visit(page=[f"/p{i}" for i in range(20_000)]), tmp_path / "a.parquet", row_group_size=4096
    )
    sizes = [
        rows.num_rows
        for rows in RowReader(query.plan, query.sources, SALT, {}).files([tmp_path / "a.parquet"])
    ]
    assert sum(sizes) == 20_000 and max(sizes) < 20_000


def test_columns_that_a_query_does_not_name_are_not_read(
    compile_on: Compile, tmp_path: Path
) -> None:
    """Catches: a file of many columns that is read whole, and one odd column that spoils it."""
    query = compile_on(schema=f"{SCHEMA}, note INT")
    path = tmp_path / "a.parquet"
    pq.write_table(visit(page=["p"]).append_column("note", pa.array(["odd"])), path)
    assert RowReader(query.plan, query.sources, SALT, {}).batch_rows([path]).num_rows == 1
    star = compile_on(
        query.text.replace("FROM visits", "FROM (SELECT * FROM visits) AS v"),
        schema=f"{SCHEMA}, note INT",
    )
    with pytest.raises(DataError, match="column `note` has type STRING"):
        RowReader(star.plan, star.sources, SALT, {}).check([path])
