"""Runs over feeds broken as feeds break: what all micro-batches count is what is in the table."""

from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from dpsql.lake.opening import run_of
from dpsql.lake.runs import Lake
from dpsql.local.verification import verify_run
from dpsql.privacy.secret import Secret
from dpsql.streaming.typed_rows import TypedRows
from dpsql.udfs.keys import HEADER
from tests.feeds import START, feed_query, write_files
from tests.property.test_feed_properties import WIDE
from tests.streaming.conftest import DAY, Case
from tests.streaming.test_random_feeds import random_files


@pytest.mark.parametrize("number", range(4))
def test_runs_over_random_feeds_count_the_rows_of_the_table(
    spark: SparkSession, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a state that a micro-batch of a run leaves otherwise than one step does."""
    monkeypatch.setattr("dpsql.times.time.time_ns", lambda: (START + DAY) * 1000)
    files, true = random_files(number)
    write_files(tmp_path / "in", files)
    query = feed_query(tmp_path / "in", WIDE)
    secret = Secret(bytes(range(32)))
    lake = Lake(tmp_path / "lake")
    lake.private("demo").mkdir(parents=True, mode=0o700)
    run = run_of("demo", "5a" * 16, query, secret, "")
    one = Case(spark, tmp_path / "in", query, lake, run, secret)
    summary = one.go(START + 3 * DAY)
    assert set(summary.dropped) <= {"replayed", "unknown_row"}
    stored = DeltaTable(one.private / "contributions").to_pyarrow_table()
    found = Counter[str]()
    for row in stored.to_pylist():
        found[row["key_bytes"][HEADER:].decode()] += row["v0"]
    assert dict(+found) == true
    checked = verify_run(lake, "demo", run, query, secret, as_parquet=TypedRows(spark))
    assert checked.identical
