"""A small stream, and what every local test needs of a run."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dpsql.compiled import Query, compile_query
from dpsql.privacy.secret import Secret
from dpsql.sources.config import Source, Sources

DAY = int(datetime(2024, 2, 29, tzinfo=UTC).timestamp()) * 1_000_000
HOUR = 3_600_000_000
RUN = "0" * 31 + "1"
SCHEMA = "user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE"
CLAUSE = "OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8, trigger_interval = INTERVAL 6 HOURS)"
SQL = f"""SELECT WITH DIFFERENTIAL_PRIVACY {CLAUSE}
page, COUNT(*) AS views, COUNT(DISTINCT user_id) AS visitors, SUM(seconds, contribution_bounds_per_row => (0, 60)) AS time_spent
FROM visits GROUP BY window(ts, '1 day'), page"""

Compile = Callable[..., Query]


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    """From a file, so that `run_local` has a ledger beside it."""
    return Secret(b"s" * 32, tmp_path / "secrets" / "secret")


@pytest.fixture
def compile_on(tmp_path: Path) -> Compile:
    """Compile a query on a source `visits` (and a static table `pages`) of any format and schema."""

    def compiled(
        sql: str = SQL,
        schema: str | None = SCHEMA,
        unit: tuple[str, ...] = ("user_id",),
        **options: object,
    ) -> Query:
        settings = {
            "format": "parquet",
            "path": str(tmp_path / "visits"),
            "event_time": "ts",
            "max_users": 100_000,
            "max_keys": 100_000,
        }
        visits = Source("visits", schema=schema, privacy_unit=unit, **{**settings, **options})  # type: ignore[arg-type]
        pages = Source(
            "pages",
            "parquet",
            str(tmp_path / "pages"),
            schema="page STRING, topic STRING, rank INT",
            static=True,
        )
        return compile_query(sql, Sources((visits, pages)))

    return compiled


def visits(rows: int = 4000, users: int = 300, pages: int = 12) -> pa.Table:
    """One day of visits in event-time order; no two at one time."""
    random = np.random.default_rng(5)
    times = np.sort(random.choice(24 * HOUR // 1000, rows, replace=False)) * 1000 + DAY
    return pa.table(
        {
            "user_id": [f"u{number}" for number in random.integers(0, users, rows)],
            "page": [f"/p{int(number)}" for number in random.zipf(1.5, rows) % pages],
            "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
            "seconds": random.exponential(20, rows),
        }
    )
