"""Marginals on both engines: the same rows, which `verify` makes again, and from which questions are answered."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

import dpsql
from dpsql import record
from dpsql.errors import DataError, LakeError
from dpsql.jobs.cli import main
from dpsql.lake.opening import run_of
from dpsql.lake.runs import SCHEMA_VERSION, Lake
from dpsql.mechanisms.marginals.planner import PLAN_VERSION
from dpsql.mechanisms.protocol import identity_of
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.origin import origin_of
from dpsql.published.paid import ANSWERS, PaidAnswer, pay, session_of
from dpsql.sources.config import Sources
from dpsql.sources.domains import Domain
from tests.matrix import same_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 9e-6, privacy_unit_column = user_id, max_rows_contributed = 16, "
    "trigger_interval = '4 hours', max_triggers = 9) key, hour, COUNT(*) AS n, SUM(value, contribution_bounds_per_row => (0, 500)) AS total, "
    "AVG(value, contribution_bounds_per_row => (0, 500)) AS mean, STDDEV(value, contribution_bounds_per_row => (0, 500)) AS spread "
    "FROM (SELECT user_id, ts, key, value, hour(ts) AS hour FROM wiki) GROUP BY CUBE(key, hour)"
)

ROWS = TEXT.replace(
    "privacy_unit_column = user_id, max_rows_contributed = 16", "privacy_level = EVENT"
)


@pytest.mark.parametrize(
    ("text", "counted"), [(TEXT, "at most 16 records of one user_id"), (ROWS, "of every row")]
)
def test_both_engines_publish_the_same_rows_and_answer_alike(
    spark: SparkSession, tmp_path: Path, text: str, counted: str
) -> None:
    stream = same_rows.wiki("1 day", "4 hours", 3)
    known = sorted({*stream.records["key"].to_pylist()} - {None})[1::2]
    domains = (
        ("hour", Domain(tuple(map(str, range(24))), True, whole=True)),
        ("key", Domain((*known, "other"), False, other=True)),
    )
    query = dpsql.compile(
        text, Sources((stream.source("wiki", tmp_path / "data", domains=domains),))
    )
    here = same_rows.on_both_engines(spark, query, stream, 3, tmp_path / "lake")
    assert here.num_rows == 9 * query.plan.marginals.first[-1]

    def asked(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(main, ["ask", "q", *arguments, "--lake", str(tmp_path / "lake")])
        assert done.exit_code == code, done.output
        return done.output

    (answer,) = json.loads(
        asked(f"SELECT COUNT(*) FROM q WHERE key = '{known[0]}' OR hour < 12", "--json")
    )["rows"]
    assert answer["low"] < answer["n"] < answer["high"]
    records = stream.records.to_pandas()
    exact = np.sum((records["key"] == known[0]) | (records["ts"].dt.hour < 12))
    dropped = (
        np.sum(records.groupby("user_id").cumcount() >= 16) if query.parsed.privacy_unit else 0
    )
    assert abs(answer["n"] - exact) < 5 * answer["stderr"] + dropped
    said = asked(
        "SELECT key, SUM(total) FROM q WHERE hour BETWEEN 0 AND 5 GROUP BY key", "--trigger", "3"
    )
    assert "free" in said and counted in said and "NULL" not in said
    assert "`other` of key holds NULL too" in asked(
        f"SELECT COUNT(*) FROM q WHERE key <> '{known[0]}'"
    )
    for question in (
        ("SELECT SUM(mean) FROM q",),
        ("SELECT key, SUM(spread) FROM q GROUP BY key",),
        ("--synthetic", "--of", "mean"),
    ):
        assert (
            "does not add up over cells" in (said := asked(*question, code=2))
            and "select SUM and COUNT next to it" in said
        )


def test_cells_close_at_the_same_triggers_on_both_engines(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A midnight as a text, and an hour. Catches: a text of a time that engines write in two ways, so that its records are outside the domain."""
    stream = same_rows.wiki("1 day", "4 hours", 3)
    midnights = ("2015-09-12 00:00:00", "2015-09-13 00:00:00")
    domains = (
        ("hour", Domain(tuple(map(str, range(24))), True, whole=True)),
        ("midnight", Domain(midnights, True)),
    )
    text = TEXT.replace("key, hour, COUNT", "midnight, hour, COUNT").replace(
        "key, hour)", "midnight, hour)"
    )
    text = text.replace("ts, key, ", "ts, CAST(DATE_TRUNC('DAY', ts) AS STRING) AS midnight, ")
    declared = stream.source(
        "wiki", tmp_path / "data", domains=domains, start_us=1_442_016_000_000_000
    )
    query = dpsql.compile(text, Sources((declared,)))
    assert query.plan.closing_keys == (0, 1)
    here = same_rows.on_both_engines(spark, query, stream, 3, tmp_path / "lake").to_pandas()
    pairs = here[(here["grouping_id"] == 0) & (here["midnight"] == midnights[0])]
    closed = pairs.groupby("trigger")["hour"].max()
    last = here["trigger"].max()
    assert last >= 6
    assert closed.to_dict() == {each: min(4 * each, 24) - 1 for each in range(1, last + 1)}
    first = stream.records.to_pandas()["ts"].dt.hour
    assert pairs["n"].max() > first.value_counts().max() / 4
    of_all_days = "SELECT COUNT(*) FROM q WHERE hour = 9"
    of_one_day = f"{of_all_days} AND midnight = '{midnights[0]}'"
    both = [
        dpsql.ask(str(tmp_path / "lake"), "q", text).iloc[0] for text in (of_all_days, of_one_day)
    ]
    assert abs(both[0]["n"] - both[1]["n"]) < 5 * max(each["stderr"] for each in both)
    assert both[0]["n"] > 100 > both[0]["stderr"]


