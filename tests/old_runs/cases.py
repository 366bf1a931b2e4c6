"""The runs of the archive: their queries, their records, and how one of them is started. Used by what made them and by what continues them.

A case is a folder:

    query.sql, sources.yaml, pages.csv    what was asked, of what
    visits/                               the stream's files
    next/                                 files that the run has not seen: whoever continues it moves them to visits/
    config/                               secret and ledger, planted: they are public and protect nothing
    lake/                                 the lake that commit 27b5d01 has left
    then.json                             up to when the continued run closes the grid
    expected.parquet                      what commit 27b5d01 itself had published after it had continued the run
"""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import dpsql
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMIT = "27b5d01"
NAME = "visits"
SECRET = bytes(range(32))
# A Friday. The past, so that no clock of a machine takes part: records are never ahead of it.
START = datetime(2024, 3, 1, tzinfo=UTC)
BUCKETS = (2, 2)
PATIENCE = 600

HEAD = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 9e-6, privacy_unit_column = user_id, "
HALF_DAYS = "trigger_interval = '12 hours', "
DAYS = "GROUP BY window(ts, '1 day')"
TOTAL = "SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total"
MEAN = "AVG(seconds, contribution_bounds_per_row => (0, 60)) AS mean"


@dataclass(frozen=True)
class Case:
    """One run.

    Args:
        sql: its query.
        format: of its files, `parquet` or `json`.
        savepoint: the continued run first loses checkpoints and state, and is restored to this savepoint.
        cap: of the source, as sources.yaml says it.
    """

    sql: str
    format: str = "parquet"
    savepoint: str = ""
    cap: str = "{epsilon: 40, delta: 2e-5, period: 1 day}"


CASES = {
    "catch_ups": Case(
        HEAD
        + HALF_DAYS
        + f"max_rows_contributed = 8, max_rows_per_group = 3, allowed_lateness = '12 hours') page, COUNT(*) AS n, COUNT(DISTINCT user_id) AS users, "
        f"{TOTAL}, {MEAN} FROM visits {DAYS}, page"
    ),
    "public_groups": Case(
        HEAD
        + HALF_DAYS
        + "max_rows_contributed = 4, counter = HONAKER, group_selection_strategy = PUBLIC_GROUPS, public_groups = (SELECT page FROM pages)) "
        f"page, COUNT(seconds) AS known, COUNT(DISTINCT user_id) AS users FROM visits {DAYS}, page",
        "json",
    ),
    "rounds": Case(
        HEAD
        + HALF_DAYS
        + "max_rows_contributed = 4, release = RESELECT, counter = SQRT, selection_weight_decay = 0, min_privacy_units_per_group = 3) "
        f"page, COUNT(*) AS n, {TOTAL} FROM visits {DAYS}, page"
    ),
    "sliding": Case(
        HEAD
        + HALF_DAYS
        + f"max_rows_contributed = 4, max_groups_contributed = 3) page, COUNT(*) AS n, {MEAN} FROM visits GROUP BY window(ts, '1 day', '12 hours'), page"
    ),
    "restored": Case(
        HEAD
        + HALF_DAYS
        + "max_rows_contributed = 12, contribution_period = STREAM) page, busy, COUNT(*) AS n, COUNT(DISTINCT user_id) AS users "
        f"FROM (SELECT user_id, ts, lower(page) AS page, seconds > 20 AS busy FROM visits) {DAYS}, page, busy"
    ),
    "savepoint": Case(
        HEAD + HALF_DAYS + f"max_rows_contributed = 4, counter = HONAKER) COUNT(*) AS n, {MEAN} FROM visits {DAYS}", "json", "kept"
    ),
    "live": Case(
        HEAD + "trigger_interval = '2 seconds', allowed_lateness = '4 seconds', max_rows_contributed = 3) "
        f"page, COUNT(*) AS n, {TOTAL} FROM visits GROUP BY window(ts, '4 seconds'), page",
        "json",
        cap="{epsilon: 40, delta: 2e-5, period: 4 seconds}",
    ),
}
"""Kinds of a run, and kinds of a plan. Sliding windows with COUNT(DISTINCT), RESELECT or several units per group are none: their promise
was false, and they do not go on."""


def day(number: float) -> datetime:
    """Days after START."""
    return START + timedelta(days=number)


