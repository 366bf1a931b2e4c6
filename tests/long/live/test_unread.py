"""Live runs on Spark, as commands, that get more than they read at once: no record that came in time is lost."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.live.test_live_job import until

pytestmark = pytest.mark.jvm
ROOT = Path(__file__).resolve().parents[3]
SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 6, delta = 1e-8, privacy_unit_column = user_id, max_rows_contributed = 1,
    trigger_interval = '5 seconds', allowed_lateness = '5 seconds')
  page, COUNT(*) AS views FROM clicks GROUP BY window(ts, '10 seconds'), page
"""
SOURCES = """
sources:
  clicks:
    format: {format}
    path: data
    {schema}
    event_time: ts
    privacy_unit: user_id
    max_users: 1000000
    max_keys: 10000
    options: {options}
"""
SLOW_FIRST_RELEASE = """
import sys, time
from dpsql.streaming.context import RunContext
release, seconds = RunContext.release, [{seconds}]
def slow(context, queries):
    done = release(context, queries)
    time.sleep(seconds.pop() if seconds else 0)
    return done
RunContext.release = slow
from dpsql.jobs.cli import main
sys.exit(main())
"""


@dataclass
class Clicks:
    """A source that a thread writes, five records at a time, each at most half a second old."""

    folder: Path
    form: str
    rate: float
    written: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def put(self, age: float = 0.3) -> None:
        """Add five records that began so many seconds ago."""
        begun = datetime.fromtimestamp(time.time() - age, UTC)
        records = [
            {
                "user_id": f"u{self.written + i}",
                "ts": begun + timedelta(seconds=0.05 * i),
                "page": "/a",
            }
            for i in range(5)
        ]
        if self.form == "delta":
            write_deltalake(self.folder / "data", pa.Table.from_pylist(records), mode="append")
        else:
            lines = [json.dumps({**record, "ts": record["ts"].isoformat()}) for record in records]
            (self.folder / "part").write_text("\n".join(lines))
            (self.folder / "part").rename(self.folder / f"data/{self.written:07}.json")
        self.written += 5

    def run(self) -> None:
        """Write until told to stop."""
        while not self.over.wait(1 / self.rate):
            self.put()


@dataclass
class LiveRun:
    """A live run in a process of its own, which takes its time for its first release."""

    folder: Path
    clicks: Clicks
    process: Any = None

    def dpsql(self, *arguments: str, slow: float = 0) -> list[str]:
        """Return a command line."""
        return [sys.executable, "-c", SLOW_FIRST_RELEASE.format(seconds=slow), *arguments]

    def start(self, slow: float) -> None:
        """Begin the run."""
        options = ["--lake", "lake", "--name", "clicks", "--secret-file", "keys/secret"]
        options += ["--interval", "5 seconds", "--master", "local[2]", "--log", "log"]
        command = self.dpsql("run", "q.sql", *options, slow=slow)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "DPSQL_SOURCES": "sources.yaml"}
        with (self.folder / "said").open("w") as said:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=said, stderr=said
            )

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command to its end."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "DPSQL_SOURCES": "sources.yaml"}
        return subprocess.run(
            self.dpsql(*arguments),
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return what `--log` has of a kind."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def wait(self, reached: Callable[[], bool]) -> None:
        """Wait until something is so, or the run has ended."""
        until(lambda: reached() or self.process.poll() is not None)
        assert self.process.poll() is None, (self.folder / "said").read_text()

    def records(self) -> int:
        """Return how many records were read."""
        return sum(batch["records"] for batch in self.events("micro_batch"))

    def dropped(self) -> dict[str, int]:
        """Return how many records were dropped, by reason."""
        counts: dict[str, int] = {}
        for batch in self.events("micro_batch"):
            for reason, count in batch["dropped"].items():
                counts[reason] = counts.get(reason, 0) + count
        return counts


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., LiveRun]]:
    made: list[LiveRun] = []

    def run(form: str, rate: float, slow: float = 0, **options: int) -> LiveRun:
        (tmp_path / "data").mkdir()
        schema = "schema: user_id STRING, ts TIMESTAMP, page STRING" if form == "json" else ""
        text = SOURCES.format(format=form, schema=schema, options=json.dumps(options))
        (tmp_path / "sources.yaml").write_text(text)
        (tmp_path / "q.sql").write_text(SQL)
        clicks = Clicks(tmp_path, form, rate)
        for minute in (3, 2, 1):
            clicks.put(age=60 * minute)
        made.append(LiveRun(tmp_path, clicks))
        made[0].start(slow)
        made[0].wait(lambda: bool(made[0].events("micro_batch")))
        return made[0]

    yield run
    for live in made:
        live.clicks.over.set()
        if live.process.poll() is None:
            live.process.kill()
            live.process.wait()


