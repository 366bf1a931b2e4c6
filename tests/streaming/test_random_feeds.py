"""Feeds broken as feeds break, read by Spark: the rows that count are those of the table, as without Spark (`tests/property`)."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dpsql.compiled import Query
from dpsql.streaming import formats
from dpsql.streaming.rows import records
from dpsql.streaming.session import run_session
from dpsql.streaming.sources import within_calendar
from tests.feeds import START, Row, feed_query, follow, write_files
from tests.property.test_feed_properties import WIDE, as_message, broken, changes, table_of
from tests.sweeps import sweep

SALT = bytes(16)


def random_files(number: int) -> tuple[list[list[Row]], dict[str, int]]:
    """The messages of each micro-batch, whose number is in their times, and how many rows of each key they leave."""
    chance = random.Random(1000 + number)
    files = broken(changes(chance, chance.choice([20, 60, 120])), chance)
    written = []
    for place, file in enumerate(files):
        messages = [as_message(change, chance) for change in file]
        for one in messages:
            one.get("payload", one)["source"]["ts_ms"] += place
        written.append(messages)
    return written, table_of(files)


def rows_on_spark(spark: SparkSession, query: Query, folder: Path) -> pa.Table:
    """The records that Spark makes of all files at once."""
    session = run_session(spark, 1)
    lines = session.read.text(str(folder))
    images = formats.parsed_changes(lines, query.source)
    good = images.where(f"{formats.CORRUPT} IS NULL").drop(formats.CORRUPT)
    within_calendar(good).createOrReplaceTempView(query.source.name)
    found = records(session, query.plan, SALT, 1).frame.drop("bucket").toArrow()
    return found.append_column("drop", pa.array(np.zeros(found.num_rows, np.int8)))


@pytest.mark.parametrize("number", range(sweep(2, 60)))
def test_random_feeds_leave_the_rows_of_the_table(
    spark: SparkSession, tmp_path: Path, number: int
) -> None:
    """Catches: a message that Spark reads otherwise, a position or a key of another kind, that makes a row stay or vanish."""
    files, true = random_files(number)
    write_files(tmp_path, files)
    query = feed_query(tmp_path, WIDE)
    rows = rows_on_spark(spark, query, tmp_path)
    place = (rows["ts"].to_numpy() - START) // 1000
    _, found, drops = follow(query, (rows.filter(place == i) for i in range(len(files))))
    assert found == true
    assert set(drops) <= {"replayed", "unknown_row"}
