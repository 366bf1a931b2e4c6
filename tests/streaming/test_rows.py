"""FROM as records, row by row against a reference in plain Python."""

import hashlib
import math
import struct
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.config import Source, Sources
from dpsql.errors import DataError
from dpsql.streaming.rows import records
from dpsql.streaming.session import run_session
from dpsql.udfs.keys import encode

SALT = bytes(range(16))
LIMIT = 1 << 61
Read = Callable[..., pa.Table]


def hashed(tag: bytes, values: list[bytes | None]) -> int:
    return int(struct.unpack(">q", hashlib.sha256(SALT + tag + encode(values)).digest()[:8])[0])


@pytest.fixture
def read(spark: SparkSession) -> Read:
    """The records of a one-key query over literal rows given as SQL."""
    session = run_session(spark, 2)

    def make(rows: str, key: str = "k", more: str = "", unit: tuple[str, ...] = ("u",), event: str = "ts") -> pa.Table:
        options = f"epsilon = 1, delta = 1e-6, privacy_unit_column = ({', '.join(unit)}), max_rows_contributed = 2"
        columns = f"WITH DIFFERENTIAL_PRIVACY OPTIONS ({options})"
        keys = f"{key} AS key" if key != "key" else key
        sql = f"SELECT {columns} {keys}, COUNT(*) AS n{more} FROM s GROUP BY window({event}, '1 day'), key"
        query = dpsql.compile(sql, Sources((Source("s", "parquet", "/nowhere", event_time=event, privacy_unit=unit),)))
        session.sql(f"SELECT * FROM VALUES {rows}").createOrReplaceTempView("s")
        return records(session, query.plan, SALT, 4).frame.toArrow()

    return make


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("'é😀'", "é😀".encode()),
        ("''", b""),
        ("cast(NULL AS STRING)", None),
        ("true", b"true"),
        ("-7Y", b"-7"),
        ("9223372036854775807L", b"9223372036854775807"),
        ("DATE'1969-12-31'", b"-1"),
        ("TIMESTAMP'1969-12-31 23:59:59.999999'", b"-1"),
        ("TIMESTAMP_NTZ'1970-01-01 00:00:01'", b"1000000"),
        ("1.50BD", b"1.50"),
        ("cast(0 AS DECIMAL(10, 6))", b"0.000000"),
        ("-12BD", b"-12"),
        ("X'00FF'", b"\x00\xff"),
    ],
)
def test_keys_are_encoded_and_hashed_by_type(read: Read, literal: str, text: bytes | None) -> None:
    row = read(f"('u', {literal}, TIMESTAMP'2024-01-01') AS s(u, k, ts)").to_pylist()[0]
    assert row["key_bytes"] == encode([text])
    assert row["key"] == hashed(b"k", [text])
    assert row["user"] == hashed(b"u", [b"u"])
    assert row["bucket"] == hashed(b"u", [b"u"]) % 4


def test_ids_use_all_64_bits_with_their_sign(read: Read) -> None:
    users = [f"user{i}" for i in range(200)]
    table = read(", ".join(f"('{user}', 'k', TIMESTAMP'2024-01-01')" for user in users) + " AS s(u, k, ts)")
    assert sorted(table["user"].to_pylist()) == sorted(hashed(b"u", [user.encode()]) for user in users)
    assert min(table["user"].to_pylist()) < 0 < max(table["user"].to_pylist())
    assert table["user"].type == table["ts"].type == table["key"].type == pa.int64()


def test_a_unit_of_two_columns_cannot_be_confused(read: Read) -> None:
    rows = "('a', 'bc', 'k', TIMESTAMP'2024-01-01'), ('ab', 'c', 'k', TIMESTAMP'2024-01-01'), (NULL, 'c', 'k', TIMESTAMP'2024-01-01')"
    table = read(rows + " AS s(u, w, k, ts)", unit=("u", "w"))
    assert set(table["user"].to_pylist()) == {hashed(b"u", [b"a", b"bc"]), hashed(b"u", [b"ab", b"c"])}


@pytest.mark.parametrize(
    ("literal", "micros"),
    [
        ("TIMESTAMP'2024-02-29 12:00:00.000001'", 1_709_208_000_000_001),
        ("TIMESTAMP_NTZ'2024-02-29 12:00:00.000001'", 1_709_208_000_000_001),
        ("DATE'2024-02-29'", 1_709_164_800_000_000),
        ("DATE'1899-12-31'", -2_209_075_200_000_000),
        ("timestamp_micros(-5L)", -5),
        (f"timestamp_micros({LIMIT}L)", LIMIT),
        (f"timestamp_micros({LIMIT + 1}L)", None),
        (f"timestamp_micros(-{LIMIT + 1}L)", None),
        ("timestamp_micros(9223372036854775807L)", None),
        ("cast(timestamp_micros(9223372036854775807L) AS TIMESTAMP_NTZ)", None),
        ("cast(timestamp_micros(-9223372036854775807L) AS TIMESTAMP_NTZ)", None),
        ("date_from_unix_date(2147483647)", None),
        ("date_from_unix_date(-2147483648)", None),
        ("cast(NULL AS TIMESTAMP)", None),
    ],
)
def test_event_times(read: Read, literal: str, micros: int | None) -> None:
    assert read(f"('u', 'k', {literal}) AS s(u, k, ts)")["ts"].to_pylist() == ([] if micros is None else [micros])


