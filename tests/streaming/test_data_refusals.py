"""What Spark alone sees of a query and its sources is refused before a run is bound or costs anything."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.errors import DpsqlError, InputError
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret, default_secret_path
from dpsql.streaming import formats, internals
from tests.local.test_data_refusals import (
    DELTA,
    LISTED,
    ONE_FILE,
    PAGES,
    SCHEMA,
    SQL,
    STAMPS,
    SUMS,
    TOPIC,
    UNKNOWN,
    VALUES,
    WINDOWS,
    Case,
    both,
    ledger,
    parquet,
    text,
)
from tests.raising import Made, places_in

DOOR = ("dpsql.start",)
VIEW = "zq_view"
CATALOG = {"format": "table", "path": None, "schema": None}
AVRO = {**TOPIC, "value_format": "avro", "value_schema": "v.avsc"}
LONG = '{"type": "record", "name": "v", "fields": [{"name": "user_id", "type": "long"}]}'
XML_PAGES = {"pages": {**PAGES["pages"], "format": "xml", "options": {"rowTag": "p"}, "path": "no"}}
NANOS = pa.array([1], pa.timestamp("ns"))
MICROS = pa.array([1], pa.timestamp("us"))


def key(expression: str) -> str:
    return SQL.replace("1) page", f"1) {expression} AS k").replace("BY page", "BY k")


def empty(folder: Path) -> None:
    (folder / "visits").mkdir()


def times(folder: Path) -> None:
    """A public table of two files with times in two units."""
    (folder / "pages").mkdir()
    for name, column in (("a", NANOS), ("b", MICROS)):
        pq.write_table(pa.table({"page": ["zqvalue"], "ts": column}), folder / f"pages/{name}")


CASES = (
    # Places.
    Case("streaming/sources.py _located", "has no table nothing_there", DOOR, source={**CATALOG, "table": "nothing_there"}),
    Case("streaming/sources.py _located #2", "table nowhere.shop.visits:", DOOR, source={**CATALOG, "table": "nowhere.shop.visits"}),
    Case("streaming/sources.py _located #3", "has no files of its own", DOOR, source={**CATALOG, "table": VIEW}),
    Case("streaming/sources.py existing_path", "does not exist", DOOR, source={"path": "other"}),
    Case("streaming/sources.py existing_path #2", "cannot be read", DOOR, source={"path": "s3a://bucket/visits"}),
    Case("streaming/sources.py _files", "no files in", DOOR, empty),
    Case("streaming/sources.py _load", "does not exist", DOOR, tables=XML_PAGES, sql=LISTED),
    Case("streaming/sources.py _load #2", "no parquet files in", DOOR, empty, UNKNOWN),
    Case("streaming/sources.py _load #3", "source 'visits': ", DOOR, source=DELTA),
    Case("streaming/sources.py _load #4", "source 'visits': ", DOOR, text("visits/_delta_log/00000000000000000000.json", "zqvalue"), DELTA),
    Case("streaming/file_columns.py check_files", "below a pattern", DOOR, parquet("visits/day=1/a.parquet"), {"path": "vis*"}),
    # Types.
    Case("streaming/file_columns.py check_first_types", "has type", DOOR, parquet(seconds=["zqvalue"])),
    Case("streaming/event_times.py _value", "seconds", DOOR, source={**UNKNOWN, **STAMPS}, sql=WINDOWS),
    Case("streaming/footers.py check_units", "write both in one unit", DOOR, both(ONE_FILE, times),
        tables={"pages": {"format": "parquet", "path": "pages", "static": True}}, sql=LISTED),
    Case("streaming/formats.py declared", "TIMESTAMP inside", DOOR, text("visits/a.json", "{}"),
        {"format": "json", "schema": f"{SCHEMA}, inner STRUCT<t: TIMESTAMP>"}),
    Case("streaming/formats.py _avro", "refuses the Avro schema", DOOR, text("v.avsc", LONG.replace("long", "nothing")), AVRO),
    Case("streaming/formats.py _avro #2", "it is BIGINT", DOOR, text("v.avsc", LONG), AVRO),
    Case("streaming/rows.py _text", "cannot be a key", DOOR, source=UNKNOWN, sql=SQL.replace("page", "seconds")),
    Case("streaming/rows.py _number", "cannot be added up", DOOR, source=UNKNOWN, sql=SUMS.replace("seconds", "ts")),
    Case("streaming/rows.py _microseconds", "ts", DOOR, parquet(ts=["zqvalue"]), UNKNOWN, sql=WINDOWS),
    # The query.
    Case("streaming/rows.py analysed #2", "other", DOOR, source=UNKNOWN, sql=SQL.replace("page", "other")),
    Case("streaming/rows.py analysed #3", "Spark cannot resolve it", DOOR, source=UNKNOWN, sql=key("to_timestamp(seconds, 'yyyy')")),
    Case("streaming/totality.py _check", "not a regular expression", DOOR, source=UNKNOWN, sql=key("regexp_extract(page, '(?P<a>b)', 0)")),
    Case("streaming/totality.py _whole_texts", "by the wall clock", DOOR, source=UNKNOWN, sql=key("to_timestamp(concat('12', ':00'))")),
    Case("streaming/totality.py _whole_texts #2", "read it as STRING there", DOOR, source=UNKNOWN,
        sql=key("CAST(from_json(page, 't TIMESTAMP').t AS DATE)")),
)  # fmt: skip
OTHERS = {
    "streaming/sources.py resumed": "a restored run has its line",
    "streaming/sources.py _stream": "declarations are checked when they are loaded, and by compile",
    "streaming/sources.py _digest": "a file that was looked at is gone a moment later",
    "streaming/rows.py analysed": "compile refuses what Spark cannot read",
    "streaming/rows.py _sequence": "the places of images that Spark and connectors write are numbers",
    "streaming/formats.py limit_avro #2": "a cluster whose executors were not told: tests/long starts some",
    "streaming/file_columns.py check_types": "a file after the first, which is looked at with its micro-batch",
    "streaming/totality.py plan": "compile takes sub-queries and joins only",
    "streaming/totality.py _short": "compile refuses the same pattern",
    "streaming/totality.py _growth": "compile knows the types of what grows",
}
"""Places that no start of a new run reaches, and why."""

MODULES = ("sources", "rows", "formats", "file_columns", "footers", "event_times", "totality")


AVRO_CASE = Case(
    "streaming/formats.py limit_avro", "has read Avro before", DOOR, text("v.avsc", LONG), AVRO
)


@pytest.fixture(scope="module")
def view(spark: SparkSession) -> Iterator[None]:
    spark.sql("SELECT 'zqvalue' AS user_id, 'zqvalue' AS page").createOrReplaceTempView(VIEW)
    yield
    spark.catalog.dropTempView(VIEW)


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """Somebody who answers, as a broker would."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.place)
def test_refusals_of_spark_cost_nothing(
    spark: SparkSession,
    view: None,
    broker: str,
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches: a line, or a run, for what is refused, a value of a record in a message, tables that stay in memory."""
    kept_before = kept_in_memory(spark)
    refused_by(spark, case, broker, tmp_path, monkeypatch)
    assert kept_in_memory(spark) <= kept_before


def kept_in_memory(spark: SparkSession) -> set[int]:
    """The ids of tables that Spark keeps; other tests may have left some."""
    return set(spark.sparkContext._jsc.getPersistentRDDs())


def refused_by(
    spark: SparkSession, case: Case, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start a run that is refused, and see that nothing is left of it."""
    if "value_format" in case.source:
        options = {**TOPIC["options"], "kafka.bootstrap.servers": broker}
        case = replace(case, source={**case.source, "options": options})
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    case.make(Path("conf"))
    Path("conf/sources.yaml").write_text(json.dumps({"sources": case.declared}))
    path = default_secret_path(os.environ)
    secret = Secret.load(path)
    before = ledger()
    query = dpsql.compile(case.sql, dpsql.load_sources("conf/sources.yaml"))
    made = Made(monkeypatch)
    with pytest.raises(DpsqlError) as refused:
        dpsql.start(
            spark, query, "lake", "visits", secret, Ledger.beside(path), until_caught_up=True
        )
    said = str(refused.value)
    assert case.says in said and isinstance(refused.value, InputError), said
    assert made.place_of(said) == case.place and not any(value in said for value in VALUES), said
    assert ledger() == before and not Path("lake").exists()


def test_texts_of_avro_have_a_limit(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a session in which a message that claims 2 GB ends the JVM."""
    assert not internals.avro_refuses(spark, formats.LONGEST_TEXT)
    assert internals.avro_refuses(spark, formats.LONGEST_TEXT + 1)
    monkeypatch.setattr(internals, "avro_refuses", lambda *_: False)
    refused_by(spark, AVRO_CASE, broker, tmp_path, monkeypatch)


def test_every_refusal_has_a_case() -> None:
    """Catches: a refusal that nobody has met."""
    known = {*(case.place for case in (*CASES, AVRO_CASE)), *OTHERS}
    made = {place for name in MODULES for place in places_in(f"streaming/{name}.py")}
    assert made == known
