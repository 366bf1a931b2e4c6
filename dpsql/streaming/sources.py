"""Sources as Spark reads them: the stream, tables of the catalog, and static tables with what pins them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from dpsql.errors import ConfigError, DataError, LakeError
from dpsql.lake.read_files import readable
from dpsql.parsed_query import ParsedQuery
from dpsql.sources.change_feed import CHANGE, FeedForm
from dpsql.sources.config import Source, refused_schema
from dpsql.sources.reader_options import (
    CATALOG,
    FILES_PER_BATCH,
    batch_limits,
    file_options,
    refused_format,
    refused_option,
)
from dpsql.streaming import formats, internals
from dpsql.streaming.event_times import with_event_time
from dpsql.streaming.failures import kind_of, reason_of, translate
from dpsql.streaming.file_columns import SELF_DESCRIBING, check_first_types, check_source_folders
from dpsql.streaming.footers import Units, check_units, numbers_of, stored_schema, with_times
from dpsql.streaming.formats import CORRUPT
from dpsql.streaming.session import run_session
from dpsql.text import without_credentials
from dpsql.udfs.bucket_state import filesystem

# Sources as Spark reads them: the stream, and public static tables beside it.

MALFORMED = "dpsql_malformed"
FILES = (*SELF_DESCRIBING, "json", "csv", "text")
BATCH_FILES = 64
"""Default files in a micro-batch. Not bytes: what one user adds must not move other users' records to other micro-batches."""

LIVE_FILES = 1_000
"""Default files in a micro-batch of a live run, which has one at each poll."""

ALL_FILES = 999_999_999
FILES_PER_POLL = "maxfilesper(trigger|(micro)?batch)"
"""Names of options that limit the files of a micro-batch, in lower case and letters only; Delta has 1,000 without one."""

CALENDAR = {
    "date": ("DATE '0001-01-01'", "DATE '9999-12-31'"),
    "timestamp": (
        "TIMESTAMP_LTZ '0001-01-01 00:00:00Z'",
        "TIMESTAMP_LTZ '9999-12-31 23:59:59.999999Z'",
    ),
    "timestamp_ntz": (
        "TIMESTAMP_NTZ '0001-01-01 00:00:00'",
        "TIMESTAMP_NTZ '9999-12-31 23:59:59.999999'",
    ),
}
"""First and last value that the columns of a source may hold, by type."""

CSV_LIMITS = {"maxColumns": str(formats.CSV_COLUMNS), formats.LIMIT: str(formats.LONGEST_LINE)}
"""Longer lines are left out before the parser sees them."""

JSON_LIMIT = {formats.LIMIT: str(64 << 20)}
"""Longer lines are left out before they fill the memory, uncounted."""

HEADER_COUNTS = {"enforceSchema": "false"}
"""Reader option of CSV with `header`: each file's header is compared with the declared columns, case aside."""

ENDLESS = "100000000d"
"""Age of files, some 270,000 years: beyond any time that a disk can note."""

FileVersions = Mapping[str, int]


@dataclass(frozen=True)
class Registered:
    """Sources of a query that are views now.

    Args:
        tables: the static ones, kept in memory or on disk until they are unpersisted.
        numbers: columns of the stream that are read as numbers, and their units.
    """

    tables: Sequence[DataFrame]
    numbers: Units


def register(
    session: SparkSession,
    query: ParsedQuery,
    sources: Mapping[str, Source],
    versions: FileVersions,
    may_be_empty: bool = False,
) -> Registered:
    """Make every source of the query a temporary view under its own name.

    Args:
        session: where the views go.
        query: the parsed query.
        sources: all declared sources.
        versions: table versions of Delta static tables, as pinned when this catch-up was first started.
        may_be_empty: a live run: a folder of the stream that declares its schema may be empty still.

    Raises:
        DataError: a source is missing, empty or unreadable.
    """
    numbers = register_stream(session, sources[query.stream], may_be_empty)
    tables = [static(session, sources[name], versions.get(name)) for name in query.static_sources]
    for name, table in zip(query.static_sources, tables, strict=True):
        table.createOrReplaceTempView(name)
    return Registered(tables, numbers)


def register_stream(session: SparkSession, source: Source, may_be_empty: bool) -> Units:
    """Make a stream a temporary view under its own name, and return the columns that are read as numbers; the rest as in `register`."""
    frame, numbers = _stream(session, source, may_be_empty)
    timed = within_calendar(with_event_time(frame, source))
    with_valid_texts(timed, source).createOrReplaceTempView(source.name)
    return numbers


