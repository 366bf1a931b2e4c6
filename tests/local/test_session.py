"""`dpsql.session` and `dpsql.query` as a data scientist types them: an answer from `epsilon` alone, a budget that adds up, rows as shown."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import Schema

import dpsql
from dpsql import Answer, Secret, Session
from dpsql.errors import BudgetError, ConfigError, DataError, InputError, LakeError, QueryError
from dpsql.jobs.cli import main
from dpsql.lake import delta_tables
from dpsql.lake.runs import Lake, cells_path
from dpsql.local.feeder import try_query
from dpsql.privacy.ledger import Ledger
from dpsql.published.rows import of_cells

PEOPLE = 4000
FRAME = pd.DataFrame(
    {
        "user": [f"u{i}" for i in range(PEOPLE)],
        "status": [(200, 404, 500, 301)[i % 4] for i in range(PEOPLE)],
        "page": [("home", "shop")[i % 2] for i in range(PEOPLE)],
        "seconds": [float(i % 10) for i in range(PEOPLE)],
        "day": pd.Series(
            [dt.date(2026, 1, 1 + i % 20) for i in range(PEOPLE)], dtype=pd.ArrowDtype(pa.date32())
        ),
        "ms": [1767225600000 + 60000 * i for i in range(PEOPLE)],
        "odd": [[i] for i in range(PEOPLE)],
    }
)
PRIVATE = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4) "
COUNT = "SELECT page, COUNT(*) AS n FROM visits GROUP BY page"


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Session]:
    """Open a session with a secret of its own."""

    def session(records: Any = FRAME, **settings: Any) -> Session:
        settings = {"unit": "user", "secret": tmp_path / "secret", **settings}
        return dpsql.session(records, **settings)

    return session


def _right(answer: Answer, column: str = "n", truth: float = PEOPLE / 2) -> None:
    for row in answer.rows.to_dict("records"):
        assert abs(row[column] - truth) <= 6 * row[f"{column}_stderr"], (row, truth)


def _duck(frame: pd.DataFrame) -> Any:
    connection = duckdb.connect()
    connection.register("frame", frame.drop(columns="odd"))
    return connection.sql("FROM frame")


CALLS: dict[str, Callable[[Callable[..., Session]], Any]] = {
    "a private query": lambda opened: _right(
        opened().query(PRIVATE + "page, COUNT(*) AS n FROM visits GROUP BY page")
    ),
    "epsilon as an argument": lambda opened: _right(opened().query(COUNT, epsilon=4)),
    "a plain SELECT": lambda opened: _right(
        opened().query("select count(*) as n from x", epsilon=4), truth=PEOPLE
    ),
    "Arrow": lambda opened: _right(
        opened(pa.Table.from_pandas(FRAME.drop(columns="odd"))).query(COUNT, epsilon=4)
    ),
    "a relation of DuckDB": lambda opened: _right(opened(_duck(FRAME)).query(COUNT, epsilon=4)),
    "a list of rows": lambda opened: _right(
        opened(FRAME[["user", "page"]].to_dict("records")).query(COUNT, epsilon=4)
    ),
    "the same question again": lambda opened: [
        _right(opened().query(COUNT, epsilon=1)) for _ in range(2)
    ],
    "people": lambda opened: _right(
        opened().query("SELECT page, COUNT(DISTINCT user) AS n FROM v GROUP BY page", epsilon=4)
    ),
    "a mean with bounds": lambda opened: _right(
        opened(bounds={"seconds": [0, 10]}).query("SELECT AVG(seconds) AS n FROM v", epsilon=4),
        truth=4.5,
    ),
    "a sum with bounds": lambda opened: _right(
        opened(bounds={"seconds": [0, 10]}).query(
            "SELECT page, SUM(seconds) AS n FROM v WHERE page = 'home' GROUP BY page", epsilon=4
        ),
        truth=8000,
    ),
    "a median": lambda opened: opened(bounds={"seconds": [0, 10]}).query(
        "SELECT PERCENTILE_CONT(seconds, 0.5) AS middle FROM v", epsilon=4
    ),
    "a top list": lambda opened: _right(
        opened().query(f"{COUNT} ORDER BY n DESC LIMIT 1", epsilon=4)
    ),
    "a total without a key": lambda opened: _right(
        opened().query("SELECT COUNT(DISTINCT user) AS n FROM v", epsilon=4), truth=PEOPLE
    ),
    "keys of a day": lambda opened: opened(time="day").query(
        "SELECT day, COUNT(*) AS n FROM v GROUP BY day", epsilon=4
    ),
    "milliseconds": lambda opened: opened(time="ms", time_unit="milliseconds").query(
        PRIVATE + "page, COUNT(*) AS n FROM v GROUP BY page, window(ms, '1 day')"
    ),
    "a public table": lambda opened: _right(
        opened(tables={"pages": pd.DataFrame({"page": ["home", "shop"]})}).query(
            PRIVATE.replace(")", ", public_groups = (SELECT page FROM pages))", 1)
            + "page, COUNT(*) AS n FROM v GROUP BY page"
        )
    ),
    "all tables of a CUBE": lambda opened: opened(
        domains={"status": {"values": [200, 301, 404, 500]}, "page": {"values": ["home", "shop"]}}
    ).query("SELECT page, status, COUNT(*) AS n FROM v GROUP BY CUBE (page, status)", epsilon=4),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_that_answer_at_first_try(
    call: Callable[[Callable[..., Session]], Any], opened: Callable[..., Session]
) -> None:
    call(opened)


def test_most_first_calls_answer() -> None:
    """Of twenty kinds of first calls; those that do not are a file's name, a sketch and questions about a CUBE."""
    assert len(CALLS) >= 17


