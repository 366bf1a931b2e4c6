"""Folders like `day=2024-02-29` are the same columns on Spark; what it would leave out without a word is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dpsql.errors import DataError
from dpsql.local.connection import connect
from dpsql.local.feeder import run_batches
from dpsql.local.record_reader import RowReader
from dpsql.local.sources import InputReader, source_files
from dpsql.local.verification import verify_run
from dpsql.sources.config import Source
from dpsql.streaming.session import run_session
from dpsql.streaming.sources import check_there, static, stream, within_calendar
from tests.local.test_folders import (
    FORMATS,
    READ,
    REFUSED,
    in_lower_case,
    layout,
    local_rows,
    write,
)
from tests.streaming.conftest import DAY, SQL, START, Make, in_order


@pytest.mark.parametrize(("schema", "folders", "words"), REFUSED)
def test_odd_folders_are_refused(
    spark: SparkSession, tmp_path: Path, schema: str, folders: Mapping[str, int], words: str
) -> None:
    """Catches: a file without the folder whose records vanish; a value that ends a run; a refusal after something is spent."""
    for name, numbers in folders.items():
        write(tmp_path / name / "a.parquet", numbers)
    source = Source("d", "parquet", str(tmp_path), schema=schema)
    with pytest.raises(DataError, match=re.escape(words)):
        InputReader(connect(), source).check(source_files(source, {}))
    with pytest.raises(DataError, match=re.escape(words)):
        check_there(run_session(spark, 1), [source])


def test_pattern_above_folders_is_refused_for_streams(spark: SparkSession, tmp_path: Path) -> None:
    """Spark lists the columns of such folders, and has none when it streams them."""
    write(tmp_path / "in" / "k=1" / "a.parquet", 1)
    source = Source("d", "parquet", str(tmp_path / "i*"), schema="n BIGINT, k STRING")
    with pytest.raises(DataError, match="write the folder above them as `path`"):
        source_files(source, {})
    with pytest.raises(DataError, match="write the folder above them as `path`"):
        check_there(run_session(spark, 1), [source])
    for place in ("in/k=*", "in/*/*.parquet"):
        files = Source("d", "parquet", str(tmp_path / place), schema="n BIGINT")
        assert local_rows(files) == [{"n": 0}]
        check_there(run_session(spark, 1), [files])
    table = Source("d", "parquet", source.path, schema=source.schema, static=True)
    assert local_rows(table) == [{"n": 0, "k": "1"}]


@pytest.mark.parametrize("kind", FORMATS)
def test_folders_are_the_same_columns_on_spark(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Streams and static tables. Catches: a type that Spark guesses from the folders that are there."""
    session = run_session(spark, 1)
    for number, (schema, text, _) in enumerate(READ):
        source = layout(tmp_path / str(number), kind, number)
        check_there(session, [source])
        tables = [static(session, Source("d", kind, source.path, schema=schema, static=True))]
        if number < 3:
            query = within_calendar(stream(session, source)).writeStream.format("memory")
            name = f"{kind}{number}"
            place = str(tmp_path / f"checkpoint{number}")
            query = query.queryName(name).option("checkpointLocation", place)
            query.trigger(availableNow=True).start().awaitTermination()
            tables.append(session.table(name))
        for table in tables:
            there = in_lower_case(table.toArrow().to_pylist())
            assert there == in_lower_case(local_rows(source)), (schema, text)


END = START + 3 * DAY
DAILY = SQL.replace("page", "day")


def test_run_over_folders_is_verified(case: Make, visits: Any, tmp_path: Path) -> None:
    """Catches: `verify` or `try` that reads files without the columns of their folders."""
    for day in range(2):
        folder = tmp_path / "visits" / f"day=2026-01-0{day + 1}"
        folder.mkdir(parents=True)
        table = visits(days=1, first_day=day).drop_columns(["page"])
        pq.write_table(table, folder / "a.parquet")
    one = case(DAILY, schema="user_id STRING, ts TIMESTAMP, seconds DOUBLE, day DATE")
    one.go(until_us=END)
    found = verify_run(one.lake, "demo", one.run_id, one.query, one.secret)
    assert found.identical and found.published > 0
    key_days = {str(row["day"]) for row in one.histogram()}
    assert key_days == {"2026-01-01", "2026-01-02"}
    plan = one.query.plan
    reader = RowReader(plan, one.query.sources, one.secret.salt(one.run_id.run_id), {})
    files = source_files(one.query.source, {})
    reader.check(files)
    tried = run_batches(
        plan,
        [reader.batch_rows(files)],
        noise_key=one.secret.noise_key(one.run_id.run_id, plan.identity),
        key_types=lambda: reader.key_types,
        until_us=END,
        facts=one.query.facts(None),
    )
    assert in_order(tried.histogram) == one.histogram()
