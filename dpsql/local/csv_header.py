"""The header of a CSV file: it must name the declared columns in their order, or the file is refused before its first record."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from dpsql.errors import DataError
from dpsql.local.spark_types import Columns
from dpsql.sources.config import Source

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
    wanted = [name.lower() for name in columns]
    present = [name.lower() for name in names]
    if present == wanted:
        return number
    if missing := [name for name in columns if name.lower() not in present]:
        raise DataError(
            f"{path}: its first line is no header with the declared columns ({', '.join(columns)}): {', '.join(missing)} is not in it. Write "
            f"the names of its header into `schema` of source `{source.name}`, or leave out `header` if the file has none"
        )
    said = f"{path}: its header says {', '.join(names)}, but source `{source.name}` declares {', '.join(columns)}"
    if "" in names or len(set(present)) < len(present):
        raise DataError(f"{said}: give each column of the file a name of its own")
    raise DataError(f"{said}: write `schema: {_schema(names, declared)}`")


def _schema(names: Sequence[str], declared: Columns) -> str:
    """The schema of a header as it can be written in sources.yaml; what is not declared is STRING."""
    kinds = {name.lower(): str(kind) for name, kind in declared}
    quoted = [
        name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name.replace('`', '``')}`"
        for name in names
    ]
    text = ", ".join(
        f"{shown} {kinds.get(name.lower(), 'STRING')}"
        for name, shown in zip(names, quoted, strict=True)
    )
    return f'"{text}"' if "`" in text else text


def _first_line(path: Path, comment: str) -> tuple[str | None, int]:
    """The first line that is neither blank nor a comment, and how many lines there are up to it; None if there is no such line."""
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
    for number, found in enumerate(_LINE.finditer(content), 1):
        line = found.group()
        if line.strip() and not (comment and line.startswith(comment)):
            return line, number
    return b"", 0


def _fields(line: str, options: Mapping[str, str]) -> Sequence[str]:
    """The texts of a line; the whole line where it cannot be parsed."""
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
