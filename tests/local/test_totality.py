"""No value makes an expression fail on the local engine, and none is a time outside the years 1 to 9999."""

from collections.abc import Iterable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.errors import InputError
from dpsql.local import allowed, spark_text
from dpsql.local.connection import connect
from dpsql.local.from_clause import LocalScope, read_from
from dpsql.local.sources import InputReader
from dpsql.sources.config import Source
from tests import totality

PLAIN = ("s", "w", "y", "h", "i", "l", "d", "f", "c", "b", "day", "ts")
OUTSIDE = {
    "date": "{0} NOT BETWEEN DATE '0001-01-01' AND DATE '9999-12-31'",
    "timestamp": "{0} NOT BETWEEN TIMESTAMP '0001-01-01' AND TIMESTAMP '9999-12-31 23:59:59.999999'",
}
SCHEMA = "s STRING, w BINARY, y TINYINT, h SMALLINT, i INT, l BIGINT, d DOUBLE, f FLOAT, c DECIMAL(38, 18), b BOOLEAN, day DATE, ts TIMESTAMP"


class Extremes:
    """The table of extreme values beside itself in DuckDB."""

    def __init__(self, path: Path) -> None:
        self.connection = connect()
        (chunk,) = InputReader(self.connection, Source("one", "parquet", schema=SCHEMA)).files(
            [path]
        )
        second = ", ".join(f"{column} AS {column}2" for column in PLAIN)
        tables = {"one": chunk.table}
        self.scopes = {
            "one": read_from("FROM one", tables),
            "two": read_from(
                f"FROM (SELECT * FROM one) AS a CROSS JOIN (SELECT {second} FROM one) AS z", tables
            ),
        }

    def failures(self, expressions: Iterable[str], view: str) -> tuple[int, list[str]]:
        """How many expressions the engine takes, and those that fail at some row or leave the years 1 to 9999."""
        taken = [text for text in expressions if self._takes(text, self.scopes[view])]
        found = []
        for start in range(0, len(taken), 50):
            found += self._failing(taken[start : start + 50], self.scopes[view])
        return len(taken), found

    def _takes(self, text: str, scope: LocalScope) -> bool:
        try:
            return scope.value(text).type.name != "other"
        except InputError:
            return False

    def _failing(self, some: list[str], scope: LocalScope) -> list[str]:
        if self._passes(some, scope):
            return []
        middle = len(some) // 2
        return (
            some
            if len(some) == 1
            else self._failing(some[:middle], scope) + self._failing(some[middle:], scope)
        )

    def _passes(self, some: list[str], scope: LocalScope) -> bool:
        values = [scope.value(text) for text in some]
        counted = [
            OUTSIDE.get(value.type.name, "{0} IS NULL").format(f"c{i}")
            for i, value in enumerate(values)
        ]
        listed = ", ".join(f"{value.sql} AS c{i}" for i, value in enumerate(values))
        text = f"SELECT {', '.join(f'count(*) FILTER ({test})' for test in counted)} FROM (SELECT {listed} {scope.sql})"
        try:
            found = self.connection.sql(text).fetchall()[0]
        except duckdb.Error:
            return False
        return not any(
            count for count, value in zip(found, values, strict=True) if value.type.name in OUTSIDE
        )


@pytest.fixture(scope="module")
def extremes(tmp_path_factory: pytest.TempPathFactory) -> Extremes:
    return Extremes(totality.write(tmp_path_factory.mktemp("extremes")))


def test_expressions_of_one_argument(extremes: Extremes) -> None:
    taken, failing = extremes.failures(totality.of_one_argument(PLAIN), "one")
    assert taken > 300
    assert failing == []


def test_expressions_of_two_arguments(extremes: Extremes) -> None:
    """Every expression, over every pair of values."""
    taken, failing = extremes.failures(totality.of_two_arguments(PLAIN), "two")
    assert taken > 400
    assert failing == []


def test_the_critical_expressions_of_this_engine(extremes: Extremes) -> None:
    taken, failing = extremes.failures(totality.CRITICAL, "one")
    assert taken >= 3
    assert failing == []


def test_long_texts_are_searched_at_their_beginning(tmp_path: Path) -> None:
    """As on Spark: after three `%` what stands beyond 10,000 characters is not found."""
    path = tmp_path / "long.parquet"
    pq.write_table(pa.table({"s": ["x" * length + "ab" for length in (9_998, 9_999)]}), path)
    connection = connect()
    (chunk,) = InputReader(connection, Source("one", "parquet", schema="s STRING")).files([path])
    scope = read_from("FROM one", {"one": chunk.table})
    listed = ", ".join(scope.value(text).sql for text in ("s LIKE '%a%b%'", "s LIKE '%ab%'"))
    assert sorted(connection.sql(f"SELECT {listed} {scope.sql}").fetchall()) == [
        (False, True),
        (True, True),
    ]


def test_lines_of_csv_that_are_too_long_are_malformed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Spark, wherever a block of the file ends."""
    path = tmp_path / "a.csv"
    longest = (1 << 20) - 3
    path.write_text(
        "a,1\n"
        + "," * 1_048_581
        + "\nb,"
        + "2" * (longest - 3)
        + "\nx,"
        + "2" * (longest - 2)
        + "\r\nc,3"
    )
    for block in (64 << 20, 4 << 20, 2 << 20):
        monkeypatch.setattr("dpsql.local.lines.CHUNK_BYTES", block)
        reader = InputReader(connect(), Source("one", "csv", schema="k STRING, s STRING"))
        assert reader.all_files([path]).malformed == 2
        assert reader._connection.sql('SELECT k FROM "dpsql_in_one_all" ORDER BY k').fetchall() == [
            ("a",),
            ("b",),
            ("c",),
        ]


def test_decimals_in_text_are_refused() -> None:
    with pytest.raises(InputError, match="declare the column as STRING"):
        InputReader(connect(), Source("one", "csv", schema="k STRING, x DECIMAL(10, 2)"))


def test_without_its_guards_the_fuzz_finds_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_text, "LAST_DAY", 1 << 40)
    path = totality.write(tmp_path)
    assert (
        "CAST(s AS DATE)"
        in Extremes(path).failures(["CAST(s AS DATE)", "CAST(s AS TIMESTAMP)", "lower(s)"], "one")[
            1
        ]
    )
    monkeypatch.undo()
    monkeypatch.setitem(
        allowed.CASTS, ("string", "integer"), "CAST(dpsql_whole_text({0}) AS {type})"
    )
    assert Extremes(path).failures(["CAST(s AS INT)", "lower(s)"], "one")[1] == ["CAST(s AS INT)"]
