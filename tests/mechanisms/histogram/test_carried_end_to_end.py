"""Windows that prove keys together, on both engines: the same rows, which `verify` makes again, also after a restore with other buckets."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from click.testing import CliRunner
from pyspark.sql import SparkSession

import dpsql
from dpsql import record
from dpsql.jobs.cli import main
from dpsql.lake.opening import run_of
from dpsql.lake.runs import SCHEMA_VERSION, Lake, Run, read_run
from dpsql.lake.savepoints import take_savepoint
from dpsql.local.verification import verify_run
from dpsql.published.public_rows import read_histogram
from dpsql.sources.config import Sources
from dpsql.streaming.typed_rows import TypedRows
from tests.matrix import same_rows
from tests.matrix.same_rows import RUN_ID, SECRET, Stream

OPTIONS = "epsilon = 12, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 8, max_rows_per_group = 2"
WINDOW = "GROUP BY window(ts, '2 hours'), channel"


def compiled(stream: Stream, folder: Path, more: str) -> dpsql.Query:
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({OPTIONS}, {more}) key AS channel, COUNT(*) AS edits FROM wiki {WINDOW}"
    return dpsql.compile(
        text, Sources((stream.source("wiki", folder / "data"), *stream.static(folder)))
    )


def test_both_engines_carry_the_same_keys_and_a_restore_forgets_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = same_rows.wiki("2 hours", "30 minutes", 2)
    query = compiled(
        stream,
        tmp_path,
        "trigger_interval = '30 minutes', allowed_lateness = '30 minutes', carry_windows = 4",
    )
    assert query.facts(None).first_window_us == query.shape.schedule.window_of(stream.start_us)
    here = same_rows.local_rows(query, stream, 1, (1, 1))
    assert same_rows.same(here, same_rows.local_rows(query, stream, 5, (3, 7)))
    assert carried(here) >= 3
    # Many units brought one channel before the declared start: nobody sees it.
    same_rows.write(with_older(stream).cut(3), tmp_path / "data")
    lake = Lake(tmp_path / "lake")
    run = run_of("q", RUN_ID, query, SECRET, "")
    lake.private("q").mkdir(parents=True, mode=0o700)
    (lake.private("q") / "run.json").write_bytes(record.content(run, SCHEMA_VERSION))
    middle = stream.start_us + (stream.until_us - stream.start_us) * 2 // 3
    start(spark, query, run, lake, middle, (2, 3))
    assert read_run(lake, "q").tables["release"]["evidence"].sorted_by == ("key", "window")
    take_savepoint(lake, "q", "middle")
    for path in (lake.private("q") / "state").glob("release-*"):
        shutil.rmtree(path)
    done = CliRunner().invoke(
        main, ["restore", "q", "--lake", str(lake.root), "--to", "middle", "--buckets", "4"]
    )
    assert done.exit_code == 0, done.output
    start(spark, query, run, lake, stream.until_us, (4, 4))
    assert same_rows.same(same_rows.ordered(read_histogram(lake, "q"), query), here)
    assert verify_run(lake, "q", run, query, SECRET, as_parquet=TypedRows(spark)).identical


def with_older(stream: Stream) -> Stream:
    """With 200 records of 200 units from two days before."""
    some = stream.records.slice(0, 200)
    ts = stream.records["ts"][:200].cast(pa.int64()).to_numpy() - 2 * 86_400_000_000
    older = {
        "ts": pa.array(ts).cast(some["ts"].type),
        "user_id": [f"old {i}" for i in range(200)],
        "key": ["#old"] * 200,
    }
    parts = [
        pa.table({name: older.get(name, some[name]) for name in some.column_names}).cast(
            some.schema
        ),
        stream.records,
    ]
    return replace(stream, records=pa.concat_tables(parts).combine_chunks())


def start(
    spark: SparkSession,
    query: dpsql.Query,
    named: Run,
    lake: Lake,
    until_us: int,
    buckets: tuple[int, int],
) -> None:
    from dpsql.streaming.job import run

    run(spark, query, named, lake, SECRET, until_caught_up=True, until_us=until_us, buckets=buckets)


def carried(rows: pa.Table) -> int:
    """Keys of a window that are there from its first trigger on and were in the window before."""
    found: dict[object, set[object]] = {}
    first: dict[object, set[object]] = {}
    for row in rows.select(["window_start", "trigger", "channel"]).to_pylist():
        found.setdefault(row["window_start"], set()).add(row["channel"])
        if row["trigger"] == 1:
            first.setdefault(row["window_start"], set()).add(row["channel"])
    windows = sorted(found)  # type: ignore[type-var]
    return sum(len(first.get(now, set()) & found[before]) for before, now in pairwise(windows))