def micros(time: datetime) -> int:
    """Microseconds since 1970."""
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def prepare(folder: Path, case: Case) -> None:
    """Everything but records: the query, its sources and a planted secret."""
    (folder / "visits").mkdir(parents=True)
    (folder / "next").mkdir()
    (folder / "query.sql").write_text(case.sql + "\n")
    (folder / "sources.yaml").write_text(
        f"""\
sources:
  visits:
    format: {case.format}
    path: visits
    schema: user_id STRING, page STRING, ts TIMESTAMP, seconds DOUBLE
    event_time: ts
    privacy_unit: user_id
    options: {{maxFilesPerTrigger: 1}}
    start: {START:%Y-%m-%d}
    max_users: 10000
    max_keys: 10000
    cap: {case.cap}
  pages:
    format: csv
    path: pages.csv
    schema: page STRING
    static: true
"""
    )
    with (folder / "pages.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[name] for name in ("Home", "News", "Nobody")])
    (folder / "config").mkdir(mode=0o700)
    (folder / "config" / "secret").touch(0o600)
    (folder / "config" / "secret").write_bytes(SECRET)


def visits(seed: int, begin: datetime, end: datetime, users: int = 60) -> list[dict[str, Any]]:
    """Records between two times, in their order: three common keys, NULL, a rare one, numbers that are none."""
    chance = random.Random(seed)
    pages = ["Home"] * 8 + ["News"] * 6 + ["Ärger"] * 4 + [None] * 3
    seconds = [*map(float, range(0, 80, 5)), float("inf"), float("nan"), None]
    times = sorted(begin + (end - begin) * chance.random() for _ in range(4 * users))
    return [
        {
            "user_id": f"u{chance.randrange(users)}" if i % 50 else None,
            "page": chance.choice(pages) if i % 40 else f"rare{i}",
            "ts": time,
            "seconds": chance.choice(seconds),
        }
        for i, time in enumerate(times)
    ]


def write(case: Case, folder: Path, number: int, rows: Sequence[dict[str, Any]], changed: float | None = None) -> None:
    """One file of the stream; files are read in the order of their times of change."""
    hidden = folder / f".{number:03d}"
    if case.format == "parquet":
        table = pa.Table.from_pylist(
            list(rows),
            pa.schema([("user_id", pa.string()), ("page", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("seconds", pa.float64())]),
        )
        pq.write_table(table, hidden)
    else:
        numbers = {float("inf"): "Infinity"}
        lines = [{**row, "ts": row["ts"].isoformat(), "seconds": numbers.get(row["seconds"], row["seconds"])} for row in rows]
        hidden.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if changed is not None:
        os.utime(hidden, (changed, changed))
    hidden.rename(folder / f"{number:03d}.{case.format}")


def bring(folder: Path) -> None:
    """Give a run the files that it has not seen."""
    for path in sorted((folder / "next").iterdir()):
        path.rename(folder / "visits" / path.name)


def compiled(folder: Path) -> dpsql.Query:
    """The query of a case."""
    return dpsql.compile((folder / "query.sql").read_text(), dpsql.load_sources(folder / "sources.yaml"))


def start(spark: SparkSession, folder: Path, **options: Any) -> Any:
    """Start the run of a case, or start it again: a handle."""
    secret = Secret.load(folder / "config" / "secret")
    ledger = Ledger.beside(folder / "config" / "secret")
    return dpsql.start(spark, compiled(folder), str(folder / "lake"), NAME, secret, ledger, **options)


def catch_up(spark: SparkSession, folder: Path, until: datetime) -> Any:
    """One catch-up up to a time: what it did."""
    options = {} if (folder / "lake").exists() else {"buckets": BUCKETS}
    summary = start(spark, folder, until_caught_up=True, until_us=micros(until), **options).wait(PATIENCE)
    assert summary is not None, "the catch-up takes too long"
    return summary


def lose(folder: Path, *parts: str) -> None:
    """Lose folders of the run's private part."""
    for part in parts:
        shutil.rmtree(folder / "lake" / "private" / NAME / part)


def then(folder: Path) -> datetime:
    """Up to when the continued run closes the grid."""
    return datetime.fromisoformat(json.loads((folder / "then.json").read_text()))


def published(folder: Path) -> pa.Table:
    """All published rows, in one order and as plain Arrow types."""
    from dpsql.lake.published import read_histogram
    from dpsql.lake.runs import Lake

    rows = read_histogram(Lake(folder / "lake"), NAME)
    keys = [name for name in ("window_start", "trigger", "page", "busy") if name in rows.column_names]
    return rows.sort_by([(name, "ascending") for name in keys]).combine_chunks()
