"""FROM as records: ids, encoded keys, event times and arguments, made by Spark SQL in the JVM; and the listed groups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from dpsql.compiled import Query
from dpsql.errors import DataError, LakeError
from dpsql.lake import remedies
from dpsql.lake.engine_file import Engine
from dpsql.mechanisms import public_groups, registry
from dpsql.mechanisms.protocol import Argument, Plan
from dpsql.sources.change_feed import CHANGE, POSITION, kind_sql
from dpsql.sources.time_units import no_time
from dpsql.streaming import formats, internals
from dpsql.streaming.failures import reason_of
from dpsql.streaming.totality import guarded
from dpsql.udfs.bucket_state import DamagedState, UnknownStateVersion
from dpsql.udfs.keys import HEADER, MAX_KEY_BYTES, NULL_HEADER, PublicGroups, max_encoded_bytes
from dpsql.udfs.stage import NO_RECORD, NO_SEQUENCE

# Static methods of the JVM as columns, called from Spark's generated code: what Spark SQL itself
# offers only by way of texts.

# Spark is pinned exactly, and so are the classes that it brings along.

SHA_256 = ("org.apache.commons.codec.digest.DigestUtils", "sha256", T.BinaryType())
JOIN = ("org.apache.commons.lang3.ArrayUtils", "addAll", T.BinaryType())
FIRST_LONG = ("org.apache.spark.unsafe.types.ByteArray", "getPrefix", T.LongType())
"""The first eight bytes as a signed number, big-endian."""


def digest_prefix(session: SparkSession, encoded: Column) -> Column:
    """Return the first eight bytes of SHA-256 of a BINARY column as a signed BIGINT; never NULL.

    By SQL alone this is `cast(conv(left(sha2(c, 256), 16), 16, -10) AS BIGINT)`: two texts per record, and a fifth of the JVM's time.
    """
    return _call(session, FIRST_LONG, _call(session, SHA_256, encoded))


def joined(session: SparkSession, parts: Sequence[Column]) -> Column:
    """Join BINARY columns one after the other; NULL if one is NULL. Several times faster than `concat`, which copies by way of `Unsafe`."""
    return functools.reduce(lambda prefix, part: _call(session, JOIN, prefix, part), parts)


def _call(session: SparkSession, method: tuple[str, str, T.DataType], *arguments: Column) -> Column:
    owner, name, kind = method
    expressions = [internals.expression_of(session, argument) for argument in arguments]
    return internals.column_of(
        session, internals.static_call(session, owner, name, kind.json(), expressions)
    )


# FROM as records: ids, encoded keys, event times and arguments, made by Spark SQL in the JVM.

# The columns are those of the `rows` table of docs/architecture.md without `drop` (dropped
# records are counted and left behind before the
# shuffle) and with `bucket`. Until then all bytes are STRINGs, whether they are UTF-8 or not:
# Spark copies BINARY at every step. No column ever
# holds a NULL: one NULL in a BIGINT column would turn it into float64 in pandas, which rounds
# 64-bit ids in silence.

DROPPED = "dpsql_dropped"
MALFORMED = 1
LIMIT_US = 1 << 61
US_PER_DAY = 86_400_000_000
MAX_DECIMAL_SCALE = 6
LISTED_HEADERS = 256
TEMPORAL = (T.TimestampType, T.TimestampNTZType)
NUMBERS = (
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.BooleanType,
    T.StringType,
)


@dataclass(frozen=True)
class RecordFrame:
    """The projected stream and the Spark types of the key columns (the histogram shows keys under these)."""

    frame: DataFrame
    key_types: tuple[T.DataType, ...]


def records(session: SparkSession, plan: Plan, salt: bytes, buckets: int) -> RecordFrame:
    """Return the records of a query; its sources must be registered as temporary views.

    Args:
        session: where the views are.
        plan: the plan.
        salt: 16 bytes of this run; makes the ids.
        buckets: users are spread over so many buckets; keys where the query has no privacy unit.

    Raises:
        DataError: a column is missing or has a type that cannot be used.
    """
    record_columns = _record_columns(plan)
    selected = _select(session, plan)
    types = {field.name: field.dataType for field in selected.schema.fields}
    texts = {name for name, kind in types.items() if isinstance(kind, T.StringType)}
    frame = _as_texts(selected, plan, record_columns, types)
    frame = _without_dropped_rows(frame, record_columns, texts)
    frame = _with_user_and_key_ids(session, frame, record_columns, salt)
    # Where an intake has no state, tasks step over what they read, and nobody asks for the bucket.
    frame = frame.selectExpr(
        f"cast(pmod({'user' if record_columns.unit else 'key'}, {buckets}L) AS INT) AS bucket", "*"
    )
    return RecordFrame(frame, tuple(key_type(types[key]) for key in record_columns.keys))


@dataclass(frozen=True)
class _RecordColumns:
    """Names of the columns of a record by what they hold; `image` is empty but for a change feed."""

    unit: list[str]
    keys: list[str]
    row: list[str]
    image: list[str]
    arguments: list[str]


def _record_columns(plan: Plan) -> _RecordColumns:
    shape = registry.shape(plan)
    primary_key = shape.feed.primary_key if shape.feed else ()
    return _RecordColumns(
        [f"unit{i}" for i in range(len(plan.query.privacy_unit))],
        [f"key{i}" for i in range(len(plan.query.keys))],
        [f"row{i}" for i in range(len(primary_key))],
        ["kind", "seq"] if shape.feed else [],
        [f"a{i}" for i in range(len(shape.arguments))],
    )


def _as_texts(
    selected: DataFrame, plan: Plan, columns: _RecordColumns, types: Mapping[str, T.DataType]
) -> DataFrame:
    """Return what a query selects with bytes as STRINGs, times in microseconds, and arguments as DOUBLEs."""
    query = plan.query
    shape = registry.shape(plan)
    names = [*query.privacy_unit, *(key.name for key in query.keys)]
    texts = [
        _text(column, types[column], name)
        for column, name in zip([*columns.unit, *columns.keys], names, strict=True)
    ]
    arguments = [
        f"{_number(f'arg{i}', types[f'arg{i}'], argument)} AS a{i}"
        for i, argument in enumerate(shape.arguments)
    ]
    primary_key = shape.feed.primary_key if shape.feed else ()
    texts += [
        _text(column, types[column], name)
        for column, name in zip(columns.row, primary_key, strict=True)
    ]
    ts = _microseconds(types["event_time"], query.event_time)
    image = []
    if shape.feed:  # an end counts whatever its time is, or its row would stay for ever
        ts = f"coalesce({ts}, CASE WHEN kind < 0 THEN 0L END)"
        image = ["cast(kind AS TINYINT) AS kind", f"{_sequence(types)} AS seq"]
    byte_columns = [*columns.unit, *columns.keys, *columns.row]
    return selected.selectExpr(
        f"{ts} AS ts",
        *(
            f"cast({text} AS STRING) AS {column}"
            for text, column in zip(texts, byte_columns, strict=True)
        ),
        *arguments,
        *image,
    )


def _without_dropped_rows(frame: DataFrame, columns: _RecordColumns, texts: Set[str]) -> DataFrame:
    """Count the records that are dropped, by reason, and leave them behind; `texts` are the columns that were STRING."""
    code = _drop_code(columns, texts)
    if columns.image:
        code = f"CASE WHEN kind IS NULL THEN {MALFORMED} ELSE {code} END"
    counts = (
        F.expr(f"count_if(drop = {number})").alias(reason)
        for number, reason in enumerate(NO_RECORD, start=1)
    )
    return frame.selectExpr("*", f"{code} AS drop").observe(DROPPED, *counts).where("drop = 0")


def _with_user_and_key_ids(
    session: SparkSession, frame: DataFrame, columns: _RecordColumns, salt: bytes
) -> DataFrame:
    """Return records with ids in the place of their bytes; those of the key stay."""
    row = [_encoded(session, columns.row).alias("row_bytes")] if columns.image else []
    key_bytes = _encoded(session, columns.keys).alias("key_bytes")
    frame = frame.select("ts", *columns.unit, key_bytes, *row, *columns.image, *columns.arguments)
    with _salt_view(session, salt) as salts:

        def identifier(tag: str, parts: Sequence[Column]) -> Column:
            salted = F.expr(f"(SELECT {tag} FROM {salts})")
            return digest_prefix(session, joined(session, [salted, *parts]))

        unit = [identifier("u", _columns(columns.unit)).alias("user")] if columns.unit else []
        key = identifier("k", [F.col("key_bytes")]).alias("key")
        row = [identifier("r", [F.col("row_bytes")]).alias("row")] if columns.image else []
        return frame.select(*unit, "ts", key, "key_bytes", *row, *columns.image, *columns.arguments)


def listed_keys(session: SparkSession, plan: Plan) -> list[bytes]:
    """Return the encoded keys that the query's public table lists; none for a query without keys.

    Raises:
        DataError: the table does not fit the query.
    """
    query = plan.query
    if query.public_groups is None:
        return []
    listing = analysed(
        lambda: session.sql(str(query.public_groups)),
        "the list of public groups does not fit its source",
    )
    names = [f"key{i}" for i in range(len(query.keys))]
    listing = listing.toDF(*names)
    texts = [
        _text(name, listing.schema[name].dataType, key.name)
        for name, key in zip(names, query.keys, strict=True)
    ]
    encoded = listing.selectExpr(
        *(f"cast({text} AS STRING) AS {name}" for text, name in zip(texts, names, strict=True))
    )
    within = f"octet_length(key_bytes) <= {max_encoded_bytes(len(names))}"
    rows = encoded.select(_encoded(session, names).alias("key_bytes")).where(within).distinct()
    return [bytes(row.key_bytes) for row in rows.collect()]


def key_type(kind: T.DataType) -> T.DataType:
    """Return the type of a key column in the histogram: its own, but zone-less times become UTC."""
    if isinstance(kind, TEMPORAL):
        return T.TimestampType()
    return T.StringType() if isinstance(kind, T.StringType) else kind


def analysed(step: Callable[[], DataFrame], complaint: str) -> DataFrame:
    """Run a step that makes Spark resolve names and types, with Spark's reasons told in our words.

    Raises:
        DataError: a column or function that is not there, types that do not fit.
    """
    try:
        return step()
    except ParseException as problem:
        raise DataError(f"{complaint}: Spark cannot read it ({problem.getCondition()})") from None
    except AnalysisException as problem:
        raise DataError(f"{complaint}: {reason_of(problem)}") from None
    except (
        Py4JJavaError,
        PySparkException,
    ):  # of some types that do not fit Spark says so by an internal error
        raise DataError(
            f"{complaint}: Spark cannot resolve it; look for a function whose arguments are of other types than it takes"
        ) from None


def _select(session: SparkSession, plan: Plan) -> DataFrame:
    query = plan.query
    shape = registry.shape(plan)
    image = []
    if shape.feed:
        image = [f"{kind_sql(CHANGE, shape.feed.form)} AS kind", f"{POSITION} AS position"]
    columns = [
        f"{query.event_time} AS event_time",
        *image,
        *(
            f"{formats.quoted(column)} AS row{i}"
            for i, column in enumerate(shape.feed.primary_key if shape.feed else ())
        ),
        *(f"{formats.quoted(column)} AS unit{i}" for i, column in enumerate(query.privacy_unit)),
        *(f"{key.expression} AS key{i}" for i, key in enumerate(query.keys)),
        *(f"{argument.text} AS arg{i}" for i, argument in enumerate(shape.arguments)),
    ]
    text = f"SELECT {', '.join(columns)} {query.from_sql}"
    return analysed(
        lambda: guarded(session, session.sql(text)), f"the query does not fit source {query.stream}"
    )


def _text(column: str, kind: T.DataType, name: str) -> str:
    """Return Spark SQL for the value bytes of one column of a key or a privacy unit, as STRING or BINARY; NULL stays NULL."""
    if isinstance(kind, T.StringType | T.BinaryType):
        return column
    if isinstance(kind, T.BooleanType | T.ByteType | T.ShortType | T.IntegerType | T.LongType):
        return f"cast({column} AS STRING)"
    if isinstance(kind, T.DateType):
        return f"cast(unix_date({column}) AS STRING)"
    if isinstance(kind, TEMPORAL):
        return f"cast(unix_micros(cast({column} AS TIMESTAMP)) AS STRING)"
    if isinstance(kind, T.DecimalType) and 0 <= kind.scale <= MAX_DECIMAL_SCALE:
        return f"cast({column} AS STRING)"
    raise DataError(
        f"column {name!r} has type {kind.simpleString().upper()}, which cannot be a key or a privacy unit: "
        f"cast it to STRING, BIGINT, BOOLEAN, BINARY, DATE, TIMESTAMP or DECIMAL with a scale of at most {MAX_DECIMAL_SCALE}"
    )


def _number(column: str, kind: T.DataType, argument: Argument) -> str:
    """Return Spark SQL for one argument as a DOUBLE that is never NULL: NaN says that there is no value."""
    if argument.presence_only:
        missing = f"{column} IS NULL" + (
            f" OR isnan({column})" if isinstance(kind, T.FloatType | T.DoubleType) else ""
        )
        return f"CASE WHEN {missing} THEN double('NaN') ELSE 1.0D END"
    if not isinstance(kind, NUMBERS):
        raise DataError(
            f"{argument.text!r} has type {kind.simpleString().upper()}, which cannot be added up: cast it to DOUBLE"
        )
    return f"coalesce(cast({column} AS DOUBLE), double('NaN'))"


def _microseconds(kind: T.DataType, name: str) -> str:
    """Return Spark SQL for the event time in microseconds since 1970 UTC; NULL where it is missing or out of range."""
    if isinstance(kind, TEMPORAL):
        micros = "unix_micros(cast(event_time AS TIMESTAMP))"
        return f"CASE WHEN {micros} BETWEEN -{LIMIT_US}L AND {LIMIT_US}L THEN {micros} END"
    if isinstance(kind, T.DateType):
        # Not a cast to TIMESTAMP: that fails on days whose microseconds do not fit.
        days = "cast(unix_date(event_time) AS BIGINT)"
        limit = LIMIT_US // US_PER_DAY
        return f"CASE WHEN {days} BETWEEN -{limit}L AND {limit}L THEN {days} * {US_PER_DAY}L END"
    raise DataError(no_time(name, kind.simpleString()))


def _sequence(types: Mapping[str, T.DataType]) -> str:
    """Return Spark SQL for the place of an image in the feed."""
    if not isinstance(types["position"], T.ByteType | T.ShortType | T.IntegerType | T.LongType):
        raise DataError(
            f"the feed's column `{POSITION}` has type {types['position'].simpleString().upper()}, not BIGINT"
        )
    return f"coalesce(cast(position AS BIGINT), {NO_SEQUENCE}L)"


def _encoded(session: SparkSession, columns: Sequence[str]) -> Column:
    """Return the canonical encoding of columns of bytes; NULL columns get a header of their own."""
    null = F.expr(f"X'{NULL_HEADER.hex()}'")
    parts = [F.coalesce(joined(session, _columns([column])), null) for column in columns]
    return joined(session, parts) if parts else F.expr("X''")


def _columns(columns: Sequence[str]) -> list[Column]:
    """Return what to join: headers and values of columns of bytes that are not NULL."""
    # Looked up, not written: that costs a tenth.
    listed = f"array({', '.join(_header(length) for length in range(LISTED_HEADERS))})"
    parts = []
    for column in columns:
        length = f"octet_length({column})"
        longer = f"cast(lpad(cast({length} AS STRING), {HEADER}, '0') AS BINARY)"
        parts += [
            f"CASE WHEN {length} < {LISTED_HEADERS} THEN element_at({listed}, {length} + 1) ELSE {longer} END",
            f"cast({column} AS BINARY)",
        ]
    return [F.expr(part) for part in parts]


def _header(length: int) -> str:
    return f"X'{str(length).zfill(HEADER).encode().hex()}'"


def _drop_code(columns: _RecordColumns, texts: Set[str]) -> str:
    nulls = " OR ".join(f"{column} IS NULL" for column in columns.unit) or "false"
    # A unit above the limit has no unambiguous header either.
    unit, key = map(_is_long, (columns.unit, columns.keys))
    malformed = f"({_is_replaced(columns.unit, texts)}) AND NOT {unit} OR {_is_replaced(columns.row, texts)}"
    return (
        f"CASE WHEN {malformed} THEN {MALFORMED} WHEN ts IS NULL THEN 2 WHEN {nulls} THEN 3 "
        f"WHEN {unit} OR {key} THEN 4 ELSE 0 END"
    )


def _is_replaced(columns: Sequence[str], texts: Set[str]) -> str:
    """Return SQL of whether a text is no UTF-8, or has what readers put in its place: several ids would be one."""
    tests = (
        f"NOT is_valid_utf8({column}) OR contains({column}, '\ufffd')"
        for column in columns
        if column in texts
    )
    return " OR ".join(tests) or "false"


def _is_long(columns: Sequence[str]) -> str:
    lengths = " + ".join(f"coalesce(octet_length({column}), 0)" for column in columns) or "0"
    return f"{lengths} > {MAX_KEY_BYTES}"


@contextmanager
def _salt_view(session: SparkSession, salt: bytes) -> Iterator[str]:
    """Make a view whose one row is the salt with each tag.

    A literal would stand in plans, and so in the UI and the event log; a subquery does not. SQL text would stand in Spark's log, and an
    argument of a call in that of py4j; rows of an Arrow table go to the JVM by a socket of their own.
    """
    name = f"salt_{uuid4().hex}"
    tagged = {tag: pa.array([salt + tag.encode()], pa.binary()) for tag in "ukr"}
    session.createDataFrame(pa.table(tagged)).createTempView(name)
    try:
        yield name
    finally:
        session.catalog.dropTempView(name)


# The public groups of a run: computed at its first start, kept with it, and never computed anew.


def groups_of(
    session: SparkSession, query: Query, engine: Engine, first_window_us: int | None, salt: bytes
) -> PublicGroups | None:
    """Return the public groups of a run; None of a query that selects its keys.

    Args:
        session: has the public table.
        query: of the run.
        engine: of the run.
        first_window_us: no window that starts earlier belongs to the run.
        salt: of the run.

    Raises:
        LakeError: they are lost or damaged. Today's list may be another than that with which rows were published.
    """
    if not query.shape.listed:
        return None
    try:
        groups = public_groups.load(engine.folder)
    except (DamagedState, UnknownStateVersion) as problem:
        raise LakeError(f"{problem}; {remedies.unrepairable(engine.folder)}") from None
    if groups is None:
        if engine.has_begun:
            raise LakeError(
                f"{engine.folder / public_groups.FILE} is lost, but the run has been started before; {remedies.unrepairable(engine.folder)}"
            )
        listed = listed_keys(session, query.plan)
        groups = public_groups.public_groups(
            query.plan, query.source, salt, listed, first_window_us
        )
        public_groups.save(groups, engine.folder)
    return groups
