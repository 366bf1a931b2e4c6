"""A clock that is wrong closes no window early, says so, and is believed again when it is right."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import LakeError
from dpsql.lake.clock_guard import ClockGuard, check_absence, check_store, passed_us
from dpsql.udfs.grid import NO_CLOCK

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
YEAR = 365 * DAY
T0 = 1_800_000_000 * SECOND


@dataclass
class Machine:
    wall_us: int = T0
    passed_us: int = 5 * SECOND
    told: list[tuple[bool, str]] = field(default_factory=list)

    def guard(self, interval_us: int = 2 * SECOND) -> ClockGuard:
        return ClockGuard(
            interval_us,
            lambda wrong, text: self.told.append((wrong, text)),
            lambda: self.wall_us,
            lambda: self.passed_us,
        )

    def sleep(self, us: int) -> None:
        self.wall_us += us
        self.passed_us += us


@pytest.mark.parametrize(
    ("step", "said"),
    [(DAY, "1 day, 0:00:00"), (YEAR, "365 days, 0:00:00"), (61 * SECOND, "0:01:01")],
)
def test_a_step_ahead_is_not_believed(step: int, said: str) -> None:
    machine = Machine()
    guard = machine.guard()
    machine.sleep(10 * SECOND)
    assert guard.time(machine.wall_us) == T0 + 10 * SECOND
    machine.wall_us += step
    for second in range(0, 200, 20):
        assert guard.time(machine.wall_us) == T0 + (10 + second) * SECOND
        late = guard.time(machine.wall_us - 3 * SECOND)  # a poll of 3 seconds ago
        assert late == T0 + (7 + second) * SECOND or (step < HOUR and late < machine.wall_us)
        machine.sleep(20 * SECOND)
    assert not guard.set_back
    machine.wall_us -= step
    assert guard.time(machine.wall_us) == machine.wall_us and guard.set_back
    guard.forgive()
    assert not guard.set_back
    assert [wrong for wrong, _ in machine.told] == [True, False]
    assert (
        f"stepped ahead by {said}, which have not passed" in machine.told[0][1]
        and "right again" in machine.told[1][1]
    )


def test_a_poll_that_saw_a_wrong_clock_before_it_was_set_right_closes_nothing() -> None:
    machine = Machine()
    guard = machine.guard()
    assert guard.time(T0) == T0
    machine.sleep(30 * SECOND)
    assert guard.time(T0 + 5 * SECOND + DAY) == T0 + 5 * SECOND - 5 * SECOND
    assert guard.set_back and machine.told == []


def test_a_step_back_waits_and_goes_on() -> None:
    machine = Machine()
    guard = machine.guard()
    machine.sleep(10 * SECOND)
    guard.time(machine.wall_us)
    machine.wall_us -= HOUR
    machine.sleep(10 * SECOND)
    assert guard.time(machine.wall_us) == T0 + 20 * SECOND - HOUR
    assert machine.told[0][0] and "gone back by 1:00:00" in machine.told[0][1]
    assert guard.set_back
    guard.forgive()
    machine.wall_us += HOUR
    assert guard.time(machine.wall_us) == T0 + 20 * SECOND
    assert not guard.set_back and [wrong for wrong, _ in machine.told] == [True, False]


def test_small_steps_and_slow_readers_are_no_alarm() -> None:
    machine = Machine()
    guard = machine.guard(interval_us=45 * SECOND)  # two polls may lie between
    for step in (89, -89, 30, 50, -20):
        machine.wall_us += step * SECOND
        assert guard.time(machine.wall_us) == machine.wall_us
        machine.sleep(HOUR)
    assert (
        guard.time(machine.wall_us - HOUR) == machine.wall_us - HOUR
    )  # found an hour after the poll
    assert machine.told == [] and not guard.set_back


def test_time_in_which_the_machine_slept_counts() -> None:
    before = passed_us()
    assert 0 <= passed_us() - before < HOUR


def test_another_clock_than_the_lakes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lake/private/visits"
    folder.mkdir(parents=True)
    check_store(folder)
    import time

    for wrong in (61, -61, 86_400):
        with pytest.raises(
            LakeError,
            match=r"the clock of this machine and that of the lake at .*/lake are .* apart",
        ):
            check_store(folder, lambda wrong=wrong: time.time() + wrong)
    check_store(folder, lambda: time.time() + 50)
    assert list(folder.iterdir()) == []
    if os.geteuid():
        folder.chmod(0o500)
        check_store(folder, lambda: time.time() + 86_400)


def caught_up(folder: Path, until_us: int) -> None:
    content: dict[str, Any] = {
        "version": 1,
        "number": 1,
        "until_us": until_us,
        "wall_us": T0,
        "released": True,
        "static": {},
    }
    (folder / "catch_up.json").write_text(json.dumps(content))


def test_after_days_somebody_has_to_say_that_the_clock_is_right(tmp_path: Path) -> None:
    def check(
        days: float, accepted: bool = False, trigger_us: int = HOUR, closed_us: int = T0
    ) -> None:
        check_absence(tmp_path, closed_us, T0 + round(days * DAY), trigger_us, accepted)

    check(3)
    check(-1)
    check(1000, closed_us=NO_CLOCK)
    with pytest.raises(
        LakeError,
        match=r"closed at 2027-01-15T08:00:00Z, and the clock .* says 2027-01-19T08:00:00Z: .*--accept-clock",
    ):
        check(4)
    check(4, accepted=True)
    check(40, trigger_us=40 * DAY)  # no tick was due
    caught_up(tmp_path, T0 - HOUR)
    with pytest.raises(LakeError, match="--accept-clock"):
        check(4)
    caught_up(tmp_path, T0)  # a catch-up has ticked last
    check(4)
