"""Frames of pandas, polars, Arrow, DuckDB and Spark as Arrow tables of the columns that a query names; docs/reference.md has a table of them.

Types, columns and refusals follow from the types of a frame, never from its values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpsql.errors import DataError, DpsqlError, InputError
from dpsql.local.arrow_columns import spark_type
from dpsql.local.object_columns import MARK, ODD, object_column
from dpsql.local.spark_types import INTEGER_BITS, STRING, Columns, SparkType, identifier
from dpsql.sources.declared_types import loses_numbers

_DTYPES = {"double": "float64", "float": "float32", "boolean": "boolean"}
NO_TABLE = "the records are no table that can be read: give a pandas, polars, Arrow, DuckDB or Spark one, or a list of rows"
MISTAKE = "stopped at these arguments: look at their names and types"
"""A text for whatever a public function meets that no refusal foresees."""

_ADVICE = {
    "Object": "pl.col({0!r}).map_elements(str, return_dtype=pl.String)",
    "BIT": "CAST({0} AS VARCHAR)",
    "UHUGEINT": "CAST({0} AS VARCHAR)",
}
"""Calls that keep the values of types of polars and DuckDB whose export loses them."""


def words_of(text: str) -> frozenset[str]:
    """Return all words and quoted names of SQL in lower case, some of which are columns, and `*` where a star may name them all."""
    words = re.findall(r"`((?:[^`]|``)+)`|(\w+|[*])", re.sub(r"\(\s*\*\s*\)", "", text.lower()))
    return frozenset(quoted.replace("``", "`") or word for quoted, word in words)


def at_hand(records: Any) -> Any:
    """Return records that can be read several times: what ends when it is read becomes a table, or a list of rows.

    Raises:
        DataError: they are the name of a file, a stream, or no frame.
    """
    if isinstance(records, str | Path):
        raise DataError(
            "the records are the name of a file: pandas.read_parquet(...) or pandas.read_csv(...) makes a frame; of a file that stays, `dpsql init FILE`"
        )
    if getattr(records, "isStreaming", False):
        raise DataError(
            "a stream has no end: declare it as a source, and start the query with dpsql.start or `dpsql run`"
        )
    with without_values():
        if hasattr(records, "read_all"):
            return records.read_all()
        if isinstance(records, pa.RecordBatch):
            return pa.table(records)
        if type(records).__module__ == "pyarrow._dataset":
            return records.to_table()
        if isinstance(records, Iterator | tuple):
            records = list(records)
        if isinstance(records, list) and records and isinstance(records[0], pa.RecordBatch):
            return pa.Table.from_batches(records)
        has_names = hasattr(records, "columns") or hasattr(records, "collect_schema")
        return records if has_names or isinstance(records, list | dict) else pa.table(records)


@contextmanager
def without_values(text: str = NO_TABLE) -> Iterator[None]:
    """Tell of a failure its kind alone, behind a text: what other programs say can quote a record."""
    try:
        yield
    except DpsqlError:
        raise
    except Exception as problem:
        raise DataError(f"{text} ({type(problem).__name__})") from None


def column_names(frame: Any) -> list[str]:
    """Return the names of a frame's columns."""
    with without_values():
        if isinstance(frame, pa.Table):
            return list(frame.column_names)
        if hasattr(frame, "collect_schema"):  # polars, also a lazy frame
            return list(frame.collect_schema().names())
        return list(map(str, frame if isinstance(frame, dict) else frame.columns))


def public_table(frame: Any) -> pa.Table:
    """Return a frame whose values are public, and may decide types."""
    import pandas as pd  # slow to import

    frame = at_hand(frame)
    with without_values():
        frame = pd.DataFrame(frame) if isinstance(frame, list | dict) else frame
        is_pandas = isinstance(frame, pd.DataFrame)
        return (
            pa.Table.from_pandas(frame, preserve_index=False) if is_pandas else arrow_table(frame)
        )


def arrow_table(
    frame: Any,
    query_words: Collection[str] | None = None,
    units: Collection[str] = (),
    declared: Columns = (),
) -> pa.Table:
    """Return the columns of a frame that a query names, or all where it names none; what is in the others spoils nothing.

    Args:
        frame: as `at_hand` returns it; of a list of rows its columns.
        query_words: words in lower case, some of which are columns (`words_of`); None: all columns are named. Objects that none names
            are NULL.
        units: the columns that name a privacy unit.
        declared: types for columns of objects; others are STRING.

    Returns:
        The columns, and ODD where some were of objects.

    Raises:
        DataError: one of these columns is there twice, or keeps no values.
    """
    all_names = column_names(frame)
    words = {name.lower() for name in all_names} if query_words is None else query_words
    chosen = [
        (place, name)
        for place, name in enumerate(all_names)
        if name.lower() in words or "*" in words or name == ODD
    ]
    if all(name == ODD for _, name in chosen):  # of these records nothing but their number is asked
        chosen = list(enumerate(all_names))
    names = [name for _, name in chosen]
    if doubled := next((name for name in names if names.count(name) > 1), None):
        raise DataError(_doubled(doubled))
    with without_values():
        _check_exports(frame, names)
        if not (isinstance(frame, dict) or hasattr(frame, "iloc")):
            return _selected(frame, names)
        columns = list(frame.values()) if isinstance(frame, dict) else ()
        listed = [(name, columns[i] if columns else frame.iloc[:, i]) for i, name in chosen]
        types = {name.lower(): kind for name, kind in declared}
        return _with_objects(listed, words, units, types)


