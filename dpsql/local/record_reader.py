"""Input as the `rows` table of docs/architecture.md, made by DuckDB exactly as Spark makes it; and whether it can be, asked before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from dpsql.compiled import Query
from dpsql.errors import DataError
from dpsql.local.connection import connect
from dpsql.local.frames import words_of
from dpsql.local.from_clause import LocalScope, LocalTable, read_from, split_select
from dpsql.local.reach import AT_ONCE, makes_long_texts
from dpsql.local.sources import MESSAGE, Chunk, InputFile, InputReader, source_files
from dpsql.local.spark_types import DOUBLE, MAX_KEY_SCALE, SparkType, Typed, cast
from dpsql.mechanisms import registry
from dpsql.mechanisms.protocol import Argument, Plan
from dpsql.mechanisms.public_groups import public_groups
from dpsql.sources.change_feed import BESIDE, CHANGE, POSITION, kind_sql
from dpsql.sources.config import Source
from dpsql.sources.time_units import no_time
from dpsql.udfs.keys import HEADER, NULL_HEADER, PublicGroups, max_encoded_bytes
from dpsql.udfs.stage import NO_SEQUENCE

# Input as the `rows` table of docs/architecture.md, made by DuckDB exactly as Spark makes it.

# Ids are the first 8 bytes of SHA-256(salt || tag || encoding); the encoding is that of
# `dpsql.udfs.keys`.

MALFORMED = 1
LIMIT_US = 1 << 61
FEW = "dpsql_few"
"""The name of some rows of a table."""

MAX_ROWS = 1_000_000
"""Rows of one table: what bounds the memory of reading."""

_VALUE_BYTES = {
    "boolean": "encode(CASE WHEN {0} THEN 'true' WHEN NOT {0} THEN 'false' END)",
    "string": "encode({0})",
    "binary": "{0}",
    "date": "encode(CAST(TRY({0} - DATE '1970-01-01') AS VARCHAR))",
    "timestamp": "encode(CAST(epoch_us({0}) AS VARCHAR))",
    "decimal": "encode(CAST({0} AS VARCHAR))",
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "encode(CAST({0} AS VARCHAR))"),
}
_EVENT_TIME = {
    "timestamp": "epoch_us({0})",
    "date": "TRY(CAST({0} - DATE '1970-01-01' AS BIGINT) * 86400000000)",
}


class RowReader:
    """Turns the input of one run into `rows` tables.

    Args:
        plan: the plan; its query says what FROM is.
        sources: all declared sources.
        salt: 16 bytes of the run.
        inputs: files by source name, instead of the declared paths.
        versions: of Delta static tables (default: the newest).
    """

    def __init__(
        self,
        plan: Plan,
        sources: Mapping[str, Source],
        salt: bytes,
        inputs: Mapping[str, Sequence[Path]],
        versions: Mapping[str, int] | None = None,
    ) -> None:
        self._plan = plan
        self._salt = salt
        self._shape = registry.shape(plan)
        self.connection = connect()
        query = plan.query
        words = query_words(plan)
        self._reader = InputReader(self.connection, sources[query.stream], words)
        self.tables: dict[str, LocalTable] = {}
        for name in query.static_sources:
            files = source_files(sources[name], inputs, (versions or {}).get(name))
            table_reader = InputReader(self.connection, sources[name], words)
            self.tables[name] = table_reader.all_files(files).table
        self.key_types: tuple[SparkType, ...] = ()

    def public_groups(self, source: Source) -> PublicGroups | None:
        """Return the groups that a plan without key selection releases; None where keys are selected."""
        query = self._plan.query
        if not self._shape.listed:
            return None
        encoded: list[bytes] = []
        if query.public_groups is not None:
            from_sql, listed_values = split_select(query.public_groups)
            scope = read_from(from_sql, self.tables)
            values = [
                _value_bytes(scope.value(text), key.name)
                for text, key in zip(listed_values, query.keys, strict=True)
            ]
            value_list = ", ".join(f"{value} AS b{i}" for i, value in enumerate(values))
            text = f"SELECT {_encoding([f'b{i}' for i in range(len(values))])} AS bytes FROM (SELECT {value_list} {scope.sql})"
            within = f"octet_length(bytes) <= {max_encoded_bytes(len(values))}"
            rows = self.connection.sql(
                f"SELECT DISTINCT bytes FROM ({text}) WHERE {within}"
            ).fetchall()
            encoded = [row[0] for row in rows]
        return public_groups(self._plan, source, self._salt, encoded)

    @property
    def misfits(self) -> Mapping[str, int]:
        """How many lines of the stream were malformed, by column (`InputReader.misfits`)."""
        return {name: count for name, count in self._reader.misfits.items() if count}

    def files(self, paths: Sequence[InputFile]) -> Iterator[pa.Table]:
        """Yield rows of the files in order, in tables of bounded size.

        Raises:
            DataError: a file is missing or unreadable, or lacks a column.
        """
        for chunk in self._reader.files(paths):
            yield from self.chunk(chunk)

    def batch_rows(self, paths: Sequence[InputFile]) -> pa.Table:
        """Return all rows of the files of one micro-batch; raises as `files`."""
        return pa.concat_tables([self.no_records(), *self.files(paths)])

    def check(self, paths: Sequence[InputFile]) -> None:
        """Check that the files and the query can be read here; no record of the stream is.

        Raises:
            DataError: a file is no Parquet file, or lacks a declared column or its type.
            InputError: the query uses something that only Spark computes.
        """
        self._understand(self._reader.check(paths))

    def check_frame(self, frame: Any) -> None:
        """Check the columns of a frame; raises as `check`."""
        self._understand(self._reader.frame(frame).table)

    def _understand(self, table: LocalTable) -> None:
        self._select(
            read_from(self._plan.query.from_sql, {**self.tables, self._plan.query.stream: table})
        )

    def frame(self, frame: Any) -> pa.Table:
        """Return all rows of a pandas DataFrame or an Arrow table."""
        return pa.concat_tables([self.no_records(), *self.chunk(self._reader.frame(frame))])

    def chunk(self, chunk: Chunk) -> Iterator[pa.Table]:
        """Yield rows of what is now visible; malformed lines first."""
        if chunk.malformed:
            yield self.no_records(chunk.malformed)
        try:
            waiting: list[pa.Table] = []
            for table in self._few_at_once(chunk.table):
                select = self._select(
                    read_from(
                        self._plan.query.from_sql, {**self.tables, self._plan.query.stream: table}
                    )
                )
                for batch in self.connection.sql(select).to_arrow_reader(MAX_ROWS):
                    waiting.append(_with_ids(batch))
                    if sum(rows.num_rows for rows in waiting) >= MAX_ROWS:
                        yield pa.concat_tables(waiting)
                        waiting = []
            if waiting:
                yield pa.concat_tables(waiting)
        except (duckdb.Error, pa.ArrowException) as problem:
            raise DataError(
                f"the input of `{self._plan.query.stream}` cannot be read ({type(problem).__name__})"
            ) from None

    def _few_at_once(self, table: LocalTable) -> Iterator[LocalTable]:
        """Yield a table as it is, or a few rows of it at a time where their texts may become long."""
        query = self._plan.query
        texts = (
            *(key.expression for key in query.keys),
            *(argument.text for argument in self._shape.arguments),
        )
        if not makes_long_texts(query.from_sql, texts):
            yield table
            return
        rows = self.connection.sql(f'SELECT * FROM "{table.view}"').to_arrow_table()
        for start in range(0, max(rows.num_rows, 1), AT_ONCE):
            self.connection.register(FEW, rows.slice(start, AT_ONCE))
            yield LocalTable(FEW, table.columns)

    def no_records(self, malformed: int = 0) -> pa.Table:
        """Return a `rows` table of so many records that stand for malformed lines."""
        unit = ["user"] if self._plan.query.privacy_unit else []
        columns: dict[str, Any] = {"drop": np.full(malformed, MALFORMED, np.int8)}
        columns |= {name: np.zeros(malformed, np.int64) for name in (*unit, "ts", "key")}
        columns["key_bytes"] = pa.array([b""] * malformed, pa.binary())
        if self._shape.feed:
            columns |= {name: np.zeros(malformed, np.int64) for name in ("row", "seq")} | {
                "kind": np.zeros(malformed, np.int8)
            }
        columns |= {f"a{i}": np.full(malformed, np.nan) for i in range(len(self._shape.arguments))}
        return pa.table(columns)

    def _select(self, scope: LocalScope) -> str:
        """Return DuckDB text that makes a `rows` table of what FROM is."""
        query = self._plan.query
        unit = [scope.value(f"`{column}`") for column in query.privacy_unit]
        keys = [scope.value(key.expression) for key in query.keys]
        self.key_types = tuple(key.type for key in keys)
        projection, columns = self._projection(scope, unit, keys)
        u = columns[: len(unit)]
        k = columns[len(unit) : len(unit) + len(keys)]
        feed = self._shape.feed
        nobody = " OR ".join(f"{c} IS NULL" for c in u) or "false"
        rows = f", {_encoding(columns[len(unit) + len(keys) :])} AS row_bytes" if feed else ""
        encoded = f"SELECT *, {_encoding(u)} AS unit, {_encoding(k)} AS bytes, {nobody} AS nobody{rows} FROM ({projection})"
        too_long = f"octet_length(bytes) > {max_encoded_bytes(len(k))} OR octet_length(unit) > {max_encoded_bytes(len(u))}"
        code = f"CASE WHEN us IS NULL OR us NOT BETWEEN -{LIMIT_US} AND {LIMIT_US} THEN 2 WHEN nobody THEN 3 WHEN {too_long} THEN 4 ELSE 0 END"
        coded = f"SELECT *, {f'CASE WHEN kind IS NULL THEN {MALFORMED} ELSE {code} END' if feed else code} AS code FROM ({encoded})"
        arguments = "".join(
            f", CASE WHEN code = 0 THEN a{i} ELSE 'nan'::DOUBLE END AS a{i}"
            for i in range(len(self._shape.arguments))
        )
        user = f"{self._id('u', 'unit')} AS user, " if u else ""
        image = ""
        if feed:
            image = f", {self._id('r', 'row_bytes')} AS row, CAST(coalesce(seq, 0) AS BIGINT) AS seq, CAST(coalesce(kind, 0) AS TINYINT) AS kind"
        return (
            f"SELECT CAST(code AS TINYINT) AS drop, {user}CASE WHEN code = 0 THEN us ELSE 0 END AS ts, "
            f"{self._id('k', 'bytes')} AS key, CASE WHEN code = 0 THEN bytes ELSE ''::BLOB END AS key_bytes{image}{arguments} FROM ({coded})"
        )

    def _projection(
        self, scope: LocalScope, unit: Sequence[Typed], keys: Sequence[Typed]
    ) -> tuple[str, list[str]]:
        """Return DuckDB text of times, bytes, arguments and images, and the names of its columns of bytes: of unit, key and row."""
        query = self._plan.query
        feed = self._shape.feed
        value_bytes = [
            _value_bytes(value, name) for value, name in zip(unit, query.privacy_unit, strict=True)
        ]
        value_bytes += [
            _value_bytes(value, key.name) for value, key in zip(keys, query.keys, strict=True)
        ]
        arguments = "".join(
            f", coalesce({_argument(scope.value(argument.text), argument)}, 'nan'::DOUBLE) AS a{i}"
            for i, argument in enumerate(self._shape.arguments)
        )
        value_bytes += [
            _value_bytes(scope.value(f"`{column}`"), column)
            for column in (feed.primary_key if feed else ())
        ]
        columns = [f"b{i}" for i in range(len(value_bytes))]
        named_bytes = "".join(
            f", {text} AS {name}" for text, name in zip(value_bytes, columns, strict=True)
        )
        us = _event_time(scope.value(query.event_time), query.event_time)
        image = ""
        if feed:  # an end counts whatever its time is, or its row would stay for ever
            kind = kind_sql(scope.value(CHANGE).sql, feed.form)
            us = f"CASE WHEN {us} BETWEEN -{LIMIT_US} AND {LIMIT_US} THEN {us} WHEN {kind} < 0 THEN 0 END"
            image = f", {kind} AS kind, coalesce(TRY_CAST({scope.value(POSITION).sql} AS BIGINT), {NO_SEQUENCE}) AS seq"
        return f"SELECT {us} AS us{named_bytes}{arguments}{image} {scope.sql}", columns

    def _id(self, tag: str, encoding: str) -> str:
        """Return DuckDB text of 16 hexadecimal digits; zeros for a dropped record."""
        prefix = (self._salt + tag.encode()).hex()
        return f"CASE WHEN code = 0 THEN substr(sha256(from_hex('{prefix}') || {encoding}), 1, 16) ELSE '0000000000000000' END"


def query_words(plan: Plan) -> frozenset[str] | None:
    """Return the words of a query, some of which are columns; None if it reads all columns."""
    query = plan.query
    shape = registry.shape(plan)
    relations = f"{query.from_sql} {query.public_groups or ''}"
    columns = (
        *query.privacy_unit,
        query.event_time,
        *BESIDE,
        *dict(MESSAGE),
        *(shape.feed.primary_key if shape.feed else ()),
    )
    values = (
        *(key.expression for key in query.keys),
        *(argument.text for argument in shape.arguments),
    )
    words = words_of(relations)
    return words and words | (words_of(" ".join(values).replace("*", " ")) or set()) | {
        column.lower() for column in columns
    }


def _value_bytes(value: Typed, name: str) -> str:
    """Return DuckDB text for the value bytes of one column of a key or a privacy unit."""
    kind = value.type
    if kind.name not in _VALUE_BYTES or kind.scale > MAX_KEY_SCALE:
        raise DataError(
            f"column `{name}` has type {kind}, which cannot be a key or a privacy unit: cast it to STRING, BIGINT, BOOLEAN, BINARY, DATE, "
            f"TIMESTAMP or DECIMAL with a scale of at most {MAX_KEY_SCALE}"
        )
    return _VALUE_BYTES[kind.name].format(f"({value.sql})")


def _event_time(value: Typed, name: str) -> str:
    if value.type.name not in _EVENT_TIME:
        raise DataError(no_time(name, str(value.type)))
    return _EVENT_TIME[value.type.name].format(f"({value.sql})")


def _argument(value: Typed, argument: Argument) -> str:
    """Return DuckDB text for one argument as DOUBLE; NULL and NaN alike mean that there is no value."""
    if argument.presence_only:
        missing = f"{value.sql} IS NULL" + (f" OR isnan({value.sql})" if value.type.is_real else "")
        return f"CASE WHEN {missing} THEN NULL ELSE 1::DOUBLE END"
    if value.type.name in ("date", "timestamp", "binary", "other"):
        raise DataError(
            f"`{argument.text}` has type {value.type}, which cannot be added up: cast it to DOUBLE"
        )
    return cast(value, DOUBLE).sql


def _encoding(columns: Sequence[str]) -> str:
    """Return DuckDB text for the canonical encoding; a header of a value over 9999 bytes is wrong, but then the record is dropped."""
    parts = [
        f"CASE WHEN {c} IS NULL THEN from_hex('{NULL_HEADER.hex()}') "
        f"ELSE encode(lpad(CAST(octet_length({c}) AS VARCHAR), {HEADER}, '0')) || {c} END"
        for c in columns
    ]
    return " || ".join(parts) if parts else "''::BLOB"


def _with_ids(batch: pa.RecordBatch) -> pa.Table:
    """Turn hexadecimal digits into signed big-endian integers."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    for name in {"user", "key", "row"} & columns.keys():
        columns[name] = _signed(columns[name])
    columns["key_bytes"] = columns["key_bytes"].cast(pa.binary())
    return pa.table(columns)


