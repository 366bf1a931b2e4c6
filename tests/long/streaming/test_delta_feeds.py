"""Change feeds of Delta tables that Spark writes: each kind of commit leaves the rows that are in the table, and `verify` reads the same."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dpsql.errors import DataError
from dpsql.local.verification import verify_run
from dpsql.published.public_rows import read_histogram
from dpsql.sources.change_feed import FeedForm
from tests.streaming.conftest import DAY, START

SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = '1 day', max_triggers = 4)
  branch, COUNT(*) AS accounts
FROM visits GROUP BY branch
"""
FEED_ON = "SET TBLPROPERTIES (delta.enableChangeDataFeed = true)"
VECTORS = "SET TBLPROPERTIES (delta.enableDeletionVectors = true)"
MERGE = """MERGE INTO {} AS t USING (SELECT *, CAST(id % 2 AS INT) AS side FROM {} WHERE id < 150) AS s ON t.id = s.id AND s.side = 1
  WHEN MATCHED THEN UPDATE SET branch = 'b0' WHEN NOT MATCHED THEN INSERT (id, user_id, branch, bal) VALUES (s.id + 1000, s.user_id, 'b2', 1)"""
KINDS: dict[str, tuple[Sequence[str], bool]] = {
    # what is done to 300 rows, and whether the local engine reads it too
    "merged": ([MERGE], True),
    "overwritten": (["INSERT OVERWRITE {} SELECT id, user_id, 'b1', bal FROM {} WHERE id < 200"], True),
    "restored": (["DELETE FROM {} WHERE id < 150", "RESTORE TABLE {} TO VERSION AS OF 1"], True),
    "optimized": (["UPDATE {} SET branch = 'b0' WHERE id < 100", "OPTIMIZE {}"], True),
    "with a column more": (["ALTER TABLE {} ADD COLUMN note STRING", "UPDATE {} SET branch = 'b0', note = 'x' WHERE id < 100"], True),
    "without a feed for one commit": (
        [
            "ALTER TABLE {} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)",
            "UPDATE {} SET branch = 'b0' WHERE id < 100",
            f"ALTER TABLE {{}} {FEED_ON}",
            "UPDATE {} SET branch = 'b0' WHERE id BETWEEN 100 AND 149",
        ],
        True,
    ),
    "deleted by vectors": ([f"ALTER TABLE {{}} {VECTORS}", "DELETE FROM {} WHERE id < 100"], False),
}  # fmt: skip


def make_table(spark: SparkSession, path: Path, properties: str = "") -> str:
    """A table of 300 rows of as many units; return its name."""
    name = f"delta.`{path}`"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, user_id STRING, branch STRING, bal DOUBLE) USING delta "
        f"TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true'{properties})"
    )
    columns = ("id", "concat('u', id) AS user_id", "concat('b', id % 3) AS branch", "1.0D AS bal")
    spark.range(300).selectExpr(*columns).write.format("delta").mode("append").save(str(path))
    return name


def change(spark: SparkSession, name: str, path: Path, commands: Sequence[str]) -> None:
    """Change a table; all commits are of the first day."""
    for command in commands:
        spark.sql(command.replace("{}", name))
    for number, file in enumerate(sorted((path / "_delta_log").glob("*.json"))):
        seconds = (START + DAY // 2) / 1e6 + number
        os.utime(file, (seconds, seconds))


def feed_case(case: Any, path: Path, **options: str) -> Any:
    return case(
        SQL,
        path=str(path),
        format="delta",
        change_feed=FeedForm.DELTA,
        event_time=None,
        start_us=START,
        primary_key=("id",),
        options=tuple(options.items()),
    )


def released(one: Any) -> dict[str, int]:
    """The newest value of each key."""
    rows = read_histogram(one.lake, "demo").to_pylist()
    return {row["branch"]: row["accounts"] for row in rows if row["trigger"] == 4}


def check_contents(one: Any, spark: SparkSession, name: str) -> None:
    """Compare what is released with what is in the table."""
    true = Counter(row["branch"] for row in spark.table(name).collect())
    found = released(one)
    assert true.keys() >= found.keys() >= {key for key, count in true.items() if count > 40}
    assert all(abs(count - true[key]) < 30 for key, count in found.items()), (found, true)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_are_those_of_the_table(
    case: Any, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Catches: rows that stay behind or are counted twice after a commit of this kind."""
    commands, is_read_here = KINDS[kind]
    path = tmp_path / "table"
    name = make_table(spark, path)
    change(spark, name, path, commands)
    one = feed_case(case, path, startingVersion="0")
    one.go(START + 5 * DAY)
    check_contents(one, spark, name)
    if is_read_here:
        assert verify_run(one.lake, "demo", one.run_id, one.query, one.secret).identical
        return
    with pytest.raises(DataError, match="deletion vectors"):
        verify_run(one.lake, "demo", one.run_id, one.query, one.secret)


def test_runs_over_renamed_columns_say_what_goes_on(
    case: Any, spark: SparkSession, tmp_path: Path
) -> None:
    """Catches: a run that ends with advice to restore it, which ends alike; advice that leads nowhere."""
    path = tmp_path / "table"
    name = make_table(spark, path, ", 'delta.columnMapping.mode' = 'name'")
    rename = "ALTER TABLE {} RENAME COLUMN bal TO balance"
    change(spark, name, path, [rename, "UPDATE {} SET branch = 'b0' WHERE branch = 'b1'"])
    with pytest.raises(DataError, match=r"renames or drops columns, .* begin a new run"):
        feed_case(case, path, startingVersion="0").go(START + 5 * DAY)
    whole = feed_case(case, path)
    whole.go(START + 5 * DAY)
    check_contents(whole, spark, name)
    later = feed_case(case, path, startingVersion="3")
    later.go(START + 5 * DAY)
    assert abs(released(later).pop("b0") - 100) < 30


def test_runs_go_on_with_other_shuffle_partitions(
    case: Any, spark: SparkSession, tmp_path: Path
) -> None:
    """Catches: state that is found by the session's number of partitions."""
    path = tmp_path / "table"
    name = make_table(spark, path)
    change(spark, name, path, ["DELETE FROM {} WHERE id < 100"])
    one = feed_case(case, path, startingVersion="0", maxFilesPerTrigger="1")
    one.go(START + DAY)
    change(spark, name, path, ["UPDATE {} SET branch = 'b0' WHERE id < 200"])
    try:
        spark.conf.set("spark.sql.shuffle.partitions", "7")
        one.go(START + 5 * DAY)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    check_contents(one, spark, name)
    assert verify_run(one.lake, "demo", one.run_id, one.query, one.secret).identical
