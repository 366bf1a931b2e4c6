"""Live runs on Spark that are broken off anywhere and started again, or ended by SIGTERM and `dpsql stop`."""

import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak import Generator, Job
from dpsql.errors import LakeError
from dpsql.lake.contributions import Contributions
from dpsql.lake.manifest import Manifest
from dpsql.lake.running import exclusive
from dpsql.lake.runs import Lake, list_queries
from dpsql.published.public_rows import read_histogram
from dpsql.streaming.published_table import PublishedTable
from tests.live.test_live_job import (
    HORIZON,
    PATIENCE,
    TRIGGER,
    WINDOW,
    Case,
    case,
    no_trigger_is_lost_or_doubled,
    until,
)
from tests.streaming.conftest import BrokenOff

__all__ = ["case"]
POINTS: list[tuple[Any, str]] = [
    (Manifest, "commit"),
    *((Contributions, name) for name in ("append", "tick_by_clock")),
]
POINTS += [(PublishedTable, "publish")]


def test_broken_off_anywhere_and_started_again(case: Case) -> None:
    for turn, (owner, name) in enumerate(POINTS):
        original = getattr(owner, name)
        calls = 0

        def broken(
            *given: Any, _original: Any = original, _after: bool = turn % 2 == 0, **named: Any
        ) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3 and not _after:
                raise BrokenOff
            done = _original(*given, **named)
            if calls == 3:
                raise BrokenOff
            return done

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, broken)
            with pytest.raises(BrokenOff):
                case.start().wait(PATIENCE)
    handle = case.start()
    count = len(case.rows())
    until(lambda: len(case.rows()) > count + 8)
    case.writing.clear()
    quiet = time.time()
    # Silence: the windows of the last records are released to their last trigger
    until(
        lambda: (
            max(window + trigger * TRIGGER for window, trigger, _ in case.rows()) > quiet + TRIGGER
        )
    )
    assert handle.running and handle.progress.rows > 0
    assert [listed.state for listed in list_queries(case.lake)] == ["running"]
    version = handle.progress.triggers
    threads = threading.active_count()
    time.sleep(HORIZON * TRIGGER)
    # Ticks of a live run come for months: a thread that each of them leaves behind would end it.
    assert threading.active_count() <= threads
    assert handle.stop().stopped
    assert [listed.state for listed in list_queries(case.lake)] == ["stopped"]
    no_trigger_is_lost_or_doubled(case.rows())
    assert version > 0
    # A catch-up in between, then live again, then a time to come
    case.writing.set()
    assert not case.start(until_caught_up=True).wait(PATIENCE).stopped
    handle = case.start()
    count = len(case.rows())
    until(lambda: len(case.rows()) > count + 4)
    handle.stop()
    found = case.verified()
    assert found.identical and found.published > 20
    case.start(until_caught_up=True, until_us=(time.time_ns() // 1000) + 3_600_000_000).wait(
        PATIENCE
    )
    with pytest.raises(
        LakeError, match="which is still to come: a live run would drop every record"
    ):
        case.start().wait(PATIENCE)
    with (
        exclusive(case.lake.private("visits")),
        pytest.raises(LakeError, match="is running already"),
    ):
        case.start().wait(PATIENCE)


@pytest.mark.jvm
def test_sigterm_start_again_and_stop(tmp_path: Path) -> None:
    """The command itself, in its own process, on the stream of the soak."""
    job = Job(tmp_path, TRIGGER, WINDOW, HORIZON, interval=1)
    generator = Generator(tmp_path / "visits", 100, (10_000, 0))
    lake = Lake(tmp_path / "lake")

    def newest() -> float:
        try:
            return max(
                time.timestamp()
                for time in read_histogram(lake, "soak")["trigger_time"].to_pylist()
            )
        except (LakeError, ValueError):
            return 0.0

    generator.start()
    job.start()
    try:
        until(lambda: newest() > 0 or job.process.poll() is not None)
        assert job.terminate() == 0, job.log.read_text()
        before = newest()
        job.start()
        until(lambda: newest() > before + 3 * TRIGGER or job.process.poll() is not None)
        generator.stop.set()
        assert job.command("stop", "soak") == "soak has stopped"
        assert job.process.wait(60) == 0, job.log.read_text()
    finally:
        generator.stop.set()
        if job.process.poll() is None:
            subprocess.Popen.kill(job.process)
            job.process.wait()
    table = read_histogram(lake, "soak")
    seconds = [round(start.timestamp()) for start in table["window_start"].to_pylist()]
    no_trigger_is_lost_or_doubled(
        sorted(zip(seconds, table["trigger"].to_pylist(), table["page"].to_pylist(), strict=True))
    )
    assert job.verify().startswith("identical: all")
    assert job.command("stop", "soak") == "query 'soak' is not running"
