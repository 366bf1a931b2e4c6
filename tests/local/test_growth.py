"""No expression of the local engine makes a text longer than LONGEST, however often it is nested."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.errors import QueryError, SparkOnly
from dpsql.local.allowed import FUNCTIONS
from dpsql.local.connection import connect
from dpsql.local.from_clause import read_from
from dpsql.local.sources import InputReader
from dpsql.sources.config import Source
from dpsql.sql import growth
from dpsql.sql.growth import LONGEST
from tests.local.conftest import SQL, Compile

LEVELS = 5
INPUT = 1_200_000
"""Characters of each text: more than an expression may make."""

UNITS = ("a", "ß", "İ", "🎉a", "\x00")
"""What the texts repeat: characters that become several, of four bytes, and NUL."""

REPLACEMENTS = ("", "a", "aa", "a" * 100, "a" * 10_000)
GROWING = (
    "lower(x)",
    "upper(x)",
    *(f"replace(x, '{part}', '{text}')" for part in ("a", "ss") for text in REPLACEMENTS),
    *(f"concat({', '.join(['x'] * number)})" for number in (1, 2, 10, 40)),
    "x || x",
    "x || 'a' || x",
    "concat(x, 1, x)",
    "CASE WHEN x = '' THEN x ELSE x || x END",
    "coalesce(x || x, x)",
    "CAST(x AS STRING) || x",
    "if(x = 'a', x, concat(x, x))",
)
KEPT = (
    "trim(x)",
    "ltrim(x)",
    "rtrim(x)",
    "left(x, 2000000)",
    "right(x, 2000000)",
    "substring(x, 1, 2000000)",
    "substring(x, 2)",
    "lpad(x, 10000, 'ab')",
    "rpad(x, 10000, 'ab')",
)


def longest(path: Path, calls: tuple[str, ...]) -> int:
    """Nest the calls in sub-queries, the last one outermost, over texts that are too long; how long is the longest result?"""
    connection = connect()
    (chunk,) = InputReader(connection, Source("one", "parquet", schema="x STRING")).files([path])
    query = "one"
    for level, call in enumerate(calls):
        query = f"(SELECT {call} AS x FROM {query}) AS q{level}"
    scope = read_from(f"FROM {query}", {"one": chunk.table})
    (found,) = connection.sql(f"SELECT max(length({scope.value('x').sql})) {scope.sql}").fetchall()
    return int(found[0])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("long") / "long.parquet"
    pq.write_table(pa.table({"x": [unit * (INPUT // len(unit)) for unit in UNITS]}), file)
    return file


def test_every_function_that_makes_texts_is_tried() -> None:
    making = {
        name
        for name, forms in FUNCTIONS.items()
        if any(form.endswith("-> string") for form in forms)
    }
    assert making == {call.split("(")[0] for call in (*GROWING, *KEPT)} & set(FUNCTIONS)


@pytest.mark.parametrize("call", GROWING, ids=lambda call: call[:40])
def test_nothing_grows_beyond_the_limit(path: Path, call: str) -> None:
    """Catches: a text of 10^10 characters for one person alone, and want of memory that tells of it."""
    assert longest(path, (call,) * LEVELS) <= (INPUT if call == "concat(x)" else LONGEST)


@pytest.mark.parametrize("call", KEPT)
def test_what_keeps_its_length_does(path: Path, call: str) -> None:
    assert longest(path, (call,) * LEVELS) <= INPUT


def test_pairs_that_grow_together_stay_below_the_limit(path: Path) -> None:
    some = ("upper(x)", "replace(x, 'a', 'aaa')", "concat(x, x, x)", "x || x")
    for first, second in itertools.permutations(some, 2):
        assert longest(path, (first, second) * 2) <= LONGEST, (first, second)


def test_a_function_that_is_not_known_to_keep_its_length_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_NEVER_LONGER", growth._NEVER_LONGER - {"StringTrim"})
    with pytest.raises(SparkOnly):
        longest(path, ("trim(x)",))


def test_a_long_replacement_is_refused(compile_on: Compile) -> None:
    for name, length in (("replace", 10_001), ("regexp_replace", 10_001)):
        asked = SQL.replace(
            "page, COUNT(*)", f"{name}(page, 'a', '{'b' * length}') AS k, COUNT(*)"
        ).replace("'1 day'), page", "'1 day'), k")
        with pytest.raises(
            QueryError,
            match=f"The replacement in `{name}` is too long(.|\n)*write at most 10,000 characters",
        ):
            compile_on(asked)
        compile_on(asked.replace("b" * length, "b" * 10_000))


def test_long_texts_are_cut_and_short_ones_are_not(tmp_path: Path) -> None:
    """What the reference says: each argument to 1,000,000 through so many times as the result can be longer."""
    pq.write_table(pa.table({"x": ["a" * 999, "a" * 1_000_000]}), tmp_path / "a.parquet")
    connection = connect()
    (chunk,) = InputReader(connection, Source("one", "parquet", schema="x STRING")).files(
        [tmp_path / "a.parquet"]
    )
    scope = read_from("FROM one", {"one": chunk.table})
    calls = (
        "x || x",
        "concat(x, 'b', x, 'b')",
        "replace(x, 'a', 'bb')",
        "replace(x, 'a', '')",
        "upper(x)",
    )
    listed = ", ".join(f"length({scope.value(call).sql})" for call in calls)
    assert connection.sql(f"SELECT {listed} {scope.sql}").fetchall() == [
        (1998, 2000, 1998, 0, 999),
        (1_000_000, 500_002, 666_666, 0, 333_333),
    ]
