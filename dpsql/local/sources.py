"""Input files and frames as DuckDB tables with Spark types.

Raises DataError for what cannot be read at all; the message names files, columns and types, never a value.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa

from dpsql.errors import ConfigError, DataError
from dpsql.local.arrow_columns import spark_type, table
from dpsql.local.debezium import BESIDE_COLUMNS, images_select, rows_select, without_header
from dpsql.local.delta_files import DataFile, delta_files, open_file
from dpsql.local.event_times import TIMESTAMP, event_time
from dpsql.local.frames import arrow_table, check_columns, misfit
from dpsql.local.from_clause import LocalTable
from dpsql.local.lines import (
    MISFIT,
    NO_RECORD,
    check_text,
    csv_fields,
    csv_select,
    json_lines,
    json_select,
    option_of_spark,
)
from dpsql.local.object_columns import ODD
from dpsql.local.spark_types import (
    STRING,
    Columns,
    SparkType,
    Typed,
    cast,
    identifier,
    parse_ddl,
    quote,
)
from dpsql.sources.change_feed import BESIDE, POSITION, FeedForm
from dpsql.sources.config import Source, refused_schema
from dpsql.sources.declared_types import fits, mismatch_text, spark_lacks
from dpsql.sources.file_list import files_in, match_pattern
from dpsql.sources.folders import (
    FolderValues,
    check_alike,
    check_form,
    folder_values,
    has_sub_folders,
    pattern_above_folders,
    wrong_value,
)
from dpsql.sources.reader_options import FILES_PER_BATCH, refused_option, spark_option

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

MESSAGE = (("value", STRING),)
"""The column of messages, as topics have it."""

NO_FOLDERS = pa.table({"dpsql_row": [0]})
"""The row that the lines of a file are joined with that is in no folder with a value."""

InputFile = os.PathLike[str]
"""A path, or a file of which more is known (`DataFile`)."""


@dataclass(frozen=True, repr=False)
class Chunk:
    """A piece of input, now visible in DuckDB as `table`; `malformed` lines were left out of it."""

    table: LocalTable
    malformed: int


class InputReader:
    """Loads the pieces of one source, one after the other, under one DuckDB name.

    Args:
        connection: where they are seen.
        source: the source.
        query_words: words and names of a query in lower case, the only columns that are read; None, or `*` among them: all are.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        source: Source,
        query_words: Collection[str] | None = None,
    ) -> None:
        if problem := refused_schema(source) or refused_option(source):
            raise ConfigError(f"source {source.name!r}: {problem}")
        self._connection = connection
        self._source = source
        self._query_words = None if query_words and "*" in query_words else query_words
        self._view = f"dpsql_in_{source.name}"
        self._declared = (
            parse_ddl(source.schema, f"sources.{source.name}.schema") if source.schema else None
        )
        self._beside = BESIDE_COLUMNS if source.change_feed else ()
        self._of_messages = source.change_feed is FeedForm.DEBEZIUM
        self._first_columns: Columns = ()
        self._folders: Columns = ()
        self._folder_row = NO_FOLDERS
        self.misfits = Counter[str]()
        """How many lines were malformed, by the first column that did not fit, or the field of a message that is wrong; "" is a line that is no record."""

    def files(self, paths: Sequence[InputFile]) -> Iterator[Chunk]:
        """Yield the files one by one, large ones in pieces; only the newest chunk is visible."""
        for path in paths:
            yield from self._file(path)

    def check(self, paths: Sequence[InputFile]) -> LocalTable:
        """Return the columns that the files will have, or what is wrong with them; no record is read (text files have no columns of their own)."""
        names = set[str]()
        typed = 0
        for path in sorted(paths, key=os.fspath):
            kind = self._format(Path(path))
            data_file = self._data_file(path)
            if kind == "parquet":
                with open_file(data_file) as file:
                    schema = data_file.schema(file)
                self._fields(schema, data_file)
                names.update(map(str.lower, schema.names), dict(data_file.columns))
                typed += 1
                continue
            columns = self._columns(kind)
            check_text(Path(path), kind, columns, self._source)
        if typed == len(paths) > 0:
            self._check_names(
                names, " and ".join(dict.fromkeys(map(os.fspath, (paths[0], paths[-1]))))
            )
        columns = self._arrow_columns() if typed else self._table().columns
        return LocalTable(self._view, self._with_times(columns))

    def frame(self, frame: Any) -> Chunk:
        """Read a frame that `dpsql.local.frames` takes, as one chunk."""
        arrow = arrow_table(frame)
        rows = arrow.num_rows
        if ODD in arrow.column_names:
            self.misfits.update(arrow[ODD].drop_null().to_pylist())
            arrow = arrow.filter(arrow[ODD].is_null()).drop_columns(ODD)
        fields = self._fields(arrow.schema, None)
        check_columns(arrow, [name for name, _ in self._named_columns()])
        chunk = self._of_arrow(arrow.select(fields).to_batches())
        return replace(chunk, malformed=rows - arrow.num_rows + chunk.malformed)

    def all_files(self, paths: Sequence[InputFile]) -> Chunk:
        """Return all files at once (a static table): kept in memory."""
        self.check(paths)
        chunks = 0
        malformed = 0
        columns: Columns = ()
        for chunk in self.files(paths):
            target = f'"{self._view}_all"'
            words = (
                f"INSERT INTO {target}" if chunks else f"CREATE OR REPLACE TEMP TABLE {target} AS"
            )
            self._execute(f'{words} SELECT * FROM "{self._view}"')
            chunks = chunks + 1
            malformed = malformed + chunk.malformed
            columns = chunk.table.columns
        if not chunks:
            raise DataError(f"source `{self._source.name}`: there are no files")
        return Chunk(LocalTable(f"{self._view}_all", columns), malformed)

    def _file(self, input_file: InputFile) -> Iterator[Chunk]:
        path = Path(input_file)
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        kind = self._format(path)
        data_file = self._data_file(input_file)
        if kind == "parquet":
            yield from self._parquet(data_file)
            return
        columns = self._columns(kind)
        check_text(path, kind, columns, self._source)
        if self._of_messages:
            for lines, too_long in json_lines(path):
                yield self._messages(lines, too_long)
        elif kind == "json":
            for lines, too_long in json_lines(path):
                yield self._lines(lines, json_select(columns), too_long)
        else:
            for fields, malformed in csv_fields(path, len(columns), self._source):
                yield self._lines(fields, csv_select(columns, self._source), malformed)

    def _data_file(self, file: InputFile) -> DataFile:
        """Return a file with the values of its folders in their declared types, and note which these are.

        Raises:
            DataError: a value is not of its type.
        """
        data_file = file if isinstance(file, DataFile) else DataFile(Path(file))
        self._folders = ()
        self._folder_row = NO_FOLDERS
        if not data_file.folders or self._of_messages:
            return data_file
        types = {name.lower(): kind for name, kind in self._declared or ()}
        check_form(
            data_file.folders, {name: kind.name for name, kind in types.items()}, data_file.path
        )
        texts = {
            name: Typed("NULL" if text is None else quote(text), STRING)
            for name, text in data_file.folders.items()
        }
        self._folders = tuple((name, types.get(name, STRING)) for name in texts)
        listed = ", ".join(
            f"{cast(texts[name], kind).sql} AS {identifier(name)}" for name, kind in self._folders
        )
        self._folder_row = self._execute(f"SELECT {listed}")
        values = {name: self._folder_row[name][0] for name, _ in self._folders}
        for name, kind in self._folders:
            if data_file.folders[name] is not None and not values[name].is_valid:
                raise DataError(wrong_value(name, str(kind), data_file.path))
        return replace(data_file, partition=values)

    def _columns(self, kind: str) -> Columns:
        """Return the columns of a text: the declared ones that are not in the names of its folders.

        Raises:
            ConfigError: none are declared.
            DataError: an option is read on Spark only.
        """
        if self._declared is None:
            raise ConfigError(
                f"format {kind} needs `schema`, like `schema: user_id STRING, ts TIMESTAMP` at sources.{self._source.name}"
            )
        if option := option_of_spark(kind, self._source):
            raise DataError(
                f"source `{self._source.name}`: `{option}` of {kind} runs on Spark: `dpsql run --until-caught-up`"
            )
        names = dict(self._folders)
        return tuple((name, kind) for name, kind in self._declared if name.lower() not in names)

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

    def _parquet(self, data_file: DataFile) -> Iterator[Chunk]:
        try:
            with open_file(data_file) as file:
                fields = self._fields(data_file.schema(file), data_file)
                if not file.metadata.num_rows:
                    yield self._of_arrow([])
                for batch in data_file.batches(file, fields):
                    yield self._of_arrow([batch])
        except (pa.ArrowException, OSError):
            raise DataError(f"{data_file.path}: not a readable Parquet file") from None

    def _of_arrow(self, batches: Iterable[pa.RecordBatch]) -> Chunk:
        """Show batches with the fields of the source; messages are in the column `value`, and one without a value is no record."""
        if self._of_messages and self._source.schema_registry:
            batches = map(without_header, batches)
        rows = table(batches, self._named_columns())
        if self._of_messages:
            return self._messages(rows.rename_columns(["line"]).drop_null())
        self._connection.register(self._view, rows)
        return self._timed(LocalTable(self._view, self._arrow_columns()), 0)

    def _timed(self, raw: LocalTable, malformed: int) -> Chunk:
        """Return what is visible, with an event time that is a TIMESTAMP where the source says in what unit it is."""
        columns = self._with_times(raw.columns)
        column = str(self._source.event_time)
        words = self._query_words
        is_read = words is None or column in words  # a one-time release may have no use for it
        if columns == raw.columns or not is_read:
            return Chunk(LocalTable(raw.view, columns), malformed)
        value = Typed(identifier(column), dict(raw.columns)[column])
        time = event_time(value, column, str(self._source.event_time_unit))
        view = f"{self._view}_timed"
        self._execute(
            f'CREATE OR REPLACE TEMP VIEW "{view}" AS SELECT * REPLACE ({time} AS {identifier(column)}) FROM "{raw.view}"'
        )
        return Chunk(LocalTable(view, columns), malformed)

    def _with_times(self, columns: Columns) -> Columns:
        """Return the columns as FROM sees them; raises as `event_time`."""
        unit = self._source.event_time_unit
        types = dict(columns)
        column = self._source.event_time
        if unit and column in types:
            event_time(Typed(identifier(column), types[column]), column, unit)
            types[column] = TIMESTAMP
        return tuple(types.items())

    def _arrow_columns(self) -> Columns:
        """Return the declared columns, or those of the first file."""
        if self._of_messages:
            return MESSAGE
        return self._table().columns if self._declared else self._first_columns

    def _named_columns(self) -> Columns:
        """Return the columns that are read."""
        columns = self._arrow_columns()
        if self._query_words is None or self._of_messages:
            return columns
        return tuple(column for column in columns if column[0] in self._query_words) or columns[:1]

    def _fields(self, schema: pa.Schema, data_file: DataFile | None) -> list[str]:
        """Return the names of the fields that are read, of a file or (None) of a frame.

        Raises:
            DataError: a field has a type that does not fit, or the name of another one, case aside.
        """
        where = data_file.path if data_file else "the frame"
        self._first_columns = (
            self._first_columns
            or (data_file.columns if data_file else ())
            or tuple((field.name.lower(), spark_type(field.type)) for field in schema)
        )
        declared = dict(self._named_columns())
        fields = [field for field in schema if field.name.lower() in declared]
        names = [field.name.lower() for field in fields]
        if doubled := next((name for name in names if names.count(name) > 1), None):
            raise DataError(
                f"{where}: several columns are named `{doubled}`, case aside: give them other names"
            )
        for field in fields:
            kind = declared[field.name.lower()]
            # As `deltalake` exports the feed of a table; no commit has a number from 2^63 on.
            is_position = field.name == POSITION and pa.types.is_uint64(field.type)
            if not (is_position or fits(str(spark_type(field.type)), str(kind))):
                if data_file is None:
                    raise DataError(misfit(field, kind))
                raise DataError(f"{where}: {_misfit(field, kind, self._source.name)}")
            is_fixed = data_file and pa.types.is_fixed_size_binary(field.type)
            if is_fixed and (lack := spark_lacks("fixed", str(kind), f"column `{field.name}`")):
                raise DataError(f"{where}: {lack}")
        return [field.name for field in fields]

    def _check_names(self, names: Collection[str], where: str) -> None:
        """Refuse a column that is read and is nowhere."""
        for name, _ in self._named_columns():
            if name in names:
                continue
            if self._of_messages:
                raise DataError(
                    f"{where}: messages of source `{self._source.name}` are to be in a column `value`, as STRING or BINARY"
                )
            raise DataError(
                f"{where}: column `{name}` of source `{self._source.name}` is missing; it has {', '.join(sorted(names))}"
            )

    def _messages(self, lines: pa.Table, too_long: int = 0) -> Chunk:
        """Read the messages of a change feed, one in each line, as images."""
        assert self._declared is not None
        self._connection.register("dpsql_messages", lines)
        images = self._execute(images_select(self._source))
        select = rows_select(self._declared, self._source)
        return self._lines(images, select, too_long)

    def _table(self) -> LocalTable:
        """Return the view of text: the declared columns, those of folders and those of a change feed."""
        declared = {name.lower(): kind for name, kind in self._declared or ()}
        return LocalTable(
            self._view, tuple((declared | dict(self._folders) | dict(self._beside)).items())
        )

    def _lines(self, raw: pa.Table, select: str, malformed: int) -> Chunk:
        self.misfits[NO_RECORD] += malformed
        self._connection.register("dpsql_raw", raw)
        self._connection.register("dpsql_folders", self._folder_row)
        self._execute(f"CREATE OR REPLACE TEMP TABLE dpsql_lines AS {select}")
        table = self._table()
        quoted = [(identifier(name), kind) for name, kind in table.columns]
        misfits = self._execute(
            f"SELECT {MISFIT}, count(*) AS lines FROM dpsql_lines WHERE {MISFIT} IS NOT NULL GROUP BY ALL"
        )
        listed = ", ".join(
            f"{_within_calendar(column, kind)} AS {column}" for column, kind in quoted
        )
        self._execute(
            f'CREATE OR REPLACE TEMP VIEW "{self._view}" AS SELECT {listed} FROM dpsql_lines, dpsql_folders WHERE {MISFIT} IS NULL'
        )
        for name, count in zip(*misfits.to_pydict().values(), strict=True):
            self.misfits[name] += count
            malformed = malformed + count
        return self._timed(table, malformed)

    def _execute(self, text: str) -> pa.Table:
        """Return what DuckDB says to a statement. What it says of a failure can quote a record: only the kind of the failure is told."""
        try:
            return self._connection.sql(text).to_arrow_table()
        except (duckdb.Error, pa.ArrowException) as problem:
            raise DataError(
                f"the input of `{self._source.name}` cannot be read ({type(problem).__name__})"
            ) from None