def written_while(live: LiveRun, seconds: float) -> threading.Thread:
    """Write for a time; then wait until all is read and released."""
    writer = threading.Thread(target=live.clicks.run, daemon=True)
    writer.start()
    time.sleep(seconds)
    return writer


def is_released_whole(live: LiveRun, writer: threading.Thread) -> None:
    """Stop to write, and see that nothing was lost."""
    live.clicks.over.set()
    writer.join()
    end_us = time.time_ns() // 1000
    live.wait(lambda: live.records() >= live.clicks.written)
    live.wait(lambda: live.events("release")[-1]["closed_us"] > end_us + 15_000_000)
    live.process.terminate()
    assert live.process.wait(120) == 0, (live.folder / "said").read_text()
    assert (live.records(), live.dropped()) == (live.clicks.written, {})
    if live.clicks.form == "delta":  # what a table had is not kept with the run
        return
    verified = live.ask("verify", "clicks", "--lake", "lake", "--secret-file", "keys/secret")
    assert verified.stdout.startswith("identical: all"), verified


def test_a_long_first_release_loses_nothing(begin: Callable[..., LiveRun]) -> None:
    """Catches: records of the time of the first release that come late, though nobody had polled."""
    live = begin("json", rate=2, slow=35)
    is_released_whole(live, written_while(live, 75))
    listed = json.loads(live.ask("status", "--lake", "lake", "--json").stdout)
    assert listed[0]["overruns"] >= 1
    said = live.ask("show", "clicks", "--lake", "lake").stdout
    longest = float(said.partition("the longest took ")[2].partition(" s)")[0])
    assert longest > 25


def test_many_files_lose_nothing(begin: Callable[..., LiveRun]) -> None:
    """Catches: a live run that reads fewer files than come in."""
    live = begin("json", rate=30)
    is_released_whole(live, written_while(live, 60))
    assert live.events("alarm") == []


def test_more_files_than_are_read_lose_nothing(begin: Callable[..., LiveRun]) -> None:
    """Catches: a tick past files that are unread, and an operator who is not told."""
    live = begin("json", rate=30, maxFilesPerTrigger=60)
    writer = written_while(live, 40)
    (alarm,) = live.events("alarm")
    assert (alarm["alarm"], "the source brings more files than are read" in alarm["text"]) == (
        "behind",
        True,
    )
    status = live.ask("status", "clicks", "--lake", "lake")
    assert (status.returncode, f"alarm: {alarm['text']}" in status.stdout) == (4, True), status
    is_released_whole(live, writer)
    assert "alarm: source" not in live.ask("status", "clicks", "--lake", "lake").stdout


def test_many_commits_of_a_table_lose_nothing(begin: Callable[..., LiveRun]) -> None:
    """Catches: a limit of files at which a poll of a Delta table stops, between two commits."""
    live = begin("delta", rate=3, maxFilesPerTrigger=2)
    is_released_whole(live, written_while(live, 45))


@pytest.mark.parametrize(("form", "place"), [("json", "data"), ("delta", "data/_delta_log")])
def test_a_source_that_is_away_loses_nothing(
    begin: Callable[..., LiveRun], form: str, place: str
) -> None:
    """Catches: polls that could not list their source taken for silence, after which what comes back is late."""
    live = begin(form, rate=1)
    while len(live.events("release")) < 3:
        live.clicks.put()
        time.sleep(1)
    root = live.folder / place
    live.clicks.put()
    root.rename(live.folder / "away")
    live.wait(lambda: bool(live.events("alarm")))
    time.sleep(40)
    assert live.ask("status", "clicks", "--lake", "lake").returncode == 4
    (live.folder / "away").rename(root)
    writer = written_while(live, 10)
    is_released_whole(live, writer)
    assert [event["alarm"] for event in live.events("alarm")] == ["away"]
