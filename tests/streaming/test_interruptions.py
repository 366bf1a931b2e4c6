"""A run that breaks off at every point of its commits, and goes on, leaves exactly what an uninterrupted one leaves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import DpsqlError, Unreachable
from dpsql.lake import preflight
from dpsql.lake.contributions import TICK_ERA, Contributions
from dpsql.lake.delta_rows import read_rows
from dpsql.lake.manifest import Manifest
from dpsql.streaming import context
from dpsql.streaming.published_table import PublishedTable
from dpsql.udfs.bucket_state import BucketFiles
from dpsql.udfs.stage import ADMISSION
from tests.streaming.conftest import DAY, START, BrokenOff
from tests.sweeps import some

AFTER: list[tuple[Any, str]] = [
    (Manifest, "commit"),
    (Contributions, "append"),
    (Contributions, "tick"),
]
AFTER += [(PublishedTable, "publish"), (context, "finish")]
"""Everything that the driver commits; the run breaks off after each in the first catch-up."""
BEFORE: list[tuple[Any, str]] = [(Manifest, "commit"), (PublishedTable, "publish")]
"""In the second: before the others the lake is as after one of them."""


def breaking(function: Callable[..., Any], after: bool) -> Callable[..., Any]:
    """A function that breaks off before or after doing its work."""

    def broken(*given: Any, **named: Any) -> Any:
        if after:
            function(*given, **named)
        raise BrokenOff

    return broken


def left(one: Any) -> dict[str, Any]:
    """State files byte by byte, and the tables as sets of rows."""
    state = one.private / "state"
    found: dict[str, Any] = {
        path.relative_to(state).as_posix(): path.read_bytes() for path in state.rglob("*.parquet")
    }
    for name, path in {
        "files": one.private / "files",
        "contributions": one.private / "contributions",
    }.items():
        rows = read_rows(path).to_pylist()
        # Checkpoints and sources are the same but for the folder's name
        found[name] = sorted(
            str({key: value for key, value in row.items() if key != "detail"}) for row in rows
        )
    return found | {"histogram": one.histogram()}


def test_breaking_off_anywhere_changes_nothing(case: Any, write: Any, visits: Any) -> None:
    options = (("maxFilesPerTrigger", "1"),)
    days = [visits(users=100, pages=2, days=1, first_day=day) for day in range(3)]
    whole = case(options=options)
    broken = case(options=options)
    untils = [START + DAY, START + 5 * DAY]
    for turn, until_us in enumerate(untils):
        for i, table in enumerate([days[0]] if turn == 0 else days[1:]):
            write(table, 2, first=10 * turn + 2 * i)
        whole.go(until_us)
        for owner, name in some(BEFORE if turn else AFTER, 2):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, name, breaking(getattr(owner, name), after=turn == 0))
                with pytest.raises(BrokenOff):
                    broken.go(until_us)
            # Nothing that a unit adds is there before what it has used is listed.
            rows = [
                row["batch"]
                for row in read_rows(broken.private / "contributions").to_pylist()
                if row["era"] != TICK_ERA
            ]
            listed = [
                row["batch"]
                for row in read_rows(broken.private / "files").to_pylist()
                if row["operator"] == ADMISSION
            ]
            assert set(rows) <= set(listed)
        broken.go(until_us)
        assert left(broken) == left(whole)
    assert {row["window_start"].day for row in broken.histogram()} == {9, 10, 11}


def test_a_catch_up_releases_the_tick_of_a_live_run_that_died(
    case: Any, write: Any, visits: Any
) -> None:
    """It has nothing to read, and no grid point lies between that tick and its own."""
    write(visits(days=1))
    broken = case()
    tables = list[Contributions]()
    ticking = Contributions.tick

    def seen(self: Contributions, *given: Any) -> bool:
        tables.append(self)
        return ticking(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Contributions, "tick", seen)
        broken.go(START + DAY // 2)
    tables[0].tick_by_clock(0, START + DAY, 1 << 62)
    whole = broken.of_local_engine(visits(days=1), START + DAY)
    assert len(broken.histogram()) < len(whole)
    broken.go(START + DAY)
    assert broken.histogram() == whole


def test_a_worker_that_fails_after_storing_stores_the_same_again(
    case: Any, write: Any, visits: Any, tmp_path: Path
) -> None:
    write(visits(days=1))
    whole = case()
    broken = case()
    whole.go()
    flag = tmp_path / "failed"
    original = BucketFiles.store

    def failing(self: BucketFiles, bucket: int, sequence: int, tables: Any) -> int:
        size = original(self, bucket, sequence, tables)
        if bucket == 1 and not flag.exists():
            flag.touch()
            raise OSError
        return size

    class Failing(BucketFiles):
        store = failing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preflight, "BucketFiles", Failing)
        with pytest.raises(DpsqlError, match=r"the admission query failed in a worker \(OSError\)"):
            broken.go()
        broken.go()
    assert flag.exists()
    assert left(broken) == left(whole)


def test_a_folder_that_goes_away_closes_nothing(
    case: Any, write: Any, visits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a catch-up that closes the grid over records of a folder that it could not list."""
    write(visits(users=100, pages=2, days=1), 2)
    one = case()
    drain = context.RunContext.drain

    def drain_nothing(*given: Any) -> bool:
        one.folder.rename(one.folder.with_name("away"))
        return drain(*given)

    with monkeypatch.context() as patch, pytest.raises(Unreachable, match="start again when"):
        patch.setattr(context.RunContext, "drain", drain_nothing)
        one.go(START + DAY)
    one.folder.with_name("away").rename(one.folder)
    assert one.go(START + DAY).dropped == {} and len(one.histogram()) == 4


def test_a_file_that_vanishes_is_not_left_out(
    case: Any, write: Any, visits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a file that Spark has listed and no longer finds, whose records are then neither read nor missed."""
    write(visits(users=100, pages=2, days=1), 2)
    one = case()
    drain = context.RunContext.drain
    file = min(one.folder.iterdir())

    def drain_less(self: Any, operator: str, frame: Any, sink: Any, *given: Any) -> bool:
        def without(micro_batch: Any, batch: int) -> None:
            file.rename(one.folder.parent / "away")
            sink(micro_batch, batch)

        return drain(self, operator, frame, without, *given)

    says = r"no longer has 1 of the files .*: put them back"
    with monkeypatch.context() as patch, pytest.raises(Unreachable, match=says):
        patch.setattr(context.RunContext, "drain", drain_less)
        one.go(START + DAY)
    (one.folder.parent / "away").rename(file)
    one.go(START + DAY)
    assert len(one.histogram()) == 4
