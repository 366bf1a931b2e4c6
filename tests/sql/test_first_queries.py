"""Twenty first queries of somebody who knows BigQuery: how many are taken as they are written, and how many after one message."""

from __future__ import annotations

import re
from unittest import mock

import pytest

from dpsql.compiled import compile_query
from dpsql.errors import QueryError
from dpsql.sources.config import load_sources
from dpsql.times import microseconds

RECORDS = {
    "format": "parquet",
    "schema": "user_id STRING, key STRING, ts TIMESTAMP, value DOUBLE",
    "event_time": "ts",
    "privacy_unit": "user_id",
}
SOURCES = load_sources(
    {
        **{name: {**RECORDS, "path": name} for name in ("orders", "edits", "hits")},
        "products": {
            "format": "parquet",
            "path": "products",
            "schema": "key STRING, family STRING",
            "static": True,
        },
    }
)
PRIVATE = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2) "
TAKEN = {
    "people by key and week": PRIVATE
    + "key, EXTRACT(ISOWEEK FROM ts) AS w, COUNT(DISTINCT user_id) AS buyers FROM orders GROUP BY key, w",
    "a top list": PRIVATE
    + "key AS page, COUNT(*) AS n FROM hits GROUP BY page ORDER BY n DESC LIMIT 5",
    "a sum with bounds per group": PRIVATE
    + "key, SUM(value, contribution_bounds_per_group => (0, 500)) AS pounds FROM orders GROUP BY key",
    "hours of the day": PRIVATE
    + "EXTRACT(HOUR FROM ts) AS h, COUNT(DISTINCT user_id) AS hosts FROM hits WHERE value = 0 GROUP BY h ORDER BY h",
    "totals without a key": PRIVATE
    + "COUNT(DISTINCT user_id) AS editors, SUM(value, contribution_bounds_per_group => (0, 1000)) AS characters FROM edits",
    "filters, HAVING and LIMIT": PRIVATE
    + "key, COUNT(*) AS n FROM orders WHERE value > 0 AND ts < '2011-07-01' GROUP BY key HAVING n >= 50 ORDER BY n DESC LIMIT 10",
    "a query by name": "WITH big AS (SELECT user_id, key, ts FROM edits WHERE value >= 1000) "
    + PRIVATE
    + "key, COUNT(*) AS n FROM big GROUP BY key",
    "a lookup": PRIVATE
    + "p.family, COUNT(DISTINCT o.user_id) AS buyers FROM orders AS o LEFT JOIN products AS p USING (key) GROUP BY p.family",
    "epsilon alone": PRIVATE + "key, COUNT(DISTINCT user_id) AS editors FROM edits GROUP BY key",
    "a window, a count and a mean": PRIVATE
    + "key, COUNT(*) AS n, AVG(value, contribution_bounds_per_row => (0, 500)) AS size FROM edits GROUP BY key, window(ts, '1 day')",
}
LED = {
    "people by quarter": PRIVATE
    + "TIMESTAMP_TRUNC(ts, QUARTER) AS quarter, COUNT(DISTINCT user_id) AS buyers FROM orders GROUP BY quarter",
    "a share of two sums": PRIVATE
    + "key, SUM(IF(value > 100, 1, 0)) / COUNT(*) AS large FROM edits GROUP BY key",
    "the last days": PRIVATE
    + "COUNT(DISTINCT user_id) AS buyers FROM orders WHERE DATE(ts) > DATE_SUB(CURRENT_DATE(), INTERVAL 30 DAY)",
    "renamed columns": PRIVATE
    + "wiki, COUNT(DISTINCT editor) AS editors FROM (SELECT user_id AS editor, key AS wiki, ts FROM edits) GROUP BY wiki",
    "slips of a finger": "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, privacy_unit_colum = user_id) keyy, CUONT(*) AS n FROM edits GROUP BY keyy",
}
WITH_BOUNDS = {
    "a mean without bounds": PRIVATE
    + "key AS channel, AVG(value) AS mean_size FROM edits GROUP BY channel",
    "a median": PRIVATE
    + "key, APPROX_QUANTILES(value, 2)[OFFSET(1)] AS middle FROM edits GROUP BY key",
}
NEVER = {
    "a moving mean of days": PRIVATE
    + "d, AVG(COUNT(*)) OVER (ORDER BY d ROWS 6 PRECEDING) AS smooth FROM (SELECT user_id, DATE(ts) AS d FROM orders) GROUP BY d",
    "totals at several levels": PRIVATE
    + "key, CAST(value AS INT64) AS size, COUNT(*) AS n FROM edits GROUP BY ROLLUP(key, size)",
    "two sources": PRIVATE
    + "place, COUNT(*) AS n FROM (SELECT user_id, ts, 'shop' AS place FROM orders UNION ALL SELECT user_id, ts, 'web' FROM hits) GROUP BY place",
}


def refused(text: str) -> QueryError:
    noon = microseconds("2026-11-26T12:00")
    with (
        pytest.raises(QueryError) as caught,
        mock.patch("dpsql.sql.googlesql.now_us", lambda: noon),
    ):
        compile_query(text, SOURCES)
    return caught.value


@pytest.mark.parametrize("text", TAKEN.values(), ids=TAKEN)
def test_taken_as_it_is_written(text: str) -> None:
    assert compile_query(text, SOURCES).parsed.epsilon == 2


@pytest.mark.parametrize("text", LED.values(), ids=LED)
def test_taken_after_one_message(text: str) -> None:
    proposal = refused(text).proposal
    assert proposal is not None
    compile_query(proposal.text, SOURCES)


@pytest.mark.parametrize("text", WITH_BOUNDS.values(), ids=WITH_BOUNDS)
def test_taken_with_bounds_that_only_a_person_knows(text: str) -> None:
    """The message says what to write but for two numbers."""
    (problem,) = refused(text).problems
    written = re.search(r"write (.*?\(LOW, HIGH\)\))", problem.hint)
    assert written is not None
    aggregate = written[1].replace("(LOW, HIGH)", "(0, 500)")
    alias = re.search(r" AS \w+ FROM", text)
    assert alias is not None
    compile_query(text[: problem.start] + aggregate + text[alias.start() :], SOURCES)


@pytest.mark.parametrize("text", NEVER.values(), ids=NEVER)
def test_refused_in_clear_words(text: str) -> None:
    assert refused(text).proposal is None


def test_half_are_taken_and_most_lead_somewhere() -> None:
    led = len(LED) + len(WITH_BOUNDS)
    assert len(TAKEN) >= 10 and len(TAKEN) + led >= 16
    assert len(TAKEN) + led + len(NEVER) == 20
