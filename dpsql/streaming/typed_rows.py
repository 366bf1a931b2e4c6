"""Files that Spark alone reads, as Parquet with their declared types: for who recomputes a run. So no two readers of text have to agree."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

from pyspark.sql import SparkSession

from dpsql.scratch import scratch
from dpsql.sources.config import Source
from dpsql.streaming.session import run_session
from dpsql.streaming.sources import batch

AS_MICROSECONDS = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}


class TypedRows:
    """Reads files as the streaming query does, in batch mode.

    Args:
        spark: a session; its settings are not changed.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._session = run_session(spark, 1, AS_MICROSECONDS)
        self._folders: dict[str, Path] = {}

    def __call__(self, source: Source, files: Sequence[Path]) -> Sequence[Path]:
        """Return Parquet files with the records of some files of a source, in a folder that is closed to others; the ones before go.

        Raises:
            DataError: a file cannot be read.
        """
        if old_folder := self._folders.pop(source.name, None):
            shutil.rmtree(old_folder)
        if not files:
            return []
        folder = Path(mkdtemp(dir=scratch()))
        self._folders[source.name] = folder
        frame = batch(self._session, source, list(map(str, files)))
        frame.write.parquet(str(folder / "rows"))
        return sorted((folder / "rows").glob("*.parquet"))
