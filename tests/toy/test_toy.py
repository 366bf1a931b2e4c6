"""The toy passes the contract and runs on both engines, with nothing else changed but one line of the registry."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.lake.opening import open_run
from dpsql.lake.runs import Lake
from dpsql.local.feeder import Stages, run_local
from dpsql.local.verification import verify_run
from dpsql.mechanisms import registry
from dpsql.mechanisms.protocol import RunFacts
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import read_histogram
from dpsql.sources.config import Source, Sources
from dpsql.streaming.typed_rows import TypedRows
from dpsql.udfs.keys import PublicGroups
from tests.contract import CONTRACT, HOUR, START
from tests.toy.driver.mechanism import TOY
from tests.toy.worker import stages

SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (toy = 1, epsilon = 8, delta = 1e-6, privacy_unit_column = user_id)
  COUNT(DISTINCT user_id) AS people
FROM visits
GROUP BY window(ts, '1 hour')
"""
CHECKOUT = Path(__file__).parents[2]
UNITS = 40
HOURS = 12


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MECHANISMS", (*registry.MECHANISMS, TOY))


def compiled(folder: Path) -> dpsql.Query:
    source = Source(
        name="visits",
        format="parquet",
        path=str(folder),
        event_time="ts",
        privacy_unit=("user_id",),
        start_us=START,
    )
    return dpsql.compile(SQL, Sources((source,)))


def visits() -> pa.Table:
    number = np.arange(UNITS * HOURS * 3)
    time = pa.array(START + number % HOURS * HOUR + number * 1_000_000).cast(
        pa.timestamp("us", "UTC")
    )
    return pa.table({"user_id": pa.array([f"u{i}" for i in number // HOURS % UNITS]), "ts": time})


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_the_contract(check: Callable[[Stages, Path], None], tmp_path: Path) -> None:
    query = compiled(tmp_path)
    made = TOY.stages(query.plan, RunFacts(PublicGroups((5,), (b"",), START)))
    assert made[0].gives == query.shape.contributions
    check(made, tmp_path)


def test_the_promise_is_kept_and_not_wasted(tmp_path: Path) -> None:
    query = compiled(tmp_path)
    assert query.parsed.mechanism == "toy"
    assert (
        0.98 * query.parsed.delta
        <= TOY.account(query.plan, query.source).delta(query.parsed.epsilon)
        <= query.parsed.delta
    )


def test_it_runs_on_the_local_engine(tmp_path: Path) -> None:
    query = compiled(tmp_path)
    secret = Secret(bytes(range(32)))
    rows = run_local(
        query, visits(), secret, until_us=START + HOURS * HOUR, ledger=Ledger(tmp_path / "ledger")
    )
    assert len(rows) == HOURS
    assert (rows["people"] - UNITS).abs().max() <= 7 * query.plan.sigma


@pytest.mark.jvm
def test_it_runs_on_spark_and_is_verified(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import cloudpickle

    from dpsql.streaming.job import run

    (tmp_path / "visits").mkdir()
    pq.write_table(visits(), tmp_path / "visits" / "a.parquet")
    query = compiled(tmp_path / "visits")
    lake = Lake(tmp_path / "lake")
    secret = Secret(bytes(range(32)))
    ledger = Ledger(tmp_path / "ledger")
    bound = open_run(lake, "toy", query, secret, ledger, query.source)
    cloudpickle.register_pickle_by_value(
        stages
    )  # workers import `udfs`, where a real mechanism's stages are
    try:
        run(
            spark,
            query,
            bound,
            lake,
            secret,
            until_caught_up=True,
            until_us=START + HOURS * HOUR,
            buckets=(2, 2),
            ledger=ledger,
        )
    finally:
        cloudpickle.unregister_pickle_by_value(stages)
    assert read_histogram(lake, "toy").column_names == [
        "window_start",
        "window_end",
        "trigger",
        "trigger_time",
        "people",
    ]
    found = verify_run(lake, "toy", bound, query, secret, as_parquet=TypedRows(spark))
    assert (found.identical, found.published) == (True, HOURS)


def test_the_how_to_names_files_that_are_there() -> None:
    how_to = (
        (CHECKOUT / "CONTRIBUTING.md")
        .read_text()
        .partition("**a mechanism**")[2]
        .partition("**a function")[0]
    )
    named = set(re.findall(r"`(tests/toy/[^`]*)`", how_to))
    files = {
        str(path.relative_to(CHECKOUT))
        for path in (CHECKOUT / "tests/toy").rglob("*")
        if path.suffix in (".py", ".md")
    }
    assert named == {path for path in files if not path.endswith("__init__.py")}