def resumed(source: Source, position: str | None) -> Source:
    """Return the stream as a restored query reads it: from Spark's offset (JSON) on; sources of files remember what was read themselves.

    Raises:
        DataError: images that are read again could not be told from new ones.
    """
    starts = {"kafka": "startingOffsets", "delta": "startingVersion"}
    if position is None or source.format not in starts:
        return source
    if source.change_feed and not source.primary_key:
        raise DataError(
            f"source `{source.name}` is a change feed without primary_key: a restored run reads the last commit again, and would count its rows "
            "twice; begin a new run: `dpsql restore NAME --new-run`, or another --name"
        )
    name = starts[source.format]
    value = position if source.format == "kafka" else str(json.loads(position)["reservoirVersion"])
    other_options = tuple(
        (key, option) for key, option in source.options if not key.lower().startswith("starting")
    )
    return replace(source, options=(*other_options, (name, value)))


def stream(session: SparkSession, source: Source, may_be_empty: bool = False) -> DataFrame:
    """Return the source as a stream of columns; malformed lines are counted (metric `dpsql_malformed`) and left out.

    Raises:
        DataError: the path does not exist, holds no files, or cannot be read.
    """
    return _stream(session, source, may_be_empty)[0]


def _stream(session: SparkSession, source: Source, may_be_empty: bool) -> tuple[DataFrame, Units]:
    if problem := refused_schema(source) or refused_format(source) or refused_option(source):
        raise ConfigError(f"source {source.name!r}: {problem}")
    if source.format in FILES:
        return _files(session, source, may_be_empty)
    if source.format == "kafka":
        reader = session.readStream.format("kafka").options(**formats.reader_options(source))
        parse = (
            formats.parsed_changes if source.change_feed is FeedForm.DEBEZIUM else formats.parsed
        )
        messages = formats.values(_load(reader, source, None), source)
        return without_malformed(parse(messages, source)), {}
    reader = session.readStream.format(source.format).options(**dict(source.options))
    frame = _load(
        reader.option("readChangeFeed", "true") if source.change_feed else reader,
        source,
        source.path,
    )
    return frame, {}


def static(session: SparkSession, source: Source, version: int | None = None) -> DataFrame:
    """Return a public table, read once and kept.

    Raises:
        DataError: it does not exist or cannot be read.
    """
    table = within_calendar(_static(session, source, version))
    return with_valid_texts(table, source).persist()


def batch(session: SparkSession, source: Source, files: Sequence[str]) -> DataFrame:
    """Return the records of some files of a source as its stream has them, but for malformed ones; raises as `stream`."""
    path, system = internals.hadoop_path(session, str(source.path))
    options = {"__globPaths__": "false"}  # a name with a bracket is no pattern here
    if not internals.is_pattern(session, path) and system.getFileStatus(path).isDirectory():
        options["basePath"] = str(source.path)
    stored = _stored(session, source, files, options)
    is_text = source.format in ("json", "csv")
    return within_calendar(without_malformed(_parsed(stored, source)) if is_text else stored)


def static_files(session: SparkSession, source: Source) -> list[str]:
    """Return the files of a public table; raises as `static`."""
    return _static(session, source, None).inputFiles()


def _static(session: SparkSession, source: Source, version: int | None) -> DataFrame:
    if source.format in ("json", "csv"):
        stored = _stored(session, source, source.path)
        return without_malformed(_parsed(stored, source), f"{MALFORMED}_{source.name}")
    reader = session.read.format(source.format).options(**dict(source.options))
    if source.schema and source.format == "xml":
        declared = formats.declared(session, source)
        frame = _load(reader.schema(formats.as_read(declared, source)), source, source.path)
        return formats.typed(frame, declared)
    if source.schema:
        reader = reader.schema(source.schema)
    if version is not None:
        reader = reader.option("versionAsOf", version)
    stored = _load(reader, source, source.path)
    numbers = numbers_of(session, source, stored)
    if not numbers:
        return stored
    check_units(session, source, numbers, stored.inputFiles())
    return with_times(
        _load(reader.schema(stored_schema(stored.schema, numbers)), source, source.path), numbers
    )


def within_calendar(frame: DataFrame) -> DataFrame:
    """Turn times outside the years 1 to 9999 into NULL: one of them could end the job in a cast that overflows."""
    listed = []
    for field in frame.schema.fields:
        name = formats.quoted(field.name)
        if bounds := CALENDAR.get(field.dataType.typeName()):
            listed.append(
                f"CASE WHEN {name} BETWEEN {bounds[0]} AND {bounds[1]} THEN {name} END AS {name}"
            )
        else:
            listed.append(name)
    return frame.selectExpr(*listed)


