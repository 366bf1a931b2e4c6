"""Every file of the source counts once, whatever its modification time says; damaged contributions and state are refused by name."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.errors import ConfigError, LakeError
from dpsql.jobs.run_query import _print_summary
from dpsql.lake.contributions import Contributions
from dpsql.lake.read_files import listed_details
from dpsql.lake.runs import read_run
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.local.verification import Verification, verify_run
from tests.streaming.conftest import DAY, START, run_file

DAYS = 86_400
ONE_CELL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 4)
  page, COUNT(*) AS views
FROM visits
GROUP BY window(ts, '30 days', '30 days'), page
"""


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, int, float], Path]:
    """Write a file with one record of each of some new users, with a modification time some days ago."""
    users = iter(range(1 << 30))

    def write(name: str, count: int, days_ago: float = 0) -> Path:
        (tmp_path / "visits").mkdir(exist_ok=True)
        rows = {
            "user_id": [f"u{next(users)}" for _ in range(count)],
            "page": ["p"] * count,
            "seconds": [1.0] * count,
        }
        path = tmp_path / "visits" / name
        pq.write_table(
            pa.table({**rows, "ts": pa.array([START + DAY] * count, pa.timestamp("us", "UTC"))}),
            path,
        )
        age(path, days_ago)
        return path

    return write


def age(path: Path, days_ago: float) -> None:
    os.utime(path, (time.time() - days_ago * DAYS,) * 2)


def listed(one: Any) -> list[list[str]]:
    """The names of the files of every listed micro-batch."""
    details = listed_details(one.private / "files", ())
    return [sorted(Path(uri).name for uri in detail["files"]) for detail in details.values()]


def views(one: Any) -> int:
    return sum(row["views"] for row in one.histogram())


def verified(one: Any) -> Verification:
    run_file(one)
    return verify_run(one.lake, "demo", read_run(one.lake, "demo"), one.query, one.secret)


def test_files_with_old_and_renewed_times_count_once(case: Any, put: Any) -> None:
    one = case(ONE_CELL)
    put("a.parquet", 300)
    old = put("old.parquet", 300, days_ago=400)
    assert one.go(START).records == 600
    put("late.parquet", 300, days_ago=8)
    put("c.parquet", 10, days_ago=40_000)
    age(old, 0)  # put back with `cp`, from a backup, or touched
    assert one.go(START + 40 * DAY).records == 310
    assert listed(one) == [["a.parquet", "old.parquet"], ["c.parquet", "late.parquet"]]
    assert abs(views(one) - 910) < 15
    found = verified(one)
    assert found.identical and found.not_read == 0


def test_what_comes_during_a_catch_up_is_told(
    case: Any, put: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    one = case(ONE_CELL, options=(("pathGlobFilter", "*.parquet"),))
    put("with space.parquet", 30)
    tick = Contributions.tick

    def meanwhile(*given: Any) -> bool:
        put("more %.parquet", 5)
        put("left out.json", 5)
        return tick(*given)

    with monkeypatch.context() as patch:
        patch.setattr(Contributions, "tick", meanwhile)
        told = one.go(START + 40 * DAY)
    assert (told.not_read, [Path(name).name for name in told.not_read_names]) == (
        1,
        ["more %.parquet"],
    )
    _print_summary(told, "lake", "dpsql show it", as_json=False)
    out = capsys.readouterr().out
    assert (
        "not read: 1 files of the source (more %.parquet); the next start of the run reads them\n"
        in out
    )
    assert out.endswith("next: dpsql show it\n")
    found = verified(one)
    assert found.identical and found.not_read_names == told.not_read_names
    assert one.go(START + 40 * DAY).not_read == 0


def test_a_folder_by_another_name_is_the_same_folder(case: Any, put: Any, tmp_path: Path) -> None:
    put("a.parquet", 30)
    one = case(ONE_CELL, path=str(tmp_path / "visits" / "*.parquet"))
    one.go(START)
    (tmp_path / "link").symlink_to(tmp_path / "visits")
    other = case(ONE_CELL, path=str(tmp_path / "link" / "*.parquet"))
    other.lake = one.lake
    other.run_id = one.run_id
    with pytest.raises(
        LakeError, match=r"/visits/a.parquet would be read twice: in micro-batch 0, and again in 1"
    ):
        other.go(START + 40 * DAY)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxFileAge", "30d"),
        ("fileNameOnly", "true"),
        ("cleanSource", "archive"),
        ("modifiedAfter", "2026-01-01"),
        ("maxCachedFiles", "10000"),
        ("latestFirst", "true"),
    ],
)
def test_options_that_leave_files_out_are_refused(
    case: Any, put: Any, name: str, value: str
) -> None:
    """Catches: a run that begins with such an option, though sources.yaml was not asked."""
    put("a.parquet", 30)
    with pytest.raises(
        ConfigError, match=f"source 'visits': `{name}` is not supported: leave it out"
    ):
        case(ONE_CELL, options=((name, value),)).go(START)


def test_a_position_costs_the_same_however_many_files_were_read(tmp_path: Path) -> None:
    """Spark writes every tenth log of its files as a list of all; of that, only the end is read."""
    checkpoint = Checkpoint(tmp_path)
    for folder in ("offsets", "sources/0"):
        (tmp_path / folder).mkdir(parents=True)

    def entries(batch: int, count: int) -> list[str]:
        return [
            json.dumps({"path": f"file:///in/{batch}-{i}", "timestamp": 5, "batchId": batch})
            for i in range(count)
        ]

    old = [line for batch in range(9) for line in entries(batch, 40_000)]
    for newest, size in ((9, 3), (9, 2_000), (10, 3)):
        (tmp_path / "sources/0/9.compact").write_text("\n".join(["v1", *old, *entries(9, size)]))
        (tmp_path / "sources/0/10").write_text("\n".join(["v1", *entries(10, 3)]))
        for batch in (newest - 1, newest):
            (tmp_path / f"offsets/{batch}").write_text(f'v1\n{{}}\n{{"logOffset":{batch}}}')
        began = time.process_time()
        files = checkpoint.position(newest)["files"]
        assert time.process_time() - began < 0.1
        assert files == sorted(f"file:///in/{newest}-{i}" for i in range(size))
    assert len(checkpoint.files()) == 9 * 40_000 + 6
    # A micro-batch of which only the list of all is left.
    (tmp_path / "offsets/4").write_text('v1\n{}\n{"logOffset":4}')
    (tmp_path / "offsets/3").write_text('v1\n{}\n{"logOffset":3}')
    assert len(checkpoint.position(4)["files"]) == 40_000
