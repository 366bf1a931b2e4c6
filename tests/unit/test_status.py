"""`dpsql status` and the log of events, without Spark: a run as its files tell of it, and a line per query."""

import errno
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from dpsql.errors import LakeError
from dpsql.files import Place
from dpsql.jobs.cli import main
from dpsql.lake import log_head
from dpsql.lake.event_log import (
    BEHIND,
    COMMON,
    DAMAGED,
    FILE,
    SCHEMA,
    EventLog,
    dropped_much,
    newest_events,
)
from dpsql.lake.running import exclusive
from dpsql.lake.runs import Lake, Run
from dpsql.lake.status import status
from dpsql.published import public_rows as published
from tests.observed import check_line

HOUR = 3_600_000_000
RUN = "5a" * 16


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A live run with one tick at 10 hours and 7 seconds; its tables are as small as tables can be."""
    made = Lake(tmp_path / "lake")
    folder = made.private("views")
    folder.mkdir(parents=True)
    plan = {"query": {"window": {"offset_us": 0}, "trigger_interval_us": HOUR}}
    run = Run(
        "views", RUN, "identity", "check", "SELECT", plan, "2026-01-01", "histogram", (0, HOUR), {}
    )
    (folder / "run.json").write_text(json.dumps({"version": 1, **asdict(run)}))
    (folder / "engine.json").write_text(json.dumps({"version": 5, "queries": {"admission": "x"}}))
    (folder / "live.json").write_text(json.dumps({"version": 1}))
    mark = CommitProperties(
        app_transactions=[Transaction(f"{RUN}/closed_us", 10 * HOUR + 7_000_000)]
    )
    for table in (str(folder / "contributions"), str(folder / "files"), made.histogram("views")):
        write_deltalake(table, pa.table({"x": [1]}), commit_properties=mark)
    return made


@pytest.mark.parametrize(("content", "said"), [(None, "is gone"), (b"", "has 0 bytes of")])
def test_a_published_file_that_is_gone_or_cut_is_told(
    lake: Lake, content: bytes | None, said: str
) -> None:
    (file,) = Path(lake.histogram("views")).glob("*.parquet")
    assert status(lake, "views").alarms == ()
    file.unlink() if content is None else file.write_bytes(content)
    found = CliRunner().invoke(main, ["status", "views", "--lake", str(lake.root)])
    assert found.exit_code == 5 and f"{file.name} {said}" in found.output


def test_what_a_start_has_found_damaged_is_told_until_the_next_start(lake: Lake) -> None:
    log = log_of(lake)
    with log.of_start("live", threading.Event()):
        log.alarm(DAMAGED, "the table t is damaged")
        log.alarm("clock", "another alarm")
        assert status(lake, "views").alarms == ("the table t is damaged", "another alarm")
    finished(lake)
    assert status(lake, "views").alarms == ()


@pytest.mark.parametrize("kind", ["files", "malformed", "clock", "dropped"])
def test_alarms_hold_until_the_next_start(lake: Lake, kind: str) -> None:
    """Catches: an alarm that a watchdog is not told, because the exit code stays 0; one that a new start does not end."""
    finished(lake)
    log = log_of(lake)
    with log.of_start("live", threading.Event()):
        log.alarm(kind, f"about {kind}")
        log.tell("release", triggers=1, rows=5, closed_us=11 * HOUR)
    result = CliRunner().invoke(main, ["status", "views", "--lake", str(lake.root)])
    assert (result.exit_code, f"alarm: about {kind}" in result.output) == (4, True)
    time.sleep(0.005)
    finished(lake)
    result = CliRunner().invoke(main, ["status", "views", "--lake", str(lake.root)])
    assert (result.exit_code, "alarm" in result.output) == (0, False)


def test_unread_files_are_an_alarm_until_a_release(lake: Lake) -> None:
    """Catches: a watchdog that is not told, or that is told of files which have been read since."""
    log = log_of(lake)
    with exclusive(lake.private("views")), log.of_start("live", threading.Event()):
        for _ in range(2):
            assert log.alarm(BEHIND, "more files than are read") and not log.alarm(BEHIND, "again")
            result = CliRunner().invoke(main, ["status", "views", "--lake", str(lake.root)])
            assert (result.exit_code, "alarm: more files than are read" in result.output) == (
                4,
                True,
            )
            time.sleep(0.005)
            log.tell("release", triggers=1, rows=5, closed_us=11 * HOUR)
            assert status(lake, "views").alarms == ()
            log.forget(BEHIND)


def log_of(lake: Lake, **files: Path) -> EventLog:
    return EventLog(lake.private("views"), RUN, "views", **files)


def finished(lake: Lake, closed_us: int = 10 * HOUR) -> None:
    log = log_of(lake)
    with log.of_start("live", threading.Event()):
        log.tell(
            "micro_batch",
            batch=3,
            records=1000,
            dropped={"over_max_rows": 300},
            malformed=0,
            seconds={"addBatch": 0.5},
        )
        log.tell("release", triggers=1, rows=5, closed_us=closed_us)


def test_a_stopped_run_and_how_far_behind_it_is(lake: Lake) -> None:
    finished(lake)
    found = status(lake, "views", now_us=12 * HOUR)
    assert (found.state, found.released_us, found.lag_seconds, found.alarms) == (
        "stopped",
        10 * HOUR,
        7200,
        (),
    )
    assert status(lake, "views", max_lag_us=2 * HOUR, now_us=12 * HOUR).alarms == ()
    assert (
        "7,201 seconds behind"
        in status(lake, "views", max_lag_us=2 * HOUR, now_us=12 * HOUR + 1_000_000).alarms[0]
    )
    assert (
        "than the 29% that are allowed"
        in status(lake, "views", max_drop_share=0.29, now_us=12 * HOUR).alarms[0]
    )
    assert status(lake, "views", max_drop_share=0.3, now_us=12 * HOUR).alarms == ()


def test_a_tick_that_is_not_released_yet_counts_as_lag(lake: Lake) -> None:
    finished(lake, closed_us=9 * HOUR)
    assert status(lake, "views", now_us=12 * HOUR).lag_seconds == 3 * 3600


def test_a_run_from_before_there_was_a_log(lake: Lake) -> None:
    found = status(lake, "views", now_us=12 * HOUR)
    assert (found.state, found.released_us, found.newest) == ("stopped", 10 * HOUR, {})


def test_running_killed_and_failed(lake: Lake) -> None:
    log = log_of(lake)
    log.tell("start", mode="live", process=1, host="elsewhere")
    assert status(lake, "views").state == "stopped"  # nobody here can tell
    log.tell("start", mode="live", process=1, host=socket.gethostname())
    assert "it was killed" in status(lake, "views").alarms[0]
    with exclusive(lake.private("views")):
        assert status(lake, "views").state == "running"
    with pytest.raises(LakeError), log.of_start("live", threading.Event()):
        raise LakeError("a message that quotes nothing")
    found = status(lake, "views")
    assert found.state == "failed" and "LakeError" in found.alarms[0]


@pytest.mark.parametrize(
    "damaged", ["run.json", "engine.json", "live.json", "contributions", "files", "histogram"]
)
def test_each_damage_is_named(lake: Lake, damaged: str) -> None:
    finished(lake)
    path = lake.histogram("views") if damaged == "histogram" else lake.private("views") / damaged
    if path.is_dir():
        next((path / "_delta_log").glob("*.json")).write_text("{")
    else:
        path.write_text("{")
    found = status(lake, "views")
    assert found.state == "damaged" and str(path) in found.alarms[0]


def test_a_lost_table_and_no_such_query(lake: Lake, tmp_path: Path) -> None:
    lake.private("views").joinpath("files").rename(tmp_path / "gone")
    assert "is lost" in status(lake, "views").alarms[0]
    with pytest.raises(LakeError, match="no query 'other'"):
        status(lake, "other")


def test_what_cannot_be_reached_is_not_called_damaged(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that is down says nothing of the run: a watchdog must not order a restore."""
    finished(lake)
    read = Path.read_bytes
    stale = Path(lake.private("views")) / "engine.json"

    def gone(path: Path) -> bytes:
        if path == stale:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", gone)
    found = status(lake, "views")
    assert found.state == "unreachable" and found.alarms == (
        f"{lake.private('views')} cannot be reached (Stale file handle): whether the run is well cannot be told from here",
    )
    assert CliRunner().invoke(main, ["status", "views", "--lake", str(lake.root)]).exit_code == 4


