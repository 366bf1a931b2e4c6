"""Tables of Spark's catalog as sources: where they are and in what format, asked once before a run begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dpsql.errors import DataError
from dpsql.sources.config import Source
from dpsql.sources.reader_options import CATALOG
from dpsql.streaming.failures import reason_of


def located(
    spark: SparkSession, sources: Mapping[str, Source], names: tuple[str, ...]
) -> Mapping[str, Source]:
    """The sources with every catalog table among `names` as a path: from there on it is like any other.

    Args:
        spark: whose catalog knows the tables.
        sources: all declared sources.
        names: those that the query reads.

    Raises:
        DataError: there is no such table, or it has no files of its own (a view, a table of a foreign database).
    """
    found = {
        name: _located(spark, sources[name]) for name in names if sources[name].format == CATALOG
    }
    return {**sources, **found} if found else sources


def _located(spark: SparkSession, source: Source) -> Source:
    try:
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {source.table}").collect()
    except PySparkException as problem:
        if (problem.getCondition() or "").startswith("TABLE_OR_VIEW_NOT_FOUND"):
            raise DataError(
                f"source {source.name!r}: the catalog of this Spark session has no table {source.table}"
            ) from None
        raise DataError(
            f"source {source.name!r}: table {source.table}: {reason_of(problem)}"
        ) from None
    facts = {str(row["col_name"]): str(row["data_type"]) for row in rows}
    place = facts.get("Location")
    provider = facts.get("Provider", "").lower()
    if not place or not provider:
        raise DataError(
            f"source {source.name!r}: {source.table} has no files of its own: name a Delta table or a table of files, not a view"
        )
    return replace(source, format=provider, path=place, table=None)
