"""What every test may rely on: a home of its own, and one Spark session for all tests that need the JVM."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dpsql.udfs import columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Before the first session of the process: JVM flags and workers cannot be changed later
os.environ["TZ"] = "UTC"
time.tzset()
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# No power fails while tests run, and there are ten thousands of these
os.fsync = lambda descriptor: None

find = columns.find


def _find_in_order(keys: list[Any], table: list[Any]) -> Any:
    assert columns.is_sorted(table), "rows are looked up in a table that is not sorted"
    return find(keys, table)


# Every look-up of every test, before a module has a name of its own for it; checking each one in a run would cost a tenth of a trigger
columns.find = _find_in_order

# These change how fast small tests are, not what they compute: 105 -> 21 CPU seconds for three micro-batches
SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m",
    "spark.sql.session.timeZone": "UTC",
}


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_home(_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the secret, the ledger or the settings of whoever runs it. Most need no folder, so none is made."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(next(_homes)))
    for name in [name for name in os.environ if name.startswith("DPSQL_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with Delta; state that outlives a test is that test's mistake."""
    from dpsql import jars
    from dpsql.streaming.formats import java_options
    from dpsql.streaming.session import session

    warehouse = tmp_path_factory.mktemp("warehouse")
    properties = {
        **SMALL,
        "spark.driver.extraJavaOptions": f"{SMALL['spark.driver.extraJavaOptions']} {java_options()}",
        "spark.jars": ",".join(map(str, jars.ensure())),
        "spark.sql.warehouse.dir": str(warehouse),
    }
    started = session("local[2]", properties)
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def _stop_streams(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for the session starts Spark; nobody has to remember the marker. It comes first: the shortest files fill up the end."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("jvm")
    with_spark = {item.path for item in items if item.get_closest_marker("jvm")}
    items.sort(key=lambda item: item.path not in with_spark)
