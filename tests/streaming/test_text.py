"""Text on Spark: JSON is parsed a line at a time, once, and what is malformed does not depend on the query."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from dpsql.lake.runs import read_run
from dpsql.local.verification import verify_run
from dpsql.sources import reader_options
from dpsql.sources.config import Source
from dpsql.streaming import formats, sources
from dpsql.streaming.session import run_session
from dpsql.streaming.sources import MALFORMED, static, stream, without_malformed
from dpsql.streaming.typed_rows import TypedRows
from tests.streaming.conftest import DAY, START, run_file

SCHEMA = "user_id STRING, ts TIMESTAMP, page STRING, seconds DOUBLE"
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1)
  page, {} FROM visits GROUP BY window(ts, '1 day'), page
"""
COUNTS = "COUNT(*) AS views"
SUMS = "SUM(seconds, contribution_bounds_per_row => (0, 60)) AS total"


def line(user: int, seconds: Any = 1.5) -> str:
    ts = "2023-12-09T12:00:00Z"
    return json.dumps({"user_id": f"u{user}", "ts": ts, "page": "p", "seconds": seconds})


def read(session: SparkSession, source: Source) -> tuple[list[dict[str, Any]], int, str]:
    """Rows of a stream, how many lines were malformed, and the plan that Spark has executed."""
    query = (
        stream(session, source)
        .writeStream.format("memory")
        .queryName("text")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = [row.asDict() for row in session.table("text").collect()]
    counted = [report.observedMetrics.get(MALFORMED) for report in query.recentProgress]
    malformed = sum(metric["malformed"] for metric in counted if metric)
    return rows, malformed, query._jsq.explainInternal(False)


@pytest.mark.parametrize(("selected", "form"), [(COUNTS, "json"), (SUMS, "json"), (COUNTS, "csv")])
def test_a_bad_field_is_malformed_in_every_query(
    case: Any, tmp_path: Path, selected: str, form: str, spark: SparkSession
) -> None:
    """Catches: a reader that looks only at the columns of a query, so that two queries have other records, and `verify` differs."""
    (tmp_path / "visits").mkdir()
    lines = [line(user, "12s" if user % 2 else 1.5) for user in range(600)]
    if form == "csv":
        lines = [",".join(map(str, json.loads(text).values())) for text in lines]
    (tmp_path / "visits/a").write_text("\n".join(lines))
    one = case(SQL.format(selected), format=form, schema=SCHEMA)
    summary = one.go(START + 2 * DAY)
    assert (summary.records, summary.dropped) == (600, {"malformed": 300})
    run_file(one)
    found = verify_run(
        one.lake,
        "demo",
        read_run(one.lake, "demo"),
        one.query,
        one.secret,
        as_parquet=TypedRows(spark),
    )
    assert found.identical and found.published == 2


FILES: dict[str, bytes] = {
    "mark.json": b"\xef\xbb\xbf" + line(1).encode() + b"\n",
    "blanks.json": b" \n\t\r\n\x1f\n\r" + line(2).encode(),
    "ends.json": b"\r".join([line(3).encode(), line(4).encode()]),
    "packed.json.gz": gzip.compress(line(5).encode()),
    "array.json": f"[{line(90)}, {line(91)}, null]\n{line(6)}".encode(),
    "half.json": line(7).encode()[:-1] + rb', "note": "\ud83d"}' + b"\n" + line(8).encode(),
    "latin.json": line(9).encode().replace(b'"p"', b'"caf\xe9"'),
    "open.json": b'{"user_id": "\n' + line(10).encode(),
}


def test_files_of_json_as_programs_write_them(spark: SparkSession, tmp_path: Path) -> None:
    """Catches: a record that takes others along, a byte order mark that takes one, partition columns that vanish or have a type of Spark's."""
    for name, content in FILES.items():
        (tmp_path / "day=01").mkdir(exist_ok=True)
        (tmp_path / "day=01" / name).write_bytes(content)
    source = Source("visits", "json", str(tmp_path), schema=f"day STRING, {SCHEMA}")
    rows, malformed, plan = read(run_session(spark, 1), source)
    assert sorted(row["user_id"] for row in rows) == sorted(f"u{user}" for user in range(1, 11))
    assert {row["day"] for row in rows} == {"01"} and malformed == 2
    assert {row["page"] for row in rows} == {"p", "caf\ufffd"}
    assert plan.count("from_json") == 1


def test_a_line_without_end_is_left_out(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a line that fills the memory, and one that takes the next along."""
    monkeypatch.setattr(sources, "JSON_LIMIT", {formats.LIMIT: "200"})
    (tmp_path / "a.json").write_text("\n".join([line(1), line(2).ljust(300), line(3)]))
    rows, malformed, _ = read(
        run_session(spark, 1), Source("visits", "json", str(tmp_path), schema=SCHEMA)
    )
    assert [row["user_id"] for row in rows] == ["u1", "u3"] and malformed == 0


def queried(frame: DataFrame) -> str:
    """The plan of a query over it, as Spark executes it."""
    read_columns = frame.where("seconds > 1").selectExpr("user_id", "ts", "seconds * 2 AS twice")
    return str(read_columns._jdf.queryExecution().executedPlan().toString())


def test_a_message_is_parsed_once(spark: SparkSession) -> None:
    """Catches: a filter that Spark pushes below the parser, which then parses every message twice."""
    session = run_session(spark, 1)
    kafka = Source("visits", "kafka", schema=SCHEMA, value_format="json")
    messages = session.createDataFrame([(line(1).encode(),), (b"",), (None,)], "value BINARY")
    frame = without_malformed(formats.parsed(messages, kafka))
    assert queried(frame).count("from_json") == 1
    assert [row.user_id for row in frame.collect()] == ["u1"]


def test_options_of_the_parser_reach_it(spark: SparkSession) -> None:
    """Catches: an option of a topic that nobody reads."""
    session = run_session(spark, 1)
    options = (("allowSingleQuotes", "false"), ("timestampFormat", "yyyy-dd-MM HH:mm"))
    kafka = Source(
        "v", "kafka", schema="k STRING, ts TIMESTAMP", value_format="json", options=options
    )
    messages = session.createDataFrame(
        [('{"k": "a", "ts": "2024-03-01 00:30"}',), ("{'k': 'b'}",)], "value STRING"
    )
    parsed = formats.parsed(messages, kafka).selectExpr("k", "date(ts) AS day", formats.CORRUPT)
    good, bad = parsed.collect()
    assert (good.k, str(good.day), good[2]) == ("a", "2024-01-03", None) and bad[2] is not None


VALUES = ("true", "false", "1", "x", "UTF-8")
OF_FILES = {"maxfilespertrigger", "pathglobfilter", "recursivefilelookup"}


def test_every_option_of_spark_is_kept_or_refused(spark: SparkSession) -> None:
    """By the lists in Spark and Delta. Catches: an option that is kept and that no reader has; one that is passed over without a word."""
    java = spark._jvm.org.apache.spark.sql
    lists = {
        "csv": java.catalyst.csv.CSVOptions.getAllOptions(),
        "json": java.catalyst.json.JSONOptions.getAllOptions(),
        "parquet": java.execution.datasources.parquet.ParquetOptions.getAllOptions(),
        "orc": java.execution.datasources.orc.OrcOptions.getAllOptions(),
        "text": java.execution.datasources.text.TextOptions.getAllOptions(),
        "delta": java.delta.DeltaOptions.validOptionKeys(),
    }
    for form, names in lists.items():
        known = {name.lower() for name in names.mkString(" ").split()}
        source = Source("v", form, "v", schema=SCHEMA)
        kept = {name.lower() for name in reader_options._names(source)} - OF_FILES
        assert kept - known <= {"skipchangecommits"}, form
        for name in known:
            problems = [
                reader_options.refused_option(replace(source, options=((name, value),)))
                for value in VALUES
            ]
            assert name in kept | OF_FILES or all(
                problem is None or f"`{name}`" in problem for problem in problems
            )
            harmless = [
                value for value, problem in zip(VALUES, problems, strict=True) if problem is None
            ]
            assert name in kept | OF_FILES or harmless in ([], ["true"], ["false"]), (form, name)


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("json", ['{"page": "a", "n": 1}', '{"page": "b", "n": "x"}', "[]", '{"page": "c"}']),
        ("csv", ["a,1", "b,x", "b", '"c",']),
    ],
)
def test_static_tables_leave_malformed_lines_out(
    spark: SparkSession, tmp_path: Path, kind: str, lines: list[str]
) -> None:
    """Catches: rows of NULLs that joins and public groups would have, without Spark and with it not alike."""
    session = run_session(spark, 1)
    (tmp_path / f"a.{kind}").write_text("\n".join(lines))
    table = Source("pages", kind, str(tmp_path), schema="page STRING, n INT", static=True)
    frame = static(session, table)
    assert sorted((row.page, row.n) for row in frame.collect()) == [("a", 1), ("c", None)]
    frame.unpersist()
