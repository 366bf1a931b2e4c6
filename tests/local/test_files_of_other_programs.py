"""Files and tables as other programs write them: `run` and `try` read the same records of them, and `verify` recomputes the run.

Each holds what once took other records along, ended a reading, or changed who is protected.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import dpsql
from dpsql.compiled import Query
from dpsql.errors import DataError, LakeError
from dpsql.lake.opening import open_run
from dpsql.lake.runs import Lake, read_run
from dpsql.local.feeder import TryResult, try_query
from dpsql.local.verification import spark_reads, verify_run
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import read_histogram
from dpsql.streaming.job import run as run_on_spark
from dpsql.streaming.progress import Summary
from dpsql.streaming.typed_rows import TypedRows
from tests.local.conftest import DAY
from tests.local.other_delta import delete_first_rows, rename_columns
from tests.sweeps import WHOLE, some

Declared = dict[str, object]
SCHEMA = "u STRING, ts TIMESTAMP, k STRING, v DOUBLE"
SQL = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 9e-6, max_rows_contributed = 4) "
    "{}, COUNT(*) AS n, SUM(v, contribution_bounds_per_row => (0, 2)) AS total FROM d GROUP BY window(ts, '1 day'), 1"
)
PEOPLE = 300
TIME = "1970-01-02 00:30:00"
UNTIL = 3 * DAY


def csv_lines(keys: Sequence[str] = ('"say ""a"", ok"', "C:\\b", "c d")) -> list[str]:
    return [f"u{i},{TIME},{keys[i % 3]},1.5" for i in range(PEOPLE)]


def json_lines() -> list[str]:
    rows = [
        {"u": f"u{i}", "ts": TIME.replace(" ", "T"), "k": "abc"[i % 3], "v": 1.5}
        for i in range(PEOPLE)
    ]
    return [json.dumps(row) for row in rows]


def quoted_csv(folder: Path) -> Declared:
    """A program that writes by RFC 4180 and compresses; an open quote, a backslash at the end, a letter of Latin-1."""
    odd = (f'x,{TIME},"a,1.5', f"x,{TIME},b,1.5\\")
    text = "\r\n".join(["u,ts,k,v", *odd, *csv_lines()])
    latin = f"\r\nx,{TIME},caf\xe9,1.5\r\n".encode("latin-1")
    (folder / "a.csv.gz").write_bytes(gzip.compress(text.encode() + latin))
    return {"format": "csv", "options": {"header": "true"}}


def escaped_csv(folder: Path) -> Declared:
    """A database that escapes by backslashes, and writes times as numbers."""
    keys = (r'"say \"a\", ok"', "b", "c d")
    lines = [
        line.replace(TIME, "88200000") for line in [*csv_lines(keys), f'x,{TIME},"b,1.5\\', "\\"]
    ]
    (folder / "a.csv").write_text("\n".join(["u,ts,k,v", *lines, lines[0].replace("u0", "x")]))
    return {
        "format": "csv",
        "options": {"header": "true", "escape": "\\"},
        "schema": SCHEMA.replace("TIMESTAMP", "BIGINT"),
        "event_time": {"column": "ts", "unit": "milliseconds"},
    }


def foldered_csv(folder: Path) -> Declared:
    """A folder for each day, whose name is a column, and a blank in it."""
    for i in range(2):
        (folder / f"k=day {i}").mkdir()
        lines = [line.replace(line.split(",", 2)[2], "1.5") for line in csv_lines()[i::2]]
        (folder / f"k=day {i}" / "a [1].csv").write_text("\n".join(["u,ts,v", *lines]) + "\n")
    return {
        "format": "csv",
        "options": {"header": "true"},
        "schema": "u STRING, ts TIMESTAMP, v DOUBLE, k STRING",
    }


def marked_json(folder: Path) -> Declared:
    """PowerShell's byte order mark, arrays in a line, and half a pair of surrogates in every place."""
    good = json_lines()[0].replace("u0", "x")
    arrays = ["[1, 2]", f"[{good}, null]"]
    halves = [good.replace(word, r'"\ud83d"', 1) for word in ('"x"', '"a"', '"1970', '"v"')]
    nested = [good.replace("1.5", f'1.5, "note": {note}') for note in (r'"\ud83d"', r'{"\ud83d": 1}')]  # fmt: skip
    lines = [*json_lines(), *arrays, *halves, *nested]
    (folder / "a.json").write_text("\ufeff" + "\n".join(lines) + "\n")
    return {"format": "json"}


