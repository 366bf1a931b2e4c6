"""Text files as records: lines of CSV and JSON as the local engine reads them, and what the header of a CSV file says.

A line is cut off before it is parsed, so no record can touch another. It has the values that Spark gives it, or is malformed, counted and left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dpsql.errors import DataError
from dpsql.local.spark_types import Columns, SparkType, identifier, quote
from dpsql.sources.config import Source
from dpsql.sources.reader_options import spark_option

# Options: an option is kept, or refused by its name.


def option_of_spark(kind: str, source: Source) -> str | None:
    """Return the option of a text that only Spark reads; None if there is none."""
    if option := spark_option(source, kind):
        return option
    is_read = Dialect(source).is_read if kind == source.format == "csv" else {}
    return next((name for name, has_value in is_read.items() if not has_value), None)


def has_header(source: Source) -> bool:
    """Tell whether the CSV files of a source begin with a line of names."""
    return _options(source).get("header", "").lower() == "true"


def _options(source: Source) -> dict[str, str]:
    return {name.lower(): value for name, value in source.options}


class Dialect:
    """How the fields of a CSV line are written, as RFC 4180 says unless the source says otherwise."""

    def __init__(self, source: Source) -> None:
        options = _options(source)
        self._separator = options.get("sep", options.get("delimiter", ",")).replace("\\t", "\t")
        self._quote = options.get("quote", '"')
        self._escape = options.get("escape", self._quote)
        self.null = options.get("nullvalue", "")

    @property
    def is_read(self) -> Mapping[str, bool]:
        """Whether the value of an option is one that is read without Spark."""
        return {
            "sep": len(self._separator.encode()) == 1
            and self._separator not in f"\r\n{self._quote}",
            "quote": len(self._quote.encode()) < 2,
            "escape": self._escape in (self._quote, "\\"),
        }

    @cached_property
    def _grammar(self) -> tuple[str, re.Pattern[str]]:
        """The pattern of lines without quotes inside of quotes, and the pattern of one field with what ends it."""
        separator, sign, escape = map(re.escape, (self._separator, self._quote, self._escape))
        simple = field = f"(?:[^{sign}{separator}][^{separator}]*)?"
        if self._quote:
            is_doubled = self._escape == self._quote
            escaped = sign * 2 if is_doubled else rf"{escape}[\s\S]"
            simple = f"{sign}[^{sign}{escape}]*{sign}|{simple}"
            field = f"{sign}(?:[^{sign}{escape}]|{escaped})*{sign}|{field}"
        return (
            f"^(?:{simple})(?:{separator}(?:{simple}))*\n$",
            re.compile(f"({field})({separator}|$)"),
        )

    def fields(self, line: str) -> Sequence[str | None] | None:
        """Return the texts of one line without its end, None for a field without text; None if its quotes are not closed as they should be."""
        escape, sign = map(re.escape, (self._escape, self._quote))
        texts: list[str | None] = []
        position = 0
        while match := self._grammar[1].match(line, position):
            text, end = match.groups()
            if self._quote and text.startswith(self._quote):
                texts.append(re.sub(f"{escape}([{escape}{sign}])", r"\1", text[1:-1]))
            else:
                texts.append(text or None)
            if end != self._separator:
                return texts
            position = match.end()
        return None

    def table(self, lines: pa.Array, width: int) -> pa.Table:
        """Return the texts r0, r1, ... of those lines that have so many fields."""
        names = [f"r{i}" for i in range(width)]
        is_simple = pc.match_substring_regex(lines, self._grammar[0])
        odd_lines = lines.filter(pc.invert(is_simple)).to_pylist()
        parsed = [self.fields(line.removesuffix("\n")) for line in odd_lines]
        rows = [fields for fields in parsed if fields is not None and len(fields) == width]
        columns = zip(*rows, strict=True) if rows else [()] * width
        odd = pa.table([pa.array(column, pa.string()) for column in columns], names)
        simple = lines.filter(is_simple)
        if not len(simple):
            return odd
        content = pc.binary_join(pa.ListArray.from_arrays([0, len(simple)], simple), "")
        block = content[0].as_buffer()
        return pa.concat_tables([odd, self._parse(block, names)])

    def _parse(self, block: pa.Buffer, names: Sequence[str]) -> pa.Table:
        """Read lines that each close their quotes."""
        return csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(column_names=names, block_size=block.size + 1, use_threads=False),
            csv.ParseOptions(
                delimiter=self._separator,
                quote_char=self._quote or False,
                double_quote=False,
                invalid_row_handler=lambda row: "skip",
            ),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )


# What a file says before its first record: its encoding, and the header of CSV, which must name
# the declared columns in their order.

OTHER_MARKS = {rb"\xff\xfe[^\x00]\x00": "UTF-16LE", rb"\xfe\xff\x00[^\x00]": "UTF-16BE"}
"""Byte order marks before a letter, as patterns: a mark comes from the program that writes a file, and from no record."""


def check_text(path: Path, kind: str, declared: Columns, source: Source) -> None:
    """Check a file's encoding, and its header if it has one; arguments and errors as in `check_header`."""
    with _open_file(path) as stream:
        start = stream.read(4)
    for mark, encoding in OTHER_MARKS.items():
        if re.fullmatch(mark, start, re.DOTALL):
            raise DataError(
                f"{path}: its byte order mark says {encoding}, and text is read as UTF-8: convert it, like `iconv -f {encoding} -t UTF-8`"
            )
    if kind == "csv" and has_header(source):
        check_header(path, declared, source)


