"""Small runs of the Spark engine: data in a folder, a query, a lake, and a fixed run id so that runs can be compared."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.errors import DpsqlError
from dpsql.lake.opening import run_of
from dpsql.lake.runs import Lake, Run
from dpsql.local.feeder import run_batches
from dpsql.local.record_reader import RowReader
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import read_histogram
from dpsql.sources.config import Source, Sources
from dpsql.streaming.job import run
from dpsql.streaming.progress import Summary

DAY = 86_400_000_000
START = 19_700 * DAY
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = INTERVAL 12 HOURS)
  page, COUNT(*) AS views, SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total
FROM visits
GROUP BY window(ts, '1 day'), page
"""


@dataclass
class Case:
    """One query on one folder of files, in a lake of its own."""

    spark: SparkSession
    folder: Path
    query: dpsql.Query
    lake: Lake
    run_id: Run
    secret: Secret

    def go(self, until_us: int | None = START + 30 * DAY, **options: Any) -> Summary:
        if "told" in options:
            options["progress"] = options.pop("told").append
        return run(
            self.spark,
            self.query,
            self.run_id,
            self.lake,
            self.secret,
            until_caught_up=True,
            until_us=until_us,
            **options,
        )

    def histogram(self) -> list[dict[str, Any]]:
        """All published rows in the order of the table."""
        return in_order(read_histogram(self.lake, self.run_id.name))

    def of_local_engine(
        self, table: pa.Table, until_us: int = START + 30 * DAY
    ) -> list[dict[str, Any]]:
        """What the local engine makes of a table, with the noise of this run."""
        return in_order(self.locally(table, until_us))

    def locally(self, table: pa.Table, until_us: int) -> pa.Table:
        run_id = self.run_id.run_id
        plan = self.query.plan
        facts = self.query.facts(None)
        reader = RowReader(plan, self.query.sources, self.secret.salt(run_id), {})
        key = self.secret.noise_key(run_id, plan.identity)
        rows = [reader.frame(table)]
        return run_batches(
            plan,
            rows,
            noise_key=key,
            key_types=lambda: reader.key_types,
            until_us=until_us,
            facts=facts,
        ).histogram

    @property
    def private(self) -> Path:
        return self.lake.private(self.run_id.name)


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by([("window_start", "ascending"), ("trigger", "ascending")]).to_pylist()


@pytest.fixture(autouse=True)
def _wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock stands still at START, so that runs of different moments can be compared bit for bit."""
    monkeypatch.setattr("dpsql.times.time.time_ns", lambda: START * 1000)


class BrokenOff(DpsqlError):
    """The job dies here."""


def break_off(*given: Any, **named: Any) -> None:
    raise BrokenOff


def run_file(one: Any) -> None:
    """What `dpsql run` writes first; the runs of these tests have a fixed run id."""
    (one.private / "run.json").write_text(json.dumps({"version": 1, **asdict(one.run_id)}))


Make = Callable[..., Case]
Write = Callable[..., None]


@pytest.fixture
def case(spark: SparkSession, tmp_path: Path) -> Iterator[Make]:
    """Make cases; all of one test share data, secret and run id but not the lake."""
    made = 0

    def make(sql: str = SQL, folder: str = "visits", **declared: Any) -> Case:
        nonlocal made
        made += 1
        return case_of(spark, tmp_path, sql, f"lake{made}", folder, **declared)

    yield make


def case_of(
    spark: SparkSession,
    base: Path,
    sql: str,
    lake_name: str,
    folder: str = "visits",
    **declared: Any,
) -> Case:
    """A query on the files of a folder, and a lake beside it."""
    secret = Secret(bytes(range(32)))
    source = Source(
        name="visits",
        format=declared.pop("format", "parquet"),
        path=declared.pop("path", str(base / folder)),
        event_time=declared.pop("event_time", "ts"),
        privacy_unit=("user_id",),
        **declared,
    )
    query = dpsql.compile(sql, Sources((source,)))
    lake = Lake(base / lake_name)
    named = run_of("demo", "5a" * 16, query, secret, "")
    lake.private("demo").mkdir(parents=True, mode=0o700)
    return Case(spark, base / folder, query, lake, named, secret)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Cut a table into Parquet files that a file source reads one after the other."""

    def write_parts(
        table: pa.Table, parts: int = 1, first: int = 0, folder: str = "visits"
    ) -> None:
        (tmp_path / folder).mkdir(exist_ok=True)
        size = -(-table.num_rows // parts)
        for i in range(parts):
            path = tmp_path / folder / f"part-{first + i:03d}.parquet"
            pq.write_table(table.slice(i * size, size), path)
            os.utime(path, (1_700_000_000 + first + i, 1_700_000_000 + first + i))

    return write_parts


@pytest.fixture(scope="session")
def visits() -> Callable[..., pa.Table]:
    """Every user visits every page once a day; in order of time, no two at the same microsecond."""

    def make(users: int = 120, pages: int = 3, days: int = 2, first_day: int = 0) -> pa.Table:
        slots = [
            (day, user, page)
            for day in range(first_day, first_day + days)
            for user in range(users)
            for page in range(pages)
        ]
        times = [
            START + day * DAY + (user * pages + page) * 100_000_000 for day, user, page in slots
        ]
        rows = [
            {"user_id": f"u{user}", "page": f"p{page}", "ts": ts, "seconds": float(page)}
            for (_, user, page), ts in zip(slots, times, strict=True)
        ]
        table = pa.Table.from_pylist(rows)
        return table.set_column(2, "ts", table["ts"].cast(pa.timestamp("us", "UTC")))

    return make
