"""`verify` of runs over files that Spark alone reads: recomputed from what Spark reads of them once more, record for record."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.compiled import Query
from dpsql.errors import ConfigError, LakeError
from dpsql.jobs.verify import spark_reader
from dpsql.lake.opening import open_run
from dpsql.lake.runs import Lake, read_run
from dpsql.local.verification import verify_run
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.streaming.job import run as run_on_spark
from dpsql.streaming.typed_rows import TypedRows
from tests.local.conftest import DAY

SCHEMA = "u STRING, ts TIMESTAMP, k STRING, v DOUBLE"
SQL = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 9e-6, max_rows_contributed = 4) "
    "{}, COUNT(*) AS n, SUM(v, contribution_bounds_per_row => (0, 2)) AS total FROM d GROUP BY window(ts, '1 day'), 1"
)
PEOPLE = 300


def csv_lines() -> list[str]:
    keys = ('"say ""a"", ok"', "C:\\b", "c d")
    return [f"u{i},1970-01-02 00:30:00,{keys[i % 3]},1.5" for i in range(PEOPLE)]


def json_lines() -> list[str]:
    rows = [
        {"u": f"u{i}", "ts": "1970-01-02T00:30:00", "k": "abc"[i % 3], "v": 1.5}
        for i in range(PEOPLE)
    ]
    return [json.dumps(row) for row in rows]


def quoted_csv(folder: Path) -> dict[str, object]:
    """A program that writes by RFC 4180, compresses, and has one open quote."""
    text = "\r\n".join(["u,ts,k,v", 'x,1970-01-02 00:10:00,"a,1.5', *csv_lines()])
    (folder / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    return {"format": "csv", "options": {"header": "true"}}


def marked_json(folder: Path) -> dict[str, object]:
    """PowerShell's byte order mark, an array in a line, and half a pair of surrogates."""
    odd = ["[1, 2]", '{"u": "x", "ts": "1970-01-02T00:10:00", "k": "a", "note": "\\ud83d"}']
    (folder / "a.json").write_text("\ufeff" + "\n".join([*json_lines(), *odd]) + "\n")
    return {"format": "json"}


def half_bad_json(folder: Path) -> dict[str, object]:
    """A field that does not fit in every second line: malformed whatever a query reads."""
    lines = [line.replace("1.5", '"12s"') if i % 2 else line for i, line in enumerate(json_lines())]
    (folder / "a.json").write_text("\n".join(lines) + "\n")
    return {"format": "json"}


def foldered_csv(folder: Path) -> dict[str, object]:
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


def orc_files(folder: Path) -> dict[str, object]:
    """A warehouse's own files."""
    session = SparkSession.getActiveSession()
    assert session is not None
    rows = [(f"u{i}", "abc"[i % 3], 1.5) for i in range(PEOPLE)]
    frame = session.createDataFrame(rows, "u STRING, k STRING, v DOUBLE")
    frame.selectExpr("u", "TIMESTAMP '1970-01-02 00:30:00Z' AS ts", "k", "v").coalesce(
        1
    ).write.mode("append").orc(str(folder))
    return {"format": "orc"}


def csv_in_milliseconds(folder: Path) -> dict[str, object]:
    """A program that writes times as numbers."""
    lines = [line.replace("1970-01-02 00:30:00", "88200000") for line in csv_lines()]
    (folder / "a.csv").write_text("\n".join(["u,ts,k,v", *lines]) + "\n")
    return {
        "format": "csv",
        "options": {"header": "true"},
        "schema": SCHEMA.replace("TIMESTAMP", "BIGINT"),
        "event_time": {"column": "ts", "unit": "milliseconds"},
    }


MAKERS = (quoted_csv, marked_json, foldered_csv, orc_files, csv_in_milliseconds)


def caught_up(
    spark: SparkSession, secret: Secret, folder: Path, make: Callable[[Path], dict[str, object]]
) -> tuple[Query, Lake]:
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
    run_on_spark(
        spark, query, run, lake, secret, until_caught_up=True, until_us=3 * DAY, buckets=(2, 3)
    )
    return query, lake


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_run_over_text_is_recomputed(
    spark: SparkSession, secret: Secret, tmp_path: Path, make: Callable[[Path], dict[str, object]]
) -> None:
    """Catches: a second reader of text that disagrees; "identical" over nothing; names with brackets taken for patterns."""
    query, lake = caught_up(spark, secret, tmp_path, make)
    run = read_run(lake, "d")
    found = verify_run(lake, "d", run, query, secret, as_parquet=TypedRows(spark))
    assert found.identical and found.published == (2 if make is foldered_csv else 3), found
    assert (found.not_read, found.not_admitted) == (0, 0)
    with pytest.raises(LakeError, match="Spark reads files of"):
        verify_run(lake, "d", run, query, secret)
    # what a run has read is changed: the records are others
    one = replace(query.source, options=(*query.source.options, ("nullValue", "c d")))
    if make is quoted_csv:
        other = replace(query, sources={"d": one})
        assert not verify_run(lake, "d", run, other, secret, as_parquet=TypedRows(spark)).identical


def test_what_spark_has_read_is_not_left_behind(spark: SparkSession, tmp_path: Path) -> None:
    """Catches: a copy of the records that others may read, or that grows with the run."""
    (tmp_path / "in").mkdir()
    block = {
        "path": str(tmp_path / "in"),
        "schema": SCHEMA,
        "event_time": "ts",
        "privacy_unit": "u",
    }
    source = dpsql.load_sources({"d": block | quoted_csv(tmp_path / "in")})["d"]
    typed = TypedRows(spark)
    first = typed(source, [tmp_path / "in" / "a.csv.gz"])
    folder = first[0].parent.parent
    assert folder.stat().st_mode & 0o077 == 0
    assert typed(source, []) == [] and not folder.exists()


def test_verify_of_text_without_java_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a traceback on a machine that has no Java; Spark that starts for Parquet."""
    block = {"path": "in", "schema": SCHEMA, "event_time": "ts", "privacy_unit": "u"}
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    text, typed = (
        dpsql.compile(SQL.format("k"), dpsql.load_sources({"d": block | {"format": form}}))
        for form in ("csv", "parquet")
    )
    with pytest.raises(
        ConfigError, match=r"verify of a run over CSV lets Spark read its files.*install a JRE 17"
    ):
        spark_reader(text)
    assert spark_reader(typed) is None
