"""Catch-ups throw away what nobody can need any more; input that was read may go, and what that costs is said."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.catch_ups import files
from dpsql.errors import DataError, LakeError, Unreachable
from dpsql.lake import compaction, retention
from dpsql.lake.manifest import Manifest
from dpsql.lake.restore import restore
from dpsql.lake.runs import read_run
from dpsql.local.verification import verify_run
from dpsql.streaming import published_table, session
from dpsql.streaming.live import LiveOptions
from dpsql.streaming.published_table import PublishedTable
from tests.streaming.conftest import BrokenOff, run_file

HOUR = 3_600_000_000
DAY = 86_400_000_000
START = 19_700 * DAY
HOURLY = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4)
  page, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 hour'), page
"""


def files_of(one: Any) -> Counter[str]:
    """How many files a run has on the disk, Spark's own among them."""
    return files(one.private, Path(one.lake.histogram("demo")))


def test_catch_ups_keep_as_many_files_however_many_there_were(
    case: Any, write: Any, visits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day each, windows of an hour, retention of a day; `benchmarks/catch_ups.py` does 200. Bounds are small, for a short test."""
    monkeypatch.setattr(retention, "VACUUM_HOURS", 0)
    for name, small in (("MANY_FILES", 3), ("LOG_COMMITS", 4), ("KEPT_HOURS", 0)):
        monkeypatch.setattr(compaction, name, small)
    for name, value in (
        ("minBatchesToRetain", "2"),
        ("fileSource.log.cleanupDelay", "1"),
        ("fileSource.log.compactInterval", "2"),
    ):
        monkeypatch.setitem(session.RUN, f"spark.sql.streaming.{name}", value)
    monkeypatch.setitem(session.RUN, "spark.sql.streaming.stateStore.minDeltasForSnapshot", "2")
    one = case(HOURLY)
    kept = list[Counter[str]]()
    left = LiveOptions(retention_us=DAY)
    for day in range(16):
        write(visits(users=40, days=1, first_day=day), first=day)
        monkeypatch.setattr(
            "dpsql.times.time.time_ns", lambda day=day: (START + day * DAY + DAY) * 1000
        )
        assert one.go(START + (day + 1) * DAY, live=left, buckets=(2, 2)).records == 120
        kept.append(files_of(one))
        if day == 7:
            # What a failed task left behind holds records.
            torn = (
                next(iter((one.private / "contributions").glob("era=[0-9]*")))
                / "part-00000-of-a-failed-task.parquet"
            )
            torn.write_bytes(b"records")
    assert not torn.exists()
    # Spark tidies its own state in the background, some time in the second after.
    ours = [
        {kind: number for kind, number in found.items() if kind != "Spark's state"}
        for found in kept
    ]
    assert max(sum(found.values()) for found in ours[10:]) <= 1.2 * max(
        sum(found.values()) for found in ours[:7]
    ), kept
    assert kept[-1]["ticks"] <= 12 and kept[-1]["histogram"] <= 5
    run_file(one)
    assert verify_run(one.lake, "demo", read_run(one.lake, "demo"), one.query, one.secret).identical


def test_input_that_was_read_may_go(
    case: Any, write: Any, visits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three days, a catch-up each; then the first two files go."""
    one = case(HOURLY)
    looked = Counter[str]()
    for owner, name in ((PublishedTable, "newest_trigger_us"), (published_table, "_everything")):
        original = getattr(owner, name)

        def counted(given: Any, _name: str = name, _real: Any = original) -> Any:
            looked[_name] += 1
            return _real(given)

        monkeypatch.setattr(owner, name, counted)
    before = os.umask(0o077)
    try:
        for day in range(3):
            write(visits(users=40, days=1, first_day=day), first=day)
            one.go(START + (day + 1) * DAY)
    finally:
        os.umask(before)
    # All files of the histogram, and of its figures, are looked at once per start, however many triggers are published; everybody may read them.
    assert looked == {"newest_trigger_us": 3, "_everything": 6}
    assert all(
        path.stat().st_mode & 0o044 == 0o044
        for path in one.lake.histogram("demo").rglob("*")
        if path.is_file()
    )
    run_file(one)
    run = read_run(one.lake, "demo")
    whole = verify_run(one.lake, "demo", run, one.query, one.secret)
    for day in (0, 1):
        (tmp_path / f"visits/part-{day:03d}.parquet").unlink()
    found = verify_run(one.lake, "demo", run, one.query, one.secret)
    # Two days and an hour ahead, and a window: what started before may have depended on the files.
    assert found.identical and (found.gone, [Path(name).name for name in found.gone_names]) == (
        2,
        ["part-000.parquet", "part-001.parquet"],
    )
    assert found.from_us == START + 2 * DAY + 2 * HOUR + 1 and 0 < found.published < whole.published
    write(visits(users=40, days=1, first_day=3), first=3)
    assert one.go(START + 4 * DAY).records == 120
    # Nothing is left of the newest file either.
    (tmp_path / "visits/part-003.parquet").unlink()
    with pytest.raises(
        DataError,
        match=r"3 files that the run has read are gone \(part-000.parquet, .*, and no row of a window that starts at ",
    ):
        verify_run(one.lake, "demo", run, one.query, one.secret)


def test_input_of_a_micro_batch_that_was_broken_off_is_needed(
    case: Any, write: Any, visits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = case(options=(("maxFilesPerTrigger", "1"),))
    write(visits(days=1), 3)
    real = Manifest.commit
    calls = list[int]()

    def broken(self: Manifest, batch: int, *given: Any) -> None:
        calls.append(batch)
        if batch == 2:
            raise BrokenOff
        real(self, batch, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "commit", broken)
        with pytest.raises(BrokenOff):
            one.go()
    last = tmp_path / "visits/part-002.parquet"
    content = last.read_bytes()
    last.unlink()
    with pytest.raises(
        Unreachable,
        match=r"no longer has 1 of the files that this run needs \(one is 'part-002.parquet'\): put them back",
    ):
        one.go()
    last.write_bytes(content)
    # Restore goes back to before micro-batch 1: its file has to be there, or its records would be lost in silence.
    run_file(one)
    listed = next(
        (one.private / "state").glob("admission-*/g1/bucket=0000/000002.users.parquet")
    )  # the third is not listed
    listed.write_bytes(b"")
    first = tmp_path / "visits/part-001.parquet"
    first.rename(tmp_path / "kept")
    with pytest.raises(
        LakeError,
        match=r"no longer has 1 of the files .*'part-001.parquet'\): micro-batches after 0 are read again. Put them back",
    ):
        restore(one.lake, "demo")
    (tmp_path / "kept").rename(first)
    assert restore(one.lake, "demo").batches["admission"] == 0
    one.go()
    assert verify_run(one.lake, "demo", read_run(one.lake, "demo"), one.query, one.secret).identical
