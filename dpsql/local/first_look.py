"""What files say of themselves, looked at before a run on Spark spends anything: encodings of text, headers of CSV, types in Parquet."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dpsql.errors import DataError, InputError
from dpsql.local.arrow_columns import spark_type, stored
from dpsql.local.lines import check_text
from dpsql.local.sources import folders_of, source_files
from dpsql.local.spark_types import Columns, parse_ddl
from dpsql.sources.config import Source
from dpsql.sources.declared_types import fits, mismatch_text, spark_lacks
from dpsql.sources.places import WILD

TEXTS = ("csv", "json")
_STORED = {
    "fixed": pa.types.is_fixed_size_binary,
    "half": pa.types.is_float16,
    "uint64": pa.types.is_uint64,
}
"""Types that Spark's readers know otherwise than by their values."""


def check_files(source: Source) -> None:
    """Compare what files on this machine say with what is declared of them; what cannot be looked at here, Spark looks at.

    Raises:
        DataError: a header has other columns, or values of a column may not fit their declared type.
    """
    path = source.path or ""
    if (
        source.format not in (*TEXTS, "parquet")
        or source.schema is None
        or WILD.search(path)
        or ("://" in path and not path.startswith("file:"))
    ):
        return
    try:
        declared = parse_ddl(str(source.schema), source.name)
        files = source_files(source, {})
    except InputError:  # Spark reads more schemas, and says what is wrong with a folder
        return
    column_names = set[str]()
    for input_file in files:
        file = Path(input_file)
        folders = folders_of(input_file)
        columns = tuple(column for column in declared if column[0].lower() not in folders)
        if source.format in TEXTS:
            check_text(file, source.format, columns, source)
        else:
            column_names.update(folders, _check_types(file, columns, source))
    # Without one of these no record counts
    for name in (*source.privacy_unit, *filter(None, [source.event_time])):
        if column_names and name not in column_names:
            known_names = ", ".join(sorted(column_names))
            raise DataError(
                f"{path}: column `{name}` of source `{source.name}` is missing; it has {known_names}"
            )


def _check_types(file: Path, declared: Columns, source: Source) -> set[str]:
    """Compare the types of a file with the declared ones, and return the names of its columns; none of what Spark refuses."""
    try:
        type_by_column = {field.name.lower(): field.type for field in stored(pq.read_schema(file))}
    except (pa.ArrowException, OSError):  # Spark says so
        return set()
    for name, kind in declared:
        if name.lower() not in type_by_column:
            continue
        arrow_type = type_by_column[name.lower()]
        have = spark_type(arrow_type)
        stored_type = next((word for word, test in _STORED.items() if test(arrow_type)), have.name)
        if problem := spark_lacks(stored_type, str(kind), f"{file}: column `{name}`"):
            raise DataError(problem)
        if not fits(str(have), str(kind)):
            raise DataError(f"{file}: {mismatch_text(name, str(have), source.name, str(kind))}")
    return {*type_by_column}
