"""What files of a source say of its columns, by their folders: looked at before a run begins, and again in each micro-batch."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dpsql.errors import DataError
from dpsql.sources.config import Source
from dpsql.sources.folders import (
    check_alike,
    check_form,
    folder_values,
    has_sub_folders,
    pattern_above_folders,
)
from dpsql.streaming import internals

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
