"""Event times as numbers and texts on Spark: the times that the local engine has, and no value ends a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql import SparkSession

from dpsql.errors import DataError
from dpsql.local.verification import verify_run
from dpsql.sources.config import Source
from dpsql.sources.time_units import PER_SECOND
from dpsql.streaming.event_times import with_event_time
from dpsql.streaming.session import run_session
from dpsql.streaming.sources import batch, check_there, within_calendar
from tests.local.test_event_times import REAL, TEXTS, WHOLE, read
from tests.streaming.conftest import DAY, START, Make

COLUMNS = {
    "BIGINT": pa.array(WHOLE, pa.int64()),
    "DOUBLE": pa.array(REAL, pa.float64()),
    "STRING": pa.array(TEXTS),
}
CASES = [(kind, unit) for kind in ("BIGINT", "DOUBLE") for unit in PER_SECOND]


def test_times_are_those_of_the_local_engine(spark: SparkSession, tmp_path: Path) -> None:
    """Catches: a rest that is cut off on one engine, a value that ends the job, a time that has today's date."""
    session = run_session(spark, 1)
    for kind, unit in (*CASES, ("STRING", "text")):
        pq.write_table(pa.table({"Ms": COLUMNS[kind]}), tmp_path / f"{kind}.parquet")
        source = Source("d", "parquet", event_time="ms", event_time_unit=unit)
        frame = session.read.parquet(str(tmp_path / f"{kind}.parquet"))
        times = within_calendar(with_event_time(frame, source)).selectExpr("unix_micros(Ms) AS us")
        found = times.toArrow()["us"].to_pylist()
        assert found == read(COLUMNS[kind], unit, kind), (kind, unit)
        with pytest.raises(DataError, match="is for"):
            wrong = Source("d", event_time="ms", format="parquet", event_time_unit="text")
            with_event_time(frame.withColumn("Ms", frame["Ms"].isNull()), wrong)


def test_a_run_over_numbers_is_verified(case: Make, visits: Any, tmp_path: Path) -> None:
    """Catches: windows of another unit; a file whose numbers Spark would read in the wrong one."""
    folder = tmp_path / "visits"
    folder.mkdir()
    table = visits(days=1)
    numbers = pa.compute.divide(table["ts"].cast(pa.int64()), 1000)
    pq.write_table(table.set_column(2, "ts", numbers), folder / "a.parquet")
    one = case(
        schema="user_id STRING, page STRING, ts BIGINT, seconds DOUBLE",
        event_time_unit="milliseconds",
    )
    assert one.go(START + 2 * DAY).records == table.num_rows
    assert verify_run(one.lake, "demo", one.run_id, one.query, one.secret).identical
    assert one.histogram() == one.of_local_engine(
        table.set_column(2, "ts", numbers), START + 2 * DAY
    )
    pq.write_table(table, folder / "b.parquet")
    with pytest.raises(
        DataError, match="column `ts` has microseconds, and int64 in the first file"
    ):
        one.go(START + 3 * DAY)


def test_times_of_avro_are_declared_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """Catches: a good file that is called damaged, after something is spent; advice that leads nowhere."""
    session = run_session(spark, 1)
    kinds = ("TIMESTAMP", "TIMESTAMP_NTZ")
    for kind in kinds:
        frame = session.range(1).selectExpr(f"CAST(timestamp_micros({START}) AS {kind}) AS ts")
        frame.write.format("avro").save(str(tmp_path / kind))
        for declared in kinds:
            source = Source("d", "avro", str(tmp_path / kind), schema=f"ts {declared}")
            if declared == kind:
                check_there(session, [source])
                continue
            with pytest.raises(DataError, match=f"declare `ts {kind}`$"):
                check_there(session, [source])


def test_times_of_orc_are_what_they_were(spark: SparkSession, tmp_path: Path) -> None:
    """Who writes it: Spark, and pyarrow in whatever zone. Catches: times that are shifted by the zone of who wrote them."""
    session = run_session(spark, 1)
    times = [START, START + 1, START - DAY // 2]
    frame = session.createDataFrame([(time,) for time in times], "us BIGINT")
    frame.selectExpr("timestamp_micros(us) AS ts").write.orc(str(tmp_path / "spark"))
    (tmp_path / "arrow").mkdir()
    column = pa.array(times, pa.timestamp("us", "America/New_York"))
    orc.write_table(pa.table({"ts": column}), tmp_path / "arrow" / "a.orc")
    for folder in ("spark", "arrow"):
        source = Source("d", "orc", str(tmp_path / folder), schema="ts TIMESTAMP")
        check_there(session, [source])
        files = sorted(map(str, (tmp_path / folder).glob("*.orc")))
        found = batch(session, source, files).selectExpr("unix_micros(ts) AS us").toArrow()
        assert sorted(found["us"].to_pylist()) == sorted(times), folder