def _misfit(field: pa.Field, declared_type: SparkType, source: str) -> str:
    """Say what a column of a file has instead of its declared type."""
    have = spark_type(field.type)
    shown_type = field.type if have.name == "other" else have
    return mismatch_text(field.name, str(shown_type), source, str(declared_type))


def _within_calendar(value: str, kind: SparkType) -> str:
    """Return DuckDB text of a value, NULL for a time outside the years 1 to 9999: as on Spark, where such a time could end the job."""
    if kind.name == "date":
        return f"CASE WHEN {value} BETWEEN DATE '0001-01-01' AND DATE '9999-12-31' THEN {value} END"
    if kind.name == "timestamp":
        return f"CASE WHEN {value} BETWEEN TIMESTAMP '0001-01-01' AND TIMESTAMP '9999-12-31 23:59:59.999999' THEN {value} END"
    return value


def source_files(
    source: Source, inputs: Mapping[str, Sequence[Path]], version: int | None = None
) -> list[InputFile]:
    """Return the files of a source: those given under its name, else those at its path; folders are searched.

    Args:
        source: the source.
        inputs: files and folders by source name.
        version: of a Delta table at its path (default: the newest).

    Raises:
        DataError: there is no such file or folder, it is not on a local disk, or only some files are in folders like `day=2024-02-29`.
    """
    files = _listed_files(source, inputs, version)
    columns = [tuple(sorted(folders_of(file))) for file in files]
    check_alike(columns, f"source `{source.name}`")
    return files


