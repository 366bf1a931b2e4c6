"""The source of query 2: it says that there is a micro-batch, once for every bucket, and nothing else.

What a micro-batch reads, the driver tells the tasks (`dpsql.lake.release_plans`). As a stream of the table `contributions` every micro-batch
would cost Spark some jobs over the table's log, and code compiled anew.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession


def rings(session: SparkSession, buckets: int) -> DataFrame:
    """One row per bucket in every micro-batch, with the column `bucket`; there is always a next one."""
    source = (
        session.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", buckets)
        .option("numPartitions", 1)
    )
    return source.load().selectExpr(f"cast(value % {buckets} AS INT) AS bucket")
