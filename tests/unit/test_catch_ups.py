"""Numbers of catch-ups without Spark: whatever became of their file, one that is done has ticked."""

import shutil
from pathlib import Path

import pytest

from dpsql.lake.catch_up import FILE, finish, open_catch_up, read_catch_up
from dpsql.lake.contributions import Contributions
from tests.unit.test_release_plans import HOUR, commit, listed, rows, table

__all__ = ["listed", "table"]


class Nights:
    """A run of nightly catch-ups, as far as their numbers and ticks go."""

    def __init__(self, table: Contributions) -> None:
        self.table, self.folder = table, table.path.parent

    def night(self, number: int, released: bool = True) -> int:
        """One catch-up over new rows; returns the time of the newest tick."""
        commit(self.table, number, rows(self.table, number))
        opened = open_catch_up(self.folder, number * HOUR, self.table.closed_us, self.table.newest_tick, {})
        assert self.table.tick(opened.number, number, opened.until_us, HOUR)
        if released:
            finish(self.folder, opened)
        return self.table.closed_us


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_lost_or_older_note_lets_no_night_pass_without_a_tick(table: Contributions, kept: int, tmp_path: Path) -> None:
    """Catches: a number that has ticked is given again, and nights end well that publish nothing."""
    nights = Nights(table)
    for number in range(1, 4):
        assert nights.night(number) == number * HOUR
        if number == kept:
            shutil.copy(nights.folder / FILE, tmp_path / "older")
    (nights.folder / FILE).unlink()
    if kept:
        shutil.copy(tmp_path / "older", nights.folder / FILE)
    for number in range(4, 7):
        assert nights.night(number) == number * HOUR
    done = read_catch_up(nights.folder)
    assert done is not None and done.number == table.newest_tick == 6


def test_an_older_note_of_an_interrupted_catch_up_is_not_gone_on_with(table: Contributions, tmp_path: Path) -> None:
    """One that has ticked and is not released is; it has the newest number."""
    nights = Nights(table)
    nights.night(1, released=False)
    shutil.copy(nights.folder / FILE, tmp_path / "older")
    opened = open_catch_up(nights.folder, None, table.closed_us, table.newest_tick, {})
    assert (opened.number, opened.until_us) == (1, HOUR)
    finish(nights.folder, opened)
    nights.night(2)
    shutil.copy(tmp_path / "older", nights.folder / FILE)
    assert nights.night(3) == 3 * HOUR
