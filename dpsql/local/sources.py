"""Input files and frames as DuckDB tables with Spark types.

Raises DataError for what cannot be read at all; the message names files, columns and types, never a value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa

from dpsql.errors import ConfigError, DataError
from dpsql.local.debezium import BESIDE_COLUMNS, images_select
from dpsql.local.delta_files import open_table
from dpsql.local.from_clause import LocalTable
from dpsql.local.lines import (
    check_header,
    csv_chunks,
    csv_select,
    has_header,
    json_lines,
    json_select,
)
from dpsql.local.spark_types import INTEGER_BITS, Columns, SparkType, from_duckdb, parse_ddl, quote
from dpsql.sources.change_feed import BESIDE, POSITION, FeedForm
from dpsql.sources.config import Source, refused_schema
from dpsql.sources.declared_types import loses_numbers, mismatch_text
from dpsql.sources.reader_options import FILES_PER_BATCH, is_by_file

SUFFIXES = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
}
FORMATS = ("parquet", "json", "csv")
BATCH_FILES = {"delta": 1000}
OTHER_BATCH_FILES = 64
"""Files in a micro-batch of `dpsql run` (`streaming.sources.BATCH_FILES`; a Delta source has Delta's own default)."""


@dataclass(frozen=True, repr=False)
class Chunk:
    """A piece of input, now visible in DuckDB as `table`; `malformed` lines were left out of it."""

    table: LocalTable
    malformed: int


class InputReader:
    """Loads the pieces of one source, one after the other, under one DuckDB name."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, source: Source) -> None:
        if problem := refused_schema(source):
            raise ConfigError(f"source {source.name!r}: {problem}")
        self._connection = connection
        self._source = source
        self._view = f"dpsql_in_{source.name}"
        self._declared = (
            parse_ddl(source.schema, f"sources.{source.name}.schema") if source.schema else None
        )
        self._beside = BESIDE_COLUMNS if source.change_feed else ()
        self._of_messages = source.change_feed is FeedForm.DEBEZIUM

    def files(self, paths: Sequence[Path]) -> Iterator[Chunk]:
        """Yield the files one by one, large text files in pieces; only the newest chunk is visible."""
        for path in paths:
            yield from self._file(path)

    def check(self, paths: Sequence[Path]) -> LocalTable:
        """Return the columns that the files will have, or what is wrong with them; no record is read (text files have no columns of their own)."""
        table = self._table()
        for path in paths:
            kind = self._format(path)
            if kind == "parquet" and not self._of_messages:
                table = self._fit(_parquet(path), str(path))
            if kind == "csv" and has_header(self._source):
                check_header(path, self._columns(kind), self._source)
        return table

    def frame(self, frame: Any) -> Chunk:
        """Return a pandas DataFrame or an Arrow table."""
        try:
            table = (
                frame
                if isinstance(frame, pa.Table)
                else pa.Table.from_pandas(frame, preserve_index=False)
            )
        except (pa.ArrowException, TypeError, ValueError, AttributeError):
            raise DataError(
                f"the frame for `{self._source.name}` is no Arrow table and no DataFrame with one type per column"
            ) from None
        self._connection.register("dpsql_frame", _in_microseconds(table))
        if self._of_messages:
            return self._values("SELECT * FROM dpsql_frame", "the frame")
        return Chunk(self._fit("SELECT * FROM dpsql_frame", "the frame", in_frame=True), 0)

    def all_files(self, paths: Sequence[Path]) -> Chunk:
        """Return all files at once (a static table): kept in memory."""
        chunks = 0
        malformed = 0
        columns: Columns = ()
        for chunk in self.files(paths):
            target = f'"{self._view}_all"'
            words = (
                f"INSERT INTO {target}" if chunks else f"CREATE OR REPLACE TEMP TABLE {target} AS"
            )
            self._connection.execute(f'{words} SELECT * FROM "{self._view}"')
            chunks = chunks + 1
            malformed = malformed + chunk.malformed
            columns = chunk.table.columns
        if not chunks:
            raise DataError(f"source `{self._source.name}`: there are no files")
        return Chunk(LocalTable(f"{self._view}_all", columns), malformed)

    def _file(self, path: Path) -> Iterator[Chunk]:
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        kind = self._format(path)
        if kind == "parquet":
            yield (
                self._values(_parquet(path), str(path))
                if self._of_messages
                else Chunk(self._fit(_parquet(path), str(path)), 0)
            )
            return
        columns = self._columns(kind)
        if self._of_messages:
            for lines in json_lines(path, arrays=False):
                yield self._messages(lines)
        elif kind == "json":
            for lines in json_lines(path):
                yield self._lines(
                    lines, json_select(columns, messages=self._source.format == "kafka"), 0
                )
        else:
            skipped = check_header(path, columns, self._source) if has_header(self._source) else 0
            for fields, wrong_width in csv_chunks(
                path, columns, {k.lower(): v for k, v in self._source.options}, skipped
            ):
                yield self._lines(fields, csv_select(columns), wrong_width)

    def _columns(self, kind: str) -> Columns:
        """Return the declared columns of a text.

        Raises:
            ConfigError: none are declared, or an option has it read otherwise than by lines.
        """
        if self._declared is None:
            raise ConfigError(
                f"format {kind} needs `schema`, like `schema: user_id STRING, ts TIMESTAMP` at sources.{self._source.name}"
            )
        if by_line := next(
            (name for name, value in self._source.options if is_by_file(name, value)), None
        ):
            raise DataError(
                f"`{by_line}` of {kind} works on Spark only: use `dpsql run --until-caught-up`"
            )
        return self._declared

    def _format(self, path: Path) -> str:
        """Return the format that a file's name says, else that of the source."""
        suffixes = [SUFFIXES[suffix] for suffix in path.suffixes if suffix in SUFFIXES]
        declared = self._source.value_format or self._source.format
        kind = suffixes[-1] if suffixes else declared
        if kind not in FORMATS:
            raise DataError(
                f"{path}: format {kind} is read on Spark only; the local engine reads {', '.join(FORMATS)}"
            )
        return kind

    def _values(self, select: str, where: str) -> Chunk:
        """Read messages as a topic keeps them: in the column `value`, text or bytes; one without a value is no record."""
        types = {name.lower(): kind for name, kind in self._described(select, where).items()}
        texts = {"VARCHAR": "value", "BLOB": "TRY(decode(value))"}
        if (kind := types.get("value", "")) not in texts:
            raise DataError(
                f"{where}: messages of source `{self._source.name}` are to be in a column `value`, as STRING or BINARY"
            )
        reader = self._connection.sql(
            f"SELECT {texts[kind]} AS line FROM ({select}) WHERE value IS NOT NULL"
        ).to_arrow_reader(1 << 20)
        return self._messages(reader.read_all())

    def _messages(self, lines: pa.Table) -> Chunk:
        """Read the messages of a change feed, one in each line, as images."""
        assert self._declared is not None
        self._connection.register("dpsql_messages", lines)
        self._connection.execute(
            f"CREATE OR REPLACE TEMP TABLE dpsql_raw_images AS {images_select(str(self._source.sequence_by))}"
        )
        images = self._connection.sql("FROM dpsql_raw_images").to_arrow_table()
        return self._lines(images, json_select(self._declared, BESIDE), 0)

    def _table(self) -> LocalTable:
        """Return the view of text: the declared columns, and those of a change feed."""
        return LocalTable(
            self._view,
            tuple((name.lower(), kind) for name, kind in (*(self._declared or ()), *self._beside)),
        )

    def _lines(self, raw: pa.Table, select: str, wrong_width: int) -> Chunk:
        assert self._declared is not None
        self._connection.register("dpsql_raw", raw)
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE dpsql_lines AS {select}")
        quoted = [
            ('"' + name.replace('"', '""') + '"', kind)
            for name, kind in (*self._declared, *self._beside)
        ]
        bad = self._connection.execute(
            "SELECT count(*) FROM dpsql_lines WHERE dpsql_malformed"
        ).fetchall()[0][0]
        listed = ", ".join(
            f"{_within_calendar(column, kind)} AS {column}" for column, kind in quoted
        )
        self._connection.execute(
            f'CREATE OR REPLACE TEMP VIEW "{self._view}" AS SELECT {listed} FROM dpsql_lines WHERE NOT dpsql_malformed'
        )
        return Chunk(self._table(), int(bad) + wrong_width)

    def _described(self, select: str, where: str) -> dict[str, str]:
        """Return columns with DuckDB's names of their types."""
        try:
            return {
                name: kind
                for name, kind, *_ in self._connection.execute(f"DESCRIBE {select}").fetchall()
            }
        except duckdb.Error:
            raise DataError(f"{where}: not a readable Parquet file") from None

    def _fit(self, select: str, where: str, in_frame: bool = False) -> LocalTable:
        """Make the view, with the declared columns and types where there are any."""
        file_types = self._described(select, where)
        by_name = {name.lower(): name for name in file_types}
        typed_columns = (
            (*self._declared, *self._beside)
            if self._declared
            else tuple((name, from_duckdb(kind)) for name, kind in file_types.items())
        )
        missing = [name for name, _ in typed_columns if name.lower() not in by_name]
        if missing:
            raise DataError(
                f"{where}: column `{missing[0]}` of source `{self._source.name}` is missing; it has {', '.join(sorted(by_name))}"
            )
        listed = []
        for name, kind in typed_columns:
            column = by_name[name.lower()]
            text = _fitted(f'"{column}"', file_types[column], kind)
            if text is None:
                raise DataError(
                    f"{where}: {_misfit(column, file_types[column], kind, self._source.name, in_frame)}"
                )
            listed.append(f'{_within_calendar(text, kind)} AS "{name.lower()}"')
        object_kind = "TABLE" if in_frame else "VIEW"
        self._connection.execute(
            f'CREATE OR REPLACE TEMP {object_kind} "{self._view}" AS SELECT {", ".join(listed)} FROM ({select})'
        )
        return LocalTable(self._view, tuple((name.lower(), kind) for name, kind in typed_columns))


def _misfit(
    column: str, file_type: str, declared_type: SparkType, source: str, in_frame: bool
) -> str:
    """Say what a column has instead of its type, and how to mend what newcomers meet most: times, and whole numbers with gaps."""
    declares = f"but source `{source}` declares {declared_type}"
    frame = f"frame[{column!r}]"
    if "_NS" in file_type:
        return f"column `{column}` has a time in nanoseconds, {declares}; Spark reads microseconds only, like {frame}.dt.as_unit('us')"
    have = from_duckdb(file_type)
    if loses_numbers(str(have), str(declared_type)):
        call = ""
        if in_frame and have.is_real:
            call = f", or make whole numbers of it, like {frame}.astype('Int{INTEGER_BITS[declared_type.name]}')"
        if in_frame and declared_type.name == "double":
            call = f", or make it DOUBLE, like {frame}.astype('float64')"
        return f"{mismatch_text(column, str(have), source, str(declared_type))}{call}"
    parse = in_frame and (have.name, declared_type.name) == ("string", "timestamp")
    hint = f"; make it one, like pd.to_datetime({frame}, utc=True)" if parse else ""
    return f"column `{column}` has type {have}, {declares}{hint}"


def _parquet(path: Path) -> str:
    return f"SELECT * FROM read_parquet({quote(str(path))}, hive_partitioning = false)"


def _in_microseconds(table: pa.Table) -> pa.Table:
    """Convert times to what Spark has: pandas makes nanoseconds unless told otherwise."""
    for i, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            micro = table.column(i).cast(pa.timestamp("us", tz=field.type.tz), safe=False)
            table = table.set_column(i, field.name, micro)
    return table


def _within_calendar(value: str, kind: SparkType) -> str:
    """Return DuckDB text of a value, NULL for a time outside the years 1 to 9999: as on Spark, where such a time could end the job."""
    if kind.name == "date":
        return f"CASE WHEN {value} BETWEEN DATE '0001-01-01' AND DATE '9999-12-31' THEN {value} END"
    if kind.name == "timestamp":
        return f"CASE WHEN {value} BETWEEN TIMESTAMP '0001-01-01' AND TIMESTAMP '9999-12-31 23:59:59.999999' THEN {value} END"
    return value


def _fitted(column: str, file_type: str, declared_type: SparkType) -> str | None:
    """Return DuckDB text of a column in its declared type; None if it does not fit."""
    have = from_duckdb(file_type)
    if declared_type.name == "other" or have == declared_type:
        same = declared_type.name == "other" or file_type == declared_type.duckdb
        return (
            column
            if same
            else f"{'TRY_CAST' if declared_type.name == 'timestamp' else 'CAST'}({column} AS {declared_type.duckdb})"
        )
    if have.name == "void":
        return f"CAST(NULL AS {declared_type.duckdb})"
    if (
        file_type == "UBIGINT" and column == f'"{POSITION}"'
    ):  # as `deltalake` exports the feed of a table; no commit has such a number
        return f"TRY_CAST({column} AS BIGINT)"
    if have.is_integer and declared_type.is_integer:
        return (
            f"CAST({column} AS {declared_type.duckdb})"
            if INTEGER_BITS[declared_type.name] > INTEGER_BITS[have.name]
            else None
        )
    if declared_type.name == "double" and have.name in ("float", "tinyint", "smallint", "int"):
        return f"CAST({column} AS DOUBLE)"
    if have.name == "decimal" and declared_type.name == "decimal":
        holds = (
            declared_type.scale >= have.scale
            and declared_type.precision - declared_type.scale >= have.precision - have.scale
        )
        return f"CAST({column} AS {declared_type.duckdb})" if holds else None
    if (have.name, declared_type.name) == ("date", "timestamp"):
        return f"TRY(CAST({column} AS TIMESTAMP))"
    if (have.name, declared_type.name) == ("binary", "string"):
        return f"TRY(decode({column}))"
    return None


def source_files(
    source: Source, inputs: Mapping[str, Sequence[Path]], version: int | None = None
) -> list[Path]:
    """Return the files of a source: those given under its name, else those at its path; folders are searched.

    Args:
        source: the source.
        inputs: files and folders by source name.
        version: of a Delta table at its path (default: the newest).

    Raises:
        DataError: there is no such file or folder, or it is not on a local disk.
    """
    if source.name in inputs:
        return [file for path in inputs[source.name] for file in _expanded(path, source, None)]
    if source.change_feed is FeedForm.DELTA:
        raise DataError(
            f"source `{source.name}` is a change feed, which Spark reads: export what changed as Parquet, with the columns {', '.join(BESIDE)}, and "
            f"add --input {source.name}=FILE"
        )
    if source.table:
        raise DataError(
            f"source `{source.name}` is table {source.table} of Spark's catalog: to read it without Spark, declare its format and path"
        )
    if not source.path:
        raise DataError(f"no input is given for `{source.name}`: add --input {source.name}=FILE")
    elsewhere = (
        f"source `{source.name}` is at {{}}://: copy it here and add --input {source.name}=FILE"
    )
    return _expanded(local_path(source.path, elsewhere), source, version)


def local_path(uri: str, elsewhere: str) -> Path:
    """Return what a bare path or a `file:` URI names; raises DataError with the words for all others, of which `{}` is the scheme."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        raise DataError(elsewhere.format(parts.scheme))
    return Path(unquote(parts.path) if parts.scheme else uri)


def micro_batches(source: Source, files: Sequence[Path]) -> list[Sequence[Path]]:
    """Return the files of the stream as `dpsql run --until-caught-up` cuts them: so many at a time, in order of modification (milliseconds).

    Files of one millisecond stay in the order given, which is that of the file system (`source_files`), as on Spark.
    """
    options = {name.lower(): value for name, value in source.options}
    if source.format != "delta":  # the files of a Delta table are in order
        files = sorted(files, key=lambda file: file.stat().st_mtime_ns // 1_000_000)
    limit_text = options.get(FILES_PER_BATCH, "")
    size = (
        int(limit_text)
        if limit_text.isdigit() and int(limit_text)
        else BATCH_FILES.get(source.format, OTHER_BATCH_FILES)
    )
    return [files[i : i + size] for i in range(0, len(files), size)]


def _expanded(path: Path, source: Source, version: int | None) -> list[Path]:
    if (path / "_delta_log").is_dir():
        return _delta_files(path, version)
    if path.is_dir():
        return _files_in(path, source)
    if not path.exists() and any(character in path.name for character in "*?["):
        return sorted(path.parent.glob(path.name))
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    return [path]


def _files_in(folder: Path, source: Source) -> list[Path]:
    """Return the files of a folder in the order of the file system, files before sub-folders, as Spark lists them.

    Of sub-folders, those of a partition (`day=2024-02-29`) are read, or all with `recursiveFileLookup`; of files, those that
    `pathGlobFilter` names.

    Raises:
        DataError: all files are in sub-folders that are not read.
    """
    everywhere = any(
        name.lower() == "recursivefilelookup" and value.lower() == "true"
        for name, value in source.options
    )
    patterns = [value for name, value in source.options if name.lower() == "pathglobfilter"]
    files: list[Path] = []
    left_out = False
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] not in "._"]
        matching_files = [
            Path(parent, name)
            for name in names
            if name[0] not in "._" and all(_matches(name, pattern) for pattern in patterns)
        ]
        if everywhere or all("=" in part for part in Path(parent).relative_to(folder).parts):
            files += matching_files
        else:
            left_out |= bool(matching_files)
    if left_out and not files:
        raise DataError(
            f"{folder}: all files are in sub-folders, which are read if they are named like day=2024-02-29, or with "
            "`options: {recursiveFileLookup: true}`"
        )
    return files


def _matches(name: str, pattern: str) -> bool:
    """Return a file's name and a pattern like `*.{json,csv}`."""
    alternatives = re.search(r"\{([^{}]*)\}", pattern)
    if alternatives is None:
        return fnmatchcase(name, pattern)
    before = pattern[: alternatives.start()]
    after = pattern[alternatives.end() :]
    return any(_matches(name, f"{before}{one}{after}") for one in alternatives[1].split(","))


def _delta_files(path: Path, version: int | None) -> list[Path]:
    """Return the data files of a Delta table's version, by modification time and name; the folder holds those of older versions too."""
    table = open_table(path, version)
    uris = table.file_uris()
    times = pa.table(table.get_add_actions()).column("modification_time").to_pylist()
    in_order = [uri for _, uri in sorted(zip(times, uris, strict=True))]
    return [
        Path(unquote(urlsplit(uri).path) if uri.startswith("file:") else uri) for uri in in_order
    ]
