"""Columns of a source as its files describe them, by folders and types: looked at before a run begins, and again in each micro-batch."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from dpsql.errors import DataError
from dpsql.lake.read_files import readable
from dpsql.sources.config import Source
from dpsql.sources.declared_types import fits, mismatch_text, spark_lacks, type_word, without_quoted
from dpsql.sources.folders import (
    check_alike,
    check_form,
    folder_values,
    has_sub_folders,
    pattern_above_folders,
)
from dpsql.sources.reader_options import file_options
from dpsql.streaming import internals
from dpsql.streaming.footers import UNITS, Units, unit_problem, units_of
from dpsql.streaming.session import run_session

SELF_DESCRIBING = ("parquet", "orc", "avro")
"""Formats whose files have types of their own."""

NARROW = "tinyint|byte|smallint|short"
"""Declared types that Spark cuts whole numbers of Parquet to."""

EVERYWHERE = {"recursiveFileLookup": "true"}


def check_source_folders(session: SparkSession, source: Source) -> None:
    """Check the folders of all files that a source has now; raises as `check_files`."""
    patterns = {name: value for name, value in source.options if name.lower() == "pathglobfilter"}
    reader = session.read.format("binaryFile").options(**patterns, **EVERYWHERE)
    try:
        uris = reader.load(str(source.path)).inputFiles()
    except PySparkException:  # there is no file yet
        return
    check_files(session, source, uris)


def check_first_types(session: SparkSession, source: Source) -> None:
    """Compare the types of the first file with the declared ones.

    Raises:
        DataError: a column has values that its declared type may not hold.
    """
    try:
        uri = _first_file(session, source)
        problem = _type_problem(session, source, uri)
    except (
        PySparkException,
        Py4JJavaError,
        ValueError,
    ):  # no file yet, or a damaged one, which the run tells
        return
    if problem:
        raise DataError(f"{readable(uri)}: {problem}")


def later_problem(session: SparkSession, source: Source, uri: str) -> str | None:
    """Say why Spark has ended a run at a file whose columns have other types than declared, or than those of the first file; None if they have the same."""
    if source.format not in SELF_DESCRIBING:
        return None
    session = run_session(session, 1)
    try:
        if problem := _type_problem(session, source, uri):
            return _later_text(source, uri, problem)
        first_units = next(units_of(session, [_first_file(session, source)]))
    except (PySparkException, Py4JJavaError, ValueError):  # it is damaged
        return None
    times = {name: unit for name, unit in first_units.items() if unit in UNITS.values()}
    return unit_problem(session, source, times, [uri])


def _later_text(source: Source, uri: str, problem: str) -> str:
    return (
        f"file {PurePosixPath(unquote(uri)).name!r} of source {source.name!r}: {problem}. Nothing of its micro-batch was used: write the file "
        "with the types of the others and start again, or declare other types in a new run"
    )


def _first_file(session: SparkSession, source: Source) -> str:
    options = {**file_options(source), **EVERYWHERE}
    files = session.read.format("binaryFile").options(**options).load(source.path)
    return min(files.inputFiles())


def _type_problem(session: SparkSession, source: Source, uri: str) -> str | None:
    """Say which column of a file may have values that its declared type, or its type in the first file, does not hold; None: none has."""
    schema_of = session.read.format(source.format).load
    if source.schema:
        declared_schema = session.createDataFrame([], source.schema).schema
    else:
        declared_schema = schema_of(unquote(_first_file(session, source))).schema
    declared = {field.name.lower(): field for field in declared_schema}
    units = next(units_of(session, [uri]), {}) if source.format == "parquet" else {}
    for name in declared.keys() & units.keys():
        declared_type = declared[name].dataType.simpleString()
        if problem := spark_lacks(units[name], declared_type, f"column `{declared[name].name}`"):
            return problem
    problems = (
        _field_problem(field, declared[field.name.lower()], units, source)
        for field in schema_of(unquote(uri)).schema
        if field.name.lower() in declared
    )
    return next(filter(None, problems), None)


def _field_problem(
    field: T.StructField, declared_field: T.StructField, units: Units, source: Source
) -> str | None:
    """Say how a column of a file differs from the declared one; None: its values fit."""
    stored_type = units.get(field.name.lower(), "")
    have = "timestamp" if stored_type in UNITS.values() else field.dataType.simpleString()
    declared_type = declared_field.dataType.simpleString()
    name = declared_field.name
    if stored_type == "void":
        return None
    if source.format == "avro" and {have, declared_type} == {"timestamp", "timestamp_ntz"}:
        return (
            f"column `{name}` has times {'without' if have == 'timestamp_ntz' else 'with'} a zone, which Spark does not read from Avro as "
            f"{declared_type.upper()}: declare `{name} {have.upper()}`"
        )
    if not fits(have, declared_type):
        return mismatch_text(name, have, source.name, declared_type)
    is_fixed = stored_type.startswith("fixed") and have == "binary"
    place = f"column `{name}`"
    return spark_lacks("fixed" if is_fixed else have, declared_type, place) if units else None


def check_types(session: SparkSession, source: Source, uris: Sequence[str]) -> None:
    """Refuse a file of which Spark would read other values than it has: ORC in other types, whole numbers of Parquet cut to declared ones.

    Raises:
        DataError: names the file, its column and both types.
    """
    schema = without_quoted(source.schema or "")
    is_cut = source.format == "parquet" and type_word(NARROW, schema)
    if not (schema and source.format == "orc") and not is_cut:
        return
    session = run_session(session, 1)
    for uri in uris:
        try:
            problem = _type_problem(session, source, uri)
        except (PySparkException, Py4JJavaError):  # it is damaged, which the run tells
            continue
        if problem:
            raise DataError(_later_text(source, uri, problem))


def check_files(session: SparkSession, source: Source, uris: Sequence[str]) -> None:
    """Check the folders of some files of a source, which Spark makes columns of.

    Raises:
        DataError: only some of the files are in such folders; a value is not of its declared type; or the source is a stream by a pattern.
    """
    if has_sub_folders(source) or not any("=" in uri for uri in uris):
        return
    path, system = internals.hadoop_path(session, str(source.path))
    files = [PurePosixPath(unquote(urlsplit(uri).path)) for uri in uris]
    if internals.is_pattern(session, path):
        folders = {PurePosixPath(place) for place in internals.matching_folders(path, system)}
        if not source.static and any(_has_values(file, folders) for file in files):
            raise DataError(pattern_above_folders(str(source.path)))
        return
    root = PurePosixPath(str(system.makeQualified(path).toUri().getPath()))
    schema = session.createDataFrame([], source.schema).schema if source.schema else ()
    types = {field.name.lower(): field.dataType.simpleString() for field in schema}
    names = []
    for file in files:
        if root in file.parents:
            values = folder_values(file.parent.relative_to(root))
            check_form(values, types, file)
            names.append(tuple(sorted(values)))
    check_alike(names, f"source `{source.name}`")


def _has_values(file: PurePosixPath, folders: Set[PurePosixPath]) -> bool:
    """Tell whether a folder between a file and one of some others has a value in its name."""
    return any(
        bool(folder_values(file.parent.relative_to(folder)))
        for folder in folders & set(file.parents)
    )
