"""A public table says what it is: one property, made of plan and text alone, the same for every start of a run, and of all runs that wrote into it."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType

from dpsql.compiled import Query, compile_query
from dpsql.description import PROPERTY, Role, Rows, parse_description
from dpsql.errors import LakeError
from dpsql.lake.marks import described_mark
from dpsql.published import words
from dpsql.published.rows import of_cells
from dpsql.sources.config import Sources
from dpsql.streaming.published_table import PublishedTable
from tests.sql.golden import TABLES, compiled, goldens, sources, tables, told

ACCEPTED = {golden.stem: golden for golden in goldens("accepted")}


@pytest.mark.parametrize("stem", ACCEPTED)
def test_a_description_is_read_as_it_was_written_and_names_every_column_once(stem: str) -> None:
    query = compiled(ACCEPTED[stem])
    published = query.published
    assert parse_description(published.text()) == published
    names = [column.name for column in published.columns]
    assert len({*names}) == len(names)
    aggregates = {each.alias for each in query.parsed.aggregates}
    assert {column.of for column in published.columns if column.of} <= aggregates
    assert {each.alias for each in published.measures} == aggregates
    for key in query.parsed.output_keys:
        assert key.name in published.names(Role.KEY)
    for alias in aggregates:
        values = published.columns_of(alias, Role.VALUE)
        errors = published.columns_of(alias, Role.STDERR, Role.RANK_STDERR)
        assert len(values) == len(errors) == (published.rows is not Rows.LISTS)


@pytest.mark.parametrize("rows", Rows)
def test_what_a_table_says_is_frozen_for_each_kind_of_rows(rows: Rows) -> None:
    """A new field, another word or a number that moves is seen here; `python -m tests.sql.regenerate` writes it."""
    path = TABLES / f"{rows}.json"
    published = tables()[path]
    assert json.loads(path.read_text()) == told(published)
    assert parse_description(published.text()) == published
    assert all(said for _, said in words.columns(published))


def test_cells_are_described_with_what_their_readers_need() -> None:
    query = compiled(ACCEPTED["sketch_user"])
    assert query.shape.sketch is not None
    published = of_cells(query.published, query.shape.sketch, [("top.value", "string")])
    assert parse_description(published.text()) == published
    assert published.sketch is not None and published.sketch.value == (("top.value", "string"),)
    assert (published.rows, published.protects) == (Rows.CELLS, query.published.protects)


def _asked(having: str) -> Query:
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32) "
        f"url, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 day'), url {having}"
    )
    return compile_query(text, sources())


@pytest.mark.parametrize(
    ("having", "private"),
    [
        ("HAVING url <> 'Jane Doe'", True),
        ("HAVING views > 10 OR url = 'Jane Doe'", True),
        ("HAVING views > 10", False),
        ("ORDER BY url LIMIT 3", False),
    ],
)
def test_a_condition_that_may_name_a_person_is_not_told(having: str, private: bool) -> None:
    published = _asked(having).published
    assert published.reading.private is private
    assert "Jane" not in published.text() and "Doe" not in published.text()
    assert (published.reading.condition is None) is (private or "HAVING" not in having)


def _table(path: Path, query: Query, run: str) -> PublishedTable:
    return PublishedTable(
        path,
        f"{run}/mark",
        query.parsed,
        query.shape,
        (StringType(),),
        query.published,
        described_mark(run),
    )


def _said(path: Path) -> dict[str, object]:
    return json.loads(DeltaTable(str(path)).metadata().configuration[PROPERTY])


def test_a_start_says_it_anew_only_where_something_is_new(tmp_path: Path) -> None:
    """Catches: an entry for each start; a run that is left out; a reading that stays as it was; a commit per start."""
    path = tmp_path / "public"
    one = _asked("HAVING views > 10")
    other = _asked("HAVING views > 20")
    for _ in range(2):
        _table(path, one, "a").create()
        assert DeltaTable(str(path)).version() == 0
        assert parse_description(json.dumps(_said(path))) == one.published
    _table(path, other, "a").create()
    assert parse_description(json.dumps(_said(path))) == other.published
    for version in (3, 3):
        _table(path, other, "b").create()
        found = parse_description(json.dumps(_said(path)))
        assert found is not None and found.protects == (
            *one.published.protects,
            *other.published.protects,
        )
        assert DeltaTable(str(path)).version() == version
    assert dataclasses.replace(found, protects=one.published.protects) == other.published
    assert DeltaTable(str(path)).metadata().description == words.table_description(found)


OWNERS_WORDS = "ours: see the wiki"


def test_whoever_opens_the_table_is_told_what_it_is(tmp_path: Path) -> None:
    """Catches: a column without a comment; words of an owner that a start writes over; totals of a window added up."""
    path = tmp_path / "public"
    every = "max_rows_contributed = 32, trigger_interval = '15 minutes'"
    text = _asked("").text.replace("max_rows_contributed = 32", every)
    query = compile_query(text, sources())
    _table(path, query, "a").create()
    table = DeltaTable(str(path))
    table.alter.set_column_metadata("views", {"comment": OWNERS_WORDS})
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2)]
    rows = [
        {"window_start": day, "window_end": day + timedelta(days=1), "trigger": trigger, "trigger_time": day, "url": url}
        | {"views": 10 * trigger, "views_stderr": 1.0}
        for day, triggers in zip(days, (96, 5), strict=True)
        for trigger in range(1, triggers + 1)
        for url in "ab"
    ]  # fmt: skip
    write_deltalake(
        path, pa.Table.from_pylist(rows, pa.schema(table.schema().to_arrow())), mode="append"
    )
    _table(path, query, "a").create()
    table = DeltaTable(str(path))
    comments = {field.name: field.metadata.get("comment") for field in table.schema().fields}
    assert comments == dict(words.columns(query.published)) | {"views": OWNERS_WORDS}
    told = str(table.metadata().description)
    finished, newest = re.search(
        r"(WHERE trigger = 96) .*?(QUALIFY .*?\(.*?\).*?\))", told
    ).groups()  # type: ignore[union-attr]
    t = table.to_pyarrow_table()
    assert t.num_rows == 2 * 101
    assert duckdb.sql(f"SELECT sum(views) FROM t {finished}").fetchall() == [(2 * 960,)]
    assert duckdb.sql(f"SELECT window_start, url, views FROM t {newest}").order("ALL").fetchall() == [
        (day, url, views) for day, views in zip(days, (960, 50), strict=True) for url in "ab"
    ]  # fmt: skip


def test_words_of_a_table_are_of_its_plan_alone() -> None:
    """Catches: the name of a source, or a condition, in what everybody may read."""
    declared = dataclasses.replace(sources()["visits"], name="zqvisits")
    text = _asked("HAVING views > 98765").text.replace("FROM visits", "FROM zqvisits")
    published = compile_query(text, Sources((declared,))).published
    shown = json.dumps(told(published)["shown"])
    assert "zq" not in shown and "98765" not in shown


def test_a_run_whose_columns_are_others_does_not_write_into_a_table(tmp_path: Path) -> None:
    """Catches: files of a new run that do not fit their table, which no reader of it can read."""
    table = _table(tmp_path / "public", _asked(""), "a")
    table.create()
    with pytest.raises(
        LakeError, match="url would have another type than in the rows of an earlier run"
    ):
        dataclasses.replace(table, key_types=(LongType(),), described=described_mark("b")).create()
    assert DeltaTable(str(table.path)).version() == 0


def test_a_table_without_a_description_is_not_written_into(tmp_path: Path) -> None:
    path = tmp_path / "public"
    query = _asked("")
    _table(path, query, "a").create()
    table = DeltaTable(str(path))
    table.alter.set_table_properties({PROPERTY: '{"version": 0}'}, raise_if_not_exists=False)
    with pytest.raises(LakeError, match="an earlier dpsql made this table"):
        _table(path, query, "a").create()


def test_a_table_between_two_releases_is_told_apart() -> None:
    """Catches: an internal error over a table whose description has the version of this one, and other fields."""
    published = next(compiled(golden) for golden in goldens("accepted")).published
    text = json.loads(published.text())
    text["measures"][0]["new_field"] = 1
    assert parse_description(json.dumps(text)) is None
    del text["measures"][0]["new_field"]
    assert parse_description(json.dumps(text)) == published