def test_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches: a new, empty budget that nobody is told of; a try that says nothing of what it cost."""
    answer = dpsql.query(COUNT, FRAME, unit="user", epsilon=4, secret=tmp_path / "s")
    _right(answer)
    said = capsys.readouterr().err
    assert f"created secret {tmp_path / 's'} and a new ledger: nothing spent so far" in said
    assert "Spent so far on these units: 1 run over all records, epsilon" in said
    assert answer.spent == (4, answer.query.plan.delta)
    dpsql.query(COUNT, FRAME, unit="user", epsilon=4, secret=tmp_path / "s")
    said = capsys.readouterr().err
    assert "created" not in said and "2 runs over all records" in said


def test_options_beside_the_text_are_those_of_the_text(opened: Callable[..., Session]) -> None:
    """Catches: an argument that is another number than the option, or that brings an option of its own."""
    session = opened()
    text = "page, COUNT(*) AS n FROM visits GROUP BY page"
    options = "epsilon = 0.5, delta = 1e-9, max_groups_contributed = 3, max_rows_per_group = 2"
    written = session.plan(f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {text}")
    given = {"epsilon": 0.5, "delta": 1e-9, "max_groups_contributed": 3, "max_rows_per_group": 2}
    for clause in ("", "WITH DIFFERENTIAL_PRIVACY", "WITH DIFFERENTIAL_PRIVACY OPTIONS ()"):
        assert (
            session.plan(f"SELECT {clause} {text}", **given).plan.identity == written.plan.identity
        )
    assert session.spent.epsilon == 0
    with pytest.raises(QueryError, match="Duplicate differential privacy option"):
        session.plan(PRIVATE + text, epsilon=4)
    with pytest.raises(QueryError, match="no differential-privacy clause"):
        session.plan(f"SELECT {text}", max_rows_per_group=2)
    for wrong in ("1) x", True):
        with pytest.raises(ConfigError, match="epsilon= is no number"):
            session.plan(f"SELECT {text}", epsilon=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="write it in OPTIONS"):
        session.plan(f"SELECT {text}", epsilon=1, mechanism=1)


def test_all_records_of_a_name_add_up(opened: Callable[..., Session]) -> None:
    """Catches: a budget that another name in FROM makes new."""
    first = opened()
    first.query(COUNT, epsilon=1)
    alone = first.spent.epsilon
    second = opened(FRAME.head(2000))
    second.query(COUNT.replace("visits", "others"), epsilon=1)
    assert second.spent.epsilon == first.spent.epsilon > 1.3 * alone
    hospital = opened(FRAME.head(2000), name="hospital")
    assert hospital.spent.epsilon == 0
    hospital.query(COUNT.replace("visits", "others"), epsilon=1)
    assert hospital.spent.epsilon == alone, "other people, as their name says"
    assert {line.ledger for line in second.ledger.lines()} == {"records", "hospital"}
    assert first.left is None


def test_a_cap_is_the_budget(opened: Callable[..., Session]) -> None:
    """Catches: a cap that is not looked at, one that a call without it forgets, money for an answer that is refused."""
    cap = {"epsilon": 2, "delta": 1e-6, "period": "7 days"}
    session = opened(cap=cap)
    session.query(COUNT, epsilon=1)
    left = session.left
    assert left is not None and left.epsilon == 2 and 0 < left.spent_epsilon < 2
    count = len(session.ledger.lines())
    with pytest.raises(BudgetError, match="cap"):
        session.query(COUNT, epsilon=6)
    with pytest.raises(BudgetError, match="have had a cap"):
        opened().query(COUNT, epsilon=0.1)
    assert len(session.ledger.lines()) == count
    with pytest.raises(ConfigError, match="period"):
        opened(cap={"epsilon": 2, "delta": 1e-6})


def test_rows_are_those_that_are_shown(opened: Callable[..., Session]) -> None:
    """Catches: `answer.rows.head()` of rows that the query leaves out; exact numbers in what notebooks keep."""
    frame = FRAME.assign(ts=pd.Timestamp("2026-01-05"), extra="x")
    answer = opened(frame, time="ts").query(
        PRIVATE
        + "page, COUNT(*) AS n FROM v GROUP BY window(ts, '1 day'), page ORDER BY n DESC LIMIT 1",
        until="2026-01-06",
    )
    assert len(answer) == len(answer.rows) == 1 and len(answer.all_rows) == 2
    assert answer["page"].tolist() == answer.rows["page"].tolist()
    assert pa.table(answer).column_names == list(answer.rows.columns)
    assert f"{answer.rows['page'][0]}" in repr(answer)
    few = opened(max_users=5000).query(
        f"{COUNT} ORDER BY n DESC", epsilon=4, max_groups_contributed=1, max_rows_per_group=1
    )
    assert few.dropped is not None
    for text in (repr(few), few._repr_html_()):
        assert str(PEOPLE) not in text and str(few.dropped) not in text
    assert b"PNG" in few.plot()._repr_png_()[0]


def test_windows_are_shown_as_the_query_orders_them(opened: Callable[..., Session]) -> None:
    """Catches: ORDER BY window.start that is refused, or read as an order of rows; another identity."""
    session = opened(time="day")
    sql = PRIVATE + "page, COUNT(*) AS n FROM v GROUP BY page, window(day, '5 days')"
    plain = session.query(sql, until="2026-02-01").rows
    assert plain["window_start"].is_monotonic_decreasing
    for order in ("window.start", "window_start", "window.start, n DESC", "window.end"):
        text = f"{sql} ORDER BY {order} LIMIT 1"
        rows = session.query(text, until="2026-02-01").rows
        assert rows["window_start"].is_monotonic_increasing and rows["window_start"].is_unique
        assert session.plan(text).plan.identity == session.plan(sql).plan.identity
    falling = session.query(f"{sql} ORDER BY window.start DESC, page", until="2026-02-01").rows
    assert falling["window_start"].is_monotonic_decreasing
    assert falling["page"].tolist()[:2] == ["home", "shop"]
    with pytest.raises(QueryError, match=r"write ORDER BY window\.start first"):
        session.plan(f"{sql} ORDER BY page, window.start")


def test_a_run_id_gives_the_same_answer_again(opened: Callable[..., Session]) -> None:
    run_id = "0123456789abcdef" * 2
    answers = [opened().query(COUNT, epsilon=1, run_id=run_id) for _ in range(2)]
    pd.testing.assert_frame_equal(answers[0].rows, answers[1].rows)
    assert len(opened().ledger.lines()) == 1


def test_what_cannot_be_asked(opened: Callable[..., Session], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"name of a file: pandas.read_parquet"):
        opened("orders.parquet")
    with pytest.raises(DataError, match="a stream has no end"):
        opened(SimpleNamespace(isStreaming=True))
    with pytest.raises(DataError, match="no column `who`"):
        opened(unit="who").query(COUNT, epsilon=1)
    with pytest.raises(BudgetError, match="it has no ledger"):
        opened(secret=Secret(bytes(range(32))))
    assert not Ledger.beside(tmp_path / "secret").lines()


def test_the_package_shows_its_names() -> None:
    """Catches: inner modules in `dir`, a star import that takes `open` away."""
    assert set(dir(dpsql)) == set(dpsql.__all__)
    assert {"session", "Session", "query"} <= set(dpsql.__all__)
    assert not {"open", "compile"} & set(dpsql.__all__) and dpsql.open and dpsql.compile


def test_a_file_and_a_frame_have_one_identity_and_the_same_bits(
    opened: Callable[..., Session], tmp_path: Path
) -> None:
    """Catches: a text that is another query where it is asked elsewhere."""
    session = opened()
    sql = PRIVATE + "page, COUNT(DISTINCT user) AS people, COUNT(*) AS n FROM visits GROUP BY page"
    FRAME.drop(columns="odd").to_parquet(tmp_path / "visits.parquet", index=False)
    sources = dpsql.load_sources(
        {
            "visits": {
                "format": "parquet",
                "path": str(tmp_path / "visits.parquet"),
                "schema": "user STRING, page STRING",
                "privacy_unit": "user",
                "max_users": 1_000_000,
                "max_keys": 1_000_000,
            }
        }
    )
    query = dpsql.compile(sql, sources)
    assert query.plan.identity == session.plan(sql).plan.identity
    run_id = "fedcba9876543210" * 2
    answer = session.query(sql, run_id=run_id)
    own_secret = session.secret.of_ledger(session.ledger.own_id())
    tried = try_query(query, {}, run_id=run_id, secret=own_secret)
    columns = list(tried.histogram.columns)
    pd.testing.assert_frame_equal(
        tried.histogram.sort_values("page", ignore_index=True),
        answer.rows[columns].sort_values("page", ignore_index=True),
        check_dtype=False,
    )


def _asked(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(main, ["ask", "v", *arguments, "--lake", "lake", "--json"])
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


def test_sketches_of_an_answer_are_those_of_ask(
    opened: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a list or a COUNT_SKETCH of a frame that costs epsilon and answers nothing, or other numbers than `dpsql ask` has."""
    monkeypatch.chdir(tmp_path)
    sql = "COUNT_SKETCH(page) AS pages FROM v GROUP BY window(day, '1 day')"
    options = "OPTIONS (epsilon = 4, delta = 1e-6, sketch_width = 1024) "
    answer = opened(time="day", start="2026-01-01").query(
        "SELECT WITH DIFFERENTIAL_PRIVACY " + options + sql, until="2026-01-21"
    )
    cells = answer.cells
    assert cells is not None
    histogram = Lake("lake").histogram("v")
    kinds = cells.shape.value
    published = of_cells(answer.query.published, cells.shape, kinds)
    rows_of_cells = cells.rows
    for path, rows, description in (
        (histogram, rows_of_cells.select(["trigger"]).slice(0, 0), answer.query.published),
        (cells_path(histogram), rows_of_cells, published),
    ):
        path.mkdir(parents=True)
        delta_tables.create(path, Schema.from_arrow(rows.schema), properties=description.properties)
        delta_tables.append(path, rows, {"run": 1})
    values = ["home", "shop", "none"]
    estimates = answer.sketch.estimate(values)
    assert estimates.to_dict("records") == _asked(*values)
    assert list(answer.sketch_of("2026-01-03", "pages").top(values, 2)["value"]) != ["none"]
    with pytest.raises(LakeError, match="the query has no sketch"):
        opened().query(COUNT, epsilon=1).sketch  # noqa: B018


