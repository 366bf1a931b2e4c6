"""Text files as records: lines of CSV and JSON as the local engine reads them, and what the header of a CSV file says."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc

from dpsql.errors import DataError
from dpsql.local.spark_types import Columns, SparkType, quote
from dpsql.sources.config import Source

# The header of a CSV file: it must name the declared columns in their order, or the file is
# refused before its first record.

LONGEST_HEADER = 1 << 20
BLOCK = 1 << 16
MARK = b"\xef\xbb\xbf"
"""A byte order mark, which stands before the first line."""

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)?")


def has_header(source: Source) -> bool:
    """Tell whether the CSV files of a source begin with a line of names."""
    return any(
        name.lower() == "header" and value.lower() == "true" for name, value in source.options
    )


def check_header(path: Path, declared: Columns, source: Source) -> int:
    """Compare the header of a file with the declared columns, case aside.

    Args:
        path: of the file; it may be compressed.
        declared: the columns that the file is to have.
        source: whose file it is.

    Returns:
        The number of lines up to the header; 0 where the file has no line.

    Raises:
        DataError: names both lists where the file has all declared names, and else what is missing: its first line may be a record.
    """
    options = {name.lower(): value for name, value in source.options}
    line, number = _first_line(path, options.get("comment", ""))
    if line is None:
        return 0
    names = _fields(line, options)
    columns = [name for name, _ in declared]
    declared_names = [name.lower() for name in columns]
    header_names = [name.lower() for name in names]
    if header_names == declared_names:
        return number
    if missing := [name for name in columns if name.lower() not in header_names]:
        raise DataError(
            f"{path}: its first line is no header with the declared columns ({', '.join(columns)}): {', '.join(missing)} is not in it. Write "
            f"the names of its header into `schema` of source `{source.name}`, or leave out `header` if the file has none"
        )
    mismatch_text = f"{path}: its header says {', '.join(names)}, but source `{source.name}` declares {', '.join(columns)}"
    if "" in names or len(set(header_names)) < len(header_names):
        raise DataError(f"{mismatch_text}: give each column of the file a name of its own")
    raise DataError(f"{mismatch_text}: write `schema: {_schema(names, declared)}`")


def _schema(names: Sequence[str], declared: Columns) -> str:
    """Return the schema of a header as it can be written in sources.yaml; what is not declared is STRING."""
    kinds = {name.lower(): str(kind) for name, kind in declared}
    quoted = [
        name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name.replace('`', '``')}`"
        for name in names
    ]
    text = ", ".join(
        f"{quoted_name} {kinds.get(name.lower(), 'STRING')}"
        for name, quoted_name in zip(names, quoted, strict=True)
    )
    return f'"{text}"' if "`" in text else text


def _first_line(path: Path, comment: str) -> tuple[str | None, int]:
    """Return the first line that is neither blank nor a comment, and how many lines there are up to it; None if there is no such line."""
    content = b""
    block = b"-"
    number = 0
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            while block and len(content) < LONGEST_HEADER:
                block = stream.read(BLOCK)
                content = (content + block).removeprefix(MARK)
                line, number = _first_text(content, comment.encode())
                if line and not content.endswith(line):
                    break
    except (pa.ArrowException, OSError):
        raise DataError(f"{path}: cannot be read as CSV") from None
    return (line.decode("utf-8", "replace").rstrip("\r\n") if line else None), number


def _first_text(content: bytes, comment: bytes) -> tuple[bytes, int]:
    for number, match in enumerate(_LINE.finditer(content), 1):
        line = match.group()
        if line.strip() and not (comment and line.startswith(comment)):
            return line, number
    return b"", 0


def _fields(line: str, options: Mapping[str, str]) -> Sequence[str]:
    """Return the texts of a line; the whole line where it cannot be parsed."""
    separator = options.get("sep", options.get("delimiter", ",")).replace("\\t", "\t")
    quote = options.get("quote", '"')
    escape = options.get("escape", "\\")
    if len(separator) != 1 or len(quote) > 1:
        return line.split(separator or ",")
    try:
        if quote:
            rows = csv.reader(
                [line], delimiter=separator, quotechar=quote, escapechar=escape[:1] or None
            )
        else:
            rows = csv.reader([line], delimiter=separator, quoting=csv.QUOTE_NONE)
        fields = next(rows, [])
    except csv.Error:
        return [line]
    if options.get("ignoreleadingwhitespace", "").lower() == "true":
        fields = [field.lstrip() for field in fields]
    if options.get("ignoretrailingwhitespace", "").lower() == "true":
        fields = [field.rstrip() for field in fields]
    return fields


# JSON lines and CSV read as Spark reads them in PERMISSIVE mode: a line that does not fit the
# schema is malformed, counted and left out.

# Lines come in bounded chunks. What a field may look like follows Spark's parsers: an INT in
# JSON is a number without a point, a BOOLEAN in
# CSV is true or false, a TIMESTAMP is what CAST accepts.

CHUNK_BYTES = 64 << 20
LONGEST_LINE = (1 << 20) - 2
"""Lines of CSV with so many bytes are malformed, as on Spark (`streaming.formats.LONGEST_LINE`)."""

CSV_OPTIONS = ("header", "sep", "delimiter", "quote", "escape")
IGNORED_OPTIONS = (
    "mode",
    "maxfilespertrigger",
    "columnnameofcorruptrecord",
    "recursivefilelookup",
    "latestfirst",
    "maxcachedfiles",
    "encoding",
)
_INTEGER = "CASE WHEN regexp_full_match({0}, '-?[0-9]+') THEN TRY_CAST({0} AS {type}) END"
_TEXT = "CASE WHEN {0}[1] = '\"' THEN CAST({0} AS JSON) ->> '$' END"
_SPECIAL = (
    "CASE WHEN {0} IN ('NaN', '\"NaN\"') THEN 'nan'::DOUBLE "
    "WHEN {0} IN ('Infinity', '\"Infinity\"', '\"INF\"', '\"+INF\"', '\"+Infinity\"') THEN 'inf'::DOUBLE "
    "WHEN {0} IN ('-Infinity', '\"-Infinity\"', '\"-INF\"') THEN '-inf'::DOUBLE "
    "WHEN regexp_full_match({0}, '-?[0-9].*') THEN TRY_CAST({0} AS DOUBLE) END"
)

_DECODER = json.JSONDecoder()
_PAIRS_DECODER = json.JSONDecoder(object_pairs_hook=list)
_BLANK = re.compile(r"\s*")
_ARRAY = re.compile(r"(?:^|[\r\n])\s*\[")
_BLANK_OR_COMMA = re.compile(r"[\s,]*")

# The raw JSON text {0} of a field as a value; NULL where it does not fit.
JSON_VALUES: Mapping[str, str] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _INTEGER),
    "boolean": "CASE {0} WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END",
    "float": f"CAST({_SPECIAL} AS FLOAT)",
    "double": _SPECIAL,
    "decimal": "CASE WHEN regexp_full_match({0}, '-?[0-9].*') THEN TRY_CAST({0} AS {type}) END",
    "string": "CASE WHEN {0}[1] = '\"' THEN CAST({0} AS JSON) ->> '$' WHEN {0} IS NOT NULL THEN dpsql_py_raw_field(good, {name}) END",
    "date": f"dpsql_to_date({_TEXT})",
    # Seconds of which Spark's 64 bits hold the microseconds; those beyond the years 1 to 9999 only need to be beyond them.
    "timestamp": "CASE WHEN regexp_full_match({0}, '-?[0-9]+') THEN CASE WHEN TRY_CAST({0} AS BIGINT) BETWEEN -9223372036854 AND 9223372036854 "
    "THEN make_timestamp(greatest(least(TRY_CAST({0} AS BIGINT), 999999999999), -999999999999) * 1000000) END "
    f"ELSE dpsql_to_timestamp({_TEXT}) END",
}

# Of messages, where Spark's `from_json` writes anew what is no text: 1.50 is 1.5.
MESSAGE_VALUES = {**JSON_VALUES, "string": JSON_VALUES["string"].replace("raw_field", "rewritten")}

# The text {0} of a CSV field as a value.
CSV_VALUES: Mapping[str, str] = {
    **{name: _INTEGER.replace("-?", "[+-]?") for name in ("tinyint", "smallint", "int", "bigint")},
    "boolean": "CASE lower({0}) WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END",
    "float": "CAST(dpsql_csv_double({0}) AS FLOAT)",
    "double": "dpsql_csv_double({0})",
    "decimal": "TRY_CAST({0} AS {type})",
    "string": "{0}",
    "date": "dpsql_to_date({0})",
    "timestamp": "dpsql_to_timestamp({0})",
}


def json_lines(path: Path, arrays: bool = True) -> Iterator[pa.Table]:
    """Yield the lines of a file as tables with one column `line`; blank lines are no records, and each element of an array is, if `arrays`.

    Raises:
        DataError: the file cannot be read.
    """
    partial_line = ""
    for block, last in _chunks(path):
        text = partial_line + block
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        partial_line = "" if last else lines.pop()
        records = [line for line in lines if line and not line.isspace()]
        if arrays and _ARRAY.search(text):
            records = [element for line in records for element in _elements(line)]
        yield pa.table({"line": pa.array(records, pa.string())})


def json_select(columns: Columns, extra_columns: Sequence[str] = (), messages: bool = False) -> str:
    """Return DuckDB text that turns `dpsql_raw(line)` into the declared columns and `dpsql_malformed`; columns beside the line are passed on.

    Args:
        columns: names and types as declared.
        extra_columns: columns that stand beside the line.
        messages: the lines are those of a topic, which Spark reads in another way than files.
    """
    shape = json.dumps({name: "JSON" for name, _ in columns})
    raw = ", ".join(
        f"CAST(o[{quote(name)}] AS VARCHAR) AS r{i}" for i, (name, _) in enumerate(columns)
    )
    passed_columns = ", ".join(("good", *extra_columns))
    objects = f"SELECT {passed_columns}, from_json(good, {quote(shape)}) AS o FROM (SELECT *, dpsql_mended(line) AS good FROM dpsql_raw)"
    return _typed(
        f"SELECT {passed_columns}, good IS NULL AS broken, {raw} FROM ({objects})",
        columns,
        MESSAGE_VALUES if messages else JSON_VALUES,
        extra_columns,
    )


def mend(line: str) -> str | None:
    """Return the JSON object at the start of a line as Spark's parser takes it, None if there is none.

    Asked only where DuckDB's parser may say something else: it refuses text after the object, accepts a comma before a bracket, and
    takes the first of two fields of one name, Spark the last.
    """
    start = len(line) - len(line.lstrip())
    try:
        pairs, end = _PAIRS_DECODER.raw_decode(line, start)
    except (ValueError, RecursionError):
        return None
    if line[start] != "{":
        return None
    names = dict.fromkeys(name for name, _ in pairs)
    if len(names) == len(pairs):
        return line[start:end]
    return "{" + ", ".join(f"{json.dumps(name)}: {raw_field(line, name)}" for name in names) + "}"


def raw_field(line: str, name: str) -> str | None:
    """Return the text of a field as it was written: what a STRING column gets where the field holds a number or an object."""
    field_text = None
    position = _BLANK.match(line, line.index("{") + 1).end()  # type: ignore[union-attr]
    while line[position] != "}":
        key, position = _DECODER.parse_string(line, position + 1, True)  # type: ignore[attr-defined]
        start = _BLANK.match(line, line.index(":", position) + 1).end()  # type: ignore[union-attr]
        _, position = _DECODER.raw_decode(line, start)
        field_text = line[start:position] if key == name else field_text
        position = _BLANK_OR_COMMA.match(line, position).end()  # type: ignore[union-attr]
    return field_text


def _elements(line: str) -> list[str]:
    """Return the objects of a line that is a JSON array; any other line as it is."""
    if not line.lstrip().startswith("["):
        return [line]
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return [line]
    return (
        [json.dumps(value) for value in values]
        if all(isinstance(value, dict) for value in values)
        else [line]
    )


def csv_chunks(
    path: Path, columns: Columns, options: Mapping[str, str], skipped: int = 0
) -> Iterator[tuple[pa.Table, int]]:
    """Yield the lines of a CSV file as tables of text columns r0, r1, ..., and how many were too long or had another number of fields.

    Args:
        path: of the file.
        columns: as declared.
        options: by lower-case name.
        skipped: lines at the beginning that are no records: the header.

    Raises:
        DataError: the file cannot be read, or an option runs on Spark only.
    """
    wrong_lines: list[int] = []
    names = [f"r{i}" for i in range(len(columns))]
    if unknown := sorted(set(options) - {*CSV_OPTIONS, *IGNORED_OPTIONS}):
        raise DataError(
            f"CSV option `{unknown[0]}` works on Spark only: use `dpsql run --until-caught-up`"
        )

    def skip(_: pc.InvalidRow) -> str:
        wrong_lines.append(1)
        return "skip"

    csv_options = _csv_options(names, options, skipped, skip)
    nothing = pa.table({name: pa.array([], pa.string()) for name in names})
    try:
        if _has_no_record(path, skipped):
            yield nothing, 0
            return
        with (
            pa.input_stream(str(path), compression="detect") as stream,
            pc.open_csv(_ShortLines(stream, wrong_lines), **csv_options) as reader,
        ):
            for batch in reader:
                yield pa.Table.from_batches([batch]), len(wrong_lines)
                wrong_lines.clear()
    except (pa.ArrowException, OSError):
        raise DataError(f"{path}: cannot be read as CSV") from None
    if wrong_lines:
        yield nothing, len(wrong_lines)


def _csv_options(
    names: Sequence[str],
    options: Mapping[str, str],
    skipped: int,
    handle_wrong_line: Callable[[pc.InvalidRow], str],
) -> dict[str, Any]:
    """Return Arrow's options for fields that are texts, and NULL where they are empty; arguments as for `csv_chunks`."""
    separator = options.get("sep", options.get("delimiter", ","))
    return {
        "parse_options": pc.ParseOptions(
            delimiter=separator.replace("\\t", "\t"),
            quote_char=options.get("quote", '"') or False,
            escape_char=options.get("escape", "\\") or False,
            invalid_row_handler=handle_wrong_line,
        ),
        "read_options": pc.ReadOptions(
            column_names=names, skip_rows=skipped, block_size=CHUNK_BYTES
        ),
        "convert_options": pc.ConvertOptions(
            column_types={name: pa.string() for name in names},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        ),
    }


