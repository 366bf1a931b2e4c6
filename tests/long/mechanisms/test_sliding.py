"""Sliding windows for ever on both engines, and restored from a savepoint."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from dpsql.errors import LakeError
from dpsql.jobs.cli import main
from dpsql.lake.runs import Lake
from dpsql.lake.savepoints import take_savepoint
from dpsql.local.verification import verify_run
from dpsql.published.public_rows import read_histogram
from dpsql.streaming.typed_rows import TypedRows
from tests.matrix import same_rows
from tests.matrix.same_rows import SECRET
from tests.mechanisms.sliding.test_end_to_end import FILES, TEXTS, both, compiled


@pytest.mark.parametrize("name", TEXTS)
def test_both_engines_publish_the_same_rows_and_verify_makes_them_again(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    both(spark, tmp_path, name)


def test_a_savepoint_is_restored_with_other_buckets_to_the_same_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """State of both steps: bounds of units, pending sums, noise paths."""
    stream = same_rows.wiki("2 hours", "20 minutes", 3)
    query = compiled("units", stream, tmp_path)
    expected = same_rows.spark_rows(spark, query, stream, FILES, (2, 3), tmp_path / "whole")
    lake = Lake(tmp_path / "lake")
    middle = stream.start_us + (stream.until_us - stream.start_us) // 2
    run = same_rows.start(spark, query, lake, middle, (2, 3))
    (lake.private("q") / "run.json").write_text(json.dumps({"version": 1, **asdict(run)}))
    take_savepoint(lake, "q", "middle")
    for path in (lake.private("q") / "state").glob("release-*"):
        shutil.rmtree(path)
    with pytest.raises(LakeError, match="dpsql restore"):
        same_rows.start(spark, query, lake, stream.until_us, (2, 3))
    done = CliRunner().invoke(
        main, ["restore", "q", "--lake", str(lake.root), "--to", "middle", "--buckets", "4"]
    )
    assert done.exit_code == 0, done.output
    same_rows.start(spark, query, lake, stream.until_us, (4, 4))
    assert same_rows.same(same_rows.ordered(read_histogram(lake, "q"), query), expected)
    assert verify_run(lake, "q", run, query, SECRET, as_parquet=TypedRows(spark)).identical
