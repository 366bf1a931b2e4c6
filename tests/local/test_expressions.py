"""What the translator refuses, and how it reads FROM. (That what it accepts is right: test_same_as_spark.py.)"""

import pytest

from dpsql.errors import DataError, DpsqlError, InputError
from dpsql.local.connection import connect
from dpsql.local.from_clause import LocalTable, read_from
from dpsql.local.spark_types import parse_ddl

COLUMNS = parse_ddl(
    "s STRING, t STRING, i INT, l BIGINT, d DOUBLE, f FLOAT, b BOOLEAN, c DECIMAL(20, 2), day DATE, ts TIMESTAMP, a ARRAY<STRING>",
    "x",
)
TABLES = {
    "v": LocalTable("v", COLUMNS),
    "p": LocalTable("p", parse_ddl("s STRING, topic STRING", "y")),
}

SPARK_ONLY = {
    "parse_url(s, 'HOST')": "`parse_url`",
    "regexp_extract(s, '(a)', 1)": "`regexp_extract`",
    "s RLIKE 'a'": "s RLIKE 'a'",
    "s ILIKE 'a'": "s ILIKE 'a'",
    "s LIKE t": "s LIKE t",
    r"s LIKE 'a\\b'": "s LIKE",
    "s LIKE 'a' ESCAPE '!'": "ESCAPE",
    "try_cast(s AS INT)": "`TRY_CAST",
    "CAST(d AS STRING)": "CAST of DOUBLE to STRING",
    "CAST(i AS TIMESTAMP)": "CAST of INT to TIMESTAMP",
    "CAST(d AS DECIMAL(10, 2))": "CAST of DOUBLE to DECIMAL(10, 2)",
    "CAST(c AS DOUBLE)": "CAST of DECIMAL(20, 2) to DOUBLE",
    "s = i": "= of STRING, INT",
    "f + i": "+ of FLOAT, INT",
    "f = i": "= of FLOAT, INT",
    "s + 1": "+ of STRING, INT",
    "c / 2": "/ of DECIMAL(20, 2), INT",
    "c * c * c": "* of",
    "round(d, 2)": "`round(DOUBLE, INT)`",
    "date_trunc('eon', ts)": "`date_trunc(STRING, TIMESTAMP)`",
    "trunc(day, 'hour')": "`trunc(DATE, STRING)`",
    "substring(s, i, 2)": "`substring(STRING, INT, INT)`",
    "lpad(s, 5, '')": "`lpad(STRING, INT, STRING)`",
    "date_format(ts, 'yyyy')": "`date_format`",
    "a[0]": "a[0]",
    "a = a": "= of NESTED",
    "lower(a)": "`lower(NESTED)`",
    "if(i, 1, 2)": "i as a condition",
    "coalesce(s, 1)": "coalesce of STRING, INT",
    "i & 1": "i & 1",
    "exp(d)": "`exp`",
    "hash(s)": "`hash`",
    "123456789012345678901234567890": "123456789012345678901234567890",
    "1e999": "1e999",
}  # fmt: skip


@pytest.mark.parametrize("expression", SPARK_ONLY)
def test_what_is_not_on_the_list_runs_on_spark_only(expression: str) -> None:
    with pytest.raises(InputError) as caught:
        read_from("FROM v", TABLES).value(expression)
    assert SPARK_ONLY[expression] in str(caught.value)
    assert (
        "runs on Spark only: use `dpsql run --until-caught-up`" in str(caught.value)
        and caught.value.exit_code == 2
    )


@pytest.mark.parametrize(
    ("expression", "said", "instead"),
    [
        ("mod(i, 2)", "a % b", "i % 2"),
        ("EXTRACT(SECOND FROM ts)", "hour(ts), month(ts), ...", "second(ts)"),
        ("s ILIKE 'A%'", "lower(x) LIKE 'pattern'", "lower(s) LIKE 'a%'"),
        ("locate('a', s)", "instr(text, part)", "instr(s, 'a')"),
    ],
)
def test_another_spelling_is_named_where_the_local_engine_has_one(
    expression: str, said: str, instead: str
) -> None:
    scope = read_from("FROM v", TABLES)
    with pytest.raises(InputError) as caught:
        scope.value(expression)
    assert f", or write {said} (docs" in str(caught.value)
    assert scope.value(instead).sql


