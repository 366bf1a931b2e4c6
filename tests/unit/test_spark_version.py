"""Another Spark than the tested one is refused in one line."""

import socket
from importlib.metadata import version

import pytest

from dpsql.errors import ConfigError, Unreachable
from dpsql.streaming import spark_home
from dpsql.streaming.session import RUN
from dpsql.streaming.spark_home import TESTED_SPARK, _check_master, check_version


def test_another_minor_is_refused_and_can_be_tried() -> None:
    for found in ("4.2.0", "4.2.7", "4.2.1-SNAPSHOT"):
        check_version(found, is_accepted=False)
    for found in ("4.1.1", "4.3.0", "4.20.0", "5.2.0", "3.5.8"):
        with pytest.raises(
            ConfigError,
            match=rf"this is Spark {found}, and dpsql was tested with 4\.2 alone: .*--untested-spark",
        ) as told:
            check_version(found, is_accepted=False)
        assert told.value.exit_code == 2 and "\n" not in str(told.value)
        check_version(found, is_accepted=True)


def test_the_tested_spark_is_the_one_that_is_pinned() -> None:
    assert version("pyspark").startswith(f"{TESTED_SPARK}.")


def test_two_compacted_logs_of_files_are_always_kept() -> None:
    """With one alone Spark derives another interval from it, takes it back when there are two, and then misses a log: the run would not
    start. Found by kills of a live run that kept fewer micro-batches than an interval: `49.compact doesn't exist`."""
    kept, interval = (
        int(RUN[f"spark.sql.streaming.{name}"])
        for name in ("minBatchesToRetain", "fileSource.log.compactInterval")
    )
    assert interval <= kept


def test_a_master_may_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: a job that gives up at boot, since its master starts next to it."""
    late = socket.socket()
    told = list[str]()
    late.bind(("127.0.0.1", 0))
    address = f"spark://127.0.0.1:1,127.0.0.1:{late.getsockname()[1]}"
    turns = list[float]()

    def sleep(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 3:
            late.listen()

    monkeypatch.setattr(spark_home, "sleep", sleep)
    with late:
        _check_master(address, told.append)
    assert len(turns) == 3
    assert len(told) == 1 and told[0].endswith("; trying again for 60 seconds")


def test_a_master_that_stays_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches: an exit code that says the query is wrong, and a wait without an end."""
    monkeypatch.setattr(spark_home, "MASTER_SECONDS", 0.2)
    monkeypatch.setattr(spark_home, "PAUSE_SECONDS", 0.01)
    with pytest.raises(Unreachable, match=r"no answer there \(Connection refused\)") as told:
        _check_master("spark://127.0.0.1:1", lambda text: None)
    assert told.value.exit_code == 1


@pytest.mark.parametrize("master", ["spark://h", "spark://h:70000", "spark://h:7077,h:99999"])
def test_a_master_without_an_address_is_refused(master: str) -> None:
    """Catches: a minute's wait for what nobody can answer."""
    with pytest.raises(ConfigError, match="write it like"):
        _check_master(master, lambda text: pytest.fail("it is tried again"))
