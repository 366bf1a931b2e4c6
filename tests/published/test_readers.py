"""Every reader of a published table beside every kind of query: it shows each column that was asked for, or says by name what it does not show."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, write_deltalake

import dpsql
from dpsql.compiled import Query
from dpsql.description import NOTE
from dpsql.errors import LakeError
from dpsql.frame_query import Answer
from dpsql.jobs.cli import main
from dpsql.lake.runs import Lake
from dpsql.parsed_query import AVERAGED
from dpsql.published.rows import published_rows
from dpsql.published.words import AT_END, TOO_FEW
from tests.described import write
from tests.frozen import released
from tests.sql.golden import compiled, goldens

KINDS = (
    *(
        "smallest",
        "average_beside_others",
        "spread",
        "keyless",
        "sliding",
        "reading_having",
        "reading_order",
        "reading_limit",
        "carry_windows",
        "windows_quantiles",
        "windows_event",
        "once_all_aggregates",
        "once_cube",
        "once_event",
        "once_month",
    ),
    *(
        "panes_event",
        "panes_user",
        "panes_event_keyless",
        "panes_retroactive",
        "table",
        "table_keyless",
        "table_ending",
        "table_quantiles",
    ),
    *(
        "changes",
        "changes_quantiles",
        "changes_interval_tree",
        "marginals_cube",
        "marginals_spread",
        "marginals_rollup",
        "sketch_user",
        "sketch_sums",
        "sketch_event",
    ),
)
"""Golden queries: windows with keys and without, sliding ones, tables that grow and whose rows end, averages, quantiles, lists, CUBE, HAVING."""

TRIGGERS = {"sketch_sums": 5}
"""Its lists take a second for each trigger."""


@pytest.fixture(scope="module", params=KINDS)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Query, Path]:
    """A query, and a lake that has its public table alone."""
    query, rows = query_and_rows(request.param)
    folder = tmp_path_factory.mktemp("reader")
    write(Lake(folder / "lake").histogram("q"), rows, query.published)
    return query, folder


def query_and_rows(name: str) -> tuple[Query, pa.Table]:
    """A golden query, and what it releases of the records that are frozen."""
    query = compiled({golden.stem: golden for golden in goldens("accepted")}[name])
    kinds = [pa.string()] * len(query.parsed.keys)
    return query, published_rows(
        query.parsed, query.shape.schedule, query.shape.columns, frozen_rows(query, name), kinds
    )


def frozen_rows(query: Query, name: str) -> pa.Table:
    """What the steps release of the records that are frozen, of as many triggers as its golden query needs here."""
    return released(query, TRIGGERS.get(name, 12))


def asked(query: Query) -> list[str]:
    """What a reader of a table has to show."""
    return [*query.published.keys, *query.published.amounts, *query.published.quantiles]


def read(folder: Path, *words: str) -> Result:
    done = CliRunner().invoke(main, [*words, "--lake", str(folder / "lake")])
    assert done.exit_code in (0, 2), done.output
    assert "internal error" not in done.output and "Traceback" not in done.output
    return done


def visible(query: Query) -> list[str]:
    """The columns that readers show: a one-time release has no times."""
    times = ("trigger", "trigger_time") if query.parsed.once else ()
    notes = [NOTE] if query.published.amounts or query.published.quantiles else []
    return [
        *(column.name for column in query.published.columns if column.name not in times),
        *notes,
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("show", "q"),
        ("show", "q", "--all"),
        ("show", "q", "--json"),
        ("show", "q", "--all", "--json"),
    ],
    ids=" ".join,
)
def test_show_has_every_column(made: tuple[Query, Path], words: tuple[str, ...]) -> None:
    query, folder = made
    done = read(folder, *words)
    assert done.exit_code == 0, done.output
    if "--json" in words:
        rows = json.loads(done.stdout)["rows"]
        assert rows and all({*rows[0]} == set(visible(query)) for _ in rows)
    else:
        assert all(name in done.stdout for name in asked(query)), done.stdout


OF_EMPTY = ("smallest", "windows_quantiles", "sketch_user", "table", "marginals_rollup")


@pytest.mark.parametrize("name", OF_EMPTY)
def test_readers_take_a_table_without_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: an error of a table before its first row, or before its first finished window; a list without a value."""
    monkeypatch.chdir(tmp_path)
    query, rows = query_and_rows(name)
    begun = rows.filter(pa.array(rows["trigger"].to_numpy() == 1))
    for table, part in (("none", rows.slice(0, 0)), ("begun", begun.slice(len(begun) - 1, 1))):
        write(Lake("lake").histogram(table), part, query.published)
        for words in (("show",), ("show", "--json"), ("show", "--all"), ("view",)):
            done = read(tmp_path, *words, table)
            has_page = len(part) and all(
                any(part[each].to_pylist()) for each in query.published.lists
            )
            assert done.exit_code == (0 if words != ("view",) or has_page else 2), done.output
        assert len(dpsql.latest("lake", table)) <= len(part) and repr(
            dpsql.open(f"lake/public/{table}")
        )
    said = read(tmp_path, "view", "none").output
    assert said.startswith(
        "query 'none': No rows. If records do not fit `schema`, none counts: see status.json"
    ), said
    assert not Path("none.html").exists()


