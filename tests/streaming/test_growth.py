"""No expression makes a text, BINARY or array longer than LONGEST on Spark, however often it is nested; both engines cut alike."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from dpsql.errors import DataError
from dpsql.local.connection import connect
from dpsql.local.from_clause import read_from
from dpsql.local.sources import InputReader
from dpsql.sources.config import Source
from dpsql.sql.allowed import FUNCTIONS
from dpsql.sql.growth import LONGEST
from dpsql.streaming.session import run_session
from dpsql.streaming.totality import guarded
from tests import totality
from tests.streaming.test_totality import INTERPRETED
from tests.sweeps import some

LEVELS = 2
"""So often is each call nested here; five times in tests/long."""
INPUT = 1_200_000
UNITS = ("ß", "🎉a", '"')
"""What the texts repeat: also what JSON writes longer than it stands there."""

PLAIN = {
    "string": "{}",
    "binary": "hex({})",
    "array": "concat_ws(',', CAST({} AS ARRAY<STRING>))",
    "struct": "to_json({})",
    "map": "CAST({} AS STRING)",
}
"""How a value of each type goes on as a text."""

MORE = (
    "x || x",
    f"concat({', '.join(['x'] * 10)})",
    "concat_ws('--', x, x, split(x, 'a'))",
    "array_join(split(x, ''), '-----')",
    "array_join(array(x, x, x), ',')",
    "repeat(x, 1000)",
    f"replace(x, 'a', '{'a' * 1000}')",
    "regexp_replace(x, 'a', '$0$0$0$0')",
    "regexp_replace(x, '(?=(.*))', '$1')",
    "regexp_replace(x, '', 'aaaa')",
    "hex(CAST(x AS BINARY))",
    "CAST(concat(CAST(x AS BINARY), CAST(x AS BINARY)) AS STRING)",
    "CAST(CAST(split(x, '') AS ARRAY<STRING>) AS STRING)",
    "to_json(named_struct('name', x, 'other', x))",
    "to_json(split(x, ''))",
    "get_json_object(concat('[', x, '1]'), '$')",
    "from_json(concat('{\"v\":[', x, '1]}'), 'v STRING').v",
    "CASE WHEN x = 'a' THEN x ELSE concat(x, x) END",
)


def calls(session: SparkSession) -> list[str]:
    """Calls of every function over x that make something of no fixed length, as texts."""
    made = []
    for name, signature in FUNCTIONS.items():
        count = max(signature.min_arguments, len(signature.constant) + 1) + (
            signature.max_arguments is None
        )
        literal = [
            place
            for place in range(count)
            if place in signature.constant or (name == "named_struct" and place % 2 == 0)
        ]
        made += list(totality._filled(name, count, literal, ("x",) * (count - len(literal))))[:1]
    found = []
    for call in (*made, *MORE):
        try:
            kind = session.sql(f"SELECT {call} AS c FROM long").schema["c"].dataType.typeName()
        except Exception:  # types that do not fit, told in several ways
            continue
        if kind in PLAIN:
            found.append(PLAIN[kind].format(call))
    return found


def nested(call: str, levels: int) -> str:
    query = "long"
    for level in range(levels):
        query = f"(SELECT {call} AS x FROM {query}) AS q{level}"
    return f"SELECT length(x) AS n FROM {query}"


@pytest.fixture(scope="module")
def session(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    session = run_session(spark, 1)
    for key, value in INTERPRETED.items():
        session.conf.set(key, value)
    for name, length in (("short", 1_200), ("long", INPUT)):
        path = tmp_path_factory.mktemp(name) / "a.parquet"
        pq.write_table(pa.table({"x": [unit * (length // len(unit)) for unit in UNITS]}), path)
        session.read.parquet(str(path)).createOrReplaceTempView(name)
    return session


def too_long(session: SparkSession, levels: int) -> dict[str, int]:
    """The longest text of each call that makes one of more than LONGEST when it is nested."""
    tried = calls(session)
    assert {call.split("(")[0] for call in tried} >= {
        "upper",
        "initcap",
        "base64",
        "url_encode",
        "hex",
        "reverse",
    } and len(tried) > 60
    listed = ", ".join(f"length({call}) AS c{place}" for place, call in enumerate(tried))
    rows = guarded(
        session, session.sql(f"SELECT length(x) AS given, {listed} FROM short")
    ).collect()
    longer = [
        call
        for place, call in enumerate(tried)
        if any((row[f"c{place}"] or 0) > row.given for row in rows)
    ]
    assert len(longer) > 20
    longest = {}
    for call in some(longer, 3):
        rows = guarded(session, session.sql(nested(call, levels))).collect()
        longest[call] = max(row.n or 0 for row in rows)
    return {call: length for call, length in longest.items() if length > LONGEST}


def test_nothing_grows_beyond_the_limit_when_it_is_nested(session: SparkSession) -> None:
    """Catches: memory that runs out for one person's record, which tells of it without noise."""
    assert too_long(session, LEVELS) == {}