def test_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("ENDPOINT_URL", "http://127.0.0.1:9"),
        ("ACCESS_KEY_ID", "a"),
        ("SECRET_ACCESS_KEY", "b"),
        ("REGION", "x"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    done = CliRunner().invoke(main, ["status", "views", "--lake", "s3a://nowhere/lake"])
    assert done.exit_code == 4 and done.output.startswith("views: unreachable\n"), done.output


def test_a_damaged_status_file_says_nothing_and_stops_nothing(lake: Lake) -> None:
    finished(lake)
    (lake.private("views") / FILE).write_text("[")
    assert status(lake, "views").state == "stopped"
    assert newest_events(lake.private("views")) == {}


def test_the_page_has_the_schema_of_the_log() -> None:
    """Every kind of line and every field is in docs/operations.md."""
    page = (Path(__file__).resolve().parents[2] / "docs/operations.md").read_text()
    for kind, fields in SCHEMA.items():
        (row,) = re.findall(rf"(?m)^\| `{kind}` \| (.*) \|$", page)
        assert [name for name in fields if f"`{name}`" not in row] == [], kind
    assert [name for name in COMMON if f"`{name}`" not in page] == []


def test_exit_codes(lake: Lake) -> None:
    def code(*flags: str) -> int:
        return (
            CliRunner()
            .invoke(main, ["status", "views", "--lake", str(lake.root), *flags])
            .exit_code
        )

    finished(lake)
    assert (code(), code("--json"), code("--max-lag", "1 hour")) == (0, 0, 4)
    with exclusive(lake.private("views")):
        assert (code(), code("--max-lag", "1 hour")) == (0, 4)
    (lake.private("views") / "engine.json").write_text("{")
    assert code() == 5
    assert CliRunner().invoke(main, ["status", "other", "--lake", str(lake.root)]).exit_code == 2


METRICS = """\
# TYPE dpsql_alarms_total counter
dpsql_alarms_total{LABELS} 1
# TYPE dpsql_closed_time_seconds gauge
dpsql_closed_time_seconds{LABELS} 3600
# TYPE dpsql_dropped_total counter
dpsql_dropped_total{name="views",reason="over_max_rows",run="RUN"} 3
dpsql_dropped_total{name="views",reason="window_closed",run="RUN"} 6
# TYPE dpsql_micro_batch_time_seconds gauge
dpsql_micro_batch_time_seconds{LABELS} NOW
# TYPE dpsql_micro_batches_total counter
dpsql_micro_batches_total{LABELS} 3
# TYPE dpsql_records_total counter
dpsql_records_total{LABELS} 30
# TYPE dpsql_rows_total counter
dpsql_rows_total{LABELS} 5
# TYPE dpsql_triggers_total counter
dpsql_triggers_total{LABELS} 2
"""
"""By Prometheus' text format 0.0.4."""


def test_every_line_and_the_metrics_are_of_their_format(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "log").touch(mode=0o644)
    log = log_of(lake, log=tmp_path / "log", metrics=tmp_path / "metrics")
    with log.of_start("live", threading.Event()):
        for batch in range(3):
            dropped = {"over_max_rows": 1, "window_closed": 2}
            log.tell(
                "micro_batch",
                batch=batch,
                records=10,
                dropped=dropped,
                malformed=0,
                seconds={"addBatch": 0.5},
            )
        log.tell("release", triggers=2, rows=5, closed_us=HOUR)
        assert log.alarm("dropped", "text") and not log.alarm("dropped", "text")
    for line in (tmp_path / "log").read_text().splitlines():
        check_line(json.loads(line))
    told = (tmp_path / "metrics").read_text()
    exact = METRICS.replace("LABELS", f'name="views",run="{RUN}"').replace("RUN", RUN)
    assert re.sub(r"(micro_batch_time_seconds\{.*\}) 1\d{9}.*", r"\1 NOW", told) == exact
    for path in (tmp_path / "log", tmp_path / "metrics", lake.private("views") / FILE):
        assert path.stat().st_mode & 0o077 == 0, path
    with pytest.raises(ValueError, match="has the fields"):
        log.tell("release", triggers=2)


def test_much_that_is_dropped_is_an_alarm() -> None:
    assert dropped_much(999, {"null_privacy_unit": 999}) is None
    assert dropped_much(1000, {"null_privacy_unit": 200}) is None
    assert (
        dropped_much(1000, {"null_privacy_unit": 200, "over_max_rows": 700}) is None
    )  # what the query asked for is no alarm
    assert "null privacy unit" in str(
        dropped_much(1000, {"null_privacy_unit": 200, "window_closed": 1})
    )
    assert "sequence_by" in str(dropped_much(1000, {"replayed": 201}))


def test_a_full_disk_does_not_end_a_run_by_way_of_its_log(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpsql.lake.event_log.replace_file", full)
    finished(lake)


@pytest.mark.parametrize("state", ["running", "stopped", "damaged"])
def test_what_status_imports(lake: Lake, state: str) -> None:
    """A watchdog asks every few seconds. Catches: a CPU-second of imports, of what only the tables themselves need."""
    finished(lake)
    for table in ("contributions", "files"):  # one with a mark after its checkpoint, one with none
        DeltaTable(str(lake.private("views") / table)).create_checkpoint()
    (lake.private("views") / "engine.json").write_text("{" if state == "damaged" else "{}")
    code = f"import sys; from dpsql.jobs.cli import main; main(['status', 'views', '--lake', {str(lake.root)!r}, '--max-lag', '1 hour'], standalone_mode=False)"
    with ExitStack() as held:
        if state == "running":
            held.enter_context(exclusive(lake.private("views")))
        words = [sys.executable, "-c", f"try:\n {code}\nfinally: print(list(sys.modules))"]
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).resolve().parents[2],
        )
    said, modules = done.stdout.split("[", 1)
    assert state in said and "'dpsql.lake.status'" in modules
    heavy_ones = "pyspark duckdb pandas dp_accounting scipy numpy pyarrow deltalake cryptography sqlglot yaml rich"
    for heavy in heavy_ones.split():
        assert f"'{heavy}'" not in modules, heavy


