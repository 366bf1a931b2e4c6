"""Input as the `rows` table of docs/architecture.md, made by DuckDB exactly as Spark makes it; and whether it can be, asked before anything is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import sqlglot
from sqlglot import exp

from dpsql.compiled import Query
from dpsql.errors import ConfigError, DataError, SparkOnly
from dpsql.local.connection import connect
from dpsql.local.frames import arrow_table, at_hand, with_advice, words_of
from dpsql.local.from_clause import LocalScope, LocalTable, read_from, split_select
from dpsql.local.object_columns import rows_as_columns
from dpsql.local.reach import AT_ONCE, makes_long_texts
from dpsql.local.sources import MESSAGE, Chunk, InputFile, InputReader, source_files
from dpsql.local.spark_types import DOUBLE, Columns, SparkType, Typed, cast, parse_ddl
from dpsql.mechanisms import registry
from dpsql.mechanisms.protocol import Argument, Plan
from dpsql.mechanisms.public_groups import public_groups
from dpsql.sources.change_feed import BESIDE, CHANGE, POSITION, kind_sql
from dpsql.sources.config import Source
from dpsql.sources.declared_types import MAX_KEY_SCALE, no_key, refused_type
from dpsql.sources.time_units import no_time
from dpsql.udfs.columns import (
    Bool,
    Int,
    Numbered,
    int_fields,
    number_rows,
    number_values,
    plain_rows,
)
from dpsql.udfs.keys import HEADER, MAX_KEY_BYTES, NULL_HEADER, PublicGroups, max_encoded_bytes
from dpsql.udfs.stage import NO_SEQUENCE

# Input as the `rows` table of docs/architecture.md, made by DuckDB exactly as Spark makes it.

# Ids are the first 8 bytes of SHA-256(salt || tag || encoding); the encoding is that of
# `dpsql.udfs.keys`.

MALFORMED, NO_TIME, NO_UNIT, TOO_LONG = range(1, 5)
"""Why a record is none: places in `dpsql.udfs.stage.NO_RECORD`, from 1."""
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


@dataclass(frozen=True)
class Ids:
    """Ids of records: `numbers` of their distinct values; per distinct value `codes` of what is wrong with it, and `ids` with `encodings`.

    After those of the distinct values come the id and the encoding of dropped records.
    """

    numbers: Int
    codes: npt.NDArray[np.int8]
    ids: Numbered
    encodings: pa.ChunkedArray

    def mark_wrong(self, drop: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
        """Return the codes of records with those of their values where they had none."""
        if not self.codes.any():
            return drop
        codes = self.codes[self.numbers]
        return np.where((drop == 0) | (codes == MALFORMED), codes, drop)

    def columns(self, is_dropped: Bool) -> tuple[pa.DictionaryArray, pa.DictionaryArray]:
        """Return ids and encodings, numbered."""
        numbers = self.ids.numbers[self.numbers]
        numbers[is_dropped] = self.ids.numbers[-1]
        place = np.empty(len(self.ids.values), np.int64)
        place[self.ids.numbers] = np.arange(len(self.ids.numbers))
        encodings = self.encodings.take(place).combine_chunks()
        columns = (pa.array(self.ids.values), encodings)
        id_column, encoding_column = (
            pa.DictionaryArray.from_arrays(numbers, distinct) for distinct in columns
        )
        return id_column, encoding_column


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
        self._types: dict[str, list[SparkType]] = {}

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
            yield plain_rows(self._rows([chunk]))

    def batch_rows(self, paths: Sequence[InputFile]) -> pa.Table:
        """Return all rows of the files of one micro-batch, with numbered ids; raises as `files`."""
        return self._rows(self._reader.files(paths))

    def check(self, paths: Sequence[InputFile]) -> None:
        """Check that the files and the query can be read here; no record of the stream is.

        Raises:
            DataError: a file is no Parquet file, or lacks a declared column or its type.
            InputError: the query uses something that only Spark computes.
        """
        self._select(self._scope(self._reader.check(paths)))

    def check_frame(self, frame: Any) -> None:
        """Check the columns of a frame; raises as `check`."""
        self._select(self._scope(self._reader.frame(frame).table))

    def frame(self, frame: Any, progress: Callable[[int], None] | None = None) -> pa.Table:
        """Return all rows of a pandas DataFrame or an Arrow table, with numbered ids; `progress` is told how many are read."""
        return self._rows(self._pieces(arrow_table(frame), progress))

    def _pieces(self, records: pa.Table, progress: Callable[[int], None] | None) -> Iterator[Chunk]:
        for start in range(0, max(records.num_rows, 1), MAX_ROWS):
            if progress and start:
                progress(start)
            yield self._reader.frame(records.slice(start, MAX_ROWS))

    def _rows(self, chunks: Iterable[Chunk]) -> pa.Table:
        """Return the rows of some chunks; a chunk's malformed lines come first."""
        try:
            values = pa.concat_tables(self._values(chunks), promote_options="default")
            columns = dict(zip(values.column_names, values.columns, strict=True))
            del values
            return self._identified(columns) if "us" in columns else self.no_records()
        except (duckdb.Error, pa.ArrowException) as problem:
            raise DataError(
                f"the input of `{self._plan.query.stream}` cannot be read ({type(problem).__name__})"
            ) from None

    def _values(self, chunks: Iterable[Chunk]) -> Iterator[pa.Table]:
        """Yield the values of records (`_select`), each chunk while it is visible; of a malformed line nothing but its code."""
        yield pa.schema([("drop", pa.int8())]).empty_table()
        for chunk in chunks:
            yield pa.table({"drop": np.full(chunk.malformed, MALFORMED, np.int8)})
            for table in self._few_at_once(chunk.table):
                batches = self._batches(self._select(self._scope(table)))
                yield pa.Table.from_batches(map(_copy, batches), batches.schema)

    def _batches(self, text: str) -> pa.RecordBatchReader:
        return self.connection.sql(text).to_arrow_reader(MAX_ROWS)

    def _scope(self, table: LocalTable) -> LocalScope:
        """Return what FROM makes of a piece of the stream."""
        query = self._plan.query
        return read_from(query.from_sql, {**self.tables, query.stream: table})

    def _identified(self, values: dict[str, pa.ChunkedArray]) -> pa.Table:
        """Return records as `rows`, with numbered ids; takes the values away as it goes. A dropped record has ids of 0, the time 0 and no arguments."""
        ids = {tag: self._ids(tag, values) for tag in self._types}
        ts = _array(values.pop("us"), LIMIT_US + 1)
        drop = _array(values.pop("drop"), 0)
        if self._shape.feed:
            drop[values["kind"].is_null()] = MALFORMED
        drop[(drop == 0) & ((ts < -LIMIT_US) | (ts > LIMIT_US))] = NO_TIME
        for tagged_ids in ids.values():
            drop = tagged_ids.mark_wrong(drop)
        is_dropped = drop > 0
        ts[is_dropped] = 0
        key, key_bytes = ids["k"].columns(is_dropped)
        columns: dict[str, Any] = {"drop": drop}
        columns |= {"user": ids["u"].columns(is_dropped)[0]} if "u" in ids else {}
        columns |= {"ts": ts, "key": key, "key_bytes": key_bytes}
        if self._shape.feed:
            columns["row"] = ids["r"].columns(is_dropped)[0]
            columns |= {name: _array(values[name], 0) for name in ("seq", "kind")}
        for name in (f"a{i}" for i in range(len(self._shape.arguments))):
            columns[name] = _array(values.pop(name), np.nan)
            columns[name][is_dropped] = np.nan
        return pa.table(columns)

    def _ids(self, tag: str, values: dict[str, pa.ChunkedArray]) -> Ids:
        """Make the ids of units (tag u), keys (k) or rows of a feed (r), one for each distinct value."""
        types = self._types[tag]
        names = [f"c{i}" for i in range(len(types))]
        columns = [values.pop(f"{tag}{i}") for i in range(len(types))]
        numbers, distinct = number_rows(columns, len(values["us"]))
        row = np.arange(len(distinct[0]) if distinct else 1)
        self.connection.register("dpsql_distinct", pa.table([row, *distinct], ["row", *names]))
        hashed = self._hashed(tag, types, names)
        codes = hashed["code"].to_numpy()
        ids = np.append(np.where(codes, 0, _signed(hashed["id"].combine_chunks())), 0)
        chunks = hashed["bytes"].cast(pa.binary()).chunks
        encodings = pa.chunked_array([*chunks, [b""]], pa.binary())
        return Ids(numbers, codes, number_values(ids), encodings)

    def _hashed(self, tag: str, types: Sequence[SparkType], names: Sequence[str]) -> pa.Table:
        """Return `row, code, bytes, id` of the distinct values, in the order of these."""
        value_bytes = [
            f", {_VALUE_BYTES[kind.name].format(name)} AS {name}"
            for kind, name in zip(types, names, strict=True)
        ]
        is_missing = [f"{name} IS NULL" for name in names] if tag == "u" else []
        # Several ids that are no UTF-8 would be one
        texts = [name for kind, name in zip(types, names, strict=True) if kind.name == "string"]
        is_replaced = [f"contains({name}, '\ufffd')" for name in texts if tag != "k"]
        longest = LIMIT_US if tag == "r" else max_encoded_bytes(len(types))
        prefix = (self._salt + tag.encode()).hex()
        hashed = self._batches(
            f"SELECT row, CAST(CASE WHEN is_replaced AND octet_length(bytes) <= {longest} THEN {MALFORMED} "
            f"WHEN {' OR '.join(is_missing) or 'false'} THEN {NO_UNIT} "
            f"WHEN octet_length(bytes) > {longest} THEN {TOO_LONG} ELSE 0 END AS TINYINT) AS code, bytes, "
            f"substr(sha256(from_hex('{prefix}') || bytes), 1, 16) AS id "
            f"FROM (SELECT *, {_encoding(names)} AS bytes FROM "
            f"(SELECT row, {' OR '.join(is_replaced) or 'false'} AS is_replaced{''.join(value_bytes)} FROM dpsql_distinct))"
        ).read_all()
        # An id of another value would be another unit
        is_in_order = (np.diff(hashed["row"].to_numpy()) > 0).all()
        return hashed if is_in_order else hashed.sort_by("row")

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

    def no_records(self) -> pa.Table:
        """Return a `rows` table without rows."""
        unit = ["user"] if self._plan.query.privacy_unit else []
        fields = [
            ("drop", pa.int8()),
            *int_fields((*unit, "ts", "key")),
            ("key_bytes", pa.binary()),
        ]
        if self._shape.feed:
            fields += [*int_fields(("row", "seq")), ("kind", pa.int8())]
        fields += [(f"a{i}", pa.float64()) for i in range(len(self._shape.arguments))]
        return pa.schema(fields).empty_table()

    def _select(self, scope: LocalScope) -> str:
        """Return DuckDB text of what is used of records: time, values that give ids, image of a feed, arguments."""
        query = self._plan.query
        feed = self._shape.feed
        identified = {"u": [(scope.value(f"`{name}`"), name) for name in query.privacy_unit]}
        identified["k"] = [(scope.value(key.expression), key.name) for key in query.keys]
        self.key_types = tuple(value.type for value, _ in identified["k"])
        us = _event_time(scope.value(query.event_time), query.event_time)
        columns = []
        if feed:  # an end counts whatever its time is, or its row would stay for ever
            identified["r"] = [(scope.value(f"`{name}`"), name) for name in feed.primary_key]
            kind = kind_sql(scope.value(CHANGE).sql, feed.form)
            us = f"CASE WHEN {us} BETWEEN -{LIMIT_US} AND {LIMIT_US} THEN {us} WHEN {kind} < 0 THEN 0 END"
            position = f"TRY_CAST({scope.value(POSITION).sql} AS BIGINT)"
            columns = [
                f"CAST({kind} AS TINYINT) AS kind",
                f"CAST(coalesce({position}, {NO_SEQUENCE}) AS BIGINT) AS seq",
            ]
        columns.append(f"{us} AS us")
        self._types = {}
        for tag, named_values in identified.items():
            if named_values or tag != "u":  # where rows are protected there is no unit
                self._types[tag] = [value.type for value, _ in named_values]
            columns += [
                f"{_identifying(value, name, tag)} AS {tag}{i}"
                for i, (value, name) in enumerate(named_values)
            ]
        columns += [
            f"coalesce({_argument(scope.value(argument.text), argument)}, 'nan'::DOUBLE) AS a{i}"
            for i, argument in enumerate(self._shape.arguments)
        ]
        return f"SELECT {', '.join(columns)} {scope.sql}"


