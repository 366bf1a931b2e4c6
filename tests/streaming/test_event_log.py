"""A catch-up tells its events: every line valid, and their sums those of the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dpsql.errors import DpsqlError
from dpsql.lake.contributions import Contributions
from dpsql.lake.event_log import newest_events
from dpsql.lake.status import status
from tests.observed import check_line, parsed

DAY = 86_400_000_000
START = 19_700 * DAY


def test_lines_of_a_catch_up(case: Callable[..., Any], write: Callable[..., None], visits: Callable[..., pa.Table], tmp_path: Path) -> None:
    write(visits(users=400), parts=2)
    run = case(options=(("maxFilesPerTrigger", "1"),), max_users=1000, max_keys=1000)
    reports: list[Any] = []
    summary = run.go(log=tmp_path / "log", metrics=tmp_path / "metrics", told=reports, until_us=START + 4 * DAY)
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    for event in events:
        check_line(event)
    assert [event["kind"] for event in events if event["kind"] != "alarm"] == ["start", "micro_batch", "micro_batch", "release", "end"]
    read = [event for event in events if event["kind"] == "micro_batch"]
    assert sum(event["records"] for event in read) == summary.records == 2400
    assert sum(sum(event["dropped"].values()) for event in read) == sum(summary.dropped.values())
    release = next(event for event in events if event["kind"] == "release")
    assert (release["triggers"], release["rows"], release["closed_us"]) == (summary.triggers, summary.rows, START + 4 * DAY)
    assert not any(text in (tmp_path / "log").read_text() for text in ('"u1', '"p0', '"p1'))
    (records,) = parsed((tmp_path / "metrics").read_text())["dpsql_records_total"].samples.values()
    assert records == 2400
    named = {"version": 1, **asdict(run.run_id), "plan": run.query.document()}
    (run.private / "run.json").write_text(json.dumps(named))
    found = status(run.lake, "demo", now_us=START + 4 * DAY + 1_000_000)
    assert (found.state, found.lag_seconds) == ("published", 1.0)


def test_much_that_is_dropped_warns_once(case: Callable[..., Any], write: Callable[..., None], visits: Callable[..., pa.Table]) -> None:
    rows = visits(users=800)
    write(rows.set_column(0, "user_id", pa.nulls(rows.num_rows, pa.string())), parts=2)
    reports: list[Any] = []
    case(options=(("maxFilesPerTrigger", "1"),)).go(told=reports)
    warnings = [report.warning for report in reports if report.warning]
    assert len(warnings) == 1 and "more than 20%" in warnings[0] and "null privacy unit" in warnings[0]


def test_what_ended_a_start(
    case: Callable[..., Any], write: Callable[..., None], visits: Callable[..., pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(visits(users=4))
    run = case()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Contributions, "append", full)
    with pytest.raises(DpsqlError):
        run.go()
    assert newest_events(run.private)["end"]["failed"] == "DpsqlError"
