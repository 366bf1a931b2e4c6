"""Formats whose reading is ours: messages of Kafka and Debezium, TIMESTAMP columns of text, lines that are too long."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from dpsql.errors import ConfigError, DataError
from dpsql.sources.change_feed import (
    BESIDE,
    CHANGE,
    DECIMAL,
    MESSAGE,
    NO_MESSAGE,
    POSITION,
    SOURCE_TIME,
    TIME,
    TIME_UNITS,
    UNAVAILABLE,
    WRONG_FIELD,
    changes_sql,
    image_sql,
)
from dpsql.sources.config import Source
from dpsql.sources.reader_options import parser_options
from dpsql.sql.clock_words import NO_DATE
from dpsql.streaming import internals
from dpsql.streaming.failures import kind_of

# TIMESTAMP columns of text, cast here and not by Spark's readers, which give a
# time without a date today's.

# A record that is read again tomorrow must be the same record. So such a text is no time: its
# line is malformed, as on the local engine.
# JSON has numbers as well (seconds since 1970), so there a time is read as VARIANT, which keeps
# what it was.

CORRUPT = "dpsql_corrupt_line"
"""Column that is not NULL for a malformed line or message."""

MISFIT = "schema"
"""Reason in this column for what does not fit `schema`."""

KINDS = {"no_message": f"{CORRUPT} = ''", "no_place": f"{CORRUPT} LIKE 'source.%'"}
"""SQL of kinds of malformed messages, by the names of their counts."""

FORMAT = "timestampformat"


def declared(session: SparkSession, source: Source) -> T.StructType:
    """Return the declared columns.

    Raises:
        ConfigError: there is a TIMESTAMP inside of another type, where it cannot be cast here.
    """
    schema = session.createDataFrame([], str(source.schema)).schema
    inner = next((field.name for field in schema if _is_inside(field.dataType)), None)
    if inner is not None and not _has_format(source):
        raise ConfigError(
            f"source {source.name!r}: column {inner} has a TIMESTAMP inside of another type, which Spark would give today's date where the text "
            "has none: declare it as STRING there and cast it in FROM"
        )
    return schema


def as_read(schema: T.StructType, source: Source) -> T.StructType:
    """Return the columns as the reader is to take them: what this module casts as it stands in the text."""
    raw = T.VariantType() if "json" in (source.format, source.value_format) else T.StringType()
    cast = () if _has_format(source) else _times(schema)
    return T.StructType(
        [
            T.StructField(field.name, raw if field.name in cast else field.dataType)
            for field in schema
        ]
    )


def typed(frame: DataFrame, schema: T.StructType, unit_us: int = 1_000_000) -> DataFrame:
    """Return a frame of `as_read`'s with its times; a text that is none is a malformed line, where CORRUPT says so, and else NULL.

    `unit_us`: the unit of times that are numbers, in microseconds.
    """
    kinds = {field.name: field.dataType for field in frame.schema}
    times = [name for name in _times(schema) if not isinstance(kinds[name], T.TimestampType)]
    if not times:
        return frame
    listed = []
    wrong = [CORRUPT]
    for name, kind in kinds.items():
        text = quoted(name)
        if name in times:
            value, has_value = _value(text, isinstance(kind, T.VariantType), unit_us)
            wrong.append(f"CASE WHEN {value} IS NULL AND {has_value} THEN '{MISFIT}' END")
            text = f"{value} AS {text}"
        listed.append(text if name != CORRUPT else "")
    corrupt_columns = [f"coalesce({', '.join(wrong)}) AS {CORRUPT}"] if CORRUPT in kinds else []
    return frame.selectExpr(*filter(None, listed), *corrupt_columns)


def quoted(name: str) -> str:
    """Return a column's name as Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _value(name: str, variant: bool, unit_us: int) -> tuple[str, str]:
    """Return SQL of a time, and of whether there is anything. Texts like `2024-...` come first: they are almost all, and need no second look."""
    text = f"variant_get({name}, '$', 'string')" if variant else name
    common = f"CASE WHEN substring({text}, 5, 1) = '-' THEN CAST({text} AS TIMESTAMP)"
    dated = f"CAST(regexp_replace({text}, '{NO_DATE}', 'x') AS TIMESTAMP)"
    if not variant:
        return f"{common} ELSE {dated} END", f"{name} IS NOT NULL"
    kind = f"schema_of_variant({name})"
    seconds = f"timestamp_micros(try_multiply(variant_get({name}, '$', 'bigint'), {unit_us}L))"
    return (
        f"{common} WHEN {kind} = 'STRING' THEN {dated} WHEN {kind} = 'BIGINT' THEN {seconds} END",
        f"{name} IS NOT NULL AND NOT is_variant_null({name})",
    )