def test_a_watched_page_waits_for_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a page that ends because nothing is published yet; the same words at every look."""
    monkeypatch.chdir(tmp_path)
    query, rows = query_and_rows("smallest")
    write(Lake("lake").histogram("q"), rows.slice(0, 0), query.published)
    looks = iter(range(3))

    def sleep(_: float) -> None:
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr("dpsql.jobs.watch.sleep", sleep)
    monkeypatch.setattr("dpsql.jobs.view.REWRITE_SECONDS", 0.0)
    done = read(tmp_path, "view", "q", "--watch")
    assert (
        done.exit_code == 0
        and done.stderr.count(
            "query 'q': No rows. If records do not fit `schema`, none counts: see status.json"
        )
        == 1
    ), done.output
    assert not Path("q.html").exists()


OF_NULLS = dict.fromkeys(
    (
        "average_beside_others",
        "spread",
        "panes_event_keyless",
        "table_spread",
        "changes_spells",
        "table_quantiles",
    ),
    TOO_FEW,
)


@pytest.mark.parametrize(
    ("name", "why"), (OF_NULLS | {"windows_quantiles": AT_END}).items(), ids=str
)
def test_a_null_is_said_in_words(
    name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a NULL or a dash, which says nothing of why; words for a NULL that is none of a quotient, or of quantiles."""
    query, rows = query_and_rows(name)
    rows = (
        rows.filter(pa.array(rows["trigger"].to_numpy() < query.published.windows.triggers))
        if why == AT_END
        else rows
    )
    quotients = {each.alias for each in query.published.measures if each.function in AVERAGED} | {
        *query.published.quantiles
    }
    of = {column.name for column in query.published.columns if column.of in quotients}
    rows = pa.table(
        {
            each: pa.nulls(len(rows), rows[each].type) if each in of else rows[each]
            for each in rows.column_names
        }
    )
    write(Lake(tmp_path / "lake").histogram("q"), rows, query.published)
    monkeypatch.chdir(tmp_path)
    answer = Answer(dpsql.latest("lake", "q"), query, {})
    page = tmp_path / "page.html"
    read(tmp_path, "view", "q", "--out", str(page))
    shown = [
        read(tmp_path, "show", "q").stdout,
        read(tmp_path, "show", "q", "--all").stdout,
        repr(answer),
        answer._repr_html_(),
        page.read_text().split("<details>")[0],
    ]
    for text in map(html.unescape, shown):
        assert why in text and "NULL" not in text and "nan" not in text.lower().replace(name, ""), (
            text
        )
    assert (
        f"{'' if why == TOO_FEW else f'{why}; '}NULL: {TOO_FEW}"
        in CliRunner().invoke(main, ["show", "lake/public/q"]).stdout
    )


def test_the_newest_rows_have_every_column(made: tuple[Query, Path]) -> None:
    query, folder = made
    rows = dpsql.latest(str(folder / "lake"), "q")
    assert list(rows.columns) == visible(query) and len(rows)


