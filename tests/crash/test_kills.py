"""One kill of `python -m tests.crash.kill`: by SIGKILL a process ends as no exception ends it. `tests/streaming/test_interruptions.py` breaks off
everywhere, `tests/long/crash` kills more."""

import importlib
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.lake.opening import open_run
from dpsql.lake.runs import Lake
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.streaming.job import run
from tests.crash.kill import BUCKETS, NAME, START, Stage, broken, differences, left
from tests.crash.points import LIVE_POINTS, POINTS, SKETCH_POINTS

KILLED = -9


def start_here(spark: SparkSession, stage: Stage, lake: Path) -> None:
    """The catch-up in this process, whose Spark is there already."""
    query = dpsql.compile(stage.sql, dpsql.load_sources(stage.folder / "sources.yaml"))
    secret = Secret.load(stage.secret(lake))
    ledger = Ledger.beside(stage.secret(lake))
    until_us = round((START + timedelta(hours=12)).timestamp() * 1e6)  # as the command says it
    begun = open_run(Lake(lake), NAME, query, secret, ledger, query.source)
    buckets = (BUCKETS, BUCKETS)
    run(
        spark,
        query,
        begun,
        Lake(lake),
        secret,
        until_caught_up=True,
        until_us=until_us,
        buckets=buckets,
        ledger=ledger,
    )


def test_kills_leave_what_an_uninterrupted_run_leaves(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path / "stage", 1)
    stage.prepare()
    stage.bring(0)
    monkeypatch.chdir(stage.folder)
    whole = stage.lake("whole")
    lake = stage.lake("killed")
    start_here(spark, stage, whole)
    assert len(left(whole)["histogram"]) >= 3
    assert stage.start(stage.command(lake, 0), "release: after the manifest") == KILLED
    assert broken(lake) == []
    start_here(spark, stage, lake)
    assert differences(left(whole), left(lake)) == []


def test_points_are_many_and_in_the_product() -> None:
    assert len(POINTS) >= 24
    for point in (*SKETCH_POINTS.values(), *POINTS.values(), *LIVE_POINTS.values()):
        module, _, owner = point.owner.partition(":")
        found = importlib.import_module(module)
        assert callable(getattr(getattr(found, owner) if owner else found, point.name))