def _times(schema: T.StructType) -> list[str]:
    return [field.name for field in schema if isinstance(field.dataType, T.TimestampType)]


def _is_inside(kind: T.DataType) -> bool:
    return not isinstance(kind, T.TimestampType) and '"timestamp"' in kind.json()


def _has_format(source: Source) -> bool:
    """Tell whether a source has a format of its own: a text is read by that alone."""
    return any(name.lower() == FORMAT for name, _ in source.options)


# Messages of Kafka as columns: JSON or Avro values. What cannot be read is marked as malformed;
# no message ends a job.

LONGEST_TEXT = 1 << 24
LIMITS = {
    "org.apache.avro.limits.string.maxLength": LONGEST_TEXT,
    "org.apache.avro.limits.bytes.maxLength": LONGEST_TEXT,
    "org.apache.avro.limits.collectionItems.maxLength": 1 << 20,
}
"""Avro makes room for as many bytes as a message says it has. Without limits a few bytes that claim 2 GB end the JVM."""


def limit_avro(session: SparkSession) -> None:
    """Set the limits in this JVM, and see that those who decode have them. Avro asks for them once, when it first reads something.

    Raises:
        ConfigError: the executors were not told, or this JVM has read Avro before.
    """
    for name, limit in LIMITS.items():
        internals.jvm_of(session).java.lang.System.setProperty(name, str(limit))
    context = session.sparkContext
    if str(context.master).startswith("local"):
        if not internals.avro_refuses(session, LONGEST_TEXT + 1):
            raise ConfigError(
                "this Spark session has read Avro before, without limits: one message could end it. Start Spark with "
                f"`spark.driver.extraJavaOptions {java_options()}`"
            )
        return
    executor_options = context.getConf().get("spark.executor.extraJavaOptions", "") or ""
    if not all(name in executor_options for name in LIMITS):
        raise ConfigError(
            f"an Avro source on a cluster needs `spark.executor.extraJavaOptions {java_options()}` in the properties file"
        )


def java_options() -> str:
    """Return the limits as options of a JVM."""
    return " ".join(f"-D{name}={limit}" for name, limit in LIMITS.items())


def reader_options(source: Source) -> dict[str, str]:
    """Return the options of Spark's Kafka reader: all that is stored, and never past a gap (offsets that have expired stop the job)."""
    return {"startingOffsets": "earliest", **dict(source.options), "failOnDataLoss": "true"}


HEADER_BYTES = 5
"""Bytes before a value of a registry of schemas: 0, and the number of the schema."""

TAIL = bytes.fromhex("d1b54a32d192ed03e7037ed1a0b428db")
"""Bytes put behind an Avro value: what is left of a value that ends elsewhere stands before them."""


def values(messages: DataFrame, source: Source) -> DataFrame:
    """Return messages with their values alone, where a registry of schemas has put something before them."""
    if not source.schema_registry:
        return messages
    has_header = f"octet_length(value) >= {HEADER_BYTES} AND substring(value, 1, 1) = X'00'"
    value = f"CASE WHEN {has_header} THEN substring(value, {HEADER_BYTES + 1}) ELSE value END"
    return messages.withColumn("value", F.expr(value))


def parsed(messages: DataFrame, source: Source) -> DataFrame:
    """Return the declared columns out of the binary column `value`, and CORRUPT beside them. A message without value is no record.

    Raises:
        DataError: the Avro schema cannot be used, or does not have the declared columns.
    """
    messages = messages.where("value IS NOT NULL")
    return _avro(messages, source) if source.value_format == "avro" else _json(messages, source)


