"""All that is used of Spark and Delta and that they do not promise to keep, in one place.

`tests/streaming/test_internals.py` has a canary for each: when a version moves, it says in one line which of them has changed, and who needs it.
What is known of Spark's and Delta's files is in `dpsql.lake` (`spark_checkpoint`, `hadoop_checksums`, `log_head`, `delta_tables`), and of its hash
in `spreading`; their canaries are there, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession

CHECKPOINT_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
S3_FILES = "org.apache.hadoop.fs.s3a.S3AFileSystem"


MOVES_FILTERS = ",".join(
    f"org.apache.spark.sql.catalyst.optimizer.{rule}"
    for rule in ("PushDownPredicates", "PushPredicateThroughNonJoin")
)


def keep_filters(session: SparkSession) -> None:
    """Leave filters where the query has them: moved below projections, they repeat what these compute, and fill the memory with plans."""
    session.conf.set("spark.sql.optimizer.excludedRules", MOVES_FILTERS)


def start_jvm() -> None:
    """Start the JVM, or connect to that of spark-submit, before there is a session."""
    SparkContext._ensure_initialized()


def jvm_of(session: SparkSession) -> Any:
    """Return the JVM of a session."""
    return session._jvm


def has_class(session: SparkSession, name: str) -> bool:
    """Tell whether a class is on the class path, jars that were added later among it."""
    try:
        _loader(jvm_of(session)).loadClass(name)
    except Exception:
        return False
    return True


def java_context(session: SparkSession) -> Any:
    """Return Spark's own context, for its settings, its security and its folders."""
    return session.sparkContext._jsc.sc()


def submission_port(session: SparkSession, master: str) -> int | None:
    """Return the port on which a standalone master runs the programs of whoever connects, if it has one; it is asked itself, as it may be any port."""
    jvm = jvm_of(session)
    sparks = jvm_of(session).org.apache.spark
    address = sparks.rpc.RpcAddress.fromSparkURL(master)
    question = getattr(
        getattr(sparks.deploy.master, "MasterMessages$BoundPortsRequest$"), "MODULE$"
    )
    port = (
        java_context(session)
        .env()
        .rpcEnv()
        .setupEndpointRef(address, "Master")
        .askSync(question, jvm.scala.reflect.ClassTag.Any())
        .restPort()
    )
    return int(port.get()) if port.isDefined() else None


def analyzed(frame: DataFrame) -> Any:
    """Return the plan of a frame with all names resolved."""
    return frame._jdf.queryExecution().analyzed()


def frame_of(session: SparkSession, plan: Any) -> DataFrame:
    """Return a frame with a plan."""
    return DataFrame(
        jvm_of(session).org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan),
        session,
    )


def expression_of(session: SparkSession, column: Column) -> Any:
    """Return what a column is in a plan."""
    return _expression_utils(session).expression(column._jc)


def column_of(session: SparkSession, expression: Any) -> Column:
    """Return an expression of a plan as a column."""
    return Column(_expression_utils(session).column(expression))


def sequence(session: SparkSession, items: Sequence[Any]) -> Any:
    """Return a Scala sequence."""
    return jvm_of(session).org.apache.spark.api.python.PythonUtils.toSeq(list(items))


def static_call(
    session: SparkSession, owner: str, method: str, kind: str, arguments: Sequence[Any]
) -> Any:
    """Return a static method of a class of the JVM as an expression, called from Spark's generated code; NULL of a NULL.

    Args:
        session: of the plan.
        owner: the class.
        method: its name.
        kind: Spark's type of the result, as JSON.
        arguments: expressions.
    """
    jvm = jvm_of(session)
    spark = jvm.org.apache.spark.sql
    nothing = sequence(session, [])
    return spark.catalyst.expressions.objects.StaticInvoke(
        jvm.java.lang.Class.forName(owner, True, _loader(jvm)),
        spark.types.DataType.fromJson(kind),
        method,
        sequence(session, arguments),
        nothing,
        True,
        False,
        True,
        jvm.scala.Option.empty(),
    )


def hadoop_path(session: SparkSession, path: str) -> tuple[Any, Any]:
    """Return a path as Hadoop has it, and its file system with the settings of the session."""
    made = jvm_of(session).org.apache.hadoop.fs.Path(path)
    return made, made.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())


def is_pattern(session: SparkSession, path: Any) -> bool:
    """Tell whether a Hadoop path stands for several."""
    return bool(jvm_of(session).org.apache.spark.deploy.SparkHadoopUtil.get().isGlobPath(path))


def parquet_schemas(session: SparkSession, paths: Sequence[str]) -> Iterator[str]:
    """Yield the columns of Parquet files as their footers have them; an empty text of one that cannot be read."""
    hadoop_path_of = jvm_of(session).org.apache.hadoop.fs.Path
    parquet = jvm_of(session).org.apache.parquet.hadoop
    reader_of = parquet.ParquetFileReader.open
    input_file_of = parquet.util.HadoopInputFile.fromPath
    settings = session._jsparkSession.sessionState().newHadoopConf()
    for path in paths:
        try:
            reader = reader_of(input_file_of(hadoop_path_of(path), settings))
            text = str(reader.getFileMetaData().getSchema().toString())
            reader.close()
        except Py4JJavaError:
            text = ""
        yield text


def matching_folders(pattern: Any, system: Any) -> list[str]:
    """Return the folders that match a Hadoop path."""
    statuses = system.globStatus(pattern) or ()
    return [str(status.getPath().toUri().getPath()) for status in statuses if status.isDirectory()]


def avro_refuses(session: SparkSession, length: int) -> bool:
    """Tell whether the Avro of this JVM refuses a text of so many bytes before it makes room for it."""
    try:
        jvm_of(session).org.apache.avro.SystemLimitException.checkMaxStringLength(length)
    except Py4JJavaError:
        return True
    return False


def _loader(jvm: Any) -> Any:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()


def _expression_utils(session: SparkSession) -> Any:
    return jvm_of(session).org.apache.spark.sql.classic.ExpressionUtils