def query_words(plan: Plan) -> frozenset[str]:
    """Return the words of a query, some of which are columns, and `*` if it may read all columns."""
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
    words = words_of(relations) | words_of(" ".join(values).replace("*", " "))
    return words.union(column.lower() for column in columns)


def _value_bytes(value: Typed, name: str) -> str:
    """Return DuckDB text for the value bytes of one column of a key or a privacy unit."""
    kind = value.type
    if kind.name not in _VALUE_BYTES or kind.scale > MAX_KEY_SCALE:
        raise DataError(no_key(name, str(kind)))
    return _VALUE_BYTES[kind.name].format(f"({value.sql})")


def _copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy the columns of a batch, which DuckDB frees as a whole, so that each can go when it is used."""
    copies = [pa.concat_arrays([column, column[:0]]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(copies, schema=batch.schema)


def _array(column: pa.ChunkedArray, missing: float) -> npt.NDArray[Any]:
    """Return a copy of a column of numbers, with a number where there is none."""
    if column.null_count:
        column = column.fill_null(pa.scalar(missing, column.type))
    return np.concatenate([pa.array([], column.type), *column.chunks])


def _identifying(value: Typed, name: str, tag: str) -> str:
    """Return DuckDB text of a value that gives an id. One that is too long for a key or a unit is replaced by another such: it may be very long."""
    value_bytes = _value_bytes(value, name)
    if tag == "r" or value.type.name not in ("string", "binary"):
        return value.sql
    kind = "BLOB" if value.type.name == "binary" else "VARCHAR"
    is_long = f"octet_length({value_bytes}) > {MAX_KEY_BYTES}"
    return f"CASE WHEN {is_long} THEN repeat('0', {MAX_KEY_BYTES + 1})::{kind} ELSE {value.sql} END"


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


def _signed(digits: pa.Array) -> Int:
    """Turn 16 hexadecimal digits each into signed big-endian integers."""
    text = digits.cast(pa.string())
    _, _, data = text.buffers()
    first = text.offset * 16
    raw = (
        bytes.fromhex(data.to_pybytes()[first : first + len(text) * 16].decode("ascii"))
        if len(text)
        else b""
    )
    return np.frombuffer(raw, dtype=">i8").astype(np.int64)


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


def declared_columns(schema: str | None) -> Columns:
    """Return the columns of an argument `schema=`; raises ConfigError as a source's does."""
    if problem := refused_type(schema or ""):
        raise ConfigError(f"schema=: {problem}")
    return parse_ddl(schema, "schema=") if schema else ()


