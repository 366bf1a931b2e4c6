"""The Spark session that dpsql runs in, and the settings of each run."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext, SparkFiles
from pyspark.sql import SparkSession

from dpsql import jars
from dpsql.errors import ConfigError
from dpsql.scratch import scratch
from dpsql.streaming import formats, internals, protection
from dpsql.streaming.spark_home import UNTESTED, check_version

SESSION = {
    **protection.SETTINGS,
    "spark.sql.extensions": internals.DELTA_EXTENSION,
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
CLUSTER = {
    "spark.executor.extraJavaOptions": formats.java_options(),
    "spark.executor.syncLogLevel.enabled": "true",
}
LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
SOCKETS = "spark.python.unix.domain.socket.enabled"
SOCKETS_IN = "spark.python.unix.domain.socket.dir"
LONGEST_SOCKETS_IN = 60
"""Characters of the folder's name; a socket's own has 42, and 103 together is what every system takes."""

LOG_LEVEL = "spark.log.level"
JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
"""Before the user's own, `spark.driver.extraJavaOptions`, which win."""
LOCAL_DIRS = "spark.local.dir"
LOCAL_DIRS_VARIABLE = "SPARK_LOCAL_DIRS"
GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit has started the JVM."""
SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
SHIPPED = "udfs"

RUN = {
    "spark.sql.session.timeZone": "UTC",
    # Of nanoseconds the numbers are read (`dpsql.streaming.footers`): Spark has no type for them.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
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
    # A folder `day=01` is the text 01 where nothing else is declared: its type may not depend on what folders there are.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
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
    "spark.sql.streaming.checkpointFileManagerClass": internals.CHECKPOINT_FILES,
    # Spark's state of a bucket is one number, which our own list of state files confirms.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # One state version per micro-batch is kept for as long as Spark could go back; it only ever goes back by one.
    "spark.sql.streaming.minBatchesToRetain": "10",
    # Not more than what is kept: from a log of files with a single compacted one Spark guesses how often it compacts, and can guess wrongly.
    "spark.sql.streaming.fileSource.log.compactInterval": "10",
    # The salt of the ids is a binary literal in the plan; plans are shown in event logs.
    "spark.sql.redaction.string.regex": "(?i)0x[0-9a-f]{32,}|X'[0-9a-f]{32,}'",
}

CATCH_UP = {
    # Spark tidies its own state in the background, once a minute: a catch-up is over before, and would leave all it has written for ever.
    "spark.sql.streaming.stateStore.maintenanceInterval": "2s"
}
"""Further settings where a query ends by itself. Spark takes the first value that it meets in an executor."""


def session(
    master: str | None, properties: Mapping[str, str], output_file: Path | None = None
) -> SparkSession:
    """Start (or find) the Spark session.

    Args:
        master: like `local[2]` or `spark://host:7077`; None leaves it to spark-submit.
        properties: Spark settings of the user (`conf/spark-defaults.conf`, with `spark.jars`); they win over ours.
        output_file: a file for what the JVM and its daemons print, shown if Spark does not start; None, or a log level that the user sets: stderr.

    Raises:
        ConfigError: Spark does not start, or would not keep a secret; the session has no Delta, because the jars are not on its class path.
    """
    # Workers would otherwise start whichever python3 is first on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    protection.check_settings(properties)
    properties = dict(properties)
    if master is not None and not any(
        key in properties
        for key in ("spark.jars", "spark.driver.extraClassPath", "spark.jars.packages")
    ):
        with contextlib.suppress(
            ConfigError
        ):  # no checkout around us: then Delta has to be on the class path already, see below
            properties["spark.jars"] = ",".join(map(str, jars.ensure()))
    local = master is not None and master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        **SESSION,
        **WORKERS,
        **(LOCAL if local else CLUSTER if master is not None else {}),
        **properties,
    }
    settings |= {} if master is None else {"spark.master": master, "spark.app.name": "dpsql"}
    spark = _started(settings, None if LOG_LEVEL in properties else output_file)
    # Log lines of failed tasks quote exception texts, and those may quote records.
    spark.sparkContext.setLogLevel(properties.get(LOG_LEVEL, "OFF"))
    adopt(spark)
    return spark


def adopt(spark: SparkSession) -> None:
    """Make a session that is there fit: it has Delta and keeps secrets, and its workers get the two packages. Its settings stay as they are.

    Raises:
        ConfigError: it has no Delta, is of another version than was tested, or was started without a protection.
    """
    check_version(spark.version, (spark.conf.get(UNTESTED, "false") or "").lower() == "true")
    check_delta(spark)
    protection.protect(spark)
    if not str(spark.sparkContext.master).startswith("local"):
        ship(spark)


def _started(settings: Mapping[str, str], output_file: Path | None) -> SparkSession:
    """Start Spark; nothing has been read by then, but a foreign text may still be long, so its kind is named and its known causes."""
    try:
        if GATEWAY in os.environ:
            internals.start_jvm()
            settings = {**settings, **_local_folders({**dict(SparkConf().getAll()), **settings})}
        else:
            settings = {**settings, **_local_folders(settings), **_temporary_files(settings)}
            with _by_file(settings), _stderr_in(output_file):
                internals.start_jvm()
    except ConfigError:
        raise
    except Exception as problem:
        raise _not_started(problem, output_file) from None
    configured = SparkConf()
    master = settings.get("spark.master") or configured.get("spark.master") or ""
    if not (
        protection.makes_secret(master)
        or protection.SECRET in settings
        or configured.contains(protection.SECRET)
    ):
        raise ConfigError(
            f"{master} needs {protection.SECRET}, the same as its master and workers have: put it into Spark's own "
            "conf/spark-defaults.conf or another properties file, of mode 0600 (docs/deployment.md, Cluster)"
        )
    # Not by the builder of the session: Spark logs its options.
    for name, value in {**_sockets(master), **settings}.items():
        configured.set(name, value)
    try:
        SparkContext.getOrCreate(configured)
        return SparkSession.builder.getOrCreate()
    except Exception as problem:
        raise _not_started(problem, output_file) from None


def _not_started(problem: Exception, output_file: Path | None) -> ConfigError:
    text = str(problem)
    if output_file is not None and output_file.exists():
        sys.stderr.write(output_file.read_text(errors="replace"))
    if "BindException" in text:
        match = re.search(r"Service '(\w+)' failed after", text)
        service = f" ({match[1]})" if match else ""
        return ConfigError(
            f"Spark cannot listen on the port or address that its settings name{service}: another process has it, or it is not this machine's; "
            "change or leave out spark.driver.port, spark.driver.host, spark.driver.bindAddress, spark.ui.port, SPARK_LOCAL_IP"
        )
    return ConfigError(
        f"Spark did not start ({type(problem).__name__}): its own lines above say more; look at JAVA_HOME, the memory that is free, --master "
        "and the properties file"
    )


def _local_folders(settings: Mapping[str, str]) -> dict[str, str]:
    """Put Spark's local folders inside folders of this process: closed whatever the umask, and removed at the next start after a hard kill."""
    folders = (
        os.environ.get(LOCAL_DIRS_VARIABLE) or settings.get(LOCAL_DIRS) or tempfile.gettempdir()
    )
    return {LOCAL_DIRS: ",".join(str(scratch(place.strip())) for place in folders.split(","))}


