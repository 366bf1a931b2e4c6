"""What Spark does in a warm trigger: it grew by a job and two compiled classes without anybody noticing."""

from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.stream_files import Stream
from benchmarks.triggers import Counters, Private


def test_a_warm_release_is_one_job_and_compiles_no_class(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = Private(spark, Stream(200, 50, 1_000).write(tmp_path, 5), tmp_path / "lake", (2, 2))
    try:
        counters = Counters(spark)
        for number in range(4):
            before = counters.now()
            run.batch(number)
        assert counters.since(before) == {"classes": 0, "jobs": 2}  # one for each query
        run.silent(4)
        before = counters.now()
        run.silent(5)
        assert counters.since(before) == {"classes": 0, "jobs": 1}
        assert not list((tmp_path / "lake/private/q/released").iterdir())
    finally:
        run.end()