def check_header(path: Path, declared: Columns, source: Source) -> None:
    """Compare the header of a file with the declared columns, case aside.

    Args:
        path: of the file; it may be compressed.
        declared: the columns that the file is to have.
        source: whose file it is.

    Raises:
        DataError: names both lists where the file has all declared names, and else what is missing: its first line may be a record.
    """
    line = _first_line(path, _options(source).get("comment", ""))
    if line is None:
        return
    names = _names(line, source)
    columns = [name for name, _ in declared]
    declared_names = [name.lower() for name in columns]
    header_names = [name.lower() for name in names]
    if header_names == declared_names:
        return
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


def _first_line(path: Path, comment: str) -> str | None:
    """Return the first line that is neither blank nor a comment, nothing of one that is too long; None if there is no line."""
    for lines, too_long in _lines(path, LONGEST_LINE, HEADER_BYTES):
        for line in lines.to_pylist():
            if not (comment and line.startswith(comment)):
                return "" if too_long else line.rstrip("\n")
        if too_long:
            return ""
    return None


def _names(line: str, source: Source) -> Sequence[str]:
    """Return the texts of a header; the whole line where it cannot be parsed."""
    options = _options(source)
    dialect = Dialect(source)
    if not (dialect.is_read["sep"] and dialect.is_read["quote"]):
        return line.split(options.get("sep", options.get("delimiter", "")) or ",")
    names = [field or "" for field in dialect.fields(line) or (line,)]
    if options.get("ignoreleadingwhitespace", "").lower() == "true":
        names = [name.lstrip() for name in names]
    if options.get("ignoretrailingwhitespace", "").lower() == "true":
        names = [name.rstrip() for name in names]
    return names


# Lines of a file, in pieces of a bounded size.

CHUNK_BYTES = 16 << 20
HEADER_BYTES = 1 << 16
LONGEST_LINE = (1 << 20) - 2
"""Lines of CSV with so many bytes are malformed, as on Spark (`streaming.formats.LONGEST_LINE`)."""

LONGEST_JSON = 16 << 20
"""Lines of JSON with so many bytes are malformed."""

MARK = b"\xef\xbb\xbf"
"""A byte order mark, which stands before the first line."""


def _lines(path: Path, longest: int, chunk_bytes: int) -> Iterator[tuple[pa.Array, int]]:
    r"""Yield the lines of a file with their `\n`, but blank ones, and how many were left out since they have `longest` bytes or more.

    Bytes that are no UTF-8 become U+FFFD.

    Raises:
        DataError: the file cannot be read.
    """
    for block in _blocks(path, longest, chunk_bytes):
        text = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        is_short = np.diff(_starts(block)) < longest
        utf8 = text.decode("utf-8", "replace").encode()
        starts = pa.py_buffer(_starts(utf8))
        lines = pa.StringArray.from_buffers(len(is_short), starts, pa.py_buffer(utf8))
        short = lines.filter(pa.array(is_short))
        yield short.filter(pc.match_substring_regex(short, r"[^\x00-\x20]")), int((~is_short).sum())


