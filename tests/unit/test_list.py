"""`dpsql status`: a line per query, whatever its mechanism, and no row of what it does not print."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

from dpsql.files import Place
from dpsql.jobs.cli import main
from dpsql.lake.runs import Lake, Run
from dpsql.published import histogram as published

DAY = 86_400_000_000
QUERIES: dict[str, dict[str, Any]] = {
    "per 1 day": {"window": {"size_us": DAY}, "contribution_period": "WINDOW", "privacy_unit": ["user"]},
    "for ever": {"window": {"size_us": DAY}, "contribution_period": "STREAM", "privacy_unit": ["user"]},
    "for one row": {"window": {"size_us": DAY}, "contribution_period": "STREAM", "privacy_unit": []},
    "for ever, no window": {"window": None, "contribution_period": "STREAM", "privacy_unit": ["user"]},
}


def test_list_says_what_is_promised_and_reads_times_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path)
    for number, query in enumerate(QUERIES.values()):
        folder = tmp_path / f"private/q{number}"
        folder.mkdir(parents=True)
        plan = {"epsilon": 2.0, "delta": 1e-7, "query": {"stream": "visits", "trigger_interval_us": DAY, **query}}
        run = Run(f"q{number}", "5a" * 16, "identity", "check", "SELECT", plan, "2026-01-01", "histogram", (0, DAY), {})
        (folder / "run.json").write_text(json.dumps({"version": 1, **asdict(run)}))
    times = pa.array([datetime(2026, 1, 3, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    write_deltalake(lake.histogram("q1"), pa.table({"trigger_time": times, "page": ["a", "b"], "views": [1, 2]}))
    read, asked = published.read_rows, list[Sequence[str] | None]()

    def spied(location: Place, columns: Sequence[str] | None = None) -> pa.Table:
        asked.append(columns)
        return read(location, columns)

    monkeypatch.setattr(published, "read_rows", spied)
    lines = CliRunner().invoke(main, ["status", "--lake", str(tmp_path)]).stdout.splitlines()[1:]
    for line, span in zip(lines, QUERIES, strict=True):
        assert f"epsilon 2 {span.partition(',')[0]} " in line, line
    assert "2026-01-03 00:00:00  " in lines[1] and lines[1].rstrip().endswith(" 2") and "none yet" in lines[0]
    assert asked == [["trigger_time"]]
