"""The same query on Spark and on the local engine, cut and bucketed in many ways: every row must be the same, bit for bit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

import dpsql
from dpsql.errors import InputError
from dpsql.lake.opening import run_of
from dpsql.lake.runs import Lake, Run
from dpsql.local.feeder import run_batches
from dpsql.local.record_reader import RowReader
from dpsql.local.spark_types import SparkType
from dpsql.local.verification import count_differences, verify_run
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import read_histogram
from dpsql.sources.config import Source, Sources
from dpsql.streaming.typed_rows import TypedRows
from dpsql.times import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = Secret(bytes(range(32)))
RUN_ID = "5a" * 16
OTHER_RUN_ID = "a5" * 16
HEAD = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 9e-6, privacy_unit_column = user_id, trigger_interval = '{trigger}', "
TAIL = " GROUP BY window(ts, '{window}'), "
SLIDING = " GROUP BY window(ts, '{six_triggers}', '{two_triggers}'), "
LISTED = "public_groups = (SELECT key FROM listed)"
TOTAL = "SUM(value, contribution_bounds_per_row => (0, 500)) AS total"
MEAN = "AVG(value, contribution_bounds_per_row => (0, 100)) AS mean"
SPREAD = "STDDEV(value, contribution_bounds_per_row => (0, 100)) AS spread"
DECILES = "APPROX_QUANTILES(value, 10, contribution_bounds_per_row => (0, 100)) AS deciles"
PAIR = (
    "(value, CASE WHEN value > 300 THEN CAST('NaN' AS DOUBLE) WHEN value > 200 THEN CAST('Infinity' AS DOUBLE) WHEN value > 100 THEN NULL "
    "ELSE hour(ts) END, contribution_bounds_per_row => ((0, 500), (0, 23)))"
)
"""x is NULL, NaN or infinite where y is large."""
QUERIES = {
    "three columns": "max_rows_contributed = 32) key, COUNT(*) AS n, COUNT(DISTINCT user_id) AS users, "
    + TOTAL
    + " FROM records"
    + TAIL
    + "key",
    "row-local FROM": "max_rows_contributed = 16, max_rows_per_group = 2) name, COUNT(*) AS n "
    "FROM (SELECT user_id, ts, lower(key) AS name FROM records WHERE value >= 0)" + TAIL + "name",
    "two keys": "max_rows_contributed = 16) key, large, COUNT(*) AS n, COUNT(value) AS known "
    "FROM (SELECT user_id, ts, key, value, value > 20 AS large FROM records)" + TAIL + "key, large",
    "few groups": "max_rows_contributed = 16, max_groups_contributed = 4, max_rows_per_group = 4) "
    "key, COUNT(value) AS known, SUM(value, contribution_bounds_per_row => (-10, 10)) AS net, "
    "SUM(value - 20, contribution_bounds_per_group => (-9, 30)) AS held FROM records"
    + TAIL
    + "key",
    "not counted": "max_groups_contributed = 4) key, COUNT(*, contribution_bounds_per_group => (0, 3)) AS n, "
    "SUM(value - 20, contribution_bounds_per_group => (-9, 30)) AS held, COUNT(DISTINCT user_id) AS units FROM records"
    + TAIL
    + "key",
    "late and many": "max_rows_contributed = 16, allowed_lateness = '{trigger}', min_privacy_units_per_group = 5) key, COUNT(*) AS n FROM records"
    + TAIL
    + "key",
    "for ever": "max_rows_contributed = 64, contribution_period = STREAM) "
    "key, COUNT(DISTINCT user_id) AS users FROM records" + TAIL + "key",
    "rounds": "max_rows_contributed = 16, mechanism = PAPER) key, COUNT(*) AS n, "
    + TOTAL
    + " FROM records"
    + TAIL
    + "key",
    "a mean": "max_rows_contributed = 16) key, "
    + MEAN
    + ", COUNT(*) AS n FROM records"
    + TAIL
    + "key",
    "spread": "max_rows_contributed = 8) key, COUNT(*) AS n, "
    + SPREAD
    + ", VAR_POP(value, contribution_bounds_per_row => (0, 20)) AS small FROM records"
    + TAIL
    + "key",
    "two values": "max_rows_contributed = 8) key, COUNT(*) AS n, "
    + ", ".join(f"{name}{PAIR}" for name in ("CORR", "COVAR_POP"))
    + " FROM records"
    + TAIL
    + "key",
    "a table of two values": "max_rows_contributed = 16) "
    + ", ".join(f"{name}{PAIR}" for name in ("REGR_SLOPE", "REGR_INTERCEPT"))
    + " FROM records",
    "sliding": "max_rows_contributed = 6, max_groups_contributed = 3) key, COUNT(*) AS n, "
    + MEAN
    + " FROM records"
    + SLIDING
    + "key",
    "sliding for ever": "max_rows_contributed = 16, contribution_period = STREAM, mechanism = PAPER) key, COUNT(DISTINCT user_id) AS users, "
    "COUNT(*) AS n FROM records" + SLIDING + "key",
    "public groups": "max_rows_contributed = 16, "
    + LISTED
    + ") key, COUNT(*) AS n, COUNT(DISTINCT user_id) AS users, "
    + TOTAL
    + " FROM records"
    " " + TAIL + "key",
    "sliding public groups": "max_rows_contributed = 6, "
    + LISTED
    + ") key, "
    + MEAN
    + ", COUNT(*) AS n FROM records"
    + SLIDING
    + "key",
    "no key": "max_rows_contributed = 16) COUNT(*) AS n, "
    + MEAN
    + " FROM records GROUP BY window(ts, '{window}')",
    "no key, sliding for ever": "max_rows_contributed = 16, contribution_period = STREAM) "
    + TOTAL
    + " FROM records "
    "GROUP BY window(ts, '{six_triggers}', '{two_triggers}')",
    "static join": "max_rows_contributed = 16) pages.category, COUNT(*) AS n, COUNT(pages.rank) AS ranked FROM records JOIN pages ON records.key = pages.page"
    + TAIL
    + "pages.category",
    "static left join": "max_rows_contributed = 8) category, COUNT(*) AS n FROM (SELECT records.user_id, records.ts, p.category FROM records "
    "LEFT JOIN pages AS p ON lower(records.key) = lower(p.page))" + TAIL + "category",
    "explode": "max_rows_contributed = 32) word, COUNT(*) AS n FROM (SELECT user_id, ts, explode(split(key, '[./ ]')) AS word FROM records)"
    + TAIL
    + "word",
    "lateral view": "max_rows_contributed = 32) w.word, COUNT(*) AS n, "
    + TOTAL
    + " FROM records LATERAL VIEW explode(split(key, '[./ ]')) w AS word"
    + TAIL
    + "w.word",
    "a table": "max_rows_contributed = 32) key, COUNT(*) AS n, COUNT(DISTINCT user_id) AS users, "
    + MEAN
    + " FROM records GROUP BY key",
    "a table of listed keys": "max_rows_contributed = 16, max_triggers = 30, "
    + LISTED
    + ") key, COUNT(*) AS n, "
    + TOTAL
    + " FROM records GROUP BY key",
    "quantiles": "max_rows_contributed = 8) key, "
    + DECILES
    + ", COUNT(*) AS n FROM records"
    + TAIL
    + "key",
    "quantiles, carried": "max_rows_contributed = 4, carry_windows = 3) key, "
    + DECILES
    + ", COUNT(*) AS n FROM records"
    + TAIL
    + "key",
    "rows": "privacy_level = EVENT, "
    + LISTED
    + ") key, COUNT(*) AS n, "
    + TOTAL
    + " FROM records"
    + SLIDING
    + "key",
    "a table of rows": "privacy_level = EVENT) COUNT(*) AS n, " + SPREAD + " FROM records",
    "a table without a key": "max_rows_contributed = 16) "
    + MEAN
    + ", COUNT(value) AS known, "
    + SPREAD
    + " FROM records",
}
"""Name -> the query after its common options; windows and trigger intervals are the stream's own."""