def _starts(text: bytes) -> np.ndarray:
    """Return where lines start, and where the last one ends."""
    letters = np.frombuffer(text, np.uint8)
    is_end = letters == ord("\n")
    if b"\r" in text:
        is_end[:-1] |= (letters[:-1] == ord("\r")) & ~is_end[1:]
        is_end[-1:] |= letters[-1:] == ord("\r")
    return np.append(0, np.flatnonzero(is_end) + 1).astype(np.int32)


def _blocks(path: Path, longest: int, chunk_bytes: int) -> Iterator[bytes]:
    """Yield whole lines; of one that is too long not more than tells so."""
    with _open_file(path) as stream:
        unfinished = stream.read(len(MARK)).removeprefix(MARK)
        while block := stream.read(chunk_bytes):
            text = unfinished + block
            # The last byte may be half of an end of line.
            end = max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1
            if end:
                yield text[:end]
            unfinished = text[end:]
            if len(unfinished) > longest:
                unfinished = unfinished[:longest] + unfinished[-1:]
        yield unfinished if unfinished.endswith((b"\n", b"\r")) else unfinished + b"\n"


@contextmanager
def _open_file(path: Path) -> Iterator[Any]:
    """Open a file, which may be compressed.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            yield stream
    except (pa.ArrowException, OSError):
        raise DataError(f"{path}: cannot be read") from None


# Text to values. What a field may look like follows Spark's parsers: an INT in JSON is a number
# without a point, a BOOLEAN in CSV is true or false, a TIMESTAMP is what CAST accepts.

_INTEGER = "CASE WHEN regexp_full_match({0}, '-?[0-9]+') THEN TRY_CAST({0} AS {type}) END"
_TEXT = "CASE WHEN {0}[1] = '\"' THEN TRY(CAST({0} AS JSON) ->> '$') END"
_SPECIAL = (
    "CASE WHEN {0} IN ('NaN', '\"NaN\"') THEN 'nan'::DOUBLE "
    "WHEN {0} IN ('Infinity', '\"Infinity\"', '\"INF\"', '\"+INF\"', '\"+Infinity\"') THEN 'inf'::DOUBLE "
    "WHEN {0} IN ('-Infinity', '\"-Infinity\"', '\"-INF\"') THEN '-inf'::DOUBLE "
    "WHEN regexp_full_match({0}, '-?[0-9].*') THEN TRY_CAST({0} AS DOUBLE) END"
)

MISFIT = "dpsql_misfit"
"""Column that is NULL for a record, and else the name of the first column that does not fit, or NO_RECORD."""

NO_RECORD = ""

# The raw JSON text {0} of a field as a value; NULL where it does not fit.
JSON_VALUES: Mapping[str, str] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), _INTEGER),
    "boolean": "CASE {0} WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END",
    "float": f"CAST({_SPECIAL} AS FLOAT)",
    "double": _SPECIAL,
    "decimal": "CASE WHEN regexp_full_match({0}, '-?[0-9].*') THEN TRY_CAST({0} AS {type}) END",
    # What is no text is written anew as Spark writes it: 1.50 is 1.5.
    "string": "CASE WHEN {0}[1] = '\"' THEN TRY(CAST({0} AS JSON) ->> '$') WHEN regexp_full_match({0}, '-?[1-9][0-9]{{0,14}}|0|true|false') THEN {0} "
    "WHEN {0} IS NOT NULL THEN dpsql_py_rewritten(line, {name}) END",
    "date": f"dpsql_to_date({_TEXT})",
}


def _json_time(unit_us: int) -> str:
    """Return a time, of a number of a unit in microseconds; the years beyond 1 to 9999 only need to be beyond them."""
    most = 999_999_999_999_000_000 // unit_us
    number = "TRY_CAST({0} AS BIGINT)"
    is_held = f"{number} BETWEEN {-(MOST_LONG // unit_us)} AND {MOST_LONG // unit_us}"
    time = f"make_timestamp(greatest(least({number}, {most}), -{most}) * {unit_us})"
    return f"CASE WHEN regexp_full_match({{0}}, '-?[0-9]+') THEN CASE WHEN {is_held} THEN {time} END ELSE dpsql_to_timestamp({_TEXT}) END"


MOST_LONG = (1 << 63) - 1

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


def json_lines(path: Path) -> Iterator[tuple[pa.Table, int]]:
    """Yield the lines of a file as tables with one column `line`, and how many were too long; blank lines are no records.

    Raises:
        DataError: the file cannot be read.
    """
    for lines, too_long in _lines(path, LONGEST_JSON, CHUNK_BYTES):
        yield pa.table({"line": lines}), too_long


def json_select(
    columns: Columns, extra_columns: Sequence[str] = (), unit_us: int = 1_000_000
) -> str:
    """Return DuckDB text that turns `dpsql_raw(line)` into the declared columns and `dpsql_misfit`; columns beside the line are passed on.

    Args:
        columns: names and types as declared.
        extra_columns: columns that stand beside the line.
        unit_us: the unit of times that are numbers, in microseconds.
    """
    shape = json.dumps({name: "JSON" for name, _ in columns})
    raw = ", ".join(
        f"CAST(o[{quote(name)}] AS VARCHAR) AS r{i}" for i, (name, _) in enumerate(columns)
    )
    passed_columns = ", ".join(("line", *extra_columns))
    objects = f"SELECT {passed_columns}, TRY(from_json(dpsql_mended(line), {quote(shape)})) AS o FROM dpsql_raw"
    return _typed(
        f"SELECT {passed_columns}, o IS NULL AS broken, {raw} FROM ({objects})",
        columns,
        {**JSON_VALUES, "timestamp": _json_time(unit_us)},
        extra_columns,
    )


def mend(line: str) -> str | None:
    """Return the JSON object at the start of a line, written anew; None if there is none.

    Asked only where DuckDB's parser may say something else: it refuses text after the object and half a pair of surrogates, accepts a
    comma before a bracket, and takes the first of two fields of one name, Spark the last.
    """
    try:
        value, _ = json.JSONDecoder().raw_decode(line.lstrip(" \t\r\n"))
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return text.encode("utf-8", "replace").decode() if isinstance(value, dict) else None


def csv_fields(path: Path, width: int, source: Source) -> Iterator[tuple[pa.Table, int]]:
    """Yield the lines of a CSV file as tables of texts r0, r1, ..., and how many were malformed; its header, if it has one, fits.

    Raises:
        DataError: the file cannot be read.
    """
    dialect = Dialect(source)
    is_header = has_header(source)
    for lines, too_long in _lines(path, LONGEST_LINE, CHUNK_BYTES):
        if is_header and len(lines):
            lines = lines[1:]
            is_header = False
        table = dialect.table(lines, width)
        yield table, too_long + len(lines) - table.num_rows


def csv_select(columns: Columns, source: Source) -> str:
    """Return DuckDB text that turns `dpsql_raw(r0, r1, ...)` into the declared columns and `dpsql_misfit`."""
    null = quote(Dialect(source).null)
    raw = ", ".join(f"nullif(r{i}, {null}) AS r{i}" for i in range(len(columns)))
    return _typed(f"SELECT FALSE AS broken, {raw} FROM dpsql_raw", columns, CSV_VALUES)


def text_select(columns: Columns, extra_columns: Sequence[str]) -> str:
    """Return DuckDB text that turns texts `dpsql_raw(r0, r1, ...)` into columns and `dpsql_misfit`; columns beside them are passed on."""
    raw = "SELECT FALSE AS broken, * FROM dpsql_raw"
    return _typed(raw, columns, CSV_VALUES, extra_columns)


def _typed(
    raw: str, columns: Columns, values: Mapping[str, str], extra_columns: Sequence[str] = ()
) -> str:
    converted = ", ".join(
        f"{_value(f'r{i}', name, kind, values)} AS v{i}" for i, (name, kind) in enumerate(columns)
    )
    misfits = " ".join(
        f"WHEN v{i} IS NULL AND r{i} IS NOT NULL THEN {quote(name)}"
        for i, (name, kind) in enumerate(columns)
        if kind.name in values
    )
    named_values = (f"v{i} AS {identifier(name)}" for i, (name, _) in enumerate(columns))
    column_list = ", ".join((*named_values, *extra_columns))
    misfit = f"CASE WHEN broken THEN '{NO_RECORD}' {misfits} END AS {MISFIT}"
    return f"SELECT {misfit}, {column_list} FROM (SELECT *, {converted} FROM ({raw}))"


def _value(raw: str, name: str, kind: SparkType, values: Mapping[str, str]) -> str:
    return (
        values[kind.name].format(raw, type=kind.duckdb, name=quote(name))
        if kind.name in values
        else "NULL"
    )