def with_valid_texts(frame: DataFrame, source: Source) -> DataFrame:
    """Turn bytes of a STRING that are no UTF-8 into U+FFFD; texts of lines have none."""
    if source.format in ("json", "csv", "xml") or source.value_format == "json":
        return frame
    listed = []
    for field in frame.schema.fields:
        name = formats.quoted(field.name)
        is_text = isinstance(field.dataType, T.StringType)
        listed.append(f"make_valid_utf8({name}) AS {name}" if is_text else name)
    return frame.selectExpr(*listed)


def _files(session: SparkSession, source: Source, may_be_empty: bool) -> tuple[DataFrame, Units]:
    path = existing_path(session, source)
    stored = _stored(session, source, path)
    if not (may_be_empty and source.schema) and not stored.inputFiles():
        raise DataError(f"source {source.name!r}: no files in {without_credentials(source.path)}")
    options = _file_options(source)
    if not any(name.lower() == FILES_PER_BATCH for name in options):
        options["maxFilesPerTrigger"] = str(LIVE_FILES if may_be_empty else BATCH_FILES)
    # The rest of a listing would be read without a new one, at last in a micro-batch that does not look cut.
    options["maxCachedFiles"] = "0"
    # Spark's default of 7 days hides files that come with an older time, and forgets the names of those that it has read.
    options["maxFileAge"] = ENDLESS
    numbers = numbers_of(session, source, stored)
    read_schema = stored_schema(stored.schema, numbers) if numbers else stored.schema
    reader = session.readStream.format(_form(source)).schema(read_schema).options(**options)
    frame = _load(reader, source, path)
    if source.format in ("json", "csv"):
        return without_malformed(_parsed(frame, source)), {}
    return with_times(frame, numbers) if numbers else frame, numbers


def _form(source: Source) -> str:
    """Return the format in which Spark reads the files of a source: objects of JSON are parsed here, line by line."""
    return "text" if source.format == "json" else source.format