def half_bad_json(folder: Path) -> Declared:
    """A field that does not fit in every second line: malformed whatever a query reads."""
    lines = [line.replace("1.5", '"12s"') if i % 2 else line for i, line in enumerate(json_lines())]
    (folder / "a.json").write_text("\n".join(lines) + "\n")
    return {"format": "json"}


def orc_files(folder: Path) -> Declared:
    """A warehouse's own files."""
    rows = [(f"u{i}", "abc"[i % 3], 1.5) for i in range(PEOPLE)]
    frame = session().createDataFrame(rows, "u STRING, k STRING, v DOUBLE")
    timed = frame.selectExpr("u", f"TIMESTAMP '{TIME}Z' AS ts", "k", "v")
    timed.coalesce(1).write.mode("append").orc(str(folder))
    return {"format": "orc"}


def session() -> SparkSession:
    active = SparkSession.getActiveSession()
    assert active is not None
    return active


def pandas_parquet(folder: Path) -> Declared:
    """Times in nanoseconds without a zone, hashes as unsigned numbers, categories, gaps, and an index that is a column."""
    frame = pd.DataFrame(
        {
            "u": pd.util.hash_array(np.array([f"u{i}" for i in range(PEOPLE)], object)),
            "ts": pd.to_datetime(TIME),
            "k": pd.Categorical(["abc"[i % 3] for i in range(PEOPLE)]),
            "v": [1.5, None] * (PEOPLE // 2),
        },
        index=pd.Index(range(5, PEOPLE + 5), name="line"),
    )
    frame["ts"] = frame["ts"].astype("datetime64[ns]")
    frame.to_parquet(folder / "a.parquet")
    return {"format": "parquet", "schema": SCHEMA.replace("u STRING", "u DECIMAL(20, 0)")}


def grown_parquet(folder: Path) -> Declared:
    """A column that came later, times in milliseconds and one in nanoseconds among them, bytes that are no UTF-8."""
    units = pa.array([f"u{i}".encode() for i in range(PEOPLE)], pa.binary())
    keys = pa.array([b"abc"[i % 3 : i % 3 + 1] for i in range(PEOPLE)], pa.binary())
    times = pa.array([88_200_000] * PEOPLE, pa.timestamp("ms"))
    old = pa.table({"u": units.view(pa.string()), "k": keys.view(pa.string()), "ts": times})
    new = old.append_column("V", pa.array([1.5] * PEOPLE))
    odd_times = pa.array([1_767_261_600_000_000_000, 88_200_000], pa.timestamp("ms"))
    odd_keys = pa.array([b"a", b"caf\xe9"], pa.binary()).view(pa.string())
    odd = pa.table({"u": ["x", "x"], "k": odd_keys, "ts": odd_times, "V": [1.5, 1.5]})
    pq.write_table(old[:100], folder / "a.parquet")
    pq.write_table(pa.concat_tables([new[100:], odd]), folder / "b.parquet")
    return {"format": "parquet"}


DELTA = {
    "delta.enableDeletionVectors": "true",
    "delta.columnMapping.mode": "name",
    "delta.enableRowTracking": "true",
    "delta.checkpointPolicy": "v2",
    "delta.checkpointInterval": "2",
}


def databricks_delta(folder: Path) -> Declared:
    """Deletion vectors, row tracking, checkpoints of the second kind; columns that are mapped, renamed, exchanged and added."""
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in DELTA.items())
    table = f"delta.`{folder}`"
    batches = (
        f"SELECT concat('u', id) AS person, concat('household', id div 30) AS u, TIMESTAMP '{TIME}Z' AS ts, "
        f"substr('abc', 1 + id div 2 % 3, 1) AS k FROM range({2 * PEOPLE})",
        f"SELECT concat('u', id) AS u, 'home' AS household, TIMESTAMP '{TIME}Z' AS ts, CAST(X'636166e9' AS STRING) AS k, "
        "1.5D AS v FROM range(1)",
    )
    statements = (
        f"CREATE TABLE {table} (person STRING, u STRING, ts TIMESTAMP, k STRING) USING delta TBLPROPERTIES ({properties})",
        f"INSERT INTO {table} {batches[0]}",
        f"DELETE FROM {table} WHERE CAST(substr(person, 2) AS INT) % 2 = 1",
        f"ALTER TABLE {table} RENAME COLUMN u TO household",
        f"ALTER TABLE {table} RENAME COLUMN person TO u",
        f"ALTER TABLE {table} ADD COLUMN (v DOUBLE)",
        f"INSERT INTO {table} BY NAME {batches[1]}",
    )
    for statement in statements:
        session().sql(statement)
    assert any(folder.rglob("deletion_vector_*.bin"))
    return {"format": "delta"}


