"""Can the local engine read what a query wants? Asked before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsql.compiled import Query
from dpsql.local.record_reader import RowReader
from dpsql.local.sources import source_files

NO_SALT = bytes(16)
"""Nothing is hashed here."""

FEW = 100
"""Rows of a frame that tell its types."""


def check_input(query: Query, inputs: Mapping[str, Sequence[Path]]) -> None:
    """Look at the columns of the stream's files, and at the expressions of the query; of the records none is read.

    Args:
        query: from `dpsql.compile`.
        inputs: files by source name; sources not named here are looked for where sources.yaml says.

    Raises:
        DataError: a file is missing, is no Parquet file, or lacks a declared column or its type.
        InputError: the query uses something that only Spark computes.
    """
    RowReader(query.plan, query.sources, NO_SALT, inputs).check(source_files(query.source, inputs))


def check_frame(query: Query, frame: Any) -> None:
    """The same for a frame: the types of its columns, told by its first rows.

    Raises:
        DataError: it is no frame, or lacks a declared column or its type.
        InputError: the query uses something that only Spark computes.
    """
    few = (
        frame.slice(0, FEW)
        if isinstance(frame, pa.Table)
        else frame.head(FEW)
        if hasattr(frame, "head")
        else frame
    )
    RowReader(query.plan, query.sources, NO_SALT, {}).check_frame(few)