def _with_objects(
    columns: Sequence[tuple[str, Any]],
    words: Collection[str],
    units: Collection[str],
    types: Mapping[str, SparkType],
) -> pa.Table:
    """Return columns with the types of their own, objects as declared or as texts; arguments as of `arrow_table`."""
    fields = []
    arrays = []
    odd: Any = None
    for name, column in columns:
        is_object = _has_objects(column)
        if is_object and name.lower() not in words:
            array = pa.nulls(len(column))
        elif is_object:
            kind = types.get(name.lower(), STRING)
            array, is_odd = object_column(list(column), kind, name.lower() in units)
            odd = np.where(is_odd, name, odd)
        else:
            array = _typed(column, name)
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=MARK if is_object else None))
    table = pa.table(arrays, pa.schema(fields))
    return table if odd is None else table.append_column(ODD, pa.array(odd, pa.string()))


def _check_exports(frame: Any, names: Collection[str]) -> None:
    """Refuse columns of polars and DuckDB whose values an export loses."""
    is_polars = hasattr(frame, "collect_schema")
    kinds = frame.collect_schema().dtypes() if is_polars else getattr(frame, "types", ())
    for name, kind in zip(column_names(frame), map(str, kinds), strict=False):
        if name in names and kind in _ADVICE:
            raise DataError(
                f"column `{name}` of the records has type {kind}, whose export keeps no values: write {_ADVICE[kind].format(name)}"
            )


def _has_objects(column: Any) -> bool:
    """Tell whether a column of pandas, or one of a dict, holds Python objects, or texts that may be no UTF-8."""
    kind = getattr(column, "dtype", None)
    kind = getattr(getattr(kind, "categories", None), "dtype", kind)
    is_object = str(kind) == "object" or getattr(kind, "storage", "") == "python"
    return is_object or isinstance(column, list | tuple)


def _typed(column: Any, name: str) -> pa.Array | pa.ChunkedArray:
    try:
        return column if hasattr(column, "cast") else pa.array(column, from_pandas=True)
    except Exception:
        raise DataError(
            f"column `{name}` of the records has no type that is supported: give it one, like {cast_call(name, STRING)}"
        ) from None


def _selected(frame: Any, names: Sequence[str]) -> pa.Table:
    if hasattr(frame, "toArrow"):  # Spark
        escaped = (name.replace("`", "``") for name in names)
        return frame.select(*(f"`{name}`" for name in escaped)).toArrow()
    if hasattr(frame, "collect"):  # a lazy frame of polars
        return pa.table(frame.select(list(names)).collect())
    if hasattr(frame, "project"):  # DuckDB
        return pa.table(frame.project(", ".join(map(identifier, names))))
    return pa.table(frame.select(list(names)))


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
    if field.metadata == MARK:
        return f"{text}, as it holds objects: say their type, like schema='{field.name} {declared}'"
    call = cast_call(field.name, declared)
    if not loses_numbers(str(have), str(declared)):
        return f"{text}: make it one, like {call}"
    may_cast = have.is_real or declared.name == "double"
    advice = f", or make it {declared}, like {call}" if may_cast else ""
    return f"{text}: declare `{field.name} {shown_type}` in its schema{advice}"


def with_advice(problem: InputError, schema: pa.Schema) -> InputError:
    """Return a refusal of a type, with what gives columns of objects another one than STRING."""
    names = [field.name for field in schema if field.metadata == MARK]
    if not (names and re.search("STRING|condition", str(problem))):
        return problem
    return DataError(
        f"{problem}\n\ncolumns of objects are read as STRING ({', '.join(names)}): say another type, like schema='{names[-1]} DECIMAL(12, 2)'"
    )


def cast_call(name: str, kind: SparkType) -> str:
    """Return a call of pandas that makes values of a type."""
    frame = f"frame[{name!r}]"
    if kind.name in ("timestamp", "date"):
        return f"pd.to_datetime({frame}, utc=True)"
    dtype = f"Int{INTEGER_BITS[kind.name]}" if kind.is_integer else _DTYPES.get(kind.name, "string")
    return f"{frame}.astype({dtype!r})"
