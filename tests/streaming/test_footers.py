"""Times of Parquet in every unit, and texts that are no UTF-8: no value ends a run, and Spark has what the local engine has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dpsql.errors import DataError
from dpsql.local.arrow_columns import spark_type
from dpsql.local.connection import connect
from dpsql.local.first_look import check_files
from dpsql.local.sources import InputReader
from dpsql.sources.config import Source
from dpsql.sources.declared_types import fits
from dpsql.streaming.file_columns import check_types
from dpsql.streaming.footers import units_of
from dpsql.streaming.session import run_session
from dpsql.streaming.sources import check_there, register_stream, static
from tests.local.test_folders import in_lower_case, local_rows
from tests.streaming.conftest import DAY, START, Make
from tests.sweeps import some

NUMBERS = [-(2**63) + 1, -(2**62), -1001, -1, 0, 1, 999, None, 1767261600000000000, 2**63 - 1]
TEXTS = [b"a", b"\xff", b"caf\xe9", b"\xf0\x9f\x98", b"", None, b"\0", b"b", b"c", b"d"]
COLUMNS = {
    "ms": pa.array(NUMBERS, pa.timestamp("ms")),
    "msz": pa.array(NUMBERS, pa.timestamp("ms", "UTC")),
    "us": pa.array(NUMBERS, pa.timestamp("us")),
    "ns": pa.array(NUMBERS, pa.timestamp("ns")),
    "`n; (s)`": pa.array(NUMBERS, pa.timestamp("ns", "UTC")),
    "t": pa.array(TEXTS, pa.binary()).view(pa.string()),
}
SCHEMA = ", ".join(f"{name} TIMESTAMP" for name in COLUMNS if name != "t") + ", t STRING"


def written(folder: Path, columns: Mapping[str, pa.Array]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({name.strip("`"): column for name, column in columns.items()}),
        folder / "a.parquet",
    )
    return folder


@pytest.mark.parametrize("schema", [SCHEMA, None])
def test_values_are_the_same_on_spark(
    spark: SparkSession, tmp_path: Path, schema: str | None
) -> None:
    """Streams and static tables. Catches: a time that ends the job; a rest that is cut off and not rounded down; bytes that are no text."""
    folder = written(tmp_path / "in", COLUMNS)
    session = run_session(spark, 1)
    source = Source("d", "parquet", str(folder), schema=schema)
    check_there(session, [source])
    numbers = register_stream(session, source, may_be_empty=False)
    assert set(numbers) >= {"ms", "msz", "ns", "n; (s)"} and "us" not in numbers
    query = session.table("d").writeStream.format("memory").queryName(f"q{bool(schema)}")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    table = Source("d", "parquet", str(folder), schema=schema, static=True)
    expected = in_lower_case(local_rows(source))
    for frame in (session.table(f"q{bool(schema)}"), static(session, table)):
        assert in_lower_case(frame.toArrow().to_pylist()) == expected


def test_units_are_read_from_footers(spark: SparkSession, tmp_path: Path) -> None:
    """Catches: a name with signs of its own; a column inside of another one."""
    odd = {
        "i": pa.array([1]),
        "nest": pa.array([{"ns": 1}], pa.struct([("ns", pa.timestamp("ns"))])),
        "nothing": pa.nulls(1),
        "d": pa.array([1], pa.int32()).cast(pa.decimal128(20, 2)),
    }
    written(tmp_path, odd | {name: column.slice(0, 1) for name, column in COLUMNS.items()})
    (tmp_path / "b.parquet").write_bytes(b"damaged")
    units, nothing = units_of(spark, [f"file://{tmp_path}/{name}.parquet" for name in "ab"])
    assert nothing == {}
    assert units == {
        "i": "int64",
        "nothing": "void",
        "d": "fixed_len_byte_array",
        "t": "binary",
        "ms": "milliseconds",
        "msz": "milliseconds",
        "us": "microseconds",
        "ns": "nanoseconds",
        "n; (s)": "nanoseconds",
    }


@pytest.mark.parametrize(("unit", "other"), some([("ns", "us"), ("us", "ns")], 2))
def test_file_of_another_unit_is_refused_by_name(
    case: Make, visits: Any, tmp_path: Path, unit: str, other: str
) -> None:
    """Catches: microseconds that are read as nanoseconds, which count in 1970; a refusal without a remedy."""
    folder = tmp_path / "visits"
    table = visits(days=1)
    later = visits(days=1, first_day=1)
    as_written = {
        unit: later.set_column(2, "ts", later["ts"].cast(pa.timestamp(unit, "UTC")))
        for unit in ("ms", "us", "ns")
    }
    names = {"us": "microseconds", "ns": "nanoseconds"}
    folder.mkdir()
    times = table["ts"].cast(pa.timestamp(unit, "UTC"))
    pq.write_table(table.set_column(2, "ts", times), folder / "a.parquet")
    one = case(schema="user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE")
    assert one.go(START + DAY).records == table.num_rows
    pq.write_table(as_written[other], folder / "b.parquet")
    words = f"file 'b.parquet' of source 'visits': column `ts` has {names[other]}, and {names[unit]} in the first file: write both in one unit"
    with pytest.raises(DataError, match=re.escape(words)):
        one.go(START + 3 * DAY)
    # milliseconds Spark reads as microseconds
    pq.write_table(as_written["ms" if unit == "us" else unit], folder / "b.parquet")
    assert one.go(START + 3 * DAY).records == later.num_rows
    both = pa.concat_tables([table, later])
    assert one.histogram() == one.of_local_engine(both, START + 3 * DAY)


def test_values_that_spark_would_cut_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Catches: a later file whose numbers become others without a word."""
    written(tmp_path, {"k": pa.array([1], pa.int16())})
    source = Source("d", "parquet", str(tmp_path), schema="k SMALLINT")
    pq.write_table(pa.table({"k": pa.array([70_000], pa.int32())}), tmp_path / "b.parquet")
    check_types(spark, source, [f"file://{tmp_path}/a.parquet"])
    words = "file 'b.parquet' of source 'd': column `k` has type INT, but source `d` declares SMALLINT: declare `k INT`. Nothing of its micro-batch"
    with pytest.raises(DataError, match=re.escape(words)):
        check_types(spark, source, [f"file://{tmp_path}/b.parquet"])
    spark.sql("SELECT 70000000000L AS k").coalesce(1).write.orc(str(tmp_path / "orc"))
    warehouse = Source("d", "orc", str(tmp_path / "orc"), schema="k INT")
    (file,) = (tmp_path / "orc").glob("*.orc")
    with pytest.raises(DataError, match="column `k` has type BIGINT, but source `d` declares INT"):
        check_types(spark, warehouse, [f"file://{file}"])


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_unit_of_another_type_is_refused_at_the_start(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """Catches: a unit that does not fit its column, told after something is spent."""
    frame = spark.sql("SELECT 'a' AS u, 1L AS ms").coalesce(1)
    frame.write.format(form).save(str(tmp_path / "in"))
    place = str(tmp_path / "in")
    for unit in ("milliseconds", "text"):
        source = Source("d", form, place, event_time="ms", event_time_unit=unit)
        check_files(source)  # says nothing: Spark is asked
        if unit == "milliseconds":
            check_there(spark, [source])
            continue
        with pytest.raises(DataError, match="has type BIGINT, and `unit: text` is for STRING"):
            check_there(spark, [source])


REFUSED: list[tuple[str, pa.Array]] = [
    ("STRING", pa.array([1])),
    ("TIMESTAMP", pa.array([1])),
    ("BIGINT", pa.array([1], pa.timestamp("ns"))),
    ("INT", pa.array([1])),
    ("DOUBLE", pa.array([1])),
    ("DECIMAL(20, 2)", pa.array([1], pa.uint64())),
    ("DOUBLE", pa.array([1], pa.int32()).cast(pa.decimal128(12, 2))),
    ("DECIMAL(10, 2)", pa.array([1], pa.int32()).cast(pa.decimal128(12, 2))),
    ("STRING", pa.nulls(1)),
    ("TIMESTAMP", pa.nulls(1)),
    ("STRING", pa.array([b"0123456789abcdef"], pa.binary(16))),
    ("DECIMAL(20, 0)", pa.nulls(1)),
    ("DECIMAL(25, 5)", pa.array([1], pa.uint64())),
    ("DOUBLE", pa.array([1.5], pa.float16())),
    ("TIMESTAMP", pa.array([1], pa.date32())),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_types_are_refused_in_the_same_words(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    """By `run` with and without Spark, and by `try` where that cannot read it either. Catches: a refusal after something is spent."""
    declared, column = REFUSED[number]
    folder = written(tmp_path / "in", {"k": column, "ns": pa.array([1], pa.timestamp("ns"))})
    source = Source("d", "parquet", str(folder), schema=f"K {declared}")
    with pytest.raises(DataError) as here:
        check_files(source)
    with pytest.raises(DataError) as there:
        check_there(spark, [source])
    assert str(here.value) == str(there.value)
    if not fits(str(spark_type(column.type)), declared):
        with pytest.raises(DataError) as tried:
            InputReader(connect(), source).check([folder / "a.parquet"])
        assert str(tried.value).lower() == str(here.value).lower()
