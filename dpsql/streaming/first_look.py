"""A look at a query and its sources by Spark, before a new run is bound and its ledger line is written."""

from __future__ import annotations

from pyspark.sql import SparkSession

from dpsql.compiled import Query
from dpsql.mechanisms.public_groups import public_groups
from dpsql.streaming.rows import listed_keys, records
from dpsql.streaming.session import run_session
from dpsql.streaming.sources import check_there, located, pins, register

NO_SALT = bytes(16)
"""Makes ids that nobody uses."""


def check_fits(spark: SparkSession, query: Query, *, is_live: bool) -> None:
    """Refuse what a new run would refuse of its query and sources; no record of the stream is used.

    Args:
        spark: the session of the run.
        query: from `dpsql.compile`.
        is_live: a folder of the stream that declares its schema may be empty still.

    Raises:
        InputError: a source is not there, its columns or types do not fit, or Spark cannot run the query on it.
    """
    names = (query.parsed.stream, *query.parsed.static_sources)
    sources = located(spark, query.sources, names)
    check_there(spark, [sources[name] for name in names])
    pins(spark, [sources[name] for name in query.parsed.static_sources])
    session = run_session(spark, 1)
    registered = register(session, query.parsed, sources, {}, may_be_empty=is_live)
    try:
        records(session, query.plan, NO_SALT, 1)
        if query.shape.listed:
            first_window_us = query.facts(None).first_window_us
            listed = listed_keys(session, query.plan)
            public_groups(query.plan, query.source, NO_SALT, listed, first_window_us)
    finally:
        for table in registered.tables:
            table.unpersist()
