"""What crosses between Spark and the stateful functions: frames of pandas on the way in, and on the way out
one table with several kinds of rows.

A stateful function has one output schema. Rows of kind ROW carry results; one row of kind FILE per bucket and micro-batch tells
the driver which state file was written, how large it is and what was counted, in the columns that ROW uses otherwise.
"""

from __future__ import annotations

import errno
import functools
import gc
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame

from udfs.stage import FILE, StateFile

Step = Callable[..., Iterator[pd.DataFrame]]
FILE_COLUMNS = {"kind": "INT", "bucket": "INT", "window": "BIGINT", "trigger": "BIGINT", "key_bytes": "BINARY"}
"""The columns that every output has, with their Spark types; a FILE row uses no others."""

STATE = "sequence BIGINT"
"""Spark's own state of a bucket: which version of its files is current."""


def to_arrow(frames: Iterable[pd.DataFrame], schema: pa.Schema) -> pa.Table:
    """One Arrow table of all frames of a group, columns by name.

    Raises:
        TypeError: an integer column arrived as another type: a NULL got in and 64-bit ids were rounded.
    """
    parts = [pa.table([_column(frame[field.name], field) for field in schema], schema=schema) for frame in frames if len(frame)]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def to_pandas(kind: int, table: pa.Table, names: Sequence[str], **constants: Any) -> pd.DataFrame:
    """Result rows as a frame with the output columns `names`; columns the table does not have come from `constants`."""
    columns = {"kind": np.full(table.num_rows, kind, np.int32)}
    for name in names[1:]:
        if name in table.column_names:
            columns[name] = table.column(name).to_pandas()
        else:
            columns[name] = constants[name]
    return pd.DataFrame(columns, columns=list(names))


def file_row(file: StateFile, output: Mapping[str, str]) -> pd.DataFrame:
    """The FILE row of a bucket; output columns (name -> Spark type) that it does not use are neutral, never NULL."""
    detail = json.dumps(file.counted, separators=(",", ":"), sort_keys=True).encode()
    row = {"kind": FILE, "bucket": file.bucket, "window": file.sequence, "trigger": file.bytes, "key_bytes": detail}
    neutral: dict[str, Any] = {"BINARY": b"", "DOUBLE": 0.0}
    filled = {name: [row.get(name, neutral.get(kind, 0))] for name, kind in output.items()}
    return pd.DataFrame(filled).astype({"kind": np.int32, "bucket": np.int32})


class StepError(Exception):
    """A step failed in a worker; says only with what kind of error."""


def without_values(function: Step) -> Step:
    """The same stateful function, whose errors quote no record: Spark keeps their texts in event logs, UI and executors' logs."""

    @functools.wraps(function)
    def quiet(*given: Any) -> Iterator[pd.DataFrame]:
        _freeze_modules()
        try:
            yield from function(*given)
        except OSError as problem:  # its number says "disk full", and nothing of a record
            raise StepError(f"{type(problem).__name__} {errno.errorcode.get(problem.errno or 0, '')}".strip()) from None
        except Exception as problem:
            raise StepError(type(problem).__name__) from None

    return quiet


@functools.cache
def _freeze_modules() -> None:
    """Spark collects garbage after every task: a tenth of a CPU-second for all the modules that are loaded for good. Once per worker."""
    gc.freeze()


def read_file_rows(frame: DataFrame) -> list[StateFile]:
    """The FILE rows of a micro-batch's output, by bucket (this is the action that makes Spark run the function)."""
    rows = frame.where(f"kind = {FILE}").select("bucket", "window", "trigger", "key_bytes").collect()
    files = [StateFile(row.bucket, row.window, row.trigger, json.loads(bytes(row.key_bytes))) for row in rows]
    return sorted(files, key=lambda file: file.bucket)


def _column(series: pd.Series, field: pa.Field) -> pa.Array:
    if pa.types.is_integer(field.type) and series.dtype != field.type.to_pandas_dtype():
        raise TypeError(f"column {field.name} arrived as {series.dtype}, not {field.type}")
    # numpy, not pandas: there a NaN is a NaN and not a NULL
    array = pa.array(series.to_numpy(), type=field.type)
    if array.null_count:
        raise TypeError(f"column {field.name} must not hold NULL")
    return array
