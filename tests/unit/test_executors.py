"""A run on a cluster that has no executor says so, and ends when that lasts."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dpsql.errors import DpsqlError, ReleaseConflict
from dpsql.streaming import job


class Cluster:
    """A session on it, as far as it is looked at; its jobs hang until they are cancelled."""

    def __init__(
        self, executors: int = 0, master: str = "spark://h:1", dynamic: bool = False, jobs: int = 0
    ) -> None:
        self.executors = executors
        self.cancelled = threading.Event()
        context = SimpleNamespace(
            master=lambda: master,
            getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: 1 + self.executors),
            getConf=lambda: SimpleNamespace(getBoolean=lambda name, default: dynamic),
            statusTracker=lambda: SimpleNamespace(getActiveJobIds=lambda: [0] * jobs),
            cancelAllJobs=self.cancelled.set,
        )
        self.sparkContext = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, seconds in (("LOOK_SECONDS", 0.01), ("SAY_SECONDS", 0.1), ("END_SECONDS", 0.4)):
        monkeypatch.setattr(job, name, seconds)
    before = threading.active_count()
    yield
    assert threading.active_count() == before, "whoever watches ends with what it watches"


def watched(cluster: Any, stop: threading.Event, said: list[str]) -> Any:
    return job.watched(cluster, stop, said.append)


@pytest.mark.parametrize("stopped", [True, False], ids=["it stops politely", "what hangs fails"])
def test_a_run_without_an_executor_ends(stopped: bool) -> None:
    cluster = Cluster()
    stop = threading.Event()
    said = list[str]()
    message = r"no executor: .* its master has forgotten it, for .* the same command continues"
    with pytest.raises(DpsqlError, match=message) as told, watched(cluster, stop, said):
        assert cluster.cancelled.wait(10) and stop.is_set()
        if not stopped:
            raise RuntimeError("job 7 was cancelled, which reads u17")
    assert told.value.exit_code == 1 and told.value.__suppress_context__
    assert len(said) == 1 and said[0].endswith("; it waits")


def test_one_that_gets_an_executor_in_time_goes_on_and_its_own_errors_are_told() -> None:
    cluster = Cluster()
    stop = threading.Event()
    said = list[str]()
    with pytest.raises(RuntimeError, match="of its own"), watched(cluster, stop, said):
        time.sleep(0.2)
        cluster.executors = 1
        time.sleep(0.6)
        raise RuntimeError("of its own")
    assert len(said) == 1 and not stop.is_set() and not cluster.cancelled.is_set()


@pytest.mark.parametrize(
    ("cluster", "ends"),
    [
        (Cluster(dynamic=True), False),
        (Cluster(dynamic=True, jobs=1), True),
        (Cluster(master="local[2]"), False),
    ],
)
def test_where_executors_come_and_go_only_a_job_misses_them(cluster: Cluster, ends: bool) -> None:
    stop = threading.Event()
    said = list[str]()
    try:
        with watched(cluster, stop, said):
            time.sleep(0.6)
    except DpsqlError:
        assert ends
    assert stop.is_set() is ends and len(said) == ends


@pytest.mark.parametrize("fails", [True, False])
def test_a_stop_without_an_executor_is_at_once(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a run that is killed after its grace, since its micro-batch waits for a cluster that has ended too."""
    monkeypatch.setattr(job, "SAY_SECONDS", 60)
    monkeypatch.setattr(job, "END_SECONDS", 60)
    cluster = Cluster(executors=1)
    stop = threading.Event()
    said = list[str]()
    with watched(cluster, stop, said):
        stop.set()
        assert not cluster.cancelled.wait(0.2), "its micro-batch may finish"
        cluster.executors = 0
        assert cluster.cancelled.wait(10)
        if fails:
            raise DpsqlError("the admission query failed in Spark (SparkException)")
    assert said == []


def test_a_stop_without_an_executor_hides_no_conflict() -> None:
    """Catches: what is wrong with the lake, taken for what a stop breaks off."""
    cluster = Cluster()
    stop = threading.Event()
    stop.set()
    with pytest.raises(ReleaseConflict, match="other rows"), watched(cluster, stop, []):
        assert cluster.cancelled.wait(10)
        raise ReleaseConflict("other rows")
