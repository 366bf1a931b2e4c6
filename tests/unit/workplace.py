"""A folder to work in, as a person has it: sources.yaml, a query, records, and a run with its public table."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

import dpsql
from dpsql.lake.opening import open_run
from dpsql.lake.runs import Lake
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret, default_secret_path
from tests.described import told, write

SOURCES = """\
sources:
  pages: {format: csv, path: pages.csv, schema: page STRING, static: true}
  visits:
    format: parquet
    path: visits
    schema: user_id STRING, ts TIMESTAMP, page STRING, seconds DOUBLE
    event_time: ts
    privacy_unit: user_id
"""
SQL = """\
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-7, privacy_unit_column = user_id, max_rows_contributed = 8)
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 day'), page
"""
DAY = datetime(2026, 1, 1, tzinfo=UTC)


def place(folder: Path) -> Path:
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "sources.yaml").write_text(SOURCES)
    (folder / "views.sql").write_text(SQL)
    return folder


def records(**columns: object) -> pd.DataFrame:
    """One visit; a column that is None is left out."""
    given = {
        "user_id": ["u"],
        "ts": pd.to_datetime([DAY]).as_unit("us"),
        "page": ["p"],
        "seconds": [1.0],
    } | columns
    return pd.DataFrame({name: values for name, values in given.items() if values is not None})


def histogram() -> pd.DataFrame:
    end = datetime(2026, 1, 2, tzinfo=UTC)
    rows = [
        (DAY, end, 1, end, "a", 1000, 3.5),
        (DAY, end, 1, end, "b\x1b[31m", 2, 3.5),
        (DAY, end, 1, end, None, -40, 3.5),
    ]
    columns = [
        "window_start",
        "window_end",
        "trigger",
        "trigger_time",
        "page",
        "views",
        "views_stderr",
    ]
    return told(pd.DataFrame(rows, columns=columns).astype({"trigger": "int32"}))


def published() -> str:
    """A lake with one run and its table; returns the run id."""
    path = default_secret_path(os.environ)
    query = dpsql.compile(SQL, dpsql.load_sources("conf/sources.yaml"))
    run = open_run(
        Lake("lake"), "views", query, Secret.load(path), Ledger.beside(path), query.source
    )
    write(Lake("lake").histogram("views"), histogram(), query.published)
    return run.run_id
