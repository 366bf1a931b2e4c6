"""Lines of CSV that are too long for Spark's parser. It never sees them, so they are counted here, among the malformed ones.

Hadoop leaves out lines of `LONGEST_LINE` bytes and more and tells nobody. So lines are counted with that limit and without, and only in files
that can hold such a line and have one that is nearly so long.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from dpsql.sources.config import Source
from dpsql.streaming import internals

CSV_COLUMNS = 1 << 20
"""The CSV parser gives up on a line with more columns than this; its own default of 20480 lets one line stop the job."""

LONGEST_LINE = CSV_COLUMNS - 2
"""Of so many bytes, with its end; a shorter line cannot have too many columns."""

LIMIT = "mapreduce.input.linerecordreader.line.maxlength"
"""Hadoop's name for it."""

COUNTED = 1 << 22
"""Longer lines than this are not counted either: a task holds a line several times, and memory that runs out would end the job."""

MAY_BE_LARGE = f"_metadata.file_size >= {LONGEST_LINE} OR _metadata.file_name RLIKE '[.](gz|gzip|bz2|zst|lz4|snappy|deflate|xz)$'"


def count(session: SparkSession, source: Source, uris: Sequence[str]) -> int:
    """How many lines of these files are too long; of files that are gone by now nobody can say.

    Args:
        session: any.
        source: the stream; of other formats than CSV, lines have no limit.
        uris: files, as Spark's file source lists them.
    """
    options = {name.lower(): value for name, value in source.options}
    if source.format != "csv" or options.get("multiline", "").lower() == "true" or not uris:
        return 0
    # Only `\n` and `\r\n` end a line there; another end makes other lines.
    given = {"lineSep": options["linesep"]} if "linesep" in options else {}

    def lines(limit: int) -> DataFrame:
        reader = session.read.format("text").options(
            **given, **{LIMIT: str(limit), "__globPaths__": "false", "ignoreMissingFiles": "true"}
        )
        return reader.load([unquote(uri) for uri in uris]).where(MAY_BE_LARGE)

    try:
        if not lines(COUNTED).where(f"octet_length(value) >= {LONGEST_LINE} - 2").limit(1).count():
            return 0
        return lines(COUNTED).count() - lines(LONGEST_LINE).count()
    except AnalysisException as problem:
        left = [uri for uri in uris if _is_there(session, uri)]
        if not (problem.getCondition() or "").startswith("PATH_NOT_FOUND") or len(left) == len(
            uris
        ):
            raise
        return count(session, source, left)


def _is_there(session: SparkSession, uri: str) -> bool:
    path, system = internals.hadoop_path(session, unquote(uri))
    return bool(system.exists(path))