FROM = {
    "FROM v LATERAL VIEW explode(a) AS x": "LATERAL VIEW",
    "FROM v RIGHT JOIN p ON v.s = p.s": "RIGHT",
    "FROM v FULL OUTER JOIN p ON v.s = p.s": "FULL",
    "FROM v LEFT SEMI JOIN p ON v.s = p.s": "SEMI",
    "FROM v NATURAL JOIN p": "NATURAL",
    "FROM v AS x(a, b)": "column names in a table alias",
}


@pytest.mark.parametrize("text", FROM)
def test_parts_of_from_that_run_on_spark_only(text: str) -> None:
    with pytest.raises(InputError, match="runs on Spark only") as caught:
        read_from(text, TABLES)
    assert FROM[text] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("FROM v", "nowhere", "no column `nowhere`"),
        ("FROM v JOIN p ON v.s = p.s", "s", "column `s` is ambiguous"),
        ("FROM (SELECT *, 1 AS i FROM v) AS q", "i", "column `i` is ambiguous"),
        ("FROM missing", "s", "no input is given for `missing`: add --input missing=FILE"),
    ],
)
def test_names_that_mean_nothing_or_two_things(text: str, column: str, words: str) -> None:
    with pytest.raises(DpsqlError, match=words):
        read_from(text, TABLES).value(column)


def rows(text: str, *expressions: str) -> list[tuple[object, ...]]:
    connection = connect()
    columns = ", ".join(
        f"CAST(NULL AS {'VARCHAR[]' if kind.name == 'other' else kind.duckdb}) AS {name}"
        for name, kind in COLUMNS
    )
    replaced = "SELECT * REPLACE (CASE k WHEN 1 THEN 'A' WHEN 2 THEN 'b' END AS s, CAST(k AS INTEGER) AS i)"
    connection.execute(
        f"CREATE TABLE v AS SELECT * EXCLUDE (k) FROM ({replaced} FROM (SELECT {columns}, k FROM range(1, 4) r(k)))"
    )
    connection.execute(
        "CREATE TABLE p AS SELECT * FROM (VALUES ('A', 'x'), ('A', 'y'), (NULL, 'z')) p(s, topic)"
    )
    scope = read_from(text, TABLES)
    return sorted(
        connection.sql(
            f"SELECT {', '.join(scope.value(e).sql for e in expressions)} {scope.sql}"
        ).fetchall(),
        key=repr,
    )


def test_sub_queries_filters_and_stars() -> None:
    inner = "(SELECT s, i + 1 AS i FROM v WHERE i < 3) AS inner"
    text = (
        f"FROM (SELECT *, lower(s) AS low FROM {inner} WHERE i > 1) AS q WHERE NOT (q.low IS NULL)"
    )
    assert rows(text, "low", "i", "q.s") == [("a", 2, "A"), ("b", 3, "b")]
    assert rows("FROM (SELECT x.* EXCEPT (s) FROM v AS x)", "i") == [(1,), (2,), (3,)]


def test_joins() -> None:
    assert rows("FROM v JOIN p ON v.s = p.s", "topic", "i") == [("x", 1), ("y", 1)]
    assert rows("FROM v LEFT JOIN p USING (s)", "s", "topic") == [
        ("A", "x"),
        ("A", "y"),
        ("b", None),
        (None, None),
    ]
    assert rows("FROM (SELECT * FROM v LEFT JOIN p USING (s)) AS q", "s", "topic")[:2] == [
        ("A", "x"),
        ("A", "y"),
    ]
    assert len(rows("FROM v CROSS JOIN p", "i")) == len(rows("FROM v, p", "i")) == 9
    assert rows("FROM v JOIN p ON v.s <=> p.s", "topic", "i") == [("x", 1), ("y", 1), ("z", 3)]


def test_a_table_name_never_means_a_python_variable() -> None:
    missing = [1]  # noqa: F841
    with pytest.raises(DataError):
        rows("FROM missing", "s")