def parsed_lines(texts: DataFrame, source: Source) -> DataFrame:
    """Return the declared columns out of the column `value`, an object in each row, with those of folders behind it, and CORRUPT beside them."""
    return _json(texts, source, texts.columns[1:])


def _json(messages: DataFrame, source: Source, folder_columns: Sequence[str] = ()) -> DataFrame:
    in_folders = {name.lower() for name in folder_columns}
    schema = T.StructType(
        [
            field
            for field in declared(messages.sparkSession, source)
            if field.name.lower() not in in_folders
        ]
    )
    shape = as_read(schema, source).add(CORRUPT, "string")
    quoted_folders = [quoted(name) for name in folder_columns]
    texts = messages.selectExpr("cast(value AS STRING) AS value", *quoted_folders).where(HAS_TEXT)
    objects = texts.select(
        F.from_json("value", shape, parser_options(source) | OPTIONS).alias("v"), *quoted_folders
    )
    return typed(objects.select("v.*", *quoted_folders), schema)


def _avro(messages: DataFrame, source: Source) -> DataFrame:
    from pyspark.sql.avro.functions import from_avro

    limit_avro(messages.sparkSession)
    try:
        decoded = messages.select(
            from_avro(
                F.expr(f"concat(value, X'{TAIL.hex()}')"),
                _with_tail(str(source.value_schema)),
                {"mode": "PERMISSIVE"},
            ).alias("m")
        )
        decoded = decoded.select("m.value", "m.tail")
        avro_types = {
            field.name: field.dataType for field in decoded.select("value.*").schema.fields
        }
    except (PySparkException, Py4JJavaError) as problem:
        raise DataError(
            f"source {source.name!r}: Spark refuses the Avro schema ({kind_of(problem)})"
        ) from None
    declared_schema = messages.sparkSession.createDataFrame([], str(source.schema)).schema
    for field in declared_schema:
        if avro_types.get(field.name) != field.dataType:
            kind = (
                avro_types[field.name].simpleString().upper()
                if field.name in avro_types
                else "missing"
            )
            raise DataError(
                f"source {source.name!r}: column {field.name} is declared as {field.dataType.simpleString().upper()}, "
                f"but in the Avro schema it is {kind}; change `schema` at sources.{source.name}"
            )
    columns = [f"value.`{field.name}`" for field in declared_schema]
    # Of a message that it cannot read the decoder makes a row of NULLs.
    is_whole = f"tail IS NOT NULL AND tail = X'{TAIL.hex()}'"
    return decoded.selectExpr(*columns, f"CASE WHEN NOT ({is_whole}) THEN '' END AS {CORRUPT}")


def _with_tail(schema: str) -> str:
    """Return an Avro schema of a record and the bytes behind it."""
    tail = {"type": "fixed", "name": "dpsql_tail", "size": len(TAIL)}
    fields = [{"name": "value", "type": json.loads(schema)}, {"name": "tail", "type": tail}]
    return json.dumps({"type": "record", "name": "dpsql_message", "fields": fields})


# Messages of Debezium as images: the columns of the row, and beside them what a Delta change
# feed has. What cannot be read is marked as
# malformed; no message ends a job. The local engine reads them in the same way
# (`dpsql.local.debezium`).

OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
HAS_TEXT = "startswith(value, '{') OR value RLIKE '[^\\\\x00-\\\\x20]'"
"""SQL of whether a line or message is more than blanks; nearly all begin with a bracket."""

MESSAGE_SCHEMA = ", ".join(f"{name} STRING" for name in (*MESSAGE, CORRUPT))
"""What is nested stays text here: it is read by the schema of the source."""