def _temporary_files(settings: Mapping[str, str]) -> dict[str, str]:
    """Return what the JVM itself writes, in the folder of this process: in the system's own nothing would remove native libraries after a hard kill,
    and others could look at its counters."""
    folder = re.sub(r'(["\\])', r"\\\1", str(scratch()))
    ours = f'"-Djava.io.tmpdir={folder}" "-Dio.netty.native.workdir={folder}" -XX:+PerfDisableSharedMem'
    return {JAVA_OPTIONS: f"{ours} {settings.get(JAVA_OPTIONS, '')}".rstrip()}


def _sockets(master: str) -> dict[str, str]:
    """Let JVM and Python talk by files for us alone. A port that waits for one of them takes whoever comes first, and a stranger would end the run.

    The processes of a standalone cluster have them in their own temporary folders; elsewhere the names of these are too long."""
    folder = str(scratch())
    if len(folder) > LONGEST_SOCKETS_IN or not master.startswith(("local", "spark:")):
        return {}
    return {SOCKETS: "true", **({SOCKETS_IN: folder} if master.startswith("local") else {})}


@contextlib.contextmanager
def _stderr_in(file: Path | None) -> Iterator[None]:
    """Let a process that is launched have this file, for us alone, as its stderr."""
    if file is None:
        yield
        return
    stderr_copy = os.dup(2)
    output = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(output, 2)
    try:
        yield
    finally:
        os.dup2(stderr_copy, 2)
        for descriptor in (stderr_copy, output):
            os.close(descriptor)


