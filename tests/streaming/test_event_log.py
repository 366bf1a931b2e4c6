"""What is told of a start on Spark besides its lines (`tests/deployment/test_one_run.py`): alarms, and what ended it."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dpsql.errors import DpsqlError
from dpsql.lake.contributions import Contributions
from dpsql.lake.event_log import newest_events


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