def parsed_changes(messages: DataFrame, source: Source) -> DataFrame:
    """Return the images in the column `value`, a message in each row, and CORRUPT beside them. A blank message is no record."""
    texts = messages.selectExpr("cast(value AS STRING) AS value")
    texts = texts.where(~F.col("value").rlike(NO_MESSAGE))
    envelopes = texts.select(_object("value", MESSAGE_SCHEMA).alias("m"))
    fields = [
        f"CASE WHEN m.payload IS NULL THEN m.{name} ELSE p.{name} END AS {name}"
        for name in MESSAGE[:-1]
    ]
    bad = f"m.{CORRUPT} IS NOT NULL OR m IS NULL OR (m.payload IS NOT NULL AND (p IS NULL OR p.{CORRUPT} IS NOT NULL))"
    payloads = envelopes.select("m", _object("m.payload", MESSAGE_SCHEMA).alias("p")).selectExpr(
        *fields, f"{bad} AS bad"
    )
    place = str(source.sequence_by).split(".")[1]
    number_fields = (f"`{name}` STRING" for name in dict.fromkeys((place, SOURCE_TIME)))
    shape = ", ".join((*number_fields, f"{CORRUPT} STRING"))
    is_read = f"NOT bad AND s.{CORRUPT} IS NULL"
    operations = payloads.select(
        "before", "after", "op", "bad", _object("source", shape).alias("s")
    ).selectExpr(
        "before",
        "after",
        f"CASE WHEN {is_read} THEN op END AS op",
        "s IS NOT NULL AS has_source",
        *_number(place, "place"),
        *_number(SOURCE_TIME, "moment"),
    )
    names = f"explode(split({changes_sql(str(source.sequence_by))}, ' ')) AS {CHANGE}"
    images = operations.selectExpr("*", names).selectExpr(
        *image_sql(_literal(source.unavailable_value or UNAVAILABLE)),
        CHANGE,
        f"place AS {POSITION}",
        f"timestamp_micros(try_multiply(moment, 1000L)) AS {TIME}",
    )
    return _rows(images, source)


def _rows(images: DataFrame, source: Source) -> DataFrame:
    """Return the rows of images, with what these have beside them, and CORRUPT."""
    schema = declared(images.sparkSession, source)
    decimals = {name for name, _ in source.decimals}
    shape = T.StructType(
        [
            T.StructField(field.name, T.StringType()) if field.name.lower() in decimals else field
            for field in as_read(schema, source)
        ]
    )
    text_columns = [field.name for field in schema if isinstance(field.dataType, T.StringType)]
    old_columns = (f"{quoted(name)} VARIANT" for name in text_columns)
    rows = images.select(
        *BESIDE,
        _object("line", shape.add(CORRUPT, "string")).alias("v"),
        _object("old", ", ".join((*old_columns, f"{CORRUPT} STRING"))).alias("o"),
    )
    values_by_name = {field.name: _row_value(field, source) for field in schema}
    misfits = (
        f"v.{quoted(name)} IS NOT NULL AND ({value}) IS NULL"
        for name, value in values_by_name.items()
        if value != f"v.{quoted(name)}"
    )
    is_misfit = " OR ".join((f"v.{CORRUPT} IS NOT NULL", *misfits))
    corrupt = (
        f"CASE WHEN v IS NULL THEN {WRONG_FIELD} WHEN {is_misfit} THEN '{MISFIT}' END AS {CORRUPT}"
    )
    values = (f"{value} AS {quoted(name)}" for name, value in values_by_name.items())
    unit_us = TIME_UNITS[source.time_unit] if source.time_unit else 1_000_000
    return typed(rows.selectExpr(*values, *BESIDE, corrupt), schema, unit_us)


def _row_value(field: T.StructField, source: Source) -> str:
    """Return SQL of a value as the connector means it; NULL for one that is none, or is not there."""
    read_column = f"v.{quoted(field.name)}"
    scale = dict(source.decimals).get(field.name.lower())
    if scale is not None:
        return _decimal(read_column, scale)
    if not isinstance(field.dataType, T.StringType):
        return read_column
    word = _literal(source.unavailable_value or UNAVAILABLE)
    return f"CASE WHEN {read_column} = {word} THEN {_old_text(field.name)} ELSE {read_column} END"


