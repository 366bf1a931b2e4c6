"""Columns of Python objects and of rows in lists: each value by itself becomes a text, or its record is malformed, whatever the other values are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import index
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from dpsql.local.arrow_columns import arrow_type
from dpsql.local.connection import connect
from dpsql.local.lines import MISFIT, text_select
from dpsql.local.spark_types import MAX_PRECISION, STRING, SparkType

ODD = "\1odd"
"""The column of a table that names, of each record, a column whose value is none; NULL where all are values."""

MARK = {b"dpsql": b"objects"}
"""A note beside a field whose values were objects."""


def rows_as_columns(rows: Sequence[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return columns of a list of rows, case aside, NULL where a row has none; a row that is no mapping has values of no type."""
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for row in rows:
        is_row = isinstance(row, Mapping)
        values = {str(key).lower(): value for key, value in row.items()} if is_row else {}
        for name, column in columns.items():
            column.append(values.get(name) if is_row else ...)
    return columns


def object_column(
    values: Sequence[Any], kind: SparkType, is_unit: bool
) -> tuple[pa.ChunkedArray | pa.Array, Any]:
    """Return objects as values of a type, and which of them are none."""
    if kind == STRING and set(map(type, values)) <= {str, float, type(None)}:
        with suppress(pa.ArrowException, UnicodeError):
            texts = pa.array(values, pa.large_string(), from_pandas=True)
            return texts, np.zeros(len(values), bool)
    if kind.name == "string":
        texts, is_odd = _texts(values, _UNIT if is_unit else _KEY)
        return pa.array(texts, pa.large_string()), is_odd
    if kind.name == "binary":
        contents, is_odd = _texts(values, _BYTES)
        return pa.array(contents, arrow_type(kind)), is_odd
    texts, is_odd = _texts(values, _TYPED)
    connection = connect()
    raw = {"r0": pa.array(texts, pa.string()), "place": np.arange(len(texts))}
    connection.register("dpsql_raw", pa.table(raw))
    select = text_select((("v", kind),), ["place"])
    table = connection.sql(select).to_arrow_table().sort_by("place")
    return table["v"], is_odd | table[MISFIT].is_valid().to_numpy()


def _texts(values: Sequence[Any], functions: Mapping[type, Any]) -> tuple[Any, Any]:
    """Return what functions of their types make of values, None of those that are missing, and which have no function."""
    import pandas as pd  # slow to import

    text_of = {kind: _function(kind, functions) for kind in set(map(type, values))}
    texts = np.full(len(values), None)
    is_odd = np.ones(len(values), bool)
    for place, value in enumerate(values):
        with suppress(Exception):  # whatever a value does
            is_missing = value is None or value is pd.NA or value != value
            texts[place] = None if is_missing else text_of[type(value)](value)
            is_odd[place] = False
    return texts, is_odd


def _function(kind: type, functions: Mapping[type, Any]) -> Any:
    return next((functions[base] for base in kind.__mro__ if base in functions), None)


def _unicode(value: str) -> str:
    """Return a text with U+FFFD in place of half a surrogate pair."""
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _decimal(value: Decimal) -> str:
    if not value.is_finite() or abs(value.adjusted()) > MAX_PRECISION:
        raise ValueError
    return f"{value:f}"


def _time(value: datetime) -> str:
    utc = value.astimezone(UTC) if value.tzinfo else value
    text = datetime.isoformat(utc.replace(tzinfo=None), " ")
    return text.rstrip("0").rstrip(".") if "." in text else text


_UNIT: dict[type, Any] = {str: _unicode, UUID: str, bool: None}
_UNIT |= dict.fromkeys((int, np.integer), lambda value: str(index(value)))
_KEY = _UNIT | {Decimal: _decimal, date: date.isoformat, datetime: _time}
_KEY |= dict.fromkeys((bool, np.bool_), lambda value: str(value).lower())
_TYPED = _KEY | {float: lambda value: float.__repr__(value).replace("inf", "Inf")}
_BYTES: dict[type, Any] = {bytes: bytes}
"""Texts, or bytes, of the values of a type."""