def mapped_delta(folder: Path) -> Declared:
    """A table whose unit was another column, and which lacks half of the rows of its file."""
    ids = range(2 * PEOPLE)
    rows = {
        "person": [f"u{i}" for i in ids],
        "u": [f"household{i // 30}" for i in ids],
        "ts": pa.array([88_200_000_000] * len(ids), pa.timestamp("us", "UTC")),
        "k": pa.array([b"abc"[i % 3 : i % 3 + 1] for i in ids[1:]] + [b"caf\xe9"]).view(
            pa.string()
        ),
        "v": [1.5] * len(ids),
    }
    write_deltalake(folder, pa.table(rows))
    rename_columns(folder, {"u": "household", "person": "u"})
    delete_first_rows(folder, PEOPLE)
    return {"format": "delta"}


QUICK = (
    quoted_csv,
    escaped_csv,
    foldered_csv,
    marked_json,
    half_bad_json,
    orc_files,
    pandas_parquet,
    grown_parquet,
    mapped_delta,
)
MAKERS = (*QUICK, databricks_delta) if WHOLE else QUICK


def caught_up(
    spark: SparkSession, secret: Secret, folder: Path, make: Callable[[Path], Declared]
) -> tuple[Query, Lake, Summary]:
    """A run that has read the files that `make` makes."""
    (folder / "in").mkdir()
    block = {
        "path": str(folder / "in"),
        "schema": SCHEMA,
        "event_time": "ts",
        "privacy_unit": "u",
        "max_users": 10_000,
        "max_keys": 1_000,
        **make(folder / "in"),
    }
    query = dpsql.compile(SQL.format("k"), dpsql.load_sources({"d": block}))
    lake = Lake(folder / "lake")
    run = open_run(lake, "d", query, secret, Ledger(folder / "ledger"), query.source)
    summary = run_on_spark(
        spark, query, run, lake, secret, until_caught_up=True, until_us=UNTIL, buckets=(2, 3)
    )
    return query, lake, summary


def tried(query: Query, lake: Lake, secret: Secret) -> TryResult:
    """What `try` makes of the same files, with the noise of the run."""
    run = read_run(lake, "d")
    own = secret.of_ledger(run.ledger_id)
    return try_query(query, {}, run_id=run.run_id, secret=own, until_us=UNTIL)


def in_order(rows: pa.Table) -> list[dict[str, object]]:
    return sorted(rows.to_pylist(), key=repr)


@pytest.mark.parametrize("make", some(MAKERS, 2, orc_files), ids=lambda make: make.__name__)
def test_files_of_other_programs_are_read_alike(
    spark: SparkSession, secret: Secret, tmp_path: Path, make: Callable[[Path], Declared]
) -> None:
    """Catches: two readers that disagree; "identical" over nothing; names with brackets taken for patterns; people who were deleted and count."""
    query, lake, summary = caught_up(spark, secret, tmp_path, make)
    published = read_histogram(lake, "d")
    people = PEOPLE // 2 if make is half_bad_json else PEOPLE
    assert sum(published["n"].to_pylist()) == pytest.approx(people, abs=20)
    assert published.num_rows == (2 if make is foldered_csv else 3)
    if make is orc_files:
        with pytest.raises(DataError, match="format orc is read on Spark only"):
            tried(query, lake, secret)
    else:
        trial = tried(query, lake, secret)
        counted = {reason: count for reason, count in trial.drops.items() if count}
        assert in_order(trial.table) == in_order(published)
        assert counted == summary.dropped
        if (
            query.source.format != "delta"
        ):  # there Spark counts deleted rows among those that it has read
            assert trial.records == summary.records
    run = read_run(lake, "d")
    if query.source.format == "delta":
        with pytest.raises(DataError, match="only runs over files can be verified"):
            verify_run(lake, "d", run, query, secret)
        return
    found = verify_run(lake, "d", run, query, secret, as_parquet=TypedRows(spark))
    # and the row of figures of what the limits leave out
    assert found.identical and found.published == published.num_rows + 1, found
    assert (found.not_read, found.not_admitted) == (0, 0)
    if spark_reads(query.source):
        with pytest.raises(LakeError, match="Spark reads files of"):
            verify_run(lake, "d", run, query, secret)
    # what a run has read is changed: the records are others
    if make is quoted_csv:
        one = replace(query.source, options=(*query.source.options, ("nullValue", "c d")))
        other = replace(query, sources={"d": one})
        assert not verify_run(lake, "d", run, other, secret, as_parquet=TypedRows(spark)).identical
