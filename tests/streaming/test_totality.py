"""No value of a record makes an accepted expression fail on Spark, and no record makes rows without end."""

import dataclasses
import gzip
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import dpsql
from dpsql.errors import ConfigError, DataError
from dpsql.sources.config import Source, Sources
from dpsql.sql.allowed import FUNCTIONS
from dpsql.streaming import formats
from dpsql.streaming import totality as guards
from dpsql.streaming.rows import analysed
from dpsql.streaming.session import run_session
from dpsql.streaming.sources import static, stream
from dpsql.streaming.totality import guarded
from tests import totality
from tests.streaming.conftest import DAY, START
from tests.sweeps import sweep

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Quicker for many expressions over few rows. What Spark generates code for is tried on the expressions of CRITICAL."""

OPTIONS = "epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = INTERVAL 12 HOURS"


def as_it_is(session: SparkSession, frame: DataFrame) -> DataFrame:
    return frame


@pytest.fixture(scope="module")
def compiled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    session = run_session(spark, 1)
    totality.views(session, totality.write(tmp_path_factory.mktemp("extremes")))
    return session


@pytest.fixture(scope="module")
def interpreted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    session = run_session(spark, 1)
    for key, value in INTERPRETED.items():
        session.conf.set(key, value)
    totality.views(session, totality.write(tmp_path_factory.mktemp("extremes")))
    return session


def some(expressions: list[str], number: int, of_each: Callable[[str], str]) -> list[str]:
    """A fixed sample with at least one of each kind."""
    rng = random.Random(11)
    shuffled = sorted(expressions, key=lambda _: rng.random())
    first = {of_each(expression): expression for expression in reversed(shuffled)}
    return [*first.values(), *shuffled[: max(0, number - len(first))]]


def called(expression: str) -> str:
    """The function that is called; of casts and operators the form without its columns."""
    name = expression.split("(", maxsplit=1)[0]
    return (
        name
        if name in FUNCTIONS
        else re.sub(rf"\b({'|'.join(totality.VALUES)})2?\b", "x", expression)
    )


def test_there_are_forty_values_of_every_type_and_calls_of_every_function() -> None:
    few = {name for name, (_, values) in totality.VALUES.items() if len(values) < 40}
    assert few == {"b"}  # a BOOLEAN has two values
    every = {
        *totality.of_one_argument(),
        *totality.of_two_arguments(),
        *totality.of_more_arguments(each=1),
    }
    without_columns = {
        name
        for name, signature in FUNCTIONS.items()
        if signature.max_arguments == len(signature.constant)
    }
    assert set(FUNCTIONS) - without_columns <= {called(expression) for expression in every}


def test_every_critical_expression_is_accepted() -> None:
    schema = "user_id STRING, s STRING, i INT, l BIGINT, ts TIMESTAMP"
    source = Source(
        "visits", "parquet", "/nowhere", schema=schema, event_time="ts", privacy_unit=("user_id",)
    )
    for expression in totality.CRITICAL:
        key = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({OPTIONS}) CAST({expression} AS STRING) AS k, COUNT(*) AS n"
        dpsql.compile(f"{key} FROM visits GROUP BY window(ts, '1 day'), k", Sources((source,)))


def test_the_critical_expressions_end_a_job_without_guards_only(
    compiled: SparkSession, interpreted: SparkSession
) -> None:
    critical = list(totality.CRITICAL)
    for session in (compiled, interpreted):
        assert totality.failures(session, critical, "one", guarded) == []
        assert totality.failures(session, critical, "one", as_it_is, at_once=1) == critical


def test_functions_casts_and_operators_of_one_argument(interpreted: SparkSession) -> None:
    """At least one call of each; `benchmarks/totality.py` tries all."""
    columns = ("s", "l", "d", "ts", "day", "days")
    chosen = totality.accepted(
        interpreted, some(totality.of_one_argument(columns), sweep(150, 300), called), "one"
    )
    assert len(chosen) > sweep(70, 120)
    assert totality.failures(interpreted, chosen, "one", guarded) == []


def test_functions_and_operators_of_two_arguments(interpreted: SparkSession) -> None:
    """Over a tenth of all pairs of values."""
    interpreted.sql(
        "SELECT * FROM two WHERE pmod(xxhash64(s, s2), 10) = 0"
    ).createOrReplaceTempView("tenth")
    chosen = totality.accepted(
        interpreted,
        some(totality.of_two_arguments(("s", "i", "day", "ts")), sweep(60, 110), called),
        "tenth",
    )
    assert len(chosen) > sweep(20, 40)
    assert totality.failures(interpreted, chosen, "tenth", guarded) == []


@pytest.mark.parametrize("guard", ["_tried", "_within_years"])
def test_without_either_guard_the_fuzz_finds_something(
    interpreted: SparkSession, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    monkeypatch.setattr(guards._Guards, guard, lambda self, node, *name: node)
    cases = [
        "regexp_replace(s, 'b+', '$x')", "array_max(CAST(days AS ARRAY<TIMESTAMP>))", "to_date(s)", "CAST(l AS TIMESTAMP)",
        "date_add(day, i)",
    ]  # fmt: skip
    assert totality.failures(interpreted, cases, "one", guarded, at_once=1)


def test_a_guarded_expression_is_computed_once(compiled: SparkSession) -> None:
    """The plan of nested dates grows with their depth, not with its power."""

    def size(depth: int) -> int:
        text = "to_date(s)"
        for _ in range(depth):
            text = f"date_add({text}, i)"
        return len(
            guarded(compiled, compiled.sql(f"SELECT {text} AS c FROM one"))
            ._jdf.queryExecution()
            .optimizedPlan()
            .toString()
        )

    assert size(12) - size(8) < 1.5 * (size(8) - size(4))


def test_null_from_a_guard_is_seen_above(compiled: SparkSession) -> None:
    """A column that Spark took for never NULL has become one that may be."""
    inner = "SELECT coalesce(to_date(s), DATE '+300000-01-01') AS d FROM one"
    rows = guarded(
        compiled, compiled.sql(f"SELECT year(d) AS y, d IS NULL AS n FROM ({inner}) AS q")
    ).collect()
    assert all(row.n == (row.y is None) for row in rows)
    assert {row.n for row in rows} == {True, False}


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|b)*"])
def test_patterns_without_end_are_refused_by_their_real_text(
    compiled: SparkSession, pattern: str
) -> None:
    with pytest.raises(DataError, match="exponential time"):
        guarded(compiled, compiled.sql(f"SELECT regexp_extract(s, '{pattern}', 0) FROM one"))


def test_broken_patterns_are_refused_before_any_record(compiled: SparkSession) -> None:
    with pytest.raises(DataError, match="is not a regular expression"):
        guarded(compiled, compiled.sql("SELECT CASE WHEN s = 'a' THEN s RLIKE '[' END FROM one"))


def test_long_texts_are_searched_at_their_beginning(compiled: SparkSession) -> None:
    texts = "(SELECT concat(repeat('x', n), 'ab') AS s FROM VALUES (9998), (9999) AS v(n)) AS q"
    listed = (
        "s RLIKE 'a.*b' AS r, s LIKE '%a%b%' AS t, s RLIKE 'ab' AS plain, s LIKE '%ab%' AS common"
    )
    compiled.sql(f"SELECT s FROM {texts}").createOrReplaceTempView("long")
    rows = guarded(compiled, compiled.sql(f"SELECT {listed} FROM long")).collect()
    assert sorted(tuple(row) for row in rows) == [
        (False, False, True, True),
        (True, True, True, True),
    ]


def test_lines_of_too_many_columns_end_no_read_and_are_counted(
    compiled: SparkSession, tmp_path: Path
) -> None:
    """As on the local engine: at most 1,048,573 bytes, their end included."""
    longest = (1 << 20) - 3
    lines = [
        "a,1\n",
        "," * 1_048_581 + "\n",
        "b," + "2" * (longest - 3) + "\n",
        "x," + "2" * (longest - 2) + "\r\n",
        "c,3",
    ]
    (tmp_path / "a b%.csv").write_text("".join(lines))
    (tmp_path / "small.csv").write_text("d,4\n")
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(b"e,5\n" + b"," * longest + b"\n"))
    source = Source(
        "v", "csv", str(tmp_path), schema="k STRING, s STRING", event_time="s", privacy_unit=("k",)
    )
    query = (
        stream(compiled, source)
        .writeStream.format("memory")
        .queryName("lines")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(row.k for row in compiled.table("lines").collect()) == ["a", "b", "c", "d", "e"]
    uris = [path.as_uri() for path in sorted(tmp_path.iterdir())]
    assert formats.count(compiled, source, uris) == 3
    assert formats.count(compiled, source, [uri for uri in uris if "small" in uri]) == 0
    assert (
        formats.COUNTED <= 4 * formats.LONGEST_LINE + 8
    )  # one line of 128 MiB ended a job with 1 GiB of memory
    assert formats.count(compiled, dataclasses.replace(source, format="json"), uris) == 0
    assert formats.count(compiled, source, [*uris, f"{uris[0]}-deleted"]) == 3
    assert formats.count(compiled, source, [f"{uris[0]}-deleted"]) == 0


def test_decimals_in_text_are_refused(compiled: SparkSession, tmp_path: Path) -> None:
    source = Source("v", "json", str(tmp_path), schema="k STRING, s STRUCT<x: DECIMAL(10, 2)>")
    with pytest.raises(ConfigError, match="declare the column as STRING"):
        stream(compiled, source)


def test_patterns_of_a_high_degree_are_refused(compiled: SparkSession) -> None:
    for expression in (
        "s RLIKE '^.*a.*b.*c.*d'",
        "s LIKE '%a%b%c%d'",
        r"s LIKE r'\%a\%b\%c\%d' ESCAPE '!'",
        "regexp_extract(s, '(a*a*a*a*)b', 1)",
    ):
        with pytest.raises(DataError, match="hours on one text"):
            guarded(compiled, compiled.sql(f"SELECT {expression} AS c FROM one"))


def test_a_record_that_makes_too_many_rows_is_left_out(compiled: SparkSession) -> None:
    compiled.sql(
        "SELECT i, sequence(1, n) AS a, repeat(',', n - 1) AS s FROM VALUES (10000, 1), (10001, 2), (2, 3) AS v(n, i)"
    ).createOrReplaceTempView("v")
    asked = {
        "SELECT i, e FROM v LATERAL VIEW explode(a) t AS e": 10_002,
        "SELECT i, e FROM v LATERAL VIEW explode(split(s, ',')) t AS e": 10_002,
        "SELECT i, e FROM (SELECT i, explode(a) AS e FROM v) AS q": 10_002,
        "SELECT i FROM v LATERAL VIEW explode(a) t AS e LATERAL VIEW explode(a) u AS f": 4,
    }
    assert {text: guarded(compiled, compiled.sql(text)).count() for text in asked} == asked


def test_conditions_have_a_value(compiled: SparkSession) -> None:
    """In WHERE and ON, too: what fails is no match."""
    compiled.sql(
        "SELECT s, ts FROM VALUES ('2024-01-01', TIMESTAMP '2024-01-02'), ('+300000-01-01', NULL) AS v(s, ts)"
    ).createOrReplaceTempView("far")
    compiled.sql("SELECT TIMESTAMP '2024-01-02' AS t").createOrReplaceTempView("table")
    for text in (
        "SELECT s FROM far WHERE to_date(s) < TIMESTAMP '2024-01-02'",
        "SELECT s FROM far JOIN table ON to_date(s) < t",
        "SELECT s FROM far LEFT SEMI JOIN table ON hour(date(s)) < hour(t) + 1",
        "SELECT s FROM far WHERE coalesce(to_date(s), t2) < TIMESTAMP '2024-01-02'".replace(
            "t2", "ts"
        ),
    ):
        assert [row.s for row in guarded(compiled, compiled.sql(text)).collect()] == [
            "2024-01-01"
        ], text


def test_dates_out_of_an_array_are_within_the_years(compiled: SparkSession) -> None:
    cases = ["date_add(e, 1)", "hour(e)", "e"]
    compiled.sql(
        "SELECT array(date_from_unix_date(2147483647), date_from_unix_date(0)) AS a"
    ).createOrReplaceTempView("far")
    frame = guarded(
        compiled,
        compiled.sql(
            f"SELECT {', '.join(f'{c} AS c{i}' for i, c in enumerate(cases))} FROM far LATERAL VIEW explode(a) t AS e"
        ),
    )
    values = [
        tuple(row) for row in frame.selectExpr("unix_date(c0)", "c1", "unix_date(c2)").collect()
    ]
    assert values == [(None, None, None), (1, 0, 0)]


def test_huge_exponents_are_no_decimals(compiled: SparkSession) -> None:
    """Java would write out the digits of these: minutes for each, or all memory."""
    texts = [
        "1e-300000000",
        "1E300000000",
        "-1e-00600000000",
        "0.5e+2000000",
        "12.345",
        " 1e2",
        "-1e-999",
        "x",
        "9" * 2_000_000,
    ]
    compiled.createDataFrame(
        [(i, text) for i, text in enumerate(texts)], "i INT, s STRING"
    ).createOrReplaceTempView("huge")
    for cast in ("CAST(s AS DECIMAL(10, 2))", "TRY_CAST(s AS DECIMAL(10, 2))", "decimal(s)"):
        rows = guarded(
            compiled, compiled.sql(f"SELECT i, CAST({cast} AS DOUBLE) AS c FROM huge")
        ).collect()
        numbers = [value for _, value in sorted(rows)]
        plain = [12.0, 100.0, 0.0] if cast == "decimal(s)" else [12.35, 100.0, 0.0]
        assert numbers == [None] * 4 + plain + [None] * 2, cast
    for inside in (
        "CAST(split(s, ',') AS ARRAY<DECIMAL(10, 2)>)",
        "from_json(s, 'x DECIMAL(10, 2)')",
    ):
        with pytest.raises(DataError, match="can take hours on one record"):
            guarded(compiled, compiled.sql(f"SELECT {inside} AS c FROM huge"))


def test_no_time_is_read_by_the_wall_clock(compiled: SparkSession) -> None:
    """A time without a date would be today's, so a micro-batch that is repeated tomorrow would have other records."""
    compiled.sql(
        "SELECT * FROM VALUES ('12:00'), ('T12:00'), (' 1:2:3'), ('today'), ('2024-02-29 12:00:00') AS v(s)"
    ).createOrReplaceTempView("clock")
    casts = (
        "CAST(s AS TIMESTAMP)", "timestamp(s)", "to_timestamp(s)", "try_to_timestamp(s)", "date_trunc('HOUR', s)",
        "TRY_CAST(s AS TIMESTAMP)",
    )  # fmt: skip
    for cast in casts:
        rows = guarded(
            compiled, compiled.sql(f"SELECT CAST({cast} AS STRING) AS c FROM clock")
        ).collect()
        assert [row.c for row in rows] == [None] * 4 + ["2024-02-29 12:00:00"], cast
    for literal in (
        "to_timestamp('12:00')",
        "to_date('today')",
        "timestamp('n' || 'ow')",
        "hour('12:00')",
        "date(' Tomorrow')",
    ):
        with pytest.raises(DataError, match="by the wall clock"):
            guarded(compiled, compiled.sql(f"SELECT {literal} AS c FROM clock"))
    for inside in ("CAST(split(s, ',') AS ARRAY<TIMESTAMP>)", "from_json(s, 't TIMESTAMP')"):
        with pytest.raises(
            DataError, match="takes today's date where it has none: read it as STRING there"
        ):
            guarded(compiled, compiled.sql(f"SELECT {inside} AS c FROM clock"))
    guarded(
        compiled, compiled.sql("SELECT from_json(s, 't TIMESTAMP_NTZ, d DATE') AS c FROM clock")
    )