def opened_mark(table: Path, application: str) -> int | None:
    found = DeltaTable(str(table)).transaction_version(application)
    return None if found is None else int(found)


def test_the_head_of_a_log_says_what_the_table_says(tmp_path: Path) -> None:
    """With and without a checkpoint, and with marks on either side of it."""

    def commit(number: int, application: str) -> None:
        mark = CommitProperties(app_transactions=[Transaction(application, number)])
        write_deltalake(str(tmp_path), pa.table({"x": [1]}), mode="append", commit_properties=mark)

    for number in range(6):
        commit(number, "r/closed_us" if number < 3 else "r/rows")
        assert log_head.is_whole(tmp_path)
        for application in ("r/closed_us", "r/rows", "other"):
            assert log_head.newest_mark(tmp_path, application) == opened_mark(tmp_path, application)
        if number == 4:
            DeltaTable(str(tmp_path)).create_checkpoint()
    for old in range(5):  # a job that is tidy: older marks are in the checkpoint alone
        (tmp_path / f"_delta_log/{old:020d}.json").unlink()
    assert log_head.is_whole(tmp_path) and opened_mark(tmp_path, "r/closed_us") == 2
    assert log_head.newest_mark(tmp_path, "r/closed_us") is None  # and then the table is opened


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a commit is torn": lambda log: os.truncate(log / f"{3:020d}.json", 50),
    "a commit is no action": lambda log: (log / f"{3:020d}.json").write_text('"text"\n'),
    "a commit is lost": lambda log: (log / f"{2:020d}.json").unlink(),
    "the checkpoint is cut": lambda log: os.truncate(log / f"{1:020d}.checkpoint.parquet", 500),
    "the checkpoint is empty": lambda log: os.truncate(log / f"{1:020d}.checkpoint.parquet", 0),
    "the checkpoint is lost": lambda log: (log / f"{1:020d}.checkpoint.parquet").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_is_judged_by_the_reader_of_the_table(lake: Lake, damage: str) -> None:
    """Catches: a log head that is taken for whole where the table cannot be opened."""
    finished(lake)
    table = lake.private("views") / "contributions"
    for number in range(3):
        write_deltalake(str(table), pa.table({"x": [1]}), mode="append")
        if number == 0:
            DeltaTable(str(table)).create_checkpoint()
    assert status(lake, "views").state == "stopped"
    DAMAGES[damage](Path(table) / "_delta_log")
    found = status(lake, "views")
    assert found.state == "damaged" and str(table) in found.alarms[0]


