"""Each bucket has a partition of its own; Spark is asked where its rows go."""

import pytest
from pyspark.sql import SparkSession

from dpsql.streaming.session import run_session
from dpsql.streaming.workers import LABEL, bucket_of, labels


@pytest.mark.parametrize("buckets", [1, 2, 4, 7, 64])
def test_labels_stand_for_their_buckets(buckets: int) -> None:
    assert [bucket_of(label, buckets) for label in labels(buckets)] == list(range(buckets))


def test_spark_puts_each_bucket_into_its_partition(spark: SparkSession) -> None:
    session = run_session(spark, 8)
    listed = ", ".join(map(str, labels(8)))
    rows = session.range(0, 800, 1, 3).selectExpr("cast(id % 8 AS INT) AS bucket")
    rows = rows.selectExpr("bucket", f"element_at(array({listed}), bucket + 1) AS {LABEL}")
    placed = (
        rows.repartition(8, LABEL)
        .selectExpr("bucket", "spark_partition_id() AS partition")
        .distinct()
        .collect()
    )
    assert sorted((row.bucket, row.partition) for row in placed) == [(n, n) for n in range(8)]
    # Without labels they would share partitions.
    alone = (
        rows.repartition(8, "bucket")
        .selectExpr("bucket", "spark_partition_id() AS partition")
        .distinct()
        .collect()
    )
    assert len({row.partition for row in alone}) < 8
