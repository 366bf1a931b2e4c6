"""One query text is one question: over files, a frame and on Spark it has one identity and, from one secret and run id, the same bits."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.lake.opening import run_of
from dpsql.local.feeder import try_query
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import read_histogram
from dpsql.sources.config import Source, Sources
from tests.streaming.conftest import DAY, START

RUN = "5" * 32
HEAD = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6"
COLUMNS = "COUNT(*) AS views, COUNT(DISTINCT user_id) AS people"
LISTED = (
    f"{HEAD}, public_groups = (SELECT page FROM pages)) page, {COLUMNS} FROM visits GROUP BY page"
)
SCHEMA = "user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE"
MOST = {"max_users": 1_000, "max_keys": 1_000}
BEGIN = datetime.fromtimestamp(START / 1e6, UTC)
QUESTIONS = {
    "found keys, one release": f"{HEAD}) page, {COLUMNS} FROM visits GROUP BY page",
    "public groups, windows": f"{LISTED}, window(ts, '1 day')",
    "no key, windows": f"{HEAD}) {COLUMNS} FROM visits GROUP BY window(ts, '1 day')",
}


def _rows(frame: pd.DataFrame, columns: list[str]) -> list[tuple[Any, ...]]:
    """Return rows with all times as texts and all numbers as they are, in one order."""
    plain = frame[columns]
    return sorted((tuple(map(str, row)) for row in plain.to_numpy().tolist()), key=repr)


@pytest.mark.parametrize("sql", QUESTIONS.values(), ids=QUESTIONS)
def test_a_text_is_one_question_everywhere(
    sql: str, case: Any, write: Any, visits: Any, spark: SparkSession, tmp_path: Path
) -> None:
    """Catches: a door that makes another query of a text, or other noise."""
    table = visits(days=2)
    write(table, parts=3)
    pages = tmp_path / "pages.parquet"
    pd.DataFrame({"page": ["p0", "p1", "none"]}).to_parquet(pages)
    records = spark.read.parquet(str(tmp_path / "visits")) if "window" not in sql else table
    session = dpsql.session(
        records,
        unit="user_id",
        time="ts",
        start=BEGIN,
        tables={"pages": str(pages)},
        secret=Secret(b"q" * 32, tmp_path / "keys" / "secret"),
        **MOST,
    )
    until = BEGIN + timedelta(days=2) if "window" in sql else None
    answer = session.query(sql, run_id=RUN, until=until)
    one = case(start_us=START, schema=SCHEMA, **MOST)
    listed = Source("pages", "parquet", str(pages), schema="page STRING", static=True)
    one.query = dpsql.compile(sql, Sources((one.query.source, listed)))
    assert one.query.plan.identity == answer.query.plan.identity
    ledger_id = session.ledger.own_id()
    one.secret = session.secret.of_ledger(ledger_id)
    one.run_id = run_of("demo", RUN, one.query, session.secret, ledger_id)
    until_us = START + 2 * DAY if "window" in sql else None
    one.go(until_us, buckets=(3, 2))
    tried = try_query(one.query, {}, run_id=RUN, secret=one.secret, until_us=until_us)
    published = read_histogram(one.lake, "demo").to_pandas()
    columns = [name for name in published.columns if name in tried.histogram]
    assert set(published.columns) - set(columns) <= {"trigger", "trigger_time"}
    assert len(published) > 1
    assert _rows(published, columns) == _rows(answer.all_rows, columns)
    assert _rows(published, columns) == _rows(tried.histogram, columns)
