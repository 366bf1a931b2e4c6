"""The same query on Spark and on the local engine, cut and bucketed in many ways: every row must be the same, bit for bit.

python -m tests.matrix.same_rows NAME=FOLDER ...     the whole matrix on streams of your own (columns user_id, key, ts, value)
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dpsql
from dpsql.config import Source, Sources
from dpsql.lake import Lake, Run, read_histogram
from dpsql.local.engine import run_batches
from dpsql.local.rows import RowReader
from dpsql.secret import Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = Secret(bytes(range(32)))
RUN_ID, OTHER_RUN_ID = "5a" * 16, "a5" * 16
HEAD = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 9e-6, privacy_unit_column = user_id, trigger_interval = '{trigger}', "
)
TAIL = " GROUP BY window(ts, '{window}'), "
QUERIES = {
    "three columns": "max_rows_contributed = 32) key, COUNT(*) AS n, COUNT(DISTINCT user_id) AS users, "
    "SUM(value, contribution_bounds_per_row => (0, 500)) AS total FROM stream" + TAIL + "key",
    "row-local FROM": "max_rows_contributed = 16, max_rows_per_group = 2) name, COUNT(*) AS n "
    "FROM (SELECT user_id, ts, lower(key) AS name FROM stream WHERE value >= 0)" + TAIL + "name",
    "two keys": "max_rows_contributed = 16) key, large, COUNT(*) AS n, COUNT(value) AS known "
    "FROM (SELECT user_id, ts, key, value, value > 20 AS large FROM stream)" + TAIL + "key, large",
    "few groups": "max_rows_contributed = 16, max_groups_contributed = 4, max_rows_per_group = 4, selection_weight_decay = 0) "
    "key, COUNT(value) AS known, SUM(value, contribution_bounds_per_row => (-10, 10)) AS net FROM stream" + TAIL + "key",
    "late and many": "max_rows_contributed = 16, allowed_lateness = '{trigger}', min_privacy_units_per_group = 5) key, COUNT(*) AS n FROM stream"
    + TAIL
    + "key",
    "for ever": "max_rows_contributed = 64, contribution_period = STREAM, group_selection_share = 0.9) "
    "key, COUNT(DISTINCT user_id) AS users FROM stream" + TAIL + "key",
}
"""Name -> the query after its common options; `{window}` and `{trigger}` are the stream's own."""


