"""Columns of Arrow: every type as Spark has it, files as other programs write them, and no value that ends a reading."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.errors import DataError
from dpsql.local.arrow_columns import converted, spark_type
from dpsql.local.connection import connect
from dpsql.local.sources import InputReader
from dpsql.local.spark_types import SparkType, from_sqlglot
from dpsql.sources.config import Source
from dpsql.sources.declared_types import fits

EARLY = dt.datetime(1, 1, 1)
LATE = dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
LAST_DAY = dt.date(9999, 12, 31)
NO_TEXT = pa.array([b"caf\xe9", b"\xed\xa0\x80", b"", None, b"a\0b"], pa.binary())
TEXTS = ["caf\ufffd", "\ufffd" * 3, "", None, "a\0b"]
NUMBER = UUID("00112233-4455-6677-8899-aabbccddeeff")


def times(unit: str, *values: int | None, zone: str | None = None) -> pa.Array:
    return pa.array(values, pa.int64()).view(pa.timestamp(unit, zone))


CASES: list[tuple[pa.Array, str, list[Any]]] = [
    (pa.array([-128, 127], pa.int8()), "TINYINT", [-128, 127]),
    (pa.array([-128, None], pa.int8()), "BIGINT", [-128, None]),
    (pa.array([2**15 - 1], pa.int16()), "SMALLINT", [2**15 - 1]),
    (pa.array([2**31 - 1], pa.int32()), "DOUBLE", [2147483647.0]),
    (pa.array([-(2**63), 2**63 - 1], pa.int64()), "BIGINT", [-(2**63), 2**63 - 1]),
    (pa.array([255], pa.uint8()), "SMALLINT", [255]),
    (pa.array([2**16 - 1], pa.uint16()), "INT", [2**16 - 1]),
    (pa.array([2**32 - 1], pa.uint32()), "BIGINT", [2**32 - 1]),
    (pa.array([2**64 - 1, 0, None], pa.uint64()), "DECIMAL(20, 0)", [2**64 - 1, 0, None]),
    (pa.array([2**64 - 1], pa.uint64()), "DECIMAL(25, 5)", [2**64 - 1]),
    (pa.array([0.5], pa.float16()), "FLOAT", [0.5]),
    (pa.array([float("inf"), -0.0], pa.float32()), "DOUBLE", [float("inf"), 0.0]),
    (pa.array([5e-324, None], pa.float64()), "DOUBLE", [5e-324, None]),
    (pa.array([True, None], pa.bool_()), "BOOLEAN", [True, None]),
    (pa.array([5], pa.decimal32(5, 2)), "DECIMAL(7, 2)", [5]),
    (pa.array([10**37], pa.decimal256(38, 0)), "DECIMAL(38, 0)", [10**37]),
    (NO_TEXT, "STRING", TEXTS),
    (NO_TEXT.cast(pa.large_binary()), "STRING", TEXTS),
    (NO_TEXT.view(pa.string()), "STRING", TEXTS),
    (NO_TEXT.view(pa.string()).dictionary_encode(), "STRING", TEXTS),
    (pa.array(["é" * 20, None, ""], pa.string_view()), "STRING", ["é" * 20, None, ""]),
    (NO_TEXT, "BINARY", NO_TEXT.to_pylist()),
    (pa.array([b"ab"], pa.binary(2)), "BINARY", [b"ab"]),
    (pa.array([b"ab"], pa.binary_view()), "BINARY", [b"ab"]),
    (pa.array([NUMBER.bytes, None], pa.uuid()), "STRING", [str(NUMBER), None]),
    (times("s", -62135596800, 253402300799, 2**63 - 1), "TIMESTAMP", [EARLY, LATE.replace(microsecond=0), None]),
    (times("ms", 1767261600000000000, -(2**63), 0), "TIMESTAMP", [None, None, dt.datetime(1970, 1, 1)]),
    (times("us", -62135596800000001, 253402300799999999, -1), "TIMESTAMP", [None, LATE, dt.datetime(1969, 12, 31, 23, 59, 59, 999999)]),
    (times("ns", -1, -1000, 999, None), "TIMESTAMP", [dt.datetime(1969, 12, 31, 23, 59, 59, 999999)] * 2 + [dt.datetime(1970, 1, 1), None]),
    (times("us", 0, zone="Europe/Berlin"), "TIMESTAMP", [dt.datetime(1970, 1, 1)]),
    (pa.array([-719163, -719162, 2932896, 2932897], pa.int32()).view(pa.date32()), "DATE", [None, dt.date(1, 1, 1), LAST_DAY, None]),
    (pa.array([-1, 2**63 - 1, None], pa.int64()).view(pa.date64()), "DATE", [dt.date(1969, 12, 31), None, None]),
    (pa.array([2932896, 2**31 - 1], pa.int32()).view(pa.date32()), "TIMESTAMP", [dt.datetime(9999, 12, 31), None]),
    (pa.nulls(2), "DECIMAL(20, 0)", [None, None]),
    (pa.nulls(1), "TIMESTAMP", [None]),
]  # fmt: skip
NO_TYPE = [
    pa.array([1], pa.time64("us")),
    pa.array([1], pa.duration("s")),
    pa.array([[1], None]),
    pa.array([{"a": 1}]),
    pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    pa.array([1], pa.decimal256(50, 0)),
]


def kind(name: str) -> SparkType:
    import sqlglot

    return from_sqlglot(sqlglot.exp.DataType.build(name, dialect="spark"))


@pytest.mark.parametrize(("column", "declared", "expected"), CASES, ids=str)
def test_no_value_of_a_type_that_fits_raises(
    column: pa.Array, declared: str, expected: list[Any]
) -> None:
    """Catches: truncation where Spark floors, one odd text or time that ends a reading."""
    assert fits(str(spark_type(column.type)), declared)
    made = converted(column, kind(declared))
    assert made.to_pylist() == expected
    made.validate(full=True)
    connection = connect()
    connection.register("v", pa.table({"x": pa.chunked_array([made])}))
    assert [x for (x,) in connection.sql("FROM v").fetchall()] == expected


@pytest.mark.parametrize("column", NO_TYPE, ids=lambda column: str(column.type))
def test_types_that_spark_does_not_have_are_seen_to_be_there(column: pa.Array) -> None:
    other = spark_type(column.type)
    assert other.name == "other" and not fits(str(other), "STRING")
    assert converted(column, other).to_pylist() == [v and True for v in column.is_valid().to_pylist()] or None in column.to_pylist()  # fmt: skip


def test_what_fits_is_told_by_types_alone() -> None:
    names = ("TINYINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BINARY", "DATE", "TIMESTAMP", "BOOLEAN", "DECIMAL(5, 2)", "DECIMAL(20, 0)")  # fmt: skip
    widened = {
        (have, declared)
        for have in names
        for declared in names
        if have != declared and fits(have, declared)
    }
    assert widened == {
        ("TINYINT", "INT"),
        ("TINYINT", "BIGINT"),
        ("INT", "BIGINT"),
        ("TINYINT", "DOUBLE"),
        ("INT", "DOUBLE"),
        ("FLOAT", "DOUBLE"),
        ("DATE", "TIMESTAMP"),
        ("BINARY", "STRING"),
    }


def read(
    source: Source, *paths: Path, query_words: set[str] | None = None
) -> list[tuple[Any, ...]]:
    connection = connect()
    chunks = InputReader(connection, source, query_words).files(paths)
    return [
        row for chunk in chunks for row in connection.sql(f'FROM "{chunk.table.view}"').fetchall()
    ]


PANDAS = pd.DataFrame(
    {
        "u": pd.util.hash_array(pd.Series(["ann", "bob"]).to_numpy()),
        "ts": pd.to_datetime(["2024-02-29 12:00:00.123456789", None]),
        "k": pd.Categorical(["a", None]),
        "nothing": [None, None],
    }
)


def test_a_file_of_pandas(tmp_path: Path) -> None:
    """Times in nanoseconds, unsigned hashes, categories and a column of None: what pandas writes by itself."""
    PANDAS.to_parquet(tmp_path / "a.parquet")
    schema = "u DECIMAL(20, 0), ts TIMESTAMP, k STRING, nothing STRING"
    first, second = read(Source("d", "parquet", schema=schema), tmp_path / "a.parquet")
    assert [int(row[0]) for row in (first, second)] == [int(number) for number in PANDAS["u"]]
    assert first[1:] == (dt.datetime(2024, 2, 29, 12, 0, 0, 123456), "a", None)
    assert second[1:] == (None, None, None)


def test_a_file_of_duckdb(tmp_path: Path) -> None:
    """Its UUIDs are BINARY in Parquet, as Spark reads them."""
    path = tmp_path / "a.parquet"
    duckdb.connect().execute(
        "COPY (SELECT '00112233-4455-6677-8899-aabbccddeeff'::UUID u, hash(1) h, TIMESTAMP_NS '1969-12-31 23:59:59.999999999' ts, "
        f"'x'::ENUM ('x') k, 1::UTINYINT n, TIME '12:00' t, '{{}}'::JSON j) TO '{path}'"
    )
    schema = "u BINARY, h DECIMAL(20, 0), ts TIMESTAMP, k STRING, n INT, j STRING"
    ((u, _, ts, k, n, j),) = read(Source("d", "parquet", schema=schema), path)
    assert (u, ts, k, n, j) == (NUMBER.bytes, dt.datetime(1969, 12, 31, 23, 59, 59, 999999), "x", 1, "{}")  # fmt: skip
    with pytest.raises(
        DataError, match=r"column `t` has type TIME64\[US\], but source `d` declares STRING"
    ):
        read(Source("d", "parquet", schema="t STRING"), path)


def test_times_of_hive_are_whole(tmp_path: Path) -> None:
    """Catches: INT96 in nanoseconds, of which 64 bits hold the years 1677 to 2262 alone."""
    pq.write_table(
        pa.table({"ts": times("us", -62135596800000000, 253402300799000000)}),
        tmp_path / "a.parquet",
        use_deprecated_int96_timestamps=True,
    )
    rows = read(Source("d", "parquet", schema="ts TIMESTAMP"), tmp_path / "a.parquet")
    assert rows == [(EARLY,), (LATE.replace(microsecond=0),)]


def test_a_column_that_came_later_is_null_before(tmp_path: Path) -> None:
    """Catches: a file that cannot be read since a newer one has more columns; a typo that reads NULL."""
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    pq.write_table(pa.table({"u": ["a"]}), old)
    pq.write_table(pa.table({"u": ["b"], "V": pa.array([1], pa.int32())}), new)
    declared = Source("d", "parquet", schema="u STRING, v BIGINT")
    assert read(declared, old, new) == [("a", None), ("b", 1)]
    assert read(Source("d", "parquet"), new, old) == [("b", 1), ("a", None)]
    InputReader(connect(), declared).check([old, new])
    typo = Source("d", "parquet", schema="u STRING, w BIGINT")
    for check in (InputReader(connect(), typo).check, InputReader(connect(), typo).all_files):
        with pytest.raises(DataError, match="column `w` of source `d` is missing; it has u, v"):
            check([old, new])


def test_a_column_that_nobody_names_spoils_nothing(tmp_path: Path) -> None:
    table = pa.table(
        {"u": ["a"], "note": NO_TEXT[:1].view(pa.string()), "n": [2.5], "N": [1], "t": NO_TYPE[0]}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    source = Source("d", "parquet", schema="u STRING, n INT, t STRING")
    for refused in ("n", "t"):
        with pytest.raises(DataError, match=rf"`{refused}`"):
            read(source, tmp_path / "a.parquet", query_words={"u", refused})
    assert read(source, tmp_path / "a.parquet", query_words={"u"}) == [("a",)]
    doubled = Source("d", "parquet", schema="u STRING, n DOUBLE")
    with pytest.raises(DataError, match=re.escape("several columns are named `n`, case aside")):
        read(doubled, tmp_path / "a.parquet")


def test_long_files_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.local.delta_files.ROWS", 7)
    pq.write_table(pa.table({"n": range(40)}), tmp_path / "a.parquet", row_group_size=11)
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "b.parquet")
    source = Source("d", "parquet", schema="n BIGINT")
    chunks = list(InputReader(connect(), source).files([tmp_path / "a.parquet"]))
    assert len(chunks) > 5 and len(list(InputReader(connect(), source).files([tmp_path / "b.parquet"]))) == 1  # fmt: skip
    assert read(source, tmp_path / "a.parquet", tmp_path / "b.parquet") == [(n,) for n in range(40)]