def _listed_files(
    source: Source, inputs: Mapping[str, Sequence[Path]], version: int | None
) -> list[InputFile]:
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
    if source.format == "delta" and (option := spark_option(source, "delta")):
        raise DataError(
            f"source `{source.name}`: `{option}` of delta runs on Spark: `dpsql run --until-caught-up`"
        )
    elsewhere = (
        f"source `{source.name}` is at {{}}://: copy it here and add --input {source.name}=FILE"
    )
    return list(_expanded(local_path(source.path, elsewhere), source, version))


def local_path(uri: str, elsewhere: str) -> Path:
    """Return what a bare path or a `file:` URI names; raises DataError with the words for all others, of which `{}` is the scheme."""
    parts = urlsplit(uri)
    if parts.scheme not in ("", "file"):
        raise DataError(elsewhere.format(parts.scheme))
    return Path(unquote(parts.path) if parts.scheme else uri)


def micro_batches(source: Source, files: Sequence[InputFile]) -> list[Sequence[InputFile]]:
    """Return the files of the stream as `dpsql run --until-caught-up` cuts them: so many at a time, in order of modification (milliseconds).

    Files of one millisecond stay in the order given, which is that of the file system (`source_files`), as on Spark.
    """
    options = {name.lower(): value for name, value in source.options}
    if source.format != "delta":  # the files of a Delta table are in order
        files = sorted(files, key=lambda file: os.stat(file).st_mtime_ns // 1_000_000)
    limit_text = options.get(FILES_PER_BATCH, "")
    size = (
        int(limit_text)
        if limit_text.isdigit() and int(limit_text)
        else BATCH_FILES.get(source.format, OTHER_BATCH_FILES)
    )
    return [files[i : i + size] for i in range(0, len(files), size)]


def _expanded(path: Path, source: Source, version: int | None) -> Sequence[InputFile]:
    if (path / "_delta_log").is_dir():
        return delta_files(path, version)
    if path.is_dir():
        return _files_in(path, source)
    if path.exists():
        return [path]
    files = [
        file
        for place in match_pattern(path)
        for file in (_files_in(place, source) if place.is_dir() else [place])
    ]
    if any(map(folders_of, files)) and not source.static:
        raise DataError(pattern_above_folders(str(path)))
    return files


def _files_in(folder: Path, source: Source) -> list[InputFile]:
    return [in_folders(file, folder, source) for file in files_in(folder, source)]


def in_folders(file: Path, root: Path, source: Source) -> InputFile:
    """Return a file with the values of its folders below the path of a source."""
    is_inside = root in file.parents and not has_sub_folders(source)
    folders = folder_values(file.parent.relative_to(root)) if is_inside else {}
    return DataFile(file, folders=folders) if folders else file


def folders_of(file: InputFile) -> FolderValues:
    """Return the values in the names of a file's folders."""
    return file.folders if isinstance(file, DataFile) else {}
