"""Frames of pandas, polars, Arrow, DuckDB and Spark as Arrow tables of the columns that a query names."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from dpsql.errors import DataError
from dpsql.local.arrow_columns import spark_type
from dpsql.local.spark_types import INTEGER_BITS, STRING, SparkType, identifier
from dpsql.sources.declared_types import loses_numbers

_DTYPES = {"double": "float64", "float": "float32", "boolean": "boolean"}
NO_TABLE = "the records are no table with one type per column: give a pandas, polars, Arrow, DuckDB or Spark one"


def words_of(text: str) -> frozenset[str] | None:
    """Return all words and quoted names of SQL in lower case, some of which are columns; None if it may name all columns by a star."""
    if "*" in re.sub(r"\(\s*\*\s*\)", "", text):
        return None
    words = re.findall(r"`((?:[^`]|``)+)`|(\w+)", text.lower())
    return frozenset(quoted.replace("``", "`") or word for quoted, word in words)


def column_names(frame: Any) -> list[str]:
    """Return the names of a frame's columns.

    Raises:
        DataError: it is no frame, or a stream.
    """
    if getattr(frame, "isStreaming", False):
        raise DataError(
            "a stream has no end: declare it as a source, and start the query with dpsql.start or `dpsql run`"
        )
    if isinstance(frame, pa.Table):
        return list(frame.column_names)
    if hasattr(frame, "collect_schema"):  # polars, also a lazy frame
        return list(frame.collect_schema().names())
    if hasattr(frame, "columns"):
        return [str(name) for name in frame.columns]
    try:
        return list(pa.table(frame).column_names)
    except (pa.ArrowException, TypeError, ValueError, AttributeError):
        raise DataError(NO_TABLE) from None


def arrow_table(frame: Any, query_words: Collection[str] | None = None) -> pa.Table:
    """Return the columns of a frame that a query names, or all where it names none; what is in the others spoils nothing.

    Raises:
        DataError: it is no frame, or one of these columns has no type.
    """
    all_names = column_names(frame)
    names = [name for name in all_names if query_words is None or name.lower() in query_words]
    names = names or all_names
    try:
        return _selected(frame, names)
    except (pa.ArrowException, TypeError, ValueError, AttributeError, KeyError):
        raise DataError(_no_table(frame, names)) from None


def _selected(frame: Any, names: Sequence[str]) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame.select(names)
    if hasattr(frame, "toArrow"):  # Spark
        escaped = (name.replace("`", "``") for name in names)
        return frame.select(*(f"`{name}`" for name in escaped)).toArrow()
    if hasattr(frame, "iloc"):  # pandas, whose index is no column
        return pa.Table.from_pandas(frame[list(names)], preserve_index=False)
    if hasattr(frame, "collect"):  # a lazy frame of polars
        return pa.table(frame.select(list(names)).collect())
    if hasattr(frame, "project"):  # DuckDB
        return pa.table(frame.project(", ".join(map(identifier, names))))
    return pa.table(frame.select(list(names)) if hasattr(frame, "select") else frame)


def check_columns(frame: Any, columns: Collection[str]) -> None:
    """Check that a frame has some columns, case aside.

    Raises:
        DataError: names one that it lacks, or has twice.
    """
    names = column_names(frame)
    for column in columns:
        count = list(map(str.lower, names)).count(column.lower())
        if count > 1:
            raise DataError(_doubled(column))
        if not count:
            index_names = getattr(getattr(frame, "index", None), "names", ())
            advice = "; it is their index: frame.reset_index()" if column in index_names else ""
            raise DataError(
                f"the records have no column `{column}`; they have {', '.join(names)}{advice}"
            )


def _doubled(column: str) -> str:
    return f"several columns of the records are named `{column}`, case aside: give them other names"


def misfit(field: pa.Field, declared: SparkType) -> str:
    """Say what type a column of a frame has instead of the one that its query reads, and what gives it that."""
    have = spark_type(field.type)
    shown_type = field.type if have.name == "other" else str(have).replace(" ", "")
    text = f"column `{field.name}` of the records has type {shown_type}, not {declared}"
    call = cast_call(field.name, declared)
    if not loses_numbers(str(have), str(declared)):
        return f"{text}: make it one, like {call}"
    may_cast = have.is_real or declared.name == "double"
    advice = f", or make it {declared}, like {call}" if may_cast else ""
    return f"{text}: declare `{field.name} {shown_type}` in its schema{advice}"


def cast_call(name: str, kind: SparkType) -> str:
    """Return a call of pandas that makes values of a type."""
    frame = f"frame[{name!r}]"
    if kind.name in ("timestamp", "date"):
        return f"pd.to_datetime({frame}, utc=True)"
    dtype = f"Int{INTEGER_BITS[kind.name]}" if kind.is_integer else _DTYPES.get(kind.name, "string")
    return f"{frame}.astype({dtype!r})"


def _no_table(frame: Any, names: Sequence[str]) -> str:
    """Name the column that is there twice, or has no type, with the call that gives it one."""
    if doubled := next((name for name in names if names.count(name) > 1), None):
        return _doubled(doubled)
    for name in names if hasattr(frame, "iloc") else ():
        try:
            pa.Table.from_pandas(frame[[name]], preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError, KeyError):
            return f"column `{name}` of the records has no type that holds all its values: give it one, like {cast_call(name, STRING)}"
    return NO_TABLE