def _stored(
    session: SparkSession,
    source: Source,
    path: str | Sequence[str] | None,
    more_options: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:
    """Return files as Spark's reader gives them: lines of JSON in the column `value`, and what folders like `day=2024-02-29` say."""
    options = {**_file_options(source), **more_options}
    reader = session.read.format(_form(source)).options(**options)
    if source.format == "csv":
        shape = formats.as_read(formats.declared(session, source), source).add(CORRUPT, "string")
        return _load(reader.schema(shape), source, path)
    if source.format != "json":
        return _load(reader.schema(source.schema) if source.schema else reader, source, path)
    lines = _load(reader, source, path)
    declared = {
        field.name.lower(): field.dataType
        for field in session.createDataFrame([], str(source.schema)).schema
    }
    line, *folder_columns = lines.schema
    shape = T.StructType([line])
    for field in folder_columns:
        shape = shape.add(field.name, declared.get(field.name.lower(), field.dataType))
    return _load(reader.schema(shape), source, path)


def _parsed(stored: DataFrame, source: Source) -> DataFrame:
    """Return the declared columns of lines, and CORRUPT beside them."""
    if source.change_feed is FeedForm.DEBEZIUM:
        return formats.parsed_changes(stored, source)
    if source.format == "json":
        return formats.parsed_lines(stored, source)
    return formats.typed(stored, formats.declared(stored.sparkSession, source))


def _file_options(source: Source) -> dict[str, str]:
    """Return the options of a reader of files. Whatever the user gives: no record may stop the job, and none may vanish uncounted."""
    options = dict(source.options)
    if source.format == "csv":
        options = _of_csv(options) | CSV_LIMITS | formats.OPTIONS
    if source.format == "json":
        options = JSON_LIMIT | file_options(source)
    return options | {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}


def _of_csv(options: Mapping[str, str]) -> dict[str, str]:
    """Return options of CSV that compare headers, and take two quotes inside of quotes for one unless the source names another `escape`."""
    given = {name.lower(): value for name, value in options.items()}
    escape = given.get("escape", given.get("quote", '"'))
    return {**options, "escape": escape} | HEADER_COUNTS


def most_live_files(source: Source) -> int | None:
    """Return how many files a micro-batch of a live run has at most; None if it has all that a poll finds."""
    if source.format not in FILES:
        return None
    return int(
        {name.lower(): value for name, value in source.options}.get(FILES_PER_BATCH, LIVE_FILES)
    )


def has_hidden_limit(source: Source) -> bool:
    """Return whether a poll of a source may leave records unread, and not show it: a commit of Delta ends as a cut does."""
    return without_limit(source) != source


def without_limit(source: Source) -> Source:
    """Return a source that is read whole at each poll; of files, a micro-batch shows that it may be cut."""
    if source.format in FILES:
        return source
    options = tuple(
        (name, value)
        for name, value in source.options
        if not re.search(FILES_PER_POLL, re.sub("[^a-z]", "", name.lower()))
    )
    if source.format == "delta":
        options = (*options, ("maxFilesPerTrigger", str(ALL_FILES)))
    return replace(source, options=options)


def read_at_once(source: Source) -> Source:
    """Return a source whose stored records are one micro-batch, whatever limits its owner wrote for live runs."""
    limits = batch_limits(source)
    options = [option for option in source.options if option[0] not in limits]
    if source.format in (*FILES, "delta"):
        options.append(("maxFilesPerTrigger", str(ALL_FILES)))
    return replace(source, options=tuple(options))


def files_there(session: SparkSession, source: Source) -> list[str]:
    """Return the files that a source of files has now, as paths; none if it cannot be listed, or is no source of files."""
    if source.format not in FILES or source.path is None:
        return []
    options = file_options(source)
    try:
        uris = (
            session.read.format("binaryFile")
            .options(**options)
            .load(existing_path(session, source))
            .inputFiles()
        )
    except (DataError, PySparkException):
        return []
    return [readable(uri) for uri in uris]


def without_malformed(frame: DataFrame, metric: str = MALFORMED) -> DataFrame:
    """Count the rows with something in the column CORRUPT, and leave them and the column out.

    Spark pushes no filter through what counts: each line is parsed once. All columns are looked at, since of CSV Spark converts only fields
    that are read: whether a line is malformed must not depend on the query.
    """
    has_value = " OR ".join(f"{formats.quoted(name)} IS NOT NULL" for name in frame.columns)
    # A count and 0, the smaller one: Spark cannot leave a column out of it.
    zero_count = f"least(count(CASE WHEN {has_value} THEN 1 END), 0)"
    counts = {"malformed": f"count({CORRUPT}) + {zero_count}"}
    if CHANGE in frame.columns:
        counts |= {
            kind: f"count(CASE WHEN {what} THEN 1 END)" for kind, what in formats.KINDS.items()
        }
    metrics = [F.expr(f"{count} AS {kind}") for kind, count in counts.items()]
    observed_frame = frame.observe(metric, *metrics)
    return observed_frame.where(f"{CORRUPT} IS NULL").drop(CORRUPT)


def check_there(session: SparkSession, sources: Iterable[Source]) -> None:
    """Refuse a source of files where nothing is, or whose first file has another header or other numbers than declared; raises as `stream`."""
    session = run_session(session, 1)
    for source in sources:
        if source.path and source.format in (*FILES, "delta"):
            existing_path(session, source)
            if source.format in FILES:
                check_source_folders(session, source)
            if source.schema and source.format in ("csv", *SELF_DESCRIBING):
                _check_first_file(session, source)
            if source.event_time_unit and source.format not in ("csv", "json"):
                with_event_time(_stream(session, source, may_be_empty=True)[0], source)


def _check_first_file(session: SparkSession, source: Source) -> None:
    """Read the first record of a CSV source, or the types of a file that has its own."""
    if source.format == "csv":
        try:  # whatever the first record is, it refuses nothing
            _stored(session, source, source.path).head(1)
        except DataError:  # there is no file yet
            return
        except (PySparkException, Py4JJavaError) as problem:
            raise translate(problem, source.name, f"reading source {source.name!r}") from None
        return
    check_first_types(session, source)


def existing_path(session: SparkSession, source: Source) -> str:
    """Return the path, in the form that the streaming reader wants.

    Raises:
        DataError: nothing is there.
    """
    try:
        path, system = internals.hadoop_path(session, str(source.path))
        if not internals.is_pattern(session, path):
            if not system.exists(path):
                raise DataError(
                    f"source {source.name!r}: {without_credentials(source.path)} does not exist"
                )
            if system.getFileStatus(path).isFile():
                # The streaming reader takes folders and patterns: a pattern that matches this one file.
                return f"{path.getParent()}/{{{path.getName()}}}"
    except DataError:
        raise
    except Exception as problem:
        raise DataError(
            f"source {source.name!r}: {without_credentials(source.path)} cannot be read ({kind_of(problem)})"
        ) from None
    return str(source.path)


def _load(reader: Any, source: Source, path: str | Sequence[str] | None) -> DataFrame:
    try:
        return reader.load(path) if path else reader.load()
    except AnalysisException as problem:
        condition = problem.getCondition() or ""
        if condition.startswith("PATH_NOT_FOUND"):
            raise DataError(
                f"source {source.name!r}: {without_credentials(source.path)} does not exist"
            ) from None
        if condition.startswith("UNABLE_TO_INFER_SCHEMA"):
            raise DataError(
                f"source {source.name!r}: no {source.format} files in {without_credentials(source.path)}"
            ) from None
        raise DataError(f"source {source.name!r}: {reason_of(problem)}") from None
    except PySparkException as problem:
        raise translate(problem, source.name, f"reading source {source.name!r}") from None
    except Exception as problem:
        failure = translate(problem, source.name, "reading it")
        raise DataError(f"source {source.name!r}: {failure}") from None


# Tables of Spark's catalog as sources: where they are and in what format, asked once before a
# run begins.


def located(
    spark: SparkSession, sources: Mapping[str, Source], names: tuple[str, ...]
) -> Mapping[str, Source]:
    """Return the sources with every catalog table among `names` as a path: from there on it is like any other. Nothing is read before.

    Args:
        spark: whose catalog knows the tables.
        sources: all declared sources.
        names: those that the query reads.

    Raises:
        DataError: there is no such table, or it has no files of its own (a view, a table of a foreign database).
        ConfigError: there are messages of Avro, and their texts would have no limits.
    """
    if any(sources[name].value_format == "avro" for name in names):
        formats.limit_avro(spark)
    catalog_tables = {
        name: _located(spark, sources[name]) for name in names if sources[name].format == CATALOG
    }
    return {**sources, **catalog_tables} if catalog_tables else sources


def _located(spark: SparkSession, source: Source) -> Source:
    try:
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {source.table}").collect()
    except PySparkException as problem:
        if (problem.getCondition() or "").startswith("TABLE_OR_VIEW_NOT_FOUND"):
            raise DataError(
                f"source {source.name!r}: the catalog of this Spark session has no table {source.table}"
            ) from None
        raise DataError(
            f"source {source.name!r}: table {source.table}: {reason_of(problem)}"
        ) from None
    facts = {str(row["col_name"]): str(row["data_type"]) for row in rows}
    place = facts.get("Location")
    provider = facts.get("Provider", "").lower()
    if not place or not provider:
        raise DataError(
            f"source {source.name!r}: {source.table} has no files of its own: name a Delta table or a table of files, not a view"
        )
    return replace(source, format=provider, path=place, table=None)


# What pins a static table: of Delta its version, of files in other formats a digest of their
# bytes.

# A version can be read again whatever is written later. Files cannot: so a digest is kept, and
# an attempt that would read others is refused.

Pins = Mapping[str, int | str]
"""By source name."""
PIECE = 1 << 22


def pins(session: SparkSession, tables: Sequence[Source]) -> dict[str, int | str]:
    """Return what the static tables are now; a table without files of its own (a foreign database) has no pin.

    Raises:
        DataError: a table cannot be read.
    """
    session = run_session(session, 1)
    pin_by_name: dict[str, int | str] = {}
    for source in tables:
        if source.format == "delta" and source.path:
            pin_by_name[source.name] = DeltaTable(source.path).version()
        elif files := static_files(session, source):
            pin_by_name[source.name] = _digest(files, source.name)
    return pin_by_name


def check_unchanged(pinned: Pins, current: Pins) -> None:
    """Refuse files that are not those that a catch-up, or a live run, has begun with.

    Raises:
        LakeError: names the table.
    """
    for name, pin in pinned.items():
        if isinstance(pin, str) and current.get(name, pin) != pin:
            raise LakeError(
                f"the files of static table {name!r} are not those that this run is reading: put the old ones back until it has caught up "
                "(a live run keeps them), or start a new run under another --name. A Delta table may change: its version is kept"
            )


def versions(pinned: Pins) -> dict[str, int]:
    """Return the Delta versions among them."""
    return {name: pin for name, pin in pinned.items() if isinstance(pin, int)}


def _digest(files: Sequence[str], name: str) -> str:
    digest = hashlib.sha256()
    try:
        for file in sorted(files):
            system, path = filesystem(file)
            path = unquote(path) if urlsplit(file).scheme not in ("", "file") else path
            digest.update(PurePosixPath(path).name.encode() + b"\0")
            with system.open_input_stream(path, compression=None) as stream:
                while piece := stream.read(PIECE):
                    digest.update(piece)
    except OSError as problem:
        raise DataError(
            f"static table {name!r} cannot be read ({type(problem).__name__})"
        ) from None
    return digest.hexdigest()