DAY = 86_400_000_000
QUERIES: dict[str, dict[str, Any]] = {
    "per 1 day": {
        "window": {"size_us": DAY},
        "contribution_period": "WINDOW",
        "privacy_unit": ["user"],
    },
    "for ever": {
        "window": {"size_us": DAY},
        "contribution_period": "STREAM",
        "privacy_unit": ["user"],
    },
    "for one row": {
        "window": {"size_us": DAY},
        "contribution_period": "STREAM",
        "privacy_unit": [],
    },
    "for ever, no window": {
        "window": None,
        "contribution_period": "STREAM",
        "privacy_unit": ["user"],
    },
}


def test_list_says_what_is_promised_and_reads_times_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    for number, query in enumerate(QUERIES.values()):
        folder = tmp_path / f"private/q{number}"
        folder.mkdir(parents=True)
        plan = {
            "epsilon": 2.0,
            "delta": 1e-7,
            "query": {"stream": "visits", "trigger_interval_us": DAY, **query},
        }
        run = Run(
            f"q{number}",
            "5a" * 16,
            "identity",
            "check",
            "SELECT",
            plan,
            "2026-01-01",
            "histogram",
            (0, DAY),
            {},
        )
        (folder / "run.json").write_text(json.dumps({"version": 1, **asdict(run)}))
    times = pa.array(
        [datetime(2026, 1, 3, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)],
        pa.timestamp("us", "UTC"),
    )
    write_deltalake(
        lake.histogram("q1"), pa.table({"trigger_time": times, "page": ["a", "b"], "views": [1, 2]})
    )
    read = published.read_rows
    asked = list[Sequence[str] | None]()

    def spied(location: Place, columns: Sequence[str] | None = None) -> pa.Table:
        asked.append(columns)
        return read(location, columns)

    monkeypatch.setattr(published, "read_rows", spied)
    lines = CliRunner().invoke(main, ["status", "--lake", str(tmp_path)]).stdout.splitlines()[1:]
    for line, span in zip(lines, QUERIES, strict=True):
        assert f"epsilon 2 {span.partition(',')[0]} " in line, line
    assert (
        "2026-01-03 00:00:00  " in lines[1]
        and lines[1].rstrip().endswith(" 2")
        and "none yet" in lines[0]
    )
    assert asked == [["trigger_time"]]
