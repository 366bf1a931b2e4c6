"""Times outside the years 1 to 9999 are read as NULL by both engines: one of them must not end a job that casts or truncates it."""

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dpsql.local.connection import connect
from dpsql.local.sources import InputReader
from dpsql.sources.config import Source
from tests.local.conftest import HOUR, Compile, visits

FIRST_US = -62_135_596_800_000_000
LAST_US = 253_402_300_799_999_999
FIRST_DAY = -719_162
LAST_DAY = 2_932_896
MOST = 2**63 - 1
LEAST = -(2**63)
MICROS = [0, FIRST_US, LAST_US, FIRST_US - 1, LAST_US + 1, MOST, MOST - 1, LEAST, LEAST + 1, None]
DAYS = [
    0,
    FIRST_DAY,
    LAST_DAY,
    FIRST_DAY - 1,
    LAST_DAY + 1,
    2**31 - 1,
    2**31 - 2,
    -(2**31),
    -(2**31) + 1,
    None,
]
READ_MICROS = [0, FIRST_US, LAST_US, *[None] * 7]
READ_DAYS = [0, FIRST_DAY, LAST_DAY, *[None] * 7]


def extremes() -> pa.Table:
    return pa.table(
        {
            "n": list(range(len(MICROS))),
            "ts": pa.array(MICROS, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "bare": pa.array(MICROS, pa.int64()).cast(pa.timestamp("us")),
            "day": pa.array(DAYS, pa.int32()).cast(pa.date32()),
        }
    )


@pytest.mark.parametrize("schema", [None, "n BIGINT, ts TIMESTAMP, bare TIMESTAMP, day DATE"])
@pytest.mark.parametrize("frame", [False, True])
def test_the_local_engine(tmp_path: Path, schema: str | None, frame: bool) -> None:
    connection = connect()
    reader = InputReader(connection, Source("visits", "parquet", schema=schema))
    pq.write_table(extremes(), tmp_path / "a.parquet")
    chunk = reader.frame(extremes()) if frame else next(reader.files([tmp_path / "a.parquet"]))
    text = f"SELECT epoch_us(ts), epoch_us(bare), day - DATE '1970-01-01' FROM \"{chunk.table.view}\" ORDER BY n"
    assert connection.sql(text).fetchall() == list(
        zip(READ_MICROS, READ_MICROS, READ_DAYS, strict=True)
    )


def test_lines_on_the_local_engine(tmp_path: Path) -> None:
    connection = connect()
    (tmp_path / "a.json").write_text(
        '{"ts": 253402300799}\n{"ts": 253402300800}\n{"ts": -62135596800}\n{"ts": -62135596801}\n'
    )
    chunk = next(
        InputReader(connection, Source("visits", "json", schema="ts TIMESTAMP")).files(
            [tmp_path / "a.json"]
        )
    )
    found = connection.sql(f'SELECT epoch_us(ts) FROM "{chunk.table.view}"').fetchall()
    assert (found, chunk.malformed) == ([(LAST_US - 999_999,), (None,), (FIRST_US,), (None,)], 0)


def test_spark(spark: SparkSession, tmp_path: Path) -> None:
    from dpsql.streaming import sources
    from dpsql.streaming.session import run_session

    pq.write_table(extremes(), tmp_path / "a.parquet")
    frame = sources.within_calendar(run_session(spark, 1).read.parquet(str(tmp_path / "a.parquet")))
    kinds = dict(frame.dtypes)
    assert (kinds["ts"], kinds["bare"], kinds["day"]) == ("timestamp", "timestamp_ntz", "date")
    found = (
        frame.selectExpr(
            "n", "unix_micros(ts) t", "unix_micros(cast(bare AS TIMESTAMP)) b", "unix_date(day) d"
        )
        .orderBy("n")
        .collect()
    )
    assert [tuple(row)[1:] for row in found] == list(
        zip(READ_MICROS, READ_MICROS, READ_DAYS, strict=True)
    )


def test_one_extreme_value_does_not_end_a_run(
    spark: SparkSession, compile_on: Compile, tmp_path: Path
) -> None:
    """Both engines count the records as having no event time, and publish what they publish without them."""
    from dpsql.lake.runs import Lake
    from tests.matrix import same_rows

    table = visits()
    micros = np.asarray(table["ts"].cast(pa.int64())).copy()
    micros[[5, 50, 500]] = MOST, LEAST + 1, LAST_US + HOUR
    extreme = table.set_column(2, "ts", pa.array(micros).cast(pa.timestamp("us", tz="UTC")))
    text = (
        compile_on()
        .text.replace("page, COUNT", "page, h, COUNT")
        .replace("'1 day'), page", "'1 day'), page, h")
    )
    given = "(SELECT *, CAST(date_trunc('HOUR', ts) AS STRING) AS h FROM visits)"
    query = compile_on(text.replace("FROM visits", f"FROM {given}"), schema=None)
    until_us = int(dt.datetime(2024, 3, 5, tzinfo=dt.UTC).timestamp()) * 1_000_000
    stream = same_rows.Stream("visits", extreme, "1 day", "6 hours", until=until_us)
    same_rows.write([extreme], tmp_path / "visits")
    here = same_rows.local_rows(query, stream, 1, (1, 1))
    same_rows.start(spark, query, Lake(tmp_path / "lake"), until_us, (2, 2))
    there = same_rows.ordered(same_rows.read_histogram(Lake(tmp_path / "lake"), "q"), query)
    assert here.num_rows > 0
    assert same_rows.same(here, there)