def _has_no_record(path: Path, skipped: int) -> bool:
    """Tell whether nothing but blanks is behind the first lines of a file."""
    beginning = rb"(?:[^\r\n]*(?:\r\n|\r|\n)){%d}" % skipped
    content = b""
    with pa.input_stream(str(path), compression="detect") as stream:
        while block := stream.read(1 << 16):
            content += block
            if (header := re.match(beginning, content)) and content[header.end() :].strip(
                b"\xef\xbb\xbf \t\r\n"
            ):
                return False
    return True


class _ShortLines(io.RawIOBase):
    """A file without the lines that are too long; each of them is noted in a list."""

    def __init__(self, stream: pa.NativeFile, left_out: list[int]) -> None:
        self._stream = stream
        self._left_out = left_out
        self._rest = b""
        self._ready = b""
        self._at = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Return as many bytes as are ready, at most `size`; none at the end."""
        while self._at == len(self._ready) and self._fill():
            pass
        block = self._ready[self._at :] if size < 0 else self._ready[self._at : self._at + size]
        self._at += len(block)
        return block

    def _fill(self) -> bool:
        block = self._stream.read(CHUNK_BYTES)
        text = self._rest + block
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1 if block else len(text)
        self._ready = _without_long_lines(text[:end], self._left_out)
        self._at = 0
        self._rest = text[
            end : end + LONGEST_LINE
        ]  # of a line that is too long no more is needed to tell so
        return bool(block)


def _without_long_lines(text: bytes, left_out: list[int]) -> bytes:
    """Return whole lines but those that are too long, their ends included; their lengths are added to the list."""
    bytes_ = np.frombuffer(text, np.uint8)
    of_pair = np.append(bytes_[1:] == 10, False) if len(text) else np.array([], bool)
    ends = np.flatnonzero((bytes_ == 10) | ((bytes_ == 13) & ~of_pair)) + 1
    if len(text) and (not len(ends) or ends[-1] != len(text)):
        ends = np.append(ends, len(text))
    starts = np.append(0, ends[:-1])
    for start, end in reversed(
        [(starts[i], ends[i]) for i in np.flatnonzero(ends - starts >= LONGEST_LINE)]
    ):
        text = text[:start] + text[end:]
        left_out.append(int(end - start))
    return text


def csv_select(columns: Columns) -> str:
    """Return DuckDB text that turns `dpsql_raw(r0, r1, ...)` into the declared columns and `dpsql_malformed`."""
    return _typed("SELECT FALSE AS broken, * FROM dpsql_raw", columns, CSV_VALUES)


def _typed(
    raw: str, columns: Columns, values: Mapping[str, str], extra_columns: Sequence[str] = ()
) -> str:
    converted = ", ".join(
        f"{_value(f'r{i}', name, kind, values)} AS v{i}" for i, (name, kind) in enumerate(columns)
    )
    malformed_condition = " OR ".join(
        f"(v{i} IS NULL AND r{i} IS NOT NULL)"
        for i, (_, kind) in enumerate(columns)
        if kind.name in values
    )
    column_list = ", ".join(
        (
            *(
                f'v{i} AS "{name.replace(chr(34), chr(34) * 2)}"'
                for i, (name, _) in enumerate(columns)
            ),
            *extra_columns,
        )
    )
    return f"SELECT broken OR {malformed_condition or 'FALSE'} AS dpsql_malformed, {column_list} FROM (SELECT *, {converted} FROM ({raw}))"


def _value(raw: str, name: str, kind: SparkType, values: Mapping[str, str]) -> str:
    return (
        values[kind.name].format(raw, type=kind.duckdb, name=quote(name))
        if kind.name in values
        else "NULL"
    )


def _chunks(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield pieces of the file's text, each with whether it is the last; bytes that are no UTF-8 become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            while block := stream.read(CHUNK_BYTES):
                yield decoder.decode(block), False
    except (pa.ArrowException, OSError):
        raise DataError(f"{path}: cannot be read") from None
    yield decoder.decode(b"", final=True), True