def test_a_filter_does_not_repeat_nested_texts(spark: SparkSession, tmp_path: Path) -> None:
    """Catches: a plan that is ten times as large with each sub-query, and fills the memory before a record is read."""
    session = run_session(spark, 1)
    pq.write_table(pa.table({"x": ["a"]}), tmp_path / "a.parquet")
    session.read.parquet(str(tmp_path / "a.parquet")).createOrReplaceTempView("one")
    query = "SELECT lpad(x, 10000, 'a') AS x FROM one"
    for level in range(6):
        query = f"SELECT concat({', '.join(['x'] * 10)}) AS x FROM ({query}) AS q{level}"
    frame = guarded(
        session,
        session.sql(
            f"SELECT y FROM (SELECT length(x) AS y FROM ({query}) AS a) AS b WHERE y IS NULL OR y > 0"
        ),
    )
    assert len(frame._jdf.queryExecution().optimizedPlan().toString()) < 100_000
    assert [row.y for row in frame.collect()] == [LONGEST]


@pytest.mark.parametrize(
    "call",
    [
        "array(split(x, ','))",
        "concat(split(x, ','), split(x, 'a'))",
        "struct(struct(x))",
        "named_struct('a', split(x, ','))",
    ],
)
def test_nested_values_of_nested_values_are_refused(session: SparkSession, call: str) -> None:
    """Catches: arrays whose elements double at each level, which no count of elements bounds."""
    with pytest.raises(DataError, match="can double what it holds at each level"):
        guarded(session, session.sql(f"SELECT {call} AS c FROM long"))


def test_both_engines_cut_alike(session: SparkSession, tmp_path: Path) -> None:
    texts = ["a" * length for length in (999, 333_334, 1_000_000, INPUT)] + ["ß🎉" * 600_000]
    pq.write_table(pa.table({"x": texts}), tmp_path / "a.parquet")
    session.read.parquet(str(tmp_path / "a.parquet")).createOrReplaceTempView("both")
    shared = (
        "x || x",
        "x || 'a' || x",
        "concat(x, 1, x)",
        "replace(x, 'a', 'bb')",
        "replace(x, 'a', '')",
        "upper(x)",
        "lower(x)",
    )
    listed = ", ".join(f"length({call}) AS n{place}" for place, call in enumerate(shared))
    on_spark = guarded(session, session.sql(f"SELECT {listed} FROM both")).collect()
    connection = connect()
    (chunk,) = InputReader(connection, Source("both", "parquet", schema="x STRING")).files(
        [tmp_path / "a.parquet"]
    )
    scope = read_from("FROM both", {"both": chunk.table})
    values = ", ".join(scope.value(f"length({call})").sql for call in shared)
    assert sorted(map(tuple, on_spark)) == sorted(
        connection.sql(f"SELECT {values} {scope.sql}").fetchall()
    )