def _object(text: str, shape: T.StructType | str) -> Column:
    """Return a JSON object; NULL for any other text."""
    return F.from_json(
        F.expr(f"CASE WHEN {text} RLIKE '^\\\\s*[{{]' THEN {text} END"), shape, OPTIONS
    )


def _old_text(name: str) -> str:
    """Return SQL of a text of the old row; NULL where it has none."""
    value = f"o.{quoted(name)}"
    return f"CASE WHEN o.{CORRUPT} IS NULL AND schema_of_variant({value}) = 'STRING' THEN variant_get({value}, '$', 'string') END"


def _decimal(text: str, scale: int) -> str:
    """Return SQL of a decimal as a DOUBLE; NULL for a text that is none."""
    digits = f"hex(unbase64({text}))"
    padded = f"lpad({digits}, 16, CASE WHEN {digits} >= '8' THEN 'F' ELSE '0' END)"
    number = f"cast(cast(conv({padded}, 16, -10) AS BIGINT) AS DOUBLE) / 1e{scale}"
    is_decimal = f"length({text}) BETWEEN 4 AND 12 AND {text} RLIKE '^{DECIMAL}\\\\z'"
    return f"CASE WHEN {is_decimal} THEN CASE WHEN length({digits}) <= 16 THEN {number} END END"


def _literal(text: str) -> str:
    """Return a text as Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _number(name: str, alias: str) -> tuple[str, str]:
    """Return SQL of a whole number of `source`, which connectors write as a number or as a text of digits, and of whether something else is there."""
    text = f"s.`{name}`"
    number = f"CASE WHEN {text} RLIKE '^-?[0-9]+\\\\z' THEN try_cast({text} AS BIGINT) END"
    return f"{number} AS {alias}", f"{text} IS NOT NULL AND {number} IS NULL AS is_odd_{alias}"


# Lines of CSV that are too long for Spark's parser. It never sees them, so they are counted
# here, among the malformed ones.

# Hadoop leaves out lines of `LONGEST_LINE` bytes and more and tells nobody. So lines are counted
# with that limit and without, and only in files
# that can hold such a line and have one that is nearly so long.

CSV_COLUMNS = 1 << 20
"""The CSV parser gives up on a line with more columns than this; its own default of 20480 lets one line stop the job."""

LONGEST_LINE = CSV_COLUMNS - 2
"""Bytes of a line, with its end; a shorter line cannot have too many columns."""

LIMIT = "mapreduce.input.linerecordreader.line.maxlength"
"""Hadoop's name for it."""

COUNTED = 1 << 22
"""Longer lines than this are not counted either: a task holds a line several times, and memory that runs out would end the job."""

MAY_BE_LARGE = f"_metadata.file_size >= {LONGEST_LINE} OR _metadata.file_name RLIKE '[.](gz|gzip|bz2|zst|lz4|snappy|deflate|xz)$'"


def count(session: SparkSession, source: Source, uris: Sequence[str]) -> int:
    """Return how many lines of these files are too long; of files that are gone by now nobody can say.

    Args:
        session: any.
        source: the stream; of other formats than CSV, lines have no limit.
        uris: files, as Spark's file source lists them.
    """
    if source.format != "csv" or not uris:
        return 0

    def lines(limit: int) -> DataFrame:
        reader = session.read.format("text").options(
            **{LIMIT: str(limit), "__globPaths__": "false", "ignoreMissingFiles": "true"}
        )
        return reader.load([unquote(uri) for uri in uris]).where(MAY_BE_LARGE)

    try:
        if not lines(COUNTED).where(f"octet_length(value) >= {LONGEST_LINE} - 2").limit(1).count():
            return 0
        return lines(COUNTED).count() - lines(LONGEST_LINE).count()
    except AnalysisException as problem:
        remaining = [uri for uri in uris if _is_there(session, uri)]
        if not (problem.getCondition() or "").startswith("PATH_NOT_FOUND") or len(remaining) == len(
            uris
        ):
            raise
        return count(session, source, remaining)


def _is_there(session: SparkSession, uri: str) -> bool:
    path, system = internals.hadoop_path(session, unquote(uri))
    return bool(system.exists(path))
