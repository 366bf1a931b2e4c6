"""Messages of Kafka as columns: JSON or Avro values. What cannot be read is marked as malformed; no message ends a job."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dpsql.errors import ConfigError, DataError
from dpsql.sources.config import Source
from dpsql.streaming import internals, text_times
from dpsql.streaming.text_times import CORRUPT

LIMITS = {
    "org.apache.avro.limits.string.maxLength": 1 << 24,
    "org.apache.avro.limits.bytes.maxLength": 1 << 24,
    "org.apache.avro.limits.collectionItems.maxLength": 1 << 20,
}
"""Avro makes room for as many bytes as a message says it has. Without limits a few bytes that claim 2 GB end the JVM."""


def limit_avro(session: SparkSession) -> None:
    """Set the limits in this JVM, before Avro reads them, and see that the executors have them.

    Raises:
        ConfigError: the executors were not told.
    """
    for name, limit in LIMITS.items():
        internals.jvm_of(session).java.lang.System.setProperty(name, str(limit))
    context = session.sparkContext
    told = context.getConf().get("spark.executor.extraJavaOptions", "") or ""
    if not str(context.master).startswith("local") and not all(name in told for name in LIMITS):
        raise ConfigError(
            f"an Avro source on a cluster needs `spark.executor.extraJavaOptions {java_options()}` in the properties file"
        )


def java_options() -> str:
    """The limits as options of a JVM."""
    return " ".join(f"-D{name}={limit}" for name, limit in LIMITS.items())


def reader_options(source: Source) -> dict[str, str]:
    """Options of Spark's Kafka reader: all that is stored, and never past a gap (offsets that have expired stop the job)."""
    return {"startingOffsets": "earliest", **dict(source.options), "failOnDataLoss": "true"}


def parsed(messages: DataFrame, source: Source) -> DataFrame:
    """The declared columns out of the binary column `value`, and CORRUPT beside them. A message without value is no record.

    Raises:
        DataError: the Avro schema cannot be used, or does not have the declared columns.
    """
    messages = messages.where("value IS NOT NULL")
    return _avro(messages, source) if source.value_format == "avro" else _json(messages, source)


def _json(messages: DataFrame, source: Source) -> DataFrame:
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    schema = text_times.declared(messages.sparkSession, source)
    read = text_times.as_read(schema, source).add(CORRUPT, "string")
    return text_times.typed(
        messages.select(
            F.from_json(F.expr("cast(value AS STRING)"), read, options).alias("v")
        ).select("v.*"),
        schema,
    )


def _avro(messages: DataFrame, source: Source) -> DataFrame:
    from pyspark.sql.avro.functions import from_avro

    limit_avro(messages.sparkSession)
    try:
        read = messages.select(
            from_avro("value", str(source.value_schema), {"mode": "PERMISSIVE"}).alias("v")
        )
        have = {field.name: field.dataType for field in read.select("v.*").schema.fields}
    except PySparkException as problem:
        raise DataError(
            f"source {source.name!r}: Spark refuses the Avro schema ({problem.getCondition()})"
        ) from None
    wanted = messages.sparkSession.createDataFrame([], str(source.schema)).schema
    for field in wanted:
        if have.get(field.name) != field.dataType:
            kind = have[field.name].simpleString().upper() if field.name in have else "missing"
            raise DataError(
                f"source {source.name!r}: column {field.name} is declared as {field.dataType.simpleString().upper()}, "
                f"but in the Avro schema it is {kind}; change `schema` at sources.{source.name}"
            )
    columns = [f"v.`{field.name}`" for field in wanted]
    # Of a message that it cannot read the decoder makes a row of NULLs, and so would a message that says nothing.
    return read.selectExpr(
        *columns,
        f"CASE WHEN coalesce({', '.join(f'cast({c} AS STRING)' for c in columns)}) IS NULL THEN '' END AS {CORRUPT}",
    )
