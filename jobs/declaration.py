"""What `dpsql init FILE` asks and writes: names and types of a file's columns, a source, a first query. It prints and keeps no value of a record."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.errors import DataError
from dpsql.sql.relations import quoted

if TYPE_CHECKING:
    from dpsql.local.spark_types import SparkType

FORMATS = {
    ".parquet": "parquet",
    ".orc": "orc",
    ".avro": "avro",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
COMPRESSED = (".gz", ".bz2", ".zst")
LOOKED_AT = 10_000
"""Records from which names and types are guessed."""

_HEAD_BYTES = 1 << 20
_SEPARATORS = ",;\t|"
_AVRO = {"int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE"}
_AVRO |= {"boolean": "BOOLEAN", "string": "STRING", "bytes": "BINARY"}
_AVRO_TIMES = {"timestamp-millis": "TIMESTAMP", "timestamp-micros": "TIMESTAMP", "date": "DATE"}
TYPES = ("STRING", "BIGINT", "DOUBLE", "BOOLEAN", "DATE", "TIMESTAMP")
"""Types that text is read as."""


@dataclass(frozen=True)
class FileColumn:
    """A column of the records, its type in Spark's words, and of text the first records as the readers take them."""

    name: str
    kind: str
    sample: pa.Table | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class FileRecords:
    """Files of one schema.

    Args:
        path: the file, or the folder that holds them.
        format: as in sources.yaml.
        columns: in their order.
        options: of the reader.
        has_types: whether the files say the types; else they are guesses.
        nested: names of columns that no expression can touch.
    """

    path: Path
    format: str
    columns: tuple[FileColumn, ...]
    options: tuple[tuple[str, str], ...] = ()
    has_types: bool = True
    nested: tuple[str, ...] = ()


def is_data(path: Path) -> bool:
    """Tell whether a path is a file, or a folder of data files or of a Delta table."""
    return path.is_file() or (path / "_delta_log").is_dir() or bool(_files(path))


def _files(folder: Path) -> list[Path]:
    """Return the data files of a folder, and those in sub-folders like `day=2026-01-01`."""
    if not folder.is_dir():
        return []
    data_files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if re.fullmatch(r"[^._=][^=]*=.*", name))
        data_files += [
            Path(parent, name)
            for name in sorted(names)
            if name[0] not in "._" and _format(Path(name))
        ]
    return data_files


def _format(file: Path) -> str | None:
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return FORMATS.get(suffixes[-1]) if suffixes else None


def read_records(path: Path) -> FileRecords:
    """Read what files say of their columns.

    Raises:
        DataError: they say different things, or nothing that can be read; no value is named.
    """
    if (path / "_delta_log").is_dir():
        return _of_columns(path, "delta", _delta_columns(path))
    files = _files(path) if path.is_dir() else [path]
    kinds = {str(_format(file)) for file in files}
    if kinds == {"None"}:
        endings = ", ".join(FORMATS)
        raise DataError(f"{path}: its name says no format; known endings are {endings}")
    if len(kinds) > 1:
        raise DataError(f"{path}: the folder has files of {' and '.join(sorted(kinds))}: give one")
    first, *later_files = files
    records = _of_file(first, kinds.pop())
    for file in later_files:
        names = [column.name for column in _of_file(file, records.format).columns]
        if names != [column.name for column in records.columns]:
            raise DataError(
                f"{path}: {first.name} and {file.name} have other columns: give one of them"
            )
    folders = [part.split("=", 1)[0] for part in first.relative_to(path).parts[:-1]]
    partitions = tuple(FileColumn(name, "STRING") for name in folders) if path.is_dir() else ()
    return replace(records, path=path, columns=(*records.columns, *partitions))


def _of_file(file: Path, kind: str) -> FileRecords:
    try:
        return _READERS[kind](file)
    except DataError:
        raise
    except (OSError, pa.ArrowException, UnicodeError, ValueError, KeyError) as problem:
        name = type(problem).__name__
        raise DataError(f"{file}: cannot be read as {kind} ({name})") from None


def _of_arrow(file: Path, kind: str, schema: pa.Schema) -> FileRecords:
    from dpsql.local.arrow_columns import spark_type

    fields = [field for field in schema if not PANDAS_INDEX.fullmatch(field.name)]
    columns = [(field.name, spark_type(field.type)) for field in fields]
    return _of_columns(file, kind, columns)


def _of_columns(path: Path, form: str, columns: Sequence[tuple[str, Any]]) -> FileRecords:
    """Return files whose types are known: as types of Spark, or None where they are nested."""
    names = {name: "NESTED" if kind is None else str(kind) for name, kind in columns}
    nested = tuple(name for name, kind in names.items() if kind == "NESTED")
    readable = (FileColumn(name, kind) for name, kind in names.items() if name not in nested)
    return FileRecords(path, form, tuple(readable), nested=nested)


