"""`dpsql.run_local` is a run: a ledger line before anything is computed, a cap that holds, and one input for one run id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpsql
from dpsql.config import Cap, Sources
from dpsql.errors import BudgetError, DataError, LakeError
from dpsql.ledger import Ledger
from dpsql.secret import Secret
from tests.local.conftest import DAY, HOUR, RUN, SQL, Compile, visits

UNTIL = DAY + 24 * HOUR
JOIN = (
    SQL.replace("FROM visits", "FROM visits LEFT JOIN pages USING (page)")
    .replace("page, COUNT", "topic, COUNT")
    .replace("'), page", "'), topic")
)


def test_every_run_has_its_line_and_a_repeated_one_spends_nothing(compile_on: Compile, tmp_path: Path) -> None:
    secret = Secret.load(tmp_path / "home" / "secret")
    ledger, query = Ledger(tmp_path / "home" / "ledger"), compile_on()
    first = dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL)
    again = dpsql.run_local(query, visits().to_pandas(), secret, RUN, until_us=UNTIL)
    assert first.equals(again) and len(first) > 20
    assert [(line.kind, line.run_id, line.query_identity) for line in ledger.lines()] == [("local", RUN, query.plan.identity)]
    for _ in range(2):
        dpsql.run_local(query, visits(), secret, until_us=UNTIL)
    assert len({line.run_id for line in ledger.lines()}) == 3


def test_a_frame_that_does_not_fit_spends_nothing(compile_on: Compile, tmp_path: Path) -> None:
    secret, query = Secret.load(tmp_path / "home" / "secret"), compile_on()
    frame = visits().to_pandas()
    for wrong, says in (
        (frame.drop(columns="page"), "column `page` of source `visits` is missing"),
        (frame.assign(ts="2026-01-01"), r"declares TIMESTAMP; make it one, like pd.to_datetime\(frame\['ts'\], utc=True\)"),
        ("visits.csv", "no Arrow table and no DataFrame"),
    ):
        with pytest.raises(DataError, match=says):
            dpsql.run_local(query, wrong, secret, until_us=UNTIL)
    assert Ledger.beside(tmp_path / "home" / "secret").lines() == ()


def test_a_query_says_what_it_is(compile_on: Compile) -> None:
    query = compile_on()
    assert repr(query).startswith("<Query on visits: epsilon 6, delta ") and len(repr(query)) < 160
    assert query._repr_html_().startswith("<pre>What is promised")


def test_one_run_id_never_sees_two_inputs(compile_on: Compile, secret: Secret, tmp_path: Path) -> None:
    """Other records, another order, another static table, another query, a run id of another kind of run."""
    pq.write_table(
        pa.table({"page": [f"/p{i}" for i in range(12)], "topic": ["a"] * 12, "rank": pa.array(range(12), pa.int32())}), tmp_path / "pages"
    )
    query = compile_on(JOIN)
    dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL)
    for other in (visits().slice(1), visits().take(list(range(3999, -1, -1))), visits(users=299)):
        with pytest.raises(LakeError, match=rf"run {RUN} has seen other records.*exact difference"):
            dpsql.run_local(query, other, secret, RUN, until_us=UNTIL)
    pq.write_table(pa.table({"page": ["/p1"], "topic": ["a"], "rank": pa.array([1], pa.int32())}), tmp_path / "pages")
    with pytest.raises(LakeError, match="has seen other records"):
        dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL)
    with pytest.raises(LakeError, match="belongs to another query"):
        dpsql.run_local(compile_on(), visits(), secret, RUN, until_us=UNTIL)
    ledger = Ledger.beside(tmp_path / "secrets" / "secret")
    dpsql.run_local(compile_on(), visits(), secret, until_us=UNTIL)
    fresh = ledger.lines()[-1].run_id
    with pytest.raises(LakeError, match="was not given a run_id"):  # a fresh run's id, read in the ledger
        dpsql.run_local(compile_on(), visits(), secret, fresh, until_us=UNTIL)
    assert len(ledger.lines()) == 2
    for bad in ("", "abc", "g" * 32, RUN + "\n"):
        with pytest.raises(LakeError, match="32 hexadecimal digits"):
            dpsql.run_local(query, visits(), secret, bad, until_us=UNTIL)


def test_a_cap_holds_for_local_runs_and_without_a_ledger_there_is_no_run(compile_on: Compile, secret: Secret) -> None:
    query = compile_on()
    capped = replace(query.source, cap=Cap(8.0, 1e-8, 86_400_000_000))
    query = replace(query, sources=Sources((capped,)))
    dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL)
    with pytest.raises(BudgetError, match=r"would exceed the cap.*sources\.visits\.cap"):
        dpsql.run_local(query, visits(), secret, until_us=UNTIL)
    dpsql.run_local(query, visits(), secret, RUN, until_us=UNTIL)
    with pytest.raises(BudgetError, match=r"no file, so no ledger beside it.*ledger=Ledger"):
        dpsql.run_local(query, visits(), Secret(bytes(32)), until_us=UNTIL)