def _signed(digits: pa.Array) -> pa.Array:
    text = digits.cast(pa.string())
    _, _, data = text.buffers()
    first = text.offset * 16
    raw = (
        bytes.fromhex(data.to_pybytes()[first : first + len(text) * 16].decode("ascii"))
        if len(text)
        else b""
    )
    return pa.array(np.frombuffer(raw, dtype=">i8").astype(np.int64))


# Can the local engine read what a query wants? Asked before anything is spent.

NO_SALT = bytes(16)
"""Nothing is hashed here."""


def check_input(query: Query, inputs: Mapping[str, Sequence[Path]]) -> None:
    """Look at the columns of the stream's files, at the expressions of the query and at its public groups; of the records none is read.

    Args:
        query: from `dpsql.compile`.
        inputs: files by source name; sources not named here are looked for where sources.yaml says.

    Raises:
        DataError: a file is missing, is no Parquet file, or lacks a declared column or its type.
        InputError: the query uses something that only Spark computes.
    """
    reader = RowReader(query.plan, query.sources, NO_SALT, inputs)
    reader.check(source_files(query.source, inputs))
    reader.public_groups(query.source)


def check_frame(query: Query, frame: pa.Table) -> None:
    """Check a frame like files, by the types of its columns.

    Raises:
        DataError: it lacks a declared column or its type.
        InputError: the query uses something that only Spark computes.
    """
    reader = RowReader(query.plan, query.sources, NO_SALT, {})
    reader.check_frame(frame.slice(0, 0))
    reader.public_groups(query.source)
