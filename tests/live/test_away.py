"""A source that cannot be listed closes nothing: a folder that is away looks to Spark like one in which nothing is new."""

import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import DataError
from dpsql.lake.contributions import Contributions
from dpsql.lake.spark_checkpoint import Checkpoint
from dpsql.streaming.away import Watch, folder_at, is_idle
from dpsql.streaming.live import Ticker
from dpsql.streaming.microbatches import NEVER_US
from dpsql.udfs.grid import NO_CLOCK
from tests.live.test_ticker import SECOND, T0, checkpoint, contributions, plan, planned, ticks

__all__ = ["checkpoint", "contributions", "plan"]
ONE = (1, 2)
OTHER = (1, 3)


@pytest.mark.parametrize(
    ("folder", "since_us", "known", "polled_us", "expected"),
    [
        (ONE, 5, ONE, 5, True),
        (ONE, 6, ONE, 5, False),  # away before the poll
        (None, 1, ONE, 5, False),  # away after it
        (None, 1, None, 5, False),
        (OTHER, 1, ONE, 5, False),
        (ONE, 1, None, 5, False),  # of a run that has read files, none of which is there
    ],
)
def test_a_poll_is_idle_where_the_folder_is(
    folder: Any, since_us: int, known: Any, polled_us: int, expected: bool
) -> None:
    """Catches: a poll that looked at nothing, or at another folder, taken for silence."""
    assert is_idle(folder, since_us, known, polled_us) is expected


class Scene:
    """A folder behind a link, a clock, and what was told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_us = T0
        self.told = list[int | None]()
        self.root = folder / "in"
        for name in ("real", "other"):
            (folder / name).mkdir()
        self.link("real")
        monkeypatch.setattr("dpsql.streaming.away.now_us", lambda: self.now_us)

    def link(self, name: str) -> None:
        self.root.symlink_to(self.root.parent / name)

    def watch(self, is_known: bool = True) -> Watch:
        root = str(self.root)
        known = folder_at(root) if is_known else None
        return Watch(root, lambda: any(self.root.iterdir()), self.told.append, known)

    def poll(self, watch: Watch, seconds: int) -> int:
        """What a poll that finds nothing says so many seconds after T0."""
        watch.look()
        self.now_us = T0 + seconds * SECOND
        return watch.idle_us(self.now_us)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_a_folder_that_comes_back_is_known(scene: Scene) -> None:
    """Catches: polls that stay suspect, or an alarm that stays, when the folder is back."""
    watch = scene.watch()
    assert scene.poll(watch, 10) == T0 + 10 * SECOND
    scene.root.unlink()
    assert scene.poll(watch, 20) == NEVER_US
    assert scene.told == [None, T0 + 10 * SECOND]
    scene.link("real")
    scene.now_us += SECOND
    assert watch.idle_us(T0 + 20 * SECOND) == NEVER_US  # it was away when this poll looked
    assert scene.poll(watch, 30) == T0 + 30 * SECOND
    assert scene.told[-1] is None


def test_another_folder_is_taken_with_a_file(scene: Scene) -> None:
    """Catches: the empty folder of a mount point taken for silence, and a new mount that is never taken."""
    watch = scene.watch()
    scene.root.unlink()
    scene.link("other")
    for second in (10, 20):
        assert scene.poll(watch, second) == NEVER_US
    assert scene.told[-1] == T0
    (scene.root / "1.csv").touch()
    assert scene.poll(watch, 30) == T0 + 30 * SECOND
    assert scene.told[-1] is None
    (scene.root / "1.csv").unlink()  # emptied
    assert scene.poll(watch, 40) == T0 + 40 * SECOND


def test_an_empty_folder_needs_a_word(scene: Scene) -> None:
    """Catches: a restart over an empty mount point, which closes what was to come."""
    assert scene.poll(scene.watch(is_known=False), 10) == NEVER_US
    assert scene.poll(scene.watch(is_known=True), 20) == T0 + 20 * SECOND
    (scene.root / "1.csv").touch()
    assert scene.poll(scene.watch(is_known=False), 30) == T0 + 30 * SECOND


def test_an_hour_away_closes_nothing(
    scene: Scene, contributions: Contributions, checkpoint: Checkpoint
) -> None:
    """Catches: records of the time in which the folder was away counted as late."""
    watch = scene.watch()
    ticker = Ticker(contributions, checkpoint, 10 * SECOND, 2 * SECOND)
    ticker.begin(NO_CLOCK)
    polled_us = NEVER_US
    ticker.idle_since_us = lambda: watch.idle_us(polled_us)

    def poll(seconds: int) -> None:
        nonlocal polled_us
        watch.look()
        scene.now_us = polled_us = T0 + seconds * SECOND
        ticker.nothing_came(ticker.idle_since_us())

    poll(12)
    scene.root.unlink()
    for seconds in range(14, 3_612, 2):
        poll(seconds)
    scene.link("real")
    scene.now_us += SECOND
    clock = ticker.clock(planned(checkpoint, 0, T0 + 3_614 * SECOND))
    assert clock.closed_us == T0 + 12 * SECOND
    ticker.rows_are_there(0, clock)
    poll(3_622)
    assert ticks(contributions) == [(-1, 12), (0, 3_614), (0, 3_622)]


@dataclass
class Planned:
    """A checkpoint whose newest micro-batch was planned so many seconds after T0."""

    second: int
    newest_batch: int = 3

    def time_us(self, batch: int) -> int:
        return T0 + self.second * SECOND


@pytest.mark.parametrize(
    ("planned", "is_excused"), [(10, True), (20, True), (21, False), (None, False)]
)
def test_only_what_fails_while_away_is_excused(
    scene: Scene, planned: int | None, is_excused: bool
) -> None:
    """Catches: a live run that ends with its folder, and a damaged file that is read again for ever."""
    watch = scene.watch()
    known: Any = Planned(planned or 0)
    scene.now_us += 20 * SECOND
    outcome: Any = contextlib.nullcontext() if is_excused else pytest.raises(DataError)
    with outcome, watch.excusing(known, threading.Event()):
        if planned is not None:
            scene.root.unlink()
            watch.look()
            scene.now_us += SECOND // 2
            scene.link("real")
            watch.look()
        scene.now_us += SECOND
        raise DataError("a file has vanished")
