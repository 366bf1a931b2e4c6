"""Live runs on Spark: broken off and started again, ended by SIGTERM and `dpsql stop`, and what they publish."""

import json
import os
import pkgutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import dpsql
from dpsql.errors import LakeError
from dpsql.lake.event_log import AWAY, newest_events
from dpsql.lake.runs import Lake, read_run
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.local.verification import Verification, verify_run
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret
from dpsql.published.public_rows import read_histogram
from dpsql.sources.config import Source, Sources
from dpsql.streaming.live import LiveOptions
from dpsql.streaming.microbatches import Following
from dpsql.streaming.typed_rows import TypedRows

TRIGGER = 2
WINDOW = 4
HORIZON = 4
SQL = f"""
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = '{TRIGGER} seconds',
    allowed_lateness = '{HORIZON * TRIGGER - WINDOW} seconds')
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '{WINDOW} seconds'), page
"""
TABLE = f"""
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4, trigger_interval = '{TRIGGER} seconds')
  page, COUNT(*) AS views FROM visits GROUP BY page
"""
PATIENCE = 400
"""Seconds; a busy machine is slow, and only a test that fails waits for so long."""


@dataclass
class Case:
    """One live query over a folder that a thread fills while `writing` is set."""

    spark: SparkSession
    folder: Path
    lake: Lake
    query: dpsql.Query
    secret: Secret
    ledger: Ledger
    writing: threading.Event
    over: threading.Event

    def start(self, **options: Any) -> Any:
        if not options:
            options = {"live": LiveOptions(interval_us=500_000)}
        options |= {"buckets": (2, 2)}
        return dpsql.start(
            self.spark,
            self.query,
            str(self.lake.root),
            "visits",
            self.secret,
            self.ledger,
            **options,
        )

    def verified(self) -> Verification:
        """What `verify` says of the run."""
        run = read_run(self.lake, "visits")
        as_parquet = TypedRows(self.spark)
        return verify_run(self.lake, "visits", run, self.query, self.secret, as_parquet=as_parquet)

    def fill(self) -> None:
        number = 0
        while not self.over.wait(0.4):
            if self.writing.is_set():
                number += 1
                now = datetime.fromtimestamp(time.time(), UTC).isoformat()
                lines = [
                    json.dumps({"user_id": f"u{number % 3}-{i}", "ts": now, "page": f"p{i % 2}"})
                    for i in range(150)
                ]
                (self.folder / f".{number:05d}").write_text("\n".join(lines))
                (self.folder / f".{number:05d}").rename(self.folder / f"{number:05d}.json")

    def rows(self) -> list[tuple[int, int, str]]:
        """(window second, trigger, page) of every published row."""
        try:
            table = read_histogram(self.lake, "visits")
        except LakeError:
            return []
        seconds = [round(start.timestamp()) for start in table["window_start"].to_pylist()]
        return sorted(
            zip(seconds, table["trigger"].to_pylist(), table["page"].to_pylist(), strict=True)
        )