def _parquet(file: Path) -> FileRecords:
    from dpsql.local.arrow_columns import stored

    return _of_arrow(file, "parquet", stored(pq.read_schema(file)))


def _orc(file: Path) -> FileRecords:
    from pyarrow import orc

    return _of_arrow(file, "orc", orc.ORCFile(str(file)).schema)


def _delta_columns(path: Path) -> Sequence[tuple[str, SparkType]]:
    from dpsql.local.delta_files import table_columns

    return table_columns(path)


def _avro(file: Path) -> FileRecords:
    """Read the schema in the header of an Avro file: its key, the zigzag length of its JSON, the JSON."""
    head = file.read_bytes()[:_HEAD_BYTES]
    place = head.index(b"avro.schema") + len(b"avro.schema")
    length = shift = 0
    while True:
        length |= (head[place] & 127) << shift
        shift += 7
        place += 1
        if head[place - 1] < 128:
            break
    fields = json.loads(head[place : place + (length >> 1)])["fields"]
    return _of_columns(
        file, "avro", [(field["name"], _avro_type(field["type"])) for field in fields]
    )


def _avro_type(kind: Any) -> str | None:
    if isinstance(kind, list):
        named_types = [each for each in kind if each != "null"]
        return _avro_type(named_types[0]) if len(named_types) == 1 else None
    if isinstance(kind, dict):
        return _AVRO_TIMES.get(kind.get("logicalType", "")) or _avro_type(kind["type"])
    return _AVRO.get(kind)


def _first_lines(file: Path) -> list[str]:
    with pa.input_stream(str(file), compression="detect") as stream:
        head = stream.read(_HEAD_BYTES)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{file}: is UTF-16 text: save it as UTF-8")
    if len(head) == _HEAD_BYTES:  # the last line may be cut
        head = head[: head.rfind(b"\n") + 1]
    text = head.decode("utf-8-sig", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()][: LOOKED_AT + 1]
    if not lines:
        raise DataError(f"{file}: the file is empty")
    return lines


def _csv(file: Path) -> FileRecords:
    first, *lines = _first_lines(file)
    separator = max(_SEPARATORS, key=lambda sign: len(_fields(first, sign)))
    names = _fields(first, separator)
    _check_names(file, names, "Give the file a first line with the names of its columns")
    rows = [fields for line in lines if len(fields := _fields(line, separator)) == len(names)]
    by_column = zip(*rows, strict=True) if rows else [()] * len(names)
    pairs = zip(names, by_column, strict=True)
    columns = tuple(_guessed(name, texts, _fields_sample(texts)) for name, texts in pairs)
    options = [("header", "true")] + ([("sep", separator)] if separator != "," else [])
    return FileRecords(file, "csv", columns, tuple(options), has_types=False)


def _fields_sample(texts: Sequence[str]) -> pa.Table:
    return pa.table({"r0": pa.array([text or None for text in texts], pa.string())})


def _fields(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator), [])


def _check_names(file: Path, names: Sequence[str], advice: str) -> None:
    """Refuse names that are values of a record: names become public."""
    lower_names = [name.strip().lower() for name in names]
    for place, name in enumerate(lower_names, 1):
        wrong = {
            "is empty": not name,
            "is there twice": lower_names.count(name) > 1,
            "is a number": _is_number(name),
            "is a time": _is_time(name),
            "has an @": "@" in name,
        }
        for reason in [reason for reason, applies in wrong.items() if applies][:1]:
            raise DataError(
                f"{file}: its first line has no names of columns: field {place} {reason}. {advice}"
            )


def _json(file: Path) -> FileRecords:
    lines = _first_lines(file)
    if lines[0].lstrip().startswith("["):
        raise DataError(f"{file}: is one JSON array: write JSON lines, an object in each line")
    objects = [json.loads(line) for line in lines if _is_object(line)]
    if not objects or not _is_object(lines[0]):
        raise DataError(f"{file}: its first line is no JSON object")
    names = list(dict.fromkeys(name for each in objects for name in each))
    _check_names(file, names, "Write each record as an object with the same fields")
    sample = pa.table({"line": lines})
    columns = tuple(_guessed(name, _texts(objects, name), sample) for name in names)
    return FileRecords(file, "json", columns, has_types=False)


def _texts(objects: Sequence[dict[str, Any]], name: str) -> list[str]:
    return [_text(each.get(name)) for each in objects]


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