@contextlib.contextmanager
def _by_file(settings: Mapping[str, str]) -> Iterator[None]:
    """Let a JVM that is launched find the settings in a file for us alone. By itself pyspark would write them on its command line.

    Raises:
        ConfigError: the environment names a properties file of its own, which Spark would read instead of ours.
    """
    properties_option = next(
        (
            word
            for word in shlex.split(os.environ.get(SUBMIT_ARGUMENTS, ""))
            if re.match("--properties-file(=|$)", word)
        ),
        None,
    )
    if properties_option is not None:
        raise ConfigError(
            f"{SUBMIT_ARGUMENTS} has --properties-file, and Spark would read that file instead of dpsql's settings: take it away there, and "
            "give the file to dpsql (`dpsql run --properties-file FILE`)"
        )
    with tempfile.NamedTemporaryFile(
        "w", dir=scratch(), suffix=".conf", encoding="utf-8"
    ) as file:  # mode 0600
        file.writelines(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())
        file.flush()
        environment = {
            name: os.environ.pop(name, None) for name in (SUBMIT_ARGUMENTS, LOCAL_DIRS_VARIABLE)
        }
        arguments = environment[SUBMIT_ARGUMENTS] or "pyspark-shell"
        os.environ[SUBMIT_ARGUMENTS] = (
            f"--load-spark-defaults --properties-file {shlex.quote(file.name)} {arguments}"
        )
        usual, tempfile.tempdir = tempfile.tempdir, str(scratch())  # where pyspark meets the JVM
        try:
            yield
        finally:
            tempfile.tempdir = usual
            del os.environ[SUBMIT_ARGUMENTS]
            os.environ.update(
                {name: value for name, value in environment.items() if value is not None}
            )


def _escaped(text: str) -> str:
    """Write a text so that Java reads it in a properties file."""
    return (
        re.sub(r"[\\=:#! ]", lambda match: "\\" + match[0], text)
        .replace("\n", "\\n")
        .replace("\r", "\\r")
    )


def ship(spark: SparkSession) -> None:
    """Send what workers need, as it is here: a worker may have none, or others."""
    package = Path(__file__).resolve().parent.parent
    if not (package / "udfs").is_dir():
        return  # we are in a zip that spark-submit --py-files has brought here, and brings to the workers
    # Workers fetch the file from here as long as Spark runs; Spark removes the folder when it stops.
    folder = Path(SparkFiles.getRootDirectory()) / "shipped"
    folder.mkdir(mode=0o700, exist_ok=True)
    with zipfile.ZipFile(folder / "dpsql-shipped.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("dpsql/__init__.py", "")
        for path in sorted((package / SHIPPED).rglob("*.py")):
            archive.write(path, f"dpsql/{path.relative_to(package)}")
    spark.sparkContext.addPyFile(str(folder / "dpsql-shipped.zip"))


def check_delta(spark: SparkSession) -> None:
    """Refuse a session without Delta, in one line, before anything else is tried."""
    extensions = spark.conf.get("spark.sql.extensions", "") or ""
    extensions = extensions if internals.has_class(spark, internals.DELTA_EXTENSION) else ""
    if "DeltaSparkSessionExtension" not in extensions:
        raise ConfigError(
            "this Spark session has no Delta: start it with the settings that `python -m dpsql.jars spark-defaults.conf` writes "
            "(spark-submit --properties-file spark-defaults.conf), or use `dpsql run`, which does both"
        )


def check_s3(spark: SparkSession) -> None:
    """Refuse a session that cannot reach `s3a://`, in one line."""
    if not internals.has_class(spark, internals.S3_FILES):
        raise ConfigError(
            "this Spark session has no jars for s3a://: write the properties file with "
            "`python -m dpsql.jars conf/spark-defaults.conf s3`, or use `dpsql run`, which fetches them"
        )


def run_session(
    spark: SparkSession, buckets: int, more: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session of its own (settings, temporary views) on the same context, for one streaming query of one run."""
    run_spark = spark.newSession()
    for key, value in {**RUN, **(more or {})}.items():
        run_spark.conf.set(key, value)
    run_spark.conf.set("spark.sql.shuffle.partitions", str(buckets))
    return run_spark