def frame_table(query: Query, records: Any, schema: str | None = None) -> pa.Table:
    """Return the columns of records at hand that a query names; raises as `check_frame`.

    Args:
        query: from `dpsql.compile`.
        records: what `dpsql.local.frames.at_hand` takes.
        schema: types of columns of objects, as a source declares them (default: those of the source).
    """
    declared = declared_columns(schema or query.source.schema)
    frame = at_hand(records)
    if isinstance(frame, list):
        frame = row_columns(query, frame, declared)
    table = arrow_table(frame, query_words(query.plan), query.plan.query.privacy_unit, declared)
    try:
        check_frame(query, table)
    except SparkOnly as problem:
        raise with_advice(problem, table.schema) from None
    return table


def row_columns(query: Query, rows: Sequence[Any], declared: Columns) -> dict[str, list[Any]]:
    """Return the columns of a list of rows that are declared, and those that a query names.

    Raises:
        DataError: it reads all, and none is declared.
    """
    parsed = query.plan.query
    texts = [*(key.expression for key in parsed.keys), *(a.text for a in query.shape.arguments)]
    tree = sqlglot.parse_one(f"SELECT {', '.join(texts) or 1} {parsed.from_sql}", read="spark")
    names = {name.lower() for name, _ in declared}
    if tree.find(exp.Star) and not names:
        raise DataError(
            "a list of rows says no columns, and the query reads all: name them, like schema='user_id STRING, page STRING'"
        )
    names |= {column.name.lower() for column in tree.find_all(exp.Column) if column.name != "*"}
    return rows_as_columns(
        rows, sorted(names.union(parsed.privacy_unit, [parsed.event_time.lower()]))
    )


def check_frame(query: Query, frame: pa.Table) -> None:
    """Check a frame like files, by the types of its columns.

    Raises:
        DataError: it lacks a declared column or its type.
        InputError: the query uses something that only Spark computes.
    """
    reader = RowReader(query.plan, query.sources, NO_SALT, {})
    reader.check_frame(frame.slice(0, 0))
    reader.public_groups(query.source)