@dataclass(frozen=True)
class Stream:
    """One stream: its records in event-time order, and a window and trigger interval that suit it."""

    name: str
    records: pa.Table
    window: str
    trigger: str

    @property
    def until_us(self) -> int:
        """One second after the last record closes nothing too early: every window of the stream is over by then."""
        return int(np.asarray(self.records["ts"].cast(pa.int64())).max()) + 800 * 86_400_000_000

    def query(self, name: str, folder: Path) -> dpsql.Query:
        """One of QUERIES on this stream, stored in a folder."""
        source = Source(
            name="stream", format="parquet", path=str(folder), event_time="ts", privacy_unit=("user_id",), max_users=10**6, max_keys=10**6
        )
        text = (HEAD + QUERIES[name]).format(window=self.window, trigger=self.trigger)
        return dpsql.compile(text, Sources((source,)))

    def cut(self, parts: int) -> list[pa.Table]:
        """About equal micro-batches, cut between different event times."""
        ts = np.asarray(self.records["ts"].cast(pa.int64()))
        edges = [0, *(int(np.searchsorted(ts, ts[len(ts) * i // parts])) for i in range(1, parts)), len(ts)]
        return [self.records.slice(a, b - a) for a, b in pairwise(edges) if b > a]


def local_rows(query: dpsql.Query, stream: Stream, parts: int, buckets: tuple[int, int], run_id: str = RUN_ID) -> pa.Table:
    """The histogram by the local engine."""
    reader = RowReader(query.plan, query.sources, SECRET.salt(run_id), {})
    noise_key = SECRET.noise_key(run_id, query.plan.identity)
    batches = (reader.frame(part) for part in stream.cut(parts))
    result = run_batches(
        query.plan, batches, noise_key=noise_key, key_types=lambda: reader.key_types, until_us=stream.until_us, buckets=buckets
    )
    return ordered(result.histogram, query)


def spark_rows(spark: SparkSession, query: dpsql.Query, stream: Stream, parts: int, buckets: tuple[int, int], folder: Path) -> pa.Table:
    """The histogram by both Spark queries, one file a micro-batch."""
    from dpsql.streaming.job import run

    data = Path(query.source.path or "")
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    for i, part in enumerate(stream.cut(parts)):
        pq.write_table(part, data / f"{i:03}.parquet")
        os.utime(data / f"{i:03}.parquet", (1_000_000_000 + i, 1_000_000_000 + i))  # a file source reads in order of age
    lake = Lake(folder)
    named = Run("q", RUN_ID, query.plan.identity, SECRET.check(), query.text, {}, "2026-01-01T00:00:00+00:00")
    Path(lake.private("q")).mkdir(parents=True, mode=0o700)
    run(spark, query, named, lake, SECRET, until_caught_up=True, until_us=stream.until_us, buckets=buckets)
    return ordered(read_histogram(lake, "q"), query)


def ordered(histogram: pa.Table, query: dpsql.Query) -> pa.Table:
    """Rows in one order, so that tables can be compared."""
    names = ["window_start", "trigger", *(key.name for key in query.parsed.keys)]
    return histogram.sort_by([(name, "ascending") for name in names]).combine_chunks()


def same(a: pa.Table, b: pa.Table) -> bool:
    """Equal names and equal values, bit for bit."""
    return a.column_names == b.column_names and a.to_pylist() == b.to_pylist()


def rows_in_common(a: pa.Table, b: pa.Table, query: dpsql.Query) -> int:
    """Rows that two runs agree on in every noisy number."""
    numbers = [c.aggregate.alias for c in query.plan.columns]
    names = ["window_start", "trigger", *(key.name for key in query.parsed.keys), *numbers]
    return len({tuple(row.values()) for row in a.select(names).to_pylist()} & {tuple(row.values()) for row in b.select(names).to_pylist()})


def checks(spark: SparkSession, stream: Stream, name: str, cuts: Sequence[int], folder: Path) -> Iterator[tuple[str, bool]]:
    """Every comparison of one query on one stream: (what, whether it holds)."""
    query = stream.query(name, folder / "data")
    truth = local_rows(query, stream, 1, (1, 1))
    triggers = len(set(truth["trigger"].to_pylist()))
    yield f"{truth.num_rows} rows, {triggers} triggers", truth.num_rows >= 50 and triggers >= 5
    for parts, buckets in ((1, (2, 2)), (7, (2, 16)), (50, (16, 2))):
        yield f"local, {parts} micro-batches, {buckets} buckets", same(truth, local_rows(query, stream, parts, buckets))
    for i, parts in enumerate(cuts):
        buckets = ((2, 2), (2, 16), (16, 2))[i % 3]
        yield (
            f"Spark, {parts} micro-batches, {buckets} buckets",
            same(truth, spark_rows(spark, query, stream, parts, buckets, folder / f"lake{parts}")),
        )
    yield (
        "another run id changes every row",
        rows_in_common(truth, local_rows(query, stream, 1, (1, 1), OTHER_RUN_ID), query) <= truth.num_rows // 20,
    )


def main(arguments: list[str]) -> int:
    """The whole matrix; exit code 1 if anything differs."""
    from dpsql import jars
    from dpsql.streaming.session import session

    clocks = {"wikiticker": ("1 day", "1 hour"), "nasa-http-day": ("1 day", "1 hour"), "online-retail": ("100 days", "10 days")}
    spark = session("local[2]", {"spark.jars": ",".join(map(str, jars.ensure())), "spark.ui.enabled": "false"})
    failed = 0
    for argument in arguments:
        name, _, path = argument.partition("=")
        stream = Stream(name, pq.read_table(path), *clocks.get(name, ("1 day", "1 hour")))
        for i, query in enumerate(QUERIES):
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                for what, holds in checks(spark, stream, query, (1, 7, 50) if i == 0 else (1,), Path(folder)):
                    failed += not holds
                    print(f"{'same' if holds else 'DIFFERS'}  {name}, {query}: {what}", flush=True)
            print(f"      {time.monotonic() - start:.0f} s", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
