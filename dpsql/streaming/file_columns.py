"""Columns of a source as its files describe them, by folders and types: looked at before a run begins, and again in each micro-batch."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dpsql.errors import DataError
from dpsql.lake.read_files import readable
from dpsql.sources.config import Source
from dpsql.sources.declared_types import fits, mismatch_text, spark_lacks
from dpsql.sources.folders import (
    check_alike,
    check_form,
    folder_values,
    has_sub_folders,
    pattern_above_folders,
)
from dpsql.streaming import internals
from dpsql.streaming.footers import UNITS, units_of

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
    declared_schema = session.createDataFrame([], str(source.schema)).schema
    declared = {field.name.lower(): field for field in declared_schema}
    try:
        first = session.read.format("binaryFile").options(**EVERYWHERE).load(source.path)
        uris = sorted(first.inputFiles())[:1]
        file_schema = session.read.format(source.format).load(*map(unquote, uris)).schema
    except (PySparkException, TypeError):  # no file yet, or a damaged one, which the run tells
        return
    units = next(units_of(session, uris), {}) if source.format == "parquet" else {}
    for field in file_schema:
        declared_field = declared.get(field.name.lower())
        stored_type = units.get(field.name.lower(), "")
        have = "timestamp" if stored_type in UNITS.values() else field.dataType.simpleString()
        if declared_field is None:
            continue
        declared_type = declared_field.dataType.simpleString()
        stored_type = (
            "fixed" if stored_type.startswith("fixed") and have == "binary" else stored_type
        )
        place = f"{readable(uris[0])}: column `{declared_field.name}`"
        if problem := spark_lacks(stored_type, declared_type, place):
            raise DataError(problem)
        if source.format == "avro" and {have, declared_type} == {"timestamp", "timestamp_ntz"}:
            raise DataError(
                f"{place} has times {'without' if have == 'timestamp_ntz' else 'with'} a zone, which Spark does not read from Avro as "
                f"{declared_type.upper()}: declare `{declared_field.name} {have.upper()}`"
            )
        if stored_type != "void" and not fits(have, declared_type):
            mismatch = mismatch_text(declared_field.name, have, source.name, declared_type)
            raise DataError(f"{readable(uris[0])}: {mismatch}")


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
