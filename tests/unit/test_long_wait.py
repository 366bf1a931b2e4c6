"""Who is about to release very much is told so before anything is spent."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import dpsql
from dpsql.jobs import run_query
from dpsql.jobs.cli import main
from dpsql.lake.event_log import EventLog
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import Secret, default_secret_path
from dpsql.streaming import first_look
from dpsql.streaming.progress import Tally
from dpsql.times import microseconds
from dpsql.udfs.grid import NO_CLOCK
from tests.unit.workplace import SOURCES, place

OPTIONS = "epsilon = 2, delta = 1e-8, max_rows_contributed = 1"
OF_USERS = f"{OPTIONS}, privacy_unit_column = user_id"
NOW = microseconds("2026-11-26T12:00")
QUERIES = {
    "windows": (f"({OF_USERS}) COUNT(*) AS n", "window(ts, '1 day')", "11,440 windows of 1 day, from 1995-08-01T00:00:00Z"),
    "parts of windows": (
        f"({OF_USERS}, trigger_interval = '6 hours') COUNT(*) AS n", "window(ts, '1 day')", "triggers of 11,441 windows of 1 day, from 1995-08-01",
    ),
    "table": (f"({OF_USERS}, trigger_interval = '1 day') page, COUNT(*) AS n", "page", "11,440 triggers, one each 1 day, from 1995-08-01T00:00:00Z"),
    "panes": (
        "(epsilon = 2, delta = 0, privacy_level = EVENT) COUNT(*) AS n", "window(ts, '7 days', '1 day')", "triggers, one each 1 day, from 1995",
    ),
    "last trigger": (f"({OF_USERS}, trigger_interval = '1 day', max_triggers = 900) page, COUNT(*) AS n", "page", ""),
    "selected keys": (f"({OF_USERS}) page, COUNT(*) AS n", "window(ts, '1 day'), page", ""),
}  # fmt: skip


def sql(name: str) -> str:
    columns, groups, _ = QUERIES[name]
    return f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS {columns} FROM visits GROUP BY {groups}"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with records of two days of 1995, whose source says that they begin then."""
    folder = place(tmp_path / "work")
    monkeypatch.chdir(folder)
    (folder / "conf/sources.yaml").write_text(f"{SOURCES}    start: 1995-08-01\n")
    times = pd.to_datetime(["1995-08-01", "1995-08-02"], utc=True).as_unit("us")
    (folder / "conf/visits").mkdir()
    records = pd.DataFrame(
        {"user_id": ["u", "v"], "ts": times, "page": ["p", "p"], "seconds": [1.0, 2.0]}
    )
    records.to_parquet(folder / "conf/visits/a.parquet")
    return folder


@pytest.mark.parametrize("name", QUERIES)
def test_a_long_wait_is_announced(name: str, work: Path) -> None:
    """Catches: windows and triggers that are counted otherwise than they are released; those that only records bring."""
    query = dpsql.compile(sql(name), dpsql.load_sources("conf/sources.yaml"))
    expected = QUERIES[name][2]
    said = query.long_wait("--until TIME", NOW)
    assert said.startswith("releasing ") == bool(expected) and expected in said
    assert not said or said.endswith(
        "with or without records; where stored records end earlier, give --until TIME"
    )
    if expected:
        assert query.long_wait("--until TIME", NOW, microseconds("2026-11-20")) == ""
        assert query.long_wait("--until TIME", NOW, microseconds("2020-01-01"))


def test_the_count_is_that_of_what_is_released(work: Path) -> None:
    """Catches: a first or last window too many."""
    query = dpsql.compile(sql("windows"), dpsql.load_sources("conf/sources.yaml"))
    frame = pd.read_parquet("conf/visits")
    until_us = microseconds("1999-02-03T04:00")
    rows = dpsql.run_local(
        query, frame, Secret.load(default_secret_path(os.environ)), until_us=until_us
    )
    said = query.long_wait("until", until_us)
    first, last = (
        f"{rows[column].iloc[row]:%Y-%m-%dT%H:%M:%SZ}"
        for column, row in (("window_start", 0), ("window_end", -1))
    )
    assert said.startswith(
        f"releasing {len(rows):,} windows of 1 day, from {first} to {last}, with"
    )


def test_all_that_release_announce_it_before_they_spend(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches: a command that asks nobody; words after the ledger line."""

    def spent(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    (work / "table.sql").write_text(sql("table"))
    monkeypatch.setattr(Ledger, "append", spent)
    monkeypatch.setattr(run_query, "start_session", lambda *_: None)
    monkeypatch.setattr(first_look, "check_fits", lambda *_, **__: None)
    commands = [
        f"{words} table.sql{more}"
        for words, more in (
            ("try", ""),
            ("run", " --lake lake"),
            ("run", " --lake lake --until-caught-up"),
        )
    ]
    for command in commands:
        done = CliRunner().invoke(main, command.split())
        assert "triggers, one each 1 day, from 1995-08-01T00:00:00Z" in done.stderr, (
            command,
            done.output,
        )
        assert "give --until TIME" in done.stderr
    for command in (commands[0], commands[2]):
        assert (
            "releasing"
            not in CliRunner().invoke(main, [*command.split(), "--until", "1995-08-03"]).stderr
        )
    frame = pd.read_parquet("conf/visits")
    for until, says in ((None, True), ("1995-08-03", False)):
        with pytest.raises(KeyboardInterrupt):
            dpsql.query(
                sql("table"),
                frame,
                unit="user_id",
                time="ts",
                start="1995-08-01",
                until=until,
                secret="k/secret",
            )
        assert ("releasing 1" in capsys.readouterr().err) is says


def test_a_start_after_a_long_time_tells_it(work: Path) -> None:
    """Catches: a run that was stopped for years, and says nothing of them."""
    query = dpsql.compile(sql("table"), dpsql.load_sources("conf/sources.yaml"))
    warnings: list[str | None] = []
    tally = Tally(
        lambda report: warnings.append(report.warning), EventLog(work, "5a" * 16, "views")
    )
    for closed_us in (NO_CLOCK, microseconds("2026-11-20"), microseconds("2020-01-01")):
        tally.tell_long_wait(query, NOW, closed_us)
    (warning,) = warnings
    assert (
        warning is not None
        and "2,521 triggers, one each 1 day, from 2020-01-01T00:00:00Z to 2026-11-26T00:00:00Z"
        in warning
    )
