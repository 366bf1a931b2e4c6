"""One truth in tables, frames, JSON and files: what the table does not tell, no other door tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import dpsql
from dpsql.description import NOTE
from dpsql.errors import QueryError
from dpsql.jobs.cli import main
from dpsql.published.public_rows import PublicRows
from dpsql.published.words import TOO_FEW
from dpsql.view.csv_text import csv_text
from dpsql.view.words import text_of
from tests.unit.workplace import DAY, place

BOUNDS = "contribution_bounds_per_row => (0, 100)"
AGGREGATES = f"""COUNT(*) AS n, AVG(v, {BOUNDS}) AS mean, STDDEV(v, {BOUNDS}) AS spread,
APPROX_QUANTILES(v, 4, {BOUNDS}) AS quarters"""


@pytest.fixture
def session(tmp_path: Path) -> dpsql.Session:
    """Many records with a key, and few with another one."""
    key = np.repeat(["many", "few"], [20_000, 60])
    values = np.random.default_rng(7).uniform(0, 100, len(key))
    frame = pd.DataFrame({"u": np.arange(len(key)), "k": key, "v": values})
    return dpsql.session(frame, unit="u", secret=tmp_path / "secret")


def test_values_that_say_nothing_are_null_everywhere(session: dpsql.Session) -> None:
    """Catches: the middle of the bounds as a value, where the table says that nobody can say."""
    groups = f"SELECT k, {AGGREGATES} FROM t GROUP BY k ORDER BY n DESC"
    answer = session.query(groups, epsilon=3, delta=1e-6)
    published = PublicRows.of_frame(answer.all_rows).description
    silent = set[Any]()
    for row in answer.all_rows.to_dict("records"):
        for column in published.display_columns:
            if text_of(row, column, published) == TOO_FEW:
                silent.add((row["k"], column.name))
    assert {("few", "mean"), ("few", "spread"), ("few", "quarters")} == silent
    csv = csv_text(PublicRows.of_frame(answer.rows))[0].splitlines()
    assert csv[2].startswith('"few",') and csv[2].split(",")[3:6:2] == ["", ""]
    many, few = answer.rows.to_dict("records")
    for name in ("mean", "spread", "quarters"):
        assert few[name] is None or np.isnan(few[name])
        assert f"{name}: {TOO_FEW}" in few[NOTE] and np.size(many[name]) in (1, 5)
    assert few["mean_stderr"] > 20 and few["n"] == int(few["n"])
    assert pd.isna(many[NOTE])


def test_files_and_json_tell_what_tables_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a door of its own for JSON or Parquet."""
    monkeypatch.chdir(place(tmp_path / "work"))
    Path("few.sql").write_text(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column = user_id) "
        "AVG(seconds, contribution_bounds_per_row => (0, 60)) AS mean FROM visits"
    )
    few = pd.DataFrame({"user_id": ["a", "b"], "ts": pd.Timestamp(DAY), "seconds": [1.0, 2.0]})
    few.to_parquet("visits.parquet")
    arguments = ["few.sql", "--json", "--output", "few.parquet", "--input", "visits.parquet"]
    done = CliRunner().invoke(main, ["try", *arguments])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    for row in (*rows, *pq.read_table("few.parquet").to_pylist()):
        assert row["mean"] is None and row["mean_stderr"] > 10
        assert row[NOTE] == f"mean: {TOO_FEW}"


def test_empty_answers_have_the_columns_of_full_ones(session: dpsql.Session) -> None:
    """Catches: times of a query without windows; advice on windows to it."""
    sql = "SELECT CAST({} AS BIGINT) AS whole, COUNT(DISTINCT u) AS people FROM t GROUP BY whole"
    full, sql = session.query(sql.format("v / 50"), epsilon=3), sql.format("u")
    empty = session.query(sql, epsilon=0.01, delta=1e-9)
    assert empty.rows.empty and list(empty.rows) == list(full.rows)
    assert "fewer and coarser keys" in repr(empty) and "window" not in repr(empty)


def test_having_that_leaves_nothing_says_so(session: dpsql.Session) -> None:
    """Catches: an empty table without a word."""
    sql = "SELECT k, COUNT(DISTINCT u) AS people FROM t GROUP BY k HAVING people > 1000000"
    answer = session.query(sql, epsilon=3)
    assert answer.rows.empty and repr(answer).startswith("No released row meets")


def test_notes_have_a_name_of_their_own(session: dpsql.Session) -> None:
    """Catches: a column of the query that notes overwrite."""
    with pytest.raises(QueryError, match="a column `dpsql_note` of its own"):
        session.query("SELECT k, COUNT(DISTINCT u) AS dpsql_note FROM t GROUP BY k", epsilon=3)
