"""Do files fit their declaration? Asked before anything is spent: only columns and types are read, no record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpsql.compiled import Query
from dpsql.local.connection import connect
from dpsql.local.inputs import InputReader, source_files


def check_input(query: Query, inputs: Mapping[str, Sequence[Path]]) -> None:
    """Look at the columns of every file that the query would read.

    Args:
        query: from `dpsql.compile`.
        inputs: files by source name; sources not named here are looked for where sources.yaml says.

    Raises:
        DataError: a file is missing, is no Parquet file, or lacks a declared column or its type.
    """
    connection = connect()
    for name in (query.parsed.stream, *query.parsed.static_sources):
        InputReader(connection, query.sources[name]).check(source_files(query.sources[name], inputs))