@pytest.fixture
def case(spark: SparkSession, tmp_path: Path) -> Iterator[Case]:
    folder = tmp_path / "visits"
    folder.mkdir()
    given: dict[str, Any] = {
        "event_time": "ts",
        "privacy_unit": ("user_id",),
        "max_users": 1000,
        "max_keys": 1000,
    }
    given |= {"start_us": (int(time.time()) // TRIGGER - 5) * TRIGGER * 1_000_000}
    source = Source(
        "visits", "json", str(folder), schema="user_id STRING, ts TIMESTAMP, page STRING", **given
    )
    query = dpsql.compile(SQL, Sources((source,)))
    secret = Secret(bytes(range(32)))
    made = Case(
        spark,
        folder,
        Lake(tmp_path / "lake"),
        query,
        secret,
        Ledger(tmp_path / "ledger"),
        threading.Event(),
        threading.Event(),
    )
    made.writing.set()
    writer = threading.Thread(target=made.fill, daemon=True)
    writer.start()
    yield made
    made.over.set()
    writer.join()


def until(reached: Callable[[], Any], seconds: float = PATIENCE) -> None:
    limit = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.2)


def no_trigger_is_lost_or_doubled(rows: list[tuple[int, int, str]]) -> None:
    """A key that has appeared in a window is there at every later trigger of it, up to the newest grid point."""
    assert rows and len(set(rows)) == len(rows)
    newest = max(window + trigger * TRIGGER for window, trigger, _ in rows)
    for window, page in {(window, page) for window, _, page in rows}:
        triggers = sorted(trigger for w, trigger, p in rows if (w, p) == (window, page))
        last = min(HORIZON, (newest - window) // TRIGGER)
        assert triggers == list(range(triggers[0], last + 1)), (window, page)


def test_a_table_without_windows(case: Case) -> None:
    """Every grid point is published, in silence too, and all of it is recomputed."""
    case.query = dpsql.compile(TABLE, case.query.sources)

    def triggers() -> list[int]:
        try:
            return sorted(set(read_histogram(case.lake, "visits")["trigger"].to_pylist()))
        except LakeError:
            return []

    handle = case.start()
    until(lambda: len(triggers()) > 1)
    case.writing.clear()
    time.sleep(1)
    silent = triggers()[-1]
    until(lambda: triggers()[-1] > silent + 1)
    assert handle.stop().stopped
    published = triggers()
    assert published == list(range(published[0], published[-1] + 1))
    found = case.verified()
    assert found.identical and found.published >= 2 * len(published) - 1


def test_a_folder_that_is_away_loses_nothing(case: Case, tmp_path: Path) -> None:
    """Catches: polls of a folder that is not there taken for silence, so that all that came meanwhile is late when it is back."""
    link = tmp_path / "in"
    link.symlink_to(case.folder)
    sources = Sources((replace(case.query.source, path=str(link)),))
    case.query = dpsql.compile(SQL, sources)

    def is_alarmed() -> bool:
        return f"alarm/{AWAY}" in newest_events(case.lake.private("visits"))

    handle = case.start()
    until(lambda: len(case.rows()) > 4)
    case.writing.clear()  # no micro-batch is at work: polls find nothing
    checkpoint = Checkpoint(case.lake.private("visits") / "checkpoints/admission")
    time.sleep(1)
    until(lambda: len(checkpoint.files(checkpoint.newest_commit)) == len(os.listdir(case.folder)))
    assert not is_alarmed()
    link.unlink()
    case.writing.set()
    until(is_alarmed, 120)
    time.sleep(2 * TRIGGER)
    rows = case.rows()
    time.sleep(2 * TRIGGER)
    assert case.rows() == rows
    link.symlink_to(case.folder)
    until(lambda: len(case.rows()) > len(rows) + 16)
    assert not is_alarmed()
    assert "window_closed" not in handle.stop().dropped
    no_trigger_is_lost_or_doubled(case.rows())
    windows = {window for window, _, _ in case.rows()}
    assert windows == set(range(min(windows), max(windows) + 1, WINDOW))
    assert case.verified().identical


def test_a_clock_that_steps_a_day_ahead_closes_nothing_early(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As this process sees it; and Spark's own polling begins anew when the clock is right again."""
    step = [0]
    anew = list[bool]()
    for name in (
        "streaming.live.wall_us",
        "streaming.microbatches.began_us",
        "lake.spark_checkpoint.Checkpoint.time_us",
    ):
        owner, _, function = f"dpsql.{name}".rpartition(".")
        original = pkgutil.resolve_name(f"{owner}.{function}")
        monkeypatch.setattr(
            f"{owner}.{function}", lambda *given, _original=original: _original(*given) + step[0]
        )
    polled = Following.poll_anew
    monkeypatch.setattr(Following, "poll_anew", lambda self: anew.append(polled(self)) or anew[-1])

    def more(count: int) -> Callable[[], bool]:
        wanted = len(case.rows()) + count

        def reached() -> bool:
            rows = case.rows()
            assert (
                max((window + trigger * TRIGGER for window, trigger, _ in rows), default=0)
                <= time.time()
            )
            return len(rows) >= wanted

        return reached

    handle = case.start()
    until(more(4))
    step[0] = 86_400_000_000
    until(more(6))
    assert "stepped ahead by 1 day" in newest_events(case.lake.private("visits"))["alarm/clock"][
        "text"
    ] and not any(anew)
    step[0] = 0
    case.writing.clear()  # nothing is begun anew while a micro-batch is at work
    until(lambda: any(anew))
    case.writing.set()
    until(more(6))
    assert handle.stop().stopped
    no_trigger_is_lost_or_doubled(case.rows())
    found = case.verified()
    assert found.identical and found.published > 12