def test_arguments_are_doubles_and_never_null(read: Read) -> None:
    numbers = ["1.5D", "double('NaN')", "double('-inf')", "NULL"]
    rows = ", ".join(f"('u{i}', 'k', TIMESTAMP'2024-01-01', {x})" for i, x in enumerate(numbers))
    table = read(rows + " AS s(u, k, ts, x)", more=", SUM(x, contribution_bounds_per_row => (0, 1)) AS t").sort_by("a0")
    assert table["a0"].null_count == 0
    values = table["a0"].to_pylist()
    assert values[:2] == [-math.inf, 1.5]
    assert all(math.isnan(value) for value in values[2:])


def test_count_of_a_column_only_asks_whether_it_is_there(read: Read) -> None:
    rows = "('u', 'k', TIMESTAMP'2024-01-01', 'text'), ('v', 'k', TIMESTAMP'2024-01-01', NULL) AS s(u, k, ts, x)"
    assert sorted(map(str, read(rows, more=", COUNT(x) AS t")["a0"].to_pylist())) == ["1.0", "nan"]


def test_headers_count_bytes_of_every_length(read: Read) -> None:
    lengths = [0, 9, 10, 99, 100, 255, 256, 999, 1000, 4096]
    given = ", ".join(f"(repeat('u', {length}), repeat('x', {length}), TIMESTAMP'2024-01-01')" for length in lengths)
    table = read(given + " AS s(u, k, ts)")
    assert sorted(table["key_bytes"].to_pylist()) == sorted(encode([b"x" * length]) for length in lengths)
    assert sorted(table["key"].to_pylist()) == sorted(hashed(b"k", [b"x" * length]) for length in lengths)
    assert sorted(table["user"].to_pylist()) == sorted(hashed(b"u", [b"u" * length]) for length in lengths)


def test_long_keys_and_long_units_are_dropped(read: Read) -> None:
    """The bytes of the values count, not those of the headers."""
    rows = [("'t'", 4095), ("'u'", 4096), ("'v'", 4097), ("'w'", 100_000), ("repeat('y', 4096)", 1), ("repeat('y', 4097)", 1)]
    given = ", ".join(f"({user}, repeat('x', {length}), TIMESTAMP'2024-01-01')" for user, length in rows)
    table = read(given + ", (repeat('y', 10000), 'k', TIMESTAMP'2024-01-01') AS s(u, k, ts)")
    assert sorted(table["user"].to_pylist()) == sorted(hashed(b"u", [unit]) for unit in (b"t", b"u", b"y" * 4096))
    assert sorted(map(len, table["key_bytes"].to_pylist())) == [5, 4099, 4100]


def test_a_limit_counts_the_bytes_of_all_columns_together(read: Read) -> None:
    pairs = [(2000, 2096), (2000, 2097), (0, 4096), (0, 4097)]
    given = ", ".join(f"(repeat('u', {a}), repeat('w', {b}), 'k', TIMESTAMP'2024-01-01')" for a, b in pairs)
    table = read(given + " AS s(u, w, k, ts)", unit=("u", "w"))
    assert set(table["user"].to_pylist()) == {hashed(b"u", [b"u" * a, b"w" * b]) for a, b in (pairs[0], pairs[2])}


def test_no_column_ever_holds_null(read: Read) -> None:
    table = read("('u', cast(NULL AS STRING), TIMESTAMP'2024-01-01'), (NULL, 'k', TIMESTAMP'2024-01-01'), ('u', 'k', NULL) AS s(u, k, ts)")
    assert table.num_rows == 1
    assert all(column.null_count == 0 for column in table.columns)


@pytest.mark.parametrize("literal", ["1.5D", "1.5F", "array('a')", "map('a', 1)", "named_struct('a', 1)", "1.0000001BD", "NULL"])
def test_other_key_types_are_refused(read: Read, literal: str) -> None:
    with pytest.raises(DataError, match="cast it to STRING"):
        read(f"('u', {literal}, TIMESTAMP'2024-01-01') AS s(u, k, ts)")


@pytest.mark.parametrize("literal", ["'2024-01-01'", "1704067200L", "1.5D"])
def test_other_event_times_are_refused(read: Read, literal: str) -> None:
    with pytest.raises(DataError, match=r"event time 'ts' has type .* not TIMESTAMP or DATE: convert it in FROM"):
        read(f"('u', 'k', {literal}) AS s(u, k, ts)")


def test_histogram_types_are_the_keys_own(spark: SparkSession) -> None:
    from pyspark.sql import types as T

    from dpsql.streaming.rows import key_type

    assert key_type(T.TimestampNTZType()) == T.TimestampType()
    assert key_type(T.DecimalType(10, 2)) == T.DecimalType(10, 2)