SPARK_ONLY = {"explode": "explode", "lateral view": "LATERAL VIEW"}
"""Queries that the local engine refuses, and what it names."""

FEW_ROWS = 50


@dataclass(frozen=True)
class Stream:
    """One stream: its records in event-time order, and a window and trigger interval that suit it."""

    name: str
    records: pa.Table
    window: str
    trigger: str
    until: int | None = None

    @property
    def until_us(self) -> int:
        """Every window of the stream is over by then, and public groups have had windows without records."""
        return self.until or int(
            np.asarray(self.records["ts"].cast(pa.int64())).max()
        ) + 3 * parse_duration(self.window)

    @property
    def start_us(self) -> int:
        """The declared start: a window without records, and not at its edge."""
        return int(np.asarray(self.records["ts"].cast(pa.int64())).min()) - parse_duration(
            self.window
        )

    def source(self, name: str, folder: Path, files_per_batch: int = 2, **other: Any) -> Source:
        """This stream as it is stored in a folder."""
        given: dict[str, Any] = {
            "path": str(folder),
            "event_time": "ts",
            "privacy_unit": ("user_id",),
            "start_us": self.start_us,
        }
        return Source(
            name,
            "parquet",
            options=(("maxFilesPerTrigger", str(files_per_batch)),),
            **given | other,
        )

    def query(self, name: str, folder: Path, files_per_batch: int = 1) -> dpsql.Query:
        """One of QUERIES on this stream, stored in a folder, with the static tables beside it."""
        source = self.source("records", folder, files_per_batch, max_users=10**6, max_keys=10**6)
        count, unit = self.trigger.split()
        lengths = {
            f"{word}_triggers": f"{times * int(count)} {unit}s"
            for word, times in (("six", 6), ("two", 2))
        }
        head = (
            HEAD.replace("privacy_unit_column = user_id, ", "")
            if "EVENT" in QUERIES[name]
            else HEAD
        )
        text = (head + QUERIES[name]).format(window=self.window, trigger=self.trigger, **lengths)
        return dpsql.compile(text, Sources((source, *self.static(folder.parent))))

    def static(self, folder: Path) -> tuple[Source, Source]:
        """Public tables, written where they are missing: `pages`, with a category for most keys, and `listed`, some keys and some that
        no record has."""
        keys = sorted(set(self.records["key"].drop_null().to_pylist()))
        folder.mkdir(parents=True, exist_ok=True)
        pages = folder / "pages.parquet"
        listed = folder / "listed.csv"
        if not pages.exists():
            known = [key for i, key in enumerate(keys) if i % 7]
            categories = [None if i % 5 == 4 else f"category {i % 5}" for i in range(len(known))]
            pq.write_table(
                pa.table({"page": known, "category": categories, "rank": list(range(len(known)))}),
                pages,
            )
        if not listed.exists():
            names = ["#never.one", *keys[:: max(1, len(keys) // 12)], "#never.two", keys[0]]
            csv.write_csv(pa.table({"key": names}), listed, csv.WriteOptions(include_header=False))
        return (
            Source(
                name="pages",
                format="parquet",
                path=str(pages),
                schema="page STRING, category STRING, rank BIGINT",
                static=True,
            ),
            Source(name="listed", format="csv", path=str(listed), schema="key STRING", static=True),
        )

    def cut(self, parts: int) -> list[pa.Table]:
        """About equal micro-batches, cut between different event times."""
        ts = np.asarray(self.records["ts"].cast(pa.int64()))
        edges = [
            0,
            *(int(np.searchsorted(ts, ts[len(ts) * i // parts])) for i in range(1, parts)),
            len(ts),
        ]
        return [self.records.slice(a, b - a) for a, b in pairwise(edges) if b > a]


@cache
def wiki(window: str = "1 day", trigger: str = "1 hour", part: int = 1) -> Stream:
    """The demo data, or the first half or third of them."""
    records = pq.read_table(Path(__file__).parents[2] / "conf" / "demo" / "wiki")
    return Stream("wiki", records.slice(0, len(records) // part), window, trigger)


def local_rows(
    query: dpsql.Query, stream: Stream, parts: int, buckets: tuple[int, int], run_id: str = RUN_ID
) -> pa.Table:
    """The histogram by the local engine."""
    reader = RowReader(query.plan, query.sources, SECRET.salt(run_id), {})
    return released(
        query, stream, reader, (reader.frame(part) for part in stream.cut(parts)), buckets, run_id
    )


def released(
    query: dpsql.Query,
    stream: Stream,
    reader: RowReader,
    batches: Iterable[pa.Table],
    buckets: tuple[int, int] = (1, 1),
    run_id: str = RUN_ID,
    key_types: tuple[SparkType, ...] | None = None,
) -> pa.Table:
    """The histogram that the local engine makes of records, whoever has read them; with the types of keys where the reader cannot know them."""
    result = run_batches(
        query.plan,
        batches,
        noise_key=SECRET.noise_key(run_id, query.plan.identity),
        key_types=lambda: key_types or reader.key_types,
        until_us=stream.until_us,
        buckets=buckets,
        facts=query.facts(reader.public_groups(query.source)),
    )
    return ordered(result.histogram, query)


def spark_records(
    spark: SparkSession, query: dpsql.Query, paths: Sequence[Path], salt: bytes
) -> pa.Table:
    """FROM by Spark, of Parquet files in their order, as one batch job: the records that query 1 would hand to its workers."""
    from dpsql.streaming.rows import records
    from dpsql.streaming.session import run_session
    from dpsql.streaming.sources import static, within_calendar

    session = run_session(spark, 1)
    within_calendar(session.read.parquet(*map(str, paths)).coalesce(1)).createOrReplaceTempView(
        query.parsed.stream
    )
    tables = {name: static(session, query.sources[name]) for name in query.parsed.static_sources}
    for name, table in tables.items():
        table.createOrReplaceTempView(name)
    try:
        return records(session, query.plan, salt, 1).frame.drop("bucket").toArrow()
    finally:
        for table in tables.values():
            table.unpersist()


def same_records(here: pa.Table, there: pa.Table) -> bool:
    """Whether Spark has what is left of the local reader's `rows` table without the dropped ones, in any order, bit for bit."""
    return (
        count_differences(
            here.filter(pc.equal(here["drop"], 0)).select(there.column_names).cast(there.schema),
            there,
        )
        == 0
    )


def spark_rows(
    spark: SparkSession,
    query: dpsql.Query,
    stream: Stream,
    files: int,
    buckets: tuple[int, int],
    folder: Path,
) -> pa.Table:
    """The histogram by both Spark queries, the stream cut into files."""
    write(stream.cut(files), Path(query.source.path or ""))
    lake = Lake(folder)
    start(spark, query, lake, stream.until_us, buckets)
    return ordered(read_histogram(lake, "q"), query)


def on_both_engines(
    spark: SparkSession, query: dpsql.Query, stream: Stream, files: int, folder: Path
) -> pa.Table:
    """The histogram, of which both engines make the same, however it is cut; `verify` makes it again from the lake in the folder."""
    here = local_rows(query, stream, 1, (1, 1))
    lake = Lake(folder)
    assert same(here, local_rows(query, stream, 7, (3, 5)))
    assert same(here, spark_rows(spark, query, stream, files, (2, 3), folder))
    run = start(spark, query, lake, stream.until_us, (2, 3))
    assert verify_run(lake, "q", run, query, SECRET, as_parquet=TypedRows(spark)).identical
    return here


def write(parts: Sequence[pa.Table], folder: Path) -> None:
    """The parts as files; a file source reads them in order of age."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for i, part in enumerate(parts):
        pq.write_table(part, folder / f"{i:03}.parquet")
        os.utime(folder / f"{i:03}.parquet", (1_000_000_000 + i, 1_000_000_000 + i))


def start(
    spark: SparkSession, query: dpsql.Query, lake: Lake, until_us: int, buckets: tuple[int, int]
) -> Run:
    """Start the run `q` of a lake, or start it again."""
    from dpsql.streaming.job import run

    named = run_of("q", RUN_ID, query, SECRET, "")
    lake.private("q").mkdir(parents=True, mode=0o700, exist_ok=True)
    run(spark, query, named, lake, SECRET, until_caught_up=True, until_us=until_us, buckets=buckets)
    return named


def ordered(histogram: pa.Table, query: dpsql.Query) -> pa.Table:
    """Rows in one order, so that tables can be compared."""
    names = [
        *(["window_start"] if query.parsed.window else []),
        "trigger",
        *(key.name for key in query.parsed.output_keys),
    ]
    return histogram.sort_by([(name, "ascending") for name in names]).combine_chunks()


def same(a: pa.Table, b: pa.Table) -> bool:
    """Equal names and equal values, bit for bit."""
    return a.column_names == b.column_names and count_differences(a, b) == 0


def rows_in_common(a: pa.Table, b: pa.Table, query: dpsql.Query) -> int:
    """Rows that two runs agree on in every noisy number."""
    numbers = [c.aggregate.alias for c in query.plan.columns]
    names = ["trigger_time", "trigger", *(key.name for key in query.parsed.keys), *numbers]
    return len(
        {str(row) for row in a.select(names).to_pylist()}
        & {str(row) for row in b.select(names).to_pylist()}
    )


def refused_locally(query: dpsql.Query, stream: Stream, what: str) -> bool:
    """Whether the local engine says that this query runs on Spark only."""
    try:
        local_rows(query, stream, 1, (1, 1))
    except InputError as problem:
        return what.lower() in str(problem).lower() and "Spark" in str(problem)
    return False
