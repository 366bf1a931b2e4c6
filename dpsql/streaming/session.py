"""The Spark session that dpsql runs in, and the settings of each run."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from pyspark.sql import SparkSession

from dpsql import jars
from dpsql.errors import ConfigError
from dpsql.streaming import messages

SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Stopping a query on a deep plan overflows the default stack.
    "spark.driver.extraJavaOptions": "-Xss4m",
    # Hadoop sets modes itself, whatever the umask; the histogram is opened to readers by name.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    # Buckets as folders, which every S3 server understands; endpoint and credentials come from the environment (AWS_...).
    "spark.hadoop.fs.s3a.path.style.access": "true",
}
WORKERS = {
    # Workers keep their memory: given back after every array, it would be taken again, and cleared by the kernel, for the next one.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": "1073741824",
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": "1073741824",
}
CLUSTER = {"spark.executor.extraJavaOptions": messages.java_options(), "spark.executor.syncLogLevel.enabled": "true"}
LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
LOG_LEVEL = "spark.log.level"
SHIPPED = ("dpsql", "udfs")

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing."
RUN = {
    "spark.sql.session.timeZone": "UTC",
    # A bad value becomes NULL, never an error that shows it.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.caseSensitive": "false",
    # A vanished or torn file stops the job; with these on its rows would be lost in silence.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # Dates before 1582 are read and written as they are; the default stops the job at the first one.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.avro.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # Whether a CSV line is malformed must not depend on the columns that a query reads.
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    # Spark would compute the size of a batch anew after each of its rows; keys of more than 4 KiB never come this far.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    # Tell of every poll that finds nothing: in a live run they stand for the micro-batches that did not come.
    "spark.sql.streaming.noDataProgressEventInterval": "0",
    # Plain files and renames: by way of `FileContext` and without Hadoop's native library every look at a file starts a process (`readlink`).
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS + "FileSystemBasedCheckpointFileManager",
    # Spark's state of a bucket is one number, which our own list of state files confirms.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # One state version per micro-batch is kept for as long as Spark could go back; it only ever goes back by one.
    "spark.sql.streaming.minBatchesToRetain": "10",
    # The salt of the ids is a binary literal in the plan; plans are shown in event logs.
    "spark.sql.redaction.string.regex": "(?i)0x[0-9a-f]{32,}|X'[0-9a-f]{32,}'",
}


def session(master: str | None, properties: Mapping[str, str]) -> SparkSession:
    """Start (or find) the Spark session.

    Args:
        master: like `local[2]` or `spark://host:7077`; None leaves it to spark-submit.
        properties: Spark settings of the user (`conf/spark-defaults.conf`, with `spark.jars`); they win over ours.

    Raises:
        ConfigError: the session has no Delta, because the jars are not on its class path.
    """
    # Workers would otherwise start whichever python3 is first on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    properties = dict(properties)
    if master is not None and not any(key in properties for key in ("spark.jars", "spark.driver.extraClassPath", "spark.jars.packages")):
        with contextlib.suppress(ConfigError):  # no checkout around us: then Delta has to be on the class path already, see below
            properties["spark.jars"] = ",".join(map(str, jars.ensure()))
    builder = SparkSession.builder.appName("dpsql")
    local = master is not None and master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if master is not None:
        builder = builder.master(master)
    for key, value in {**SESSION, **WORKERS, **(LOCAL if local else CLUSTER if master is not None else {}), **properties}.items():
        builder = builder.config(key, value)
    spark = _started(builder)
    # Log lines of failed tasks quote exception texts, and those may quote records.
    spark.sparkContext.setLogLevel(properties.get(LOG_LEVEL, "OFF"))
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    adopt(spark)
    return spark


def adopt(spark: SparkSession) -> None:
    """Make a session that is there fit: it has Delta, and its workers get the two packages. Its settings stay as they are.

    Raises:
        ConfigError: it has no Delta.
    """
    check_delta(spark)
    if not str(spark.sparkContext.master).startswith("local"):
        ship(spark)


def _started(builder: Any) -> SparkSession:
    """Start Spark; nothing has been read by then, but a foreign text may still be long, so its kind is named and its known causes."""
    try:
        return builder.getOrCreate()
    except Exception as problem:
        text = str(problem)
        if "BindException" in text:
            found = re.search(r"Service '(\w+)' failed after", text)
            what = f" ({found[1]})" if found else ""
            raise ConfigError(
                f"Spark cannot listen on the port or address that its settings name{what}: another process has it, or it is not this machine's; "
                "change or leave out spark.driver.port, spark.driver.host, spark.driver.bindAddress, spark.ui.port, SPARK_LOCAL_IP"
            ) from None
        raise ConfigError(
            f"Spark did not start ({type(problem).__name__}): its own lines above say more; look at JAVA_HOME, the memory that is free, --master "
            "and the properties file"
        ) from None


def ship(spark: SparkSession) -> None:
    """Send the two packages that workers need, as they are here: a worker may have none, or others."""
    checkout = Path(__file__).resolve().parent.parent.parent
    if not (checkout / "udfs").is_dir():
        return  # we are in a zip that spark-submit --py-files has brought here, and brings to the workers
    # Workers fetch the file from here as long as Spark runs; Spark removes the folder when it stops.
    folder = Path(SparkFiles.getRootDirectory()) / "shipped"
    folder.mkdir(mode=0o700, exist_ok=True)
    with zipfile.ZipFile(folder / "dpsql-shipped.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for package in SHIPPED:
            for path in sorted((checkout / package).rglob("*.py")):
                archive.write(path, str(path.relative_to(checkout)))
    spark.sparkContext.addPyFile(str(folder / "dpsql-shipped.zip"))


def check_delta(spark: SparkSession) -> None:
    """Refuse a session without Delta, in one line, before anything else is tried."""
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    try:
        jvm: Any = spark._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        loader.loadClass("io.delta.sql.DeltaSparkSessionExtension")
    except Exception:
        extensions = ""
    if "DeltaSparkSessionExtension" not in extensions:
        raise ConfigError(
            "this Spark session has no Delta: start it with the settings that `python -m dpsql.jars spark-defaults.conf` writes "
            "(spark-submit --properties-file spark-defaults.conf), or use `dpsql run`, which does both"
        )


def check_s3(spark: SparkSession) -> None:
    """Refuse a session that cannot reach `s3a://`, in one line."""
    try:
        jvm: Any = spark._jvm
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass("org.apache.hadoop.fs.s3a.S3AFileSystem")
    except Exception:
        raise ConfigError(
            "this Spark session has no jars for s3a://: write the properties file with "
            "`python -m dpsql.jars conf/spark-defaults.conf s3`, or use `dpsql run`, which fetches them"
        ) from None


def run_session(spark: SparkSession, buckets: int) -> SparkSession:
    """A session of its own (settings, temporary views) on the same context, for one streaming query of one run."""
    own = spark.newSession()
    for key, value in RUN.items():
        own.conf.set(key, value)
    own.conf.set("spark.sql.shuffle.partitions", str(buckets))
    return own