TEXTS = {
    "2024-02-29 12:00:00": "2024-02-29 12:00:00",
    "2024-2-9T1:2:3+01:00": "2024-02-09 00:02:03",
    "2024": "2024-01-01 00:00:00",
}
UNDATED = ("12:00", "T12:00", " 1:2:3", "now", "x")


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_time_without_a_date_is_a_malformed_line(
    compiled: SparkSession, tmp_path: Path, form: str
) -> None:
    given = {"csv": "{},{}", "json": '{{"k": "{1}", "t": "{0}"}}'}[form]
    numbers = (
        []
        if form == "csv"
        else ['{"k": "n", "t": 1709208000}', '{"k": "four", "t": 2024}', '{"k": "half", "t": 1.5}']
    )
    # The microseconds of the first are a 64-bit number, those of the others are not: they would wrap around, the third into 2024.
    seconds = () if form == "csv" else (9223372036854, 9223372036855, 18448453281709)
    numbers += [f'{{"k": "{n}", "t": {n}}}' for n in seconds]
    empty = {"csv": ",null", "json": '{"k": "null", "t": null}'}[form]
    (tmp_path / f"a.{form}").write_text(
        "\n".join([*(given.format(text, text) for text in (*TEXTS, *UNDATED)), *numbers, empty])
    )
    columns = {"csv": "t TIMESTAMP, k STRING", "json": "k STRING, t TIMESTAMP"}[form]
    source = Source("v", form, str(tmp_path), schema=columns, event_time="t", privacy_unit=("k",))
    query = (
        stream(compiled, source)
        .writeStream.format("memory")
        .queryName(f"times_{form}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    read = {
        row.k: row.t
        for row in compiled.table(f"times_{form}")
        .selectExpr("k", "CAST(t AS STRING) AS t")
        .collect()
    }
    of_numbers = (
        {
            "n": "2024-02-29 12:00:00",
            "four": "1970-01-01 00:33:44",
            "9223372036854": "+294247-01-10 04:00:54",
        }
        if numbers
        else {}
    )
    assert read == {**TEXTS, **of_numbers, "null": None}
    malformed = sum(
        (
            row.malformed
            for report in query.recentProgress
            for row in report.observedMetrics.values()
        ),
        0,
    )
    assert malformed == len(UNDATED) + 3 * (form == "json")
    table = dataclasses.replace(source, static=True)
    assert {
        row.k for row in static(compiled, table).where("t IS NOT NULL").collect()
    } == read.keys() - {"null", "9223372036854"}


def test_times_inside_of_text_are_refused_and_formats_are_the_readers_own(
    compiled: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("09:30,a\n")
    inside = Source("v", "json", str(tmp_path), schema="k STRING, s STRUCT<t: TIMESTAMP>")
    with pytest.raises(
        ConfigError, match=r"column s has a TIMESTAMP inside .*declare it as STRING there"
    ):
        stream(compiled, inside)
    options = (("timestampFormat", "HH:mm"),)
    own = Source("v", "csv", str(tmp_path), schema="t TIMESTAMP, k STRING", options=options)
    query = (
        stream(compiled, own)
        .writeStream.format("memory")
        .queryName("own_format")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [
        row.t for row in compiled.sql("SELECT CAST(t AS STRING) AS t FROM own_format").collect()
    ] == ["1970-01-01 09:30:00"]


def test_types_that_do_not_fit_are_told_in_words(compiled: SparkSession) -> None:
    """Spark says so by an internal error, with its traceback."""
    for expression in ("to_timestamp(CAST(i AS TINYINT), 'yyyy')", "to_timestamp(d, 'yyyy')"):
        with pytest.raises(DataError, match=r"^the query does not fit: Spark cannot resolve it"):
            analysed(
                lambda text=expression: compiled.sql(f"SELECT {text} AS c FROM one"),
                "the query does not fit",
            )


FAR = {"signup": "+300000-01-01", "tags": "a,b"}
MANY = {"signup": "2023-01-10", "tags": "," * 20_000}
COHORTS = f"""
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({OPTIONS})
  date_format(to_date(signup), 'yyyy-MM') AS cohort, tag, COUNT(*) AS visits
FROM (SELECT user_id, ts, signup, explode(split(tags, ',')) AS tag FROM visits) AS tagged
GROUP BY window(ts, '1 day'), cohort, tag
"""


def test_one_record_does_not_end_a_run(case: Any, write: Any, visits: Any) -> None:
    """The query of cohorts: with u's records of the year 300000 and of 20,000 tags the histogram is the one without u, bit for bit."""
    table = visits(days=1)
    users = table.num_rows
    table = table.append_column(
        "signup", pa.array([f"2023-{1 + i % 2:02d}-10" for i in range(users)])
    )
    table = table.append_column("tags", pa.array(["a,b"] * users))
    last = table.slice(users - 1).to_pylist()[0]
    more = pa.Table.from_pylist(
        [{**last, "user_id": "u", **record} for record in (FAR, MANY)], table.schema
    )
    published = []
    dropped = []
    for folder, given in (("with_u", pa.concat_tables([table, more])), ("without_u", table)):
        write(given, folder=folder)
        one = case(COHORTS, folder=folder)
        dropped.append(one.go(START + 3 * DAY).dropped.get(guards.TOO_MANY_ROWS))
        published.append(one.histogram())
    assert {(row["cohort"], row["tag"]) for row in published[0]} == {
        (f"2023-{month}", tag) for month in ("01", "02") for tag in "ab"
    }
    assert published[0] == published[1]
    assert dropped == [1, None]