def test_a_run_sells_answers_until_its_share_is_spent(spark: SparkSession, tmp_path: Path) -> None:
    """Of questions about both keys, which no table covers: paid, again for nothing, and refused; of one key free. Catches: an exact count of another
    trigger or bucket; a count that a public file has; a price of another run."""
    stream = same_rows.wiki("1 day", "4 hours", 3)
    known = sorted({*stream.records["key"].to_pylist()} - {None})[1::2]
    domains = (
        ("hour", Domain(tuple(map(str, range(24))), True, whole=True)),
        ("key", Domain((*reversed(known), "other"), False, other=True)),
    )
    declared = stream.source("wiki", tmp_path / "data", domains=domains, session_share=0.2)
    text = TEXT.replace("CUBE(key, hour)", "GROUPING SETS ((key), (hour))")
    query = dpsql.compile(text, Sources((declared,)))
    assert "20% for paid answers" in query.explain()
    same_rows.on_both_engines(spark, query, stream, 3, tmp_path / "lake")
    ledger = Ledger(tmp_path / "ledger")
    origin = origin_of(declared, "", level=query.protects)
    ledger.append(query.line(same_rows.RUN_ID, "run", origin), None)
    lake = Lake(tmp_path / "lake")
    run = run_of("q", same_rows.RUN_ID, query, same_rows.SECRET, "")
    record.write(lake.private("q") / record.RUN_FILE, run, SCHEMA_VERSION)

    def asked(hours: str, error: str) -> PaidAnswer:
        question = f"SELECT COUNT(*) FROM q WHERE key = '#en.wikipedia' AND hour {hours}"
        return pay(lake, "q", question, error, same_rows.SECRET, ledger)

    records = stream.records.to_pandas()
    counted = records[records.groupby("user_id").cumcount() < 16]
    exact = np.sum((counted["key"] == "#en.wikipedia") & (counted["ts"].dt.hour < 12))
    half_day = "SELECT COUNT(*) FROM q WHERE key = '#en.wikipedia' AND hour < 12"
    with pytest.raises(DataError, match=r"is not covered.* it costs at most [\d.]+% of") as refused:
        dpsql.ask(str(tmp_path / "lake"), "q", half_day, max_error=150)
    first = asked("< 12", "150")
    assert f"at most {first.cost:.2%} of" in str(refused.value)
    (row,) = first.answer.rows
    assert first.source == "paid" and abs(row["n"] - exact) < 5 * row["stderr"]
    again = asked("BETWEEN 0 AND 11", "150")
    assert (again.source, again.answer.rows) == ("free", first.answer.rows)
    assert asked(">= 0", "5000").source == "free"
    folders = [path for path in (tmp_path / "ledger").rglob("*") if path.is_dir()]
    assert {path.stat().st_mode & 0o077 for path in folders} == {0} and len(folders) > 1
    spent = first.cost
    with pytest.raises(DataError, match="is left: allow a larger error"):
        for hour in range(24):
            spent += asked(f"= {hour}", "60").cost
    assert first.cost < spent <= 1
    plan = run.plan | {"mu": 2 * run.plan["mu"]}
    digested = {name: value for name, value in plan.items() if name != "reading"}
    identity = identity_of(PLAN_VERSION, digested | {"identity": ""})
    edited = replace(run, plan=plan, query_identity=identity)
    with pytest.raises(LakeError, match="has no line of its plan in"):
        session_of(edited, same_rows.SECRET, ledger)
    answers = DeltaTable(str(tmp_path / "lake" / "public" / "q.answers")).to_pyarrow_table()
    assert answers.num_rows == len(list((ledger.folder / "asks").glob("*/*.json")))
    assert set(answers.column_names) == set(ANSWERS.names)
