"""Files that Spark has hidden or forgotten; damaged contributions and state, refused by name."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import DataError, LakeError
from dpsql.lake import preflight
from dpsql.lake.event_log import FILE
from dpsql.lake.read_files import ReadFiles
from dpsql.lake.restore import restore
from dpsql.streaming import sources
from dpsql.streaming.context import RunContext
from tests.streaming.conftest import BrokenOff, break_off, run_file
from tests.streaming.test_input_files import DAY, ONE_CELL, START, age, listed, put, verified, views

__all__ = ["put"]


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Spark's own default, as in commit 27b5d01: files more than 7 days older than the newest are hidden, and their names forgotten."""
    with monkeypatch.context() as patch:
        patch.setattr(sources, "ENDLESS", "7d")
        yield patch


def test_a_hidden_file_is_named_and_read_by_the_next_start(
    case: Any, put: Any, forgetful: Any
) -> None:
    """A run of commit 27b5d01: its catch-up passes over a file in silence."""
    one = case(ONE_CELL)
    put("a.parquet", 300)
    one.go(START)
    put("late.parquet", 300, days_ago=8)
    put("b.parquet", 300)
    assert (
        one.go(START + 2 * DAY).records == 300
    )  # of 600: with Spark's default the file is not seen
    forgetful.undo()
    assert one.go(START + 40 * DAY).records == 300
    assert abs(views(one) - 900) < 15
    put("more.parquet", 5)
    found = verified(one)
    assert found.identical and (
        found.not_read,
        [Path(name).name for name in found.not_read_names],
    ) == (1, ["more.parquet"])


def test_a_file_that_spark_has_forgotten_is_refused_and_left_out_by_restore(
    case: Any, put: Any, forgetful: Any
) -> None:
    one = case(ONE_CELL)
    old = put("old.parquet", 300, days_ago=8)
    put("new.parquet", 300)
    one.go(START)
    age(old, 0)
    put("c.parquet", 10)
    with pytest.raises(
        LakeError,
        match=r"/visits/old.parquet would be read twice: in micro-batch 0, and again in 1; .*dpsql restore demo",
    ):
        one.go(START + 40 * DAY)
    assert listed(one) == [["new.parquet", "old.parquet"]]
    forgetful.undo()
    # The micro-batch is planned: before anything starts it is known to be wrong, and restore leaves the file out.
    before = {
        path: path.read_bytes()
        for path in one.lake.root.rglob("*")
        if path.is_file() and path.name != FILE
    }
    with pytest.raises(
        LakeError, match=r"old.parquet would be read twice: .*run: dpsql restore demo --lake"
    ):
        one.go(START + 40 * DAY)
    assert {
        path: path.read_bytes()
        for path in one.lake.root.rglob("*")
        if path.is_file() and path.name != FILE
    } == before
    run_file(one)
    assert restore(one.lake, "demo").batches == {"admission": 0}
    assert one.go(START + 40 * DAY).records == 10
    assert abs(views(one) - 610) < 15
    assert verified(one).identical


def flip(path: Path) -> bytes:
    """Change one bit; returns what was there."""
    content = path.read_bytes()
    bit = random.Random(5).randrange(8 * len(content))
    path.write_bytes(
        content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]
    )
    return content


def test_damaged_contributions_are_refused_before_they_are_used(
    case: Any, write: Any, visits: Any
) -> None:
    write(visits(days=1))
    whole = case()
    one = case()
    whole.go()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunContext, "release", break_off)
        with pytest.raises(BrokenOff):
            one.go()
    files = [path for path in (one.private / "contributions").rglob("part-*.parquet")]
    ticks = [
        path
        for path in files
        if min(int(path.parent.name.removeprefix("era=")) for path in files)
        == int(path.parent.name[4:])
    ]
    rows = [path for path in files if path not in ticks]
    assert rows and len(ticks) == 1
    for path in (rows[0], ticks[0]):
        content = flip(path)
        for _again in range(2):  # Spark has planned the micro-batch after the first time
            with pytest.raises(
                LakeError,
                match=rf"{path.name} is damaged: its bytes are not .*Put it back.* --new-run",
            ):
                one.go()
        assert one.histogram() == []
        path.write_bytes(content)
    rows[0].rename(rows[0].with_suffix(".away"))
    with pytest.raises(LakeError, match=r"a file of .*contributions is lost"):
        one.go()
    rows[0].with_suffix(".away").rename(rows[0])
    one.go()
    assert one.histogram() == whole.histogram() != []


@pytest.mark.parametrize(("operator", "name"), [("admission", "users"), ("release", "groups")])
def test_damaged_state_is_refused_at_the_start_and_by_the_workers(
    case: Any, write: Any, visits: Any, operator: str, name: str
) -> None:
    write(visits(days=1))
    one = case()
    one.go(START + DAY // 2)
    write(visits(days=1, first_day=1), first=1)
    path = sorted((one.private / "state").glob(f"{operator}-*/g1/bucket=0000/*.{name}.parquet"))[-1]
    content = flip(path)
    says = rf"version {int(path.name[:6])} of the state in .*{operator}-.*bucket=0000 is damaged; .*run: dpsql restore demo --lake"
    with pytest.raises(LakeError, match=says):
        one.go()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preflight, "check", lambda *given: None)
        with pytest.raises(LakeError, match=says):
            one.go()
    before = len(one.histogram())
    path.write_bytes(content)
    one.go()
    assert len(one.histogram()) > before


def test_a_run_that_has_read_a_file_twice_is_told_by_verify(
    case: Any, put: Any, forgetful: Any
) -> None:
    one = case(ONE_CELL)
    old = put("old.parquet", 300, days_ago=8)
    put("new.parquet", 300)
    one.go(START)
    age(old, 0)
    put("c.parquet", 10)
    forgetful.setattr(ReadFiles, "repeated_file", lambda *given: None)
    assert one.go(START + 40 * DAY).records == 310
    assert abs(views(one) - 910) < 15  # 610 users
    with pytest.raises(
        DataError, match=r"/visits/old.parquet was read twice: micro-batches 0 and 1\. .*--new-run"
    ):
        verified(one)
    put("d.parquet", 10)
    reports: list[Any] = []
    one.go(START + 80 * DAY, told=reports)
    said = [report.warning for report in reports if report.warning]
    assert len(said) == 1 and said[0].endswith(
        "visits/old.parquet was read twice: micro-batches 0 and 1; `dpsql verify` says what to do"
    )