_READERS: dict[str, Callable[[Path], FileRecords]] = {
    "parquet": _parquet,
    "orc": _orc,
    "avro": _avro,
    "csv": _csv,
    "json": _json,
}


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", text) is not None


def _is_time(text: str) -> bool:
    try:
        return len(text) > 8 and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def _is_date(text: str) -> bool:
    try:
        return len(text) == len("2026-01-31") and bool(date.fromisoformat(text))
    except ValueError:
        return False


def _guessed(name: str, texts: Sequence[str], sample: pa.Table) -> FileColumn:
    """Return a column with the narrowest type that all texts fit, and that the product's own reader reads in all; empty ones fit each."""
    values = [text for text in texts if text]
    tests: dict[str, Callable[[str], object]] = {
        "BOOLEAN": lambda text: text.lower() in ("true", "false"),
        "BIGINT": re.compile(r"[+-]?(0|[1-9]\d{0,17})").fullmatch,
        "DOUBLE": _is_number,
        "DATE": _is_date,
        "TIMESTAMP": _is_time,
    }
    column = FileColumn(name, "STRING", sample)
    for kind, fits in tests.items():
        if values and all(map(fits, values)) and not count_values(column, kind)[1]:
            return replace(column, kind=kind)
    return column


def count_values(column: FileColumn, kind: str) -> tuple[int, int]:
    """Return how many values of the sample a reader takes for a type, and how many it does not."""
    from dpsql.local.connection import connect
    from dpsql.local.lines import MISFIT, json_select, text_select
    from dpsql.local.spark_types import identifier, parse_ddl

    assert column.sample is not None
    columns = parse_ddl(f"{quoted(column.name)} {kind}", "schema")
    is_json = column.sample.column_names == ["line"]
    connection = connect()
    connection.register("dpsql_raw", column.sample)
    select = json_select(columns) if is_json else text_select(columns, ())
    counts = connection.sql(
        f"SELECT count({identifier(column.name)}), count({MISFIT}) FROM ({select})"
    )
    fitting, odd = counts.fetchall()[0]
    return fitting, odd


# What is written.

PANDAS_INDEX = re.compile(r"__index_level_\d+__")
"""The name of a column in which pandas keeps the numbers of rows."""
OF_ONE_RECORD = re.compile(r"(^|_)(id|uuid|ts|time|timestamp|date|datetime|at)$")

SOURCE = """\
  {name}:
    format: {format}
    path: {path}
{more}    schema: {schema}
    privacy_unit: {unit}
    # All runs together may cost one {unit} so much. One-time releases never renew: some 20 of epsilon 1 reach it.
    cap: {{epsilon: 4, delta: 1e-6, period: 7 days}}
    policy: {{max_epsilon_per_query: 1}}
"""
HEAD = """\
# What may be queried, who its people are, and what may be spent on them (docs/reference.md). Names and types of columns are public from here on.
sources:
"""
QUERY = """\
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1)
  {key}COUNT(DISTINCT {unit}) AS {alias}
FROM {name}
{groups}"""


def source_block(records: FileRecords, folder: Path, name: str, unit: str, time: str | None) -> str:
    """Return the source as sources.yaml in a folder declares it."""
    options = dict(records.options)
    lines = [f"    options: {json.dumps(options)}\n"] if options else []
    lines += [f"    event_time: {json.dumps(time)}\n"] if time else []
    schema = ", ".join(f"{quoted(each.name)} {each.kind}" for each in records.columns)
    return SOURCE.format(
        name=name,
        format=records.format,
        path=json.dumps(os.path.relpath(records.path, folder)),
        more="".join(lines),
        schema=json.dumps(schema),
        unit=json.dumps(unit) if not unit.isidentifier() else unit,
    )


def first_query(records: FileRecords, name: str, unit: str) -> str:
    """Return a query of people by the first text column that is not theirs, and whose name is not one of ids or times: these make a key of each record."""
    texts = [each.name for each in records.columns if each.kind.upper() == "STRING"]
    texts = [each for each in texts if each.lower() != unit.lower()]
    key = next((each for each in texts if not OF_ONE_RECORD.search(each.lower())), None)
    names = {each.name.lower() for each in records.columns}
    alias = next(each for each in ("people", "units", "people_count") if each not in names)
    return QUERY.format(
        name=name,
        unit=quoted(unit),
        alias=alias,
        key=f"{quoted(key)}, " if key else "",
        groups=f"GROUP BY {quoted(key)}\nORDER BY {alias} DESC\n" if key else "",
    )


def source_name(path: Path) -> str:
    """Return a name for FROM, made of the name of a file."""
    stem = path.name.split(".", 1)[0] if path.is_file() else path.resolve().name
    word = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_") or "records"
    return word if not word[0].isdigit() else f"t_{word}"