def test_an_answer_has_every_column(made: tuple[Query, Path]) -> None:
    query, folder = made
    answer = Answer(dpsql.latest(str(folder / "lake"), "q"), query, {})
    for text in (repr(answer), html.unescape(answer._repr_html_())):
        assert all(name in text for name in asked(query)), text
    found = query.published.protects[0].units_needed is not None
    assert ("A key that is missing is not zero" in text) is (
        found or "HAVING" in query.text or "LIMIT" in query.text
    )


def test_the_page_has_every_column_or_says_which_it_has_not(made: tuple[Query, Path]) -> None:
    query, folder = made
    page = folder / "page.html"
    done = read(folder, "view", "q", "--out", str(page))
    said = done.output + (html.unescape(page.read_text()) if done.exit_code == 0 else "")
    assert all(name in said for name in asked(query) if name not in query.published.keys), said[
        -2000:
    ]
    assert done.exit_code == 0 or not (
        query.published.amounts or query.published.quantiles or query.published.lists
    )


def test_compare_has_every_column_or_says_which_it_has_not(made: tuple[Query, Path]) -> None:
    query, folder = made
    rows = dpsql.latest(str(folder / "lake"), "q")
    names = query.published.keys
    key = ["NULL" if rows.iloc[0][name] is None else str(rows.iloc[0][name]) for name in names]
    done = read(folder, "compare", "q", *([",".join(key)] if names else []))
    if done.exit_code == 0:
        assert all(name in done.output for name in asked(query) if name not in names), done.output
    else:
        assert any(
            word in done.output
            for word in ("lists", "error", "no trigger or window", "not among", "published")
        ), done.output


def test_a_copy_of_the_table_in_an_empty_place_says_what_it_is(
    made: tuple[Query, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody needs the run, its lake, its sources or its query: schema and description name the same columns, and each has its words."""
    query, folder = made
    shutil.copytree(Lake(folder / "lake").histogram("q"), tmp_path / "copy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPSQL_LAKE", raising=False)
    columns = [column.name for column in query.published.columns]
    assert [field.name for field in DeltaTable("copy").schema().fields] == columns
    (run,) = query.published.protects
    wanted = [
        f"epsilon {run.epsilon:g}, delta {run.delta:g}",
        f"everything that one {run.units[0]} does" if run.units else "one row, not one",
    ]
    wanted += [f"once about {run.units_needed:,} different"] if run.units_needed else []
    shown = CliRunner().invoke(main, ["show", "./copy"])
    opened = dpsql.open("copy")
    assert shown.exit_code == 0, shown.output
    assert [
        word
        for word in wanted + columns
        if word not in shown.stdout or word not in opened.explain()
    ] == []
    assert not re.search(": $|None", opened.explain(), re.MULTILINE)  # no column without words
    pd.testing.assert_frame_equal(opened.rows, dpsql.latest(str(folder / "lake"), "q"))
    for text in (repr(opened), html.unescape(opened._repr_html_())):
        assert all(name in text for name in asked(query)), text
    told = json.loads(CliRunner().invoke(main, ["show", "./copy", "--json"]).stdout)
    assert [*told["columns"]] == columns and told["promises"][0]["epsilon"] == run.epsilon
    assert [{*row} for row in told["rows"]] == [{*visible(query)}] * len(told["rows"])


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (
            "./none",
            "no published table exists there: give its folder, like lake/public/demo, or the NAME of a query and its lake",
        ),
        (
            "none",
            "Missing option '--lake': 'none' is the name of a query; the folder of a table is written with a /: ./none",
        ),
        ("./log", "no published table exists there"),
        (
            "./other",
            "an earlier dpsql made this table: run the query again; any reader of Delta tables shows it",
        ),
        ("gs://bucket/table", "give a folder, or a bucket and a prefix"),
    ],
)
def test_what_is_no_published_table_is_refused(
    path: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPSQL_LAKE", raising=False)
    (tmp_path / "log" / "_delta_log").mkdir(parents=True)
    write_deltalake("other", pa.table({"key": ["a"], "n": [1]}))
    for words in ([path], [path, "--json"], [path, "--all"]):
        done = CliRunner().invoke(main, ["show", *words])
        assert (done.exit_code, done.stdout) == (2, "") and says in done.stderr, done.output
    if path != "none":
        with pytest.raises(LakeError, match=re.escape(says)):
            dpsql.open(path)
