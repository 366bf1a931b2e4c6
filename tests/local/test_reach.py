"""Queries that can make long texts read a few records at a time: one person with many records fills no memory."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dpsql.local import reach, record_reader
from dpsql.local.reach import makes_long_texts
from dpsql.local.record_reader import RowReader
from tests.local.conftest import SQL, Compile, visits

ORDINARY = (
    ("FROM visits", ("lower(trim(page))",)),
    (
        "FROM (SELECT user_id, ts, concat(host, '/', path) AS page FROM visits) AS q",
        ("upper(page)", "page || ' (' || host || ')'"),
    ),
    (
        "FROM (SELECT *, replace(replace(page, 'a', 'b'), '-', ' ') AS p FROM visits) AS q",
        ("lpad(CAST(i AS STRING), 10, '0')",),
    ),
    (
        "FROM visits JOIN pages ON visits.page = pages.page",
        ("CASE WHEN x = 1 THEN page ELSE 'none' END",),
    ),
)
LONG = (
    ("FROM visits", (f"replace(lpad(page, 10000, 'a'), 'a', '{'b' * 100}')",)),
    (
        "FROM (SELECT concat(x, x, x, x, x, x, x, x, x, x) AS x FROM (SELECT lpad(page, 9000, 'a') AS x FROM visits) AS a) AS b",
        ("x || x",),
    ),
    (
        "FROM (SELECT rpad(page, 10000, 'a') AS x FROM visits) AS a",
        ("concat((x), x || x, x, x, x, x, x, x, x, x, x)",),
    ),
)


@pytest.mark.parametrize(("from_sql", "expressions"), ORDINARY)
def test_ordinary_queries_read_as_always(from_sql: str, expressions: tuple[str, ...]) -> None:
    assert not makes_long_texts(from_sql, expressions)


@pytest.mark.parametrize(("from_sql", "expressions"), LONG)
def test_long_texts_are_foreseen(from_sql: str, expressions: tuple[str, ...]) -> None:
    assert makes_long_texts(from_sql, expressions)


@pytest.mark.parametrize("rows", [0, 1, 100])
def test_rows_are_the_same_however_many_are_read_at_once(
    compile_on: Compile, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Catches: a record that is lost or read twice between two parts."""
    query = compile_on(SQL)
    read: list[pa.Table] = []
    sizes: list[int] = []
    few_at_once = RowReader._few_at_once
    for most in (reach.MOST, 0.5):
        monkeypatch.setattr(reach, "MOST", most)
        reader = RowReader(query.plan, query.sources, b"0" * 16, {})
        parts = list(
            few_at_once(reader, reader._reader.frame(visits(rows or 1).slice(0, rows)).table)
        )
        sizes.append(len(parts) if parts[0].view == record_reader.FEW else 0)
        read.append(reader.frame(visits(rows or 1).slice(0, rows)))
        assert reader.key_types
    assert read[0].equals(read[1])
    assert sizes == [0, max(1, -(-rows // reach.AT_ONCE))]