def test_questions_about_a_cube_are_answered_as_by_ask(
    opened: Callable[..., Session], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a CUBE of a frame that nothing can be asked of, or other numbers than `dpsql ask` has."""
    monkeypatch.chdir(tmp_path)
    domains = {"status": {"values": [200, 301, 404, 500]}, "page": {"values": ["home", "shop"]}}
    options = "OPTIONS (epsilon = 4, trigger_interval = '10 days') "
    sql = f"SELECT WITH DIFFERENTIAL_PRIVACY {options} page, status, COUNT(*) AS n FROM v GROUP BY CUBE (page, status)"
    session = opened(domains=domains, time="day", start="2026-01-01")
    answer = session.query(sql, until="2026-01-21")
    rows = pa.Table.from_pandas(answer.all_rows, preserve_index=False)
    path = Lake("lake").histogram("v")
    path.mkdir(parents=True)
    properties = answer.query.published.properties
    delta_tables.create(path, Schema.from_arrow(rows.schema), properties=properties)
    delta_tables.append(path, rows, {"run": 1})
    question = "SELECT page, SUM(n) FROM v WHERE status < 400 GROUP BY page"
    answered = answer.ask(question, max_error="90%")
    assert answered.to_dict("records") == _asked(question)
    assert dpsql.ask("lake", "v", question, max_error="90%").equals(answered)
    home = answered.set_index("page").loc["home"]
    assert abs(home["n"] - PEOPLE / 4) < 6 * home["stderr"]
    with pytest.raises(DataError, match="allow that"):
        answer.ask(question, max_error=0.1)
    with pytest.raises(LakeError, match="no sets of keys"):
        opened().query(COUNT, epsilon=1).ask(question)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no unit": ({"unit": ()}, "page, COUNT(*) AS n FROM v GROUP BY page", "unit='user_id'"),
    "no start of windows": (
        {"time": "day"},
        "COUNT(*) AS n FROM v GROUP BY window(day, '1 day')",
        "start='2026-01-01' in dpsql.session",
    ),
    "no domain": (
        {},
        "page, COUNT(*) AS n FROM v GROUP BY CUBE (page)",
        "domains= in dpsql.session",
    ),
    "too many users": (
        {"max_users": 10**15},
        "page, COUNT(*) AS n FROM v GROUP BY page",
        "max_users= in dpsql.session",
    ),
    "a time that is a number": (
        {"time": "ms"},
        "page, COUNT(*) AS n FROM v GROUP BY page, window(ms, '1 day')",
        "time_unit='milliseconds'",
    ),
    "no time": (
        {},
        "page, COUNT(*) AS n FROM v GROUP BY page, window(day, '1 month')",
        "their length varies",
    ),
}


REFUSED |= {
    "a qualified name": ({}, "page, COUNT(*) AS n FROM shop.orders.v GROUP BY page", "write FROM"),
    "no column": ({}, "other, COUNT(*) AS n FROM v GROUP BY other", "no column `other`"),
    "a table that nobody has": ({}, "COUNT(*) AS n FROM v JOIN pages USING (page)", "`pages`"),
    "a cap of the other level": (
        {"cap": {"privacy_level": "EVENT", "epsilon": 3, "delta": 0}},
        "COUNT(*) AS n FROM v",
        "at cap= in dpsql.session",
    ),
    "a cap that is too small": (
        {"cap": {"epsilon": 3, "delta": 1e-6, "period": "1 day"}},
        "COUNT(*) AS n FROM v",
        "or raise the cap: cap= in dpsql.session",
    ),
}
"""Ways to be refused: arguments, the query, what is said."""


@pytest.mark.parametrize(("settings", "sql", "said"), REFUSED.values(), ids=REFUSED)
def test_messages_speak_of_arguments(
    settings: dict[str, Any], sql: str, said: str, opened: Callable[..., Session]
) -> None:
    """Catches: advice to change a file that who has a frame does not have."""
    session = opened(**settings)
    with pytest.raises(InputError) as caught:
        session.query(PRIVATE + sql)
    _of_arguments(caught.value, said)
    assert not session.ledger.lines()


def _of_arguments(problem: InputError, said: str) -> None:
    text = str(problem)
    assert said in text and not re.search(r"\bsources?\.|sources\b|\.yaml", text), text


def test_refusals_of_budgets_speak_of_arguments(opened: Callable[..., Session]) -> None:
    """Catches: a ledger that sends who has a frame to a file; arguments that it proposes and that do not help."""
    cap = {"epsilon": 2, "delta": 1e-6, "period": "7 days"}
    opened(cap=cap).query(COUNT, epsilon=1)
    with pytest.raises(BudgetError) as gone:
        opened().query(COUNT, epsilon=0.1)
    proposed = "cap={'epsilon': 2.0, 'delta': 1e-06, 'period': '7 days'}"
    _of_arguments(gone.value, f"write {proposed} in dpsql.session(...)")
    with pytest.raises(BudgetError) as other:
        opened(cap=cap, unit="page").query("SELECT COUNT(DISTINCT page) AS n FROM v", epsilon=0.1)
    _of_arguments(other.value, "write unit='user' in dpsql.session(...)")
    assert opened(cap=cap).query(COUNT, epsilon=0.1).rows is not None


@pytest.mark.parametrize(
    ("groups", "said"),
    [("WHERE parse_url(page, 'HOST') = 'a'", "runs on Spark only"), ("", "cannot be a key")],
)
def test_refused_lists_of_groups_cost_nothing(
    groups: str, said: str, opened: Callable[..., Session]
) -> None:
    """Catches: a list of public groups that is first looked at when the ledger has its line."""
    session = opened(tables={"pages": pd.DataFrame({"page": [0.5]})})
    listed = f", public_groups = (SELECT page FROM pages {groups}))"
    with pytest.raises(InputError, match=said):
        session.query(PRIVATE.replace(")", listed, 1) + "page, COUNT(*) AS n FROM v GROUP BY page")
    assert not session.ledger.lines()


def test_what_is_left_of_a_cap_of_rows(opened: Callable[..., Session]) -> None:
    """Catches: a session without units that knows of no cap, and an empty frame that ends in an error."""
    cap = {"privacy_level": "EVENT", "epsilon": 3, "delta": 1e-6}
    session = opened(FRAME.head(0), unit=(), cap=cap)
    answer = session.query(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (privacy_level = EVENT, epsilon = 1) COUNT(*) AS n FROM v"
    )
    _right(answer, truth=0)
    assert session.left is not None and 0 < session.left.spent_epsilon <= 1.01
    assert session.spent.epsilon > 0
