"""When triggers are due, and how often a live run looks at its source: all that engines and the lake know of a mechanism's time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpsql.errors import InputError
from dpsql.times import duration, show_duration, timestamp
from dpsql.udfs.grid import NO_CLOCK, Grid

# When triggers are due: all that engines and the lake know of a mechanism's time.

AT_ONCE = 100_000
"""Triggers that are closed at once, at most, where each is replayed. A day has 86,400 seconds."""
MANY = 1_000
"""Windows or triggers that are released without a word."""
ERA = 64
"""So many slots (windows, panes, triggers) share a partition of `contributions`: one for each would be thousands of small files when a year is
replayed at once."""


@dataclass(frozen=True)
class Eras:
    """How contributions age: the number in `column` is first + n * step, and the rows with it are needed until over_us + n * every_us."""

    column: str
    first: int
    step: int
    over_us: int
    every_us: int

    def newest_expired(self, before_us: int) -> int:
        """Return the newest era of which nothing is needed any more at a time: era e has the n from 64 e to 64 e + 63."""
        return ((before_us - self.over_us) // self.every_us + 1) // ERA - 1


@dataclass(frozen=True)
class Schedule:
    """The times of a plan, in microseconds.

    Args:
        grid: windows and their triggers; trigger i of window w is due at w + i * trigger_us. A table without windows is one that does not end.
        offset_us, interval_us: the grid of closings: every trigger is due at offset_us + k * interval_us.
        eras: of contributions.
        windows: released rows belong to windows.
        replayed: every trigger since the start is gone through in order, whether there is a record or not.
    """

    grid: Grid
    offset_us: int
    interval_us: int
    eras: Eras
    windows: bool = True
    replayed: bool = False

    def points(self, time_us: int) -> int:
        """Return how many grid points lie at or before a time, from the one at the offset on."""
        return (time_us - self.offset_us) // self.interval_us

    def crossed(self, before_us: int, closed_us: int) -> bool:
        """Tell whether a grid point lies after `before_us` and at or before `closed_us`."""
        return self.points(closed_us) > self.points(before_us)

    def check_behind(self, until_us: int, start_us: int | None, closed_us: int = NO_CLOCK) -> None:
        """Refuse to close more triggers at once than can be replayed in minutes. Others are of windows with records in them: they are not counted.

        Args:
            until_us: up to when triggers are to be closed.
            start_us: where the source begins.
            closed_us: up to when they are closed already.

        Raises:
            InputError: more than `AT_ONCE` triggers have to be replayed.
        """
        if not self.replayed:
            return
        first_point, last_point = self._to_replay(until_us, start_us, closed_us)
        if last_point - first_point > AT_ONCE:
            since, first = (
                timestamp(self.offset_us + point * self.interval_us)
                for point in (first_point, first_point + AT_ONCE)
            )
            raise InputError(
                f"{last_point - first_point:,} triggers, one each {duration(self.interval_us)} after {since}, would be "
                f"closed at once, and at most {AT_ONCE:,} are: use a longer trigger_interval or a later `start` of the source, or go on in "
                f"steps, the first with --until-caught-up --until {first}"
            )

    def many(self, until_us: int, start_us: int, closed_us: int = NO_CLOCK) -> str:
        """Say how many windows or triggers are released whether there are records or not, where they are more than `MANY`.

        Args:
            until_us, start_us, closed_us: as for `check_behind`.

        Returns:
            `11,440 windows of 1 day, from 1995-08-01T00:00:00Z to 2026-11-26T00:00:00Z`; empty where they are fewer.
        """
        grid = self.grid
        if self.replayed:
            first_point, last_point = self._to_replay(until_us, start_us, closed_us)
            count = last_point - first_point
            begin_us = self.offset_us + first_point * self.interval_us
            last_us = self.offset_us + last_point * self.interval_us
            unit_text = f"triggers, one each {duration(self.interval_us)}"
        else:
            begin_us = max(self.window_of(start_us), self.first_free_window(closed_us))
            windows = (until_us - begin_us - grid.trigger_us) // grid.slide_us + 1
            last_us = begin_us + (windows - 1) * grid.slide_us + grid.window_us
            count = windows * grid.horizon
            unit_text = f"windows of {duration(grid.window_us)}"
            if grid.horizon > 1:
                unit_text = f"triggers of {windows:,} {unit_text}"
        return (
            f"{count:,} {unit_text}, from {timestamp(begin_us)} to {timestamp(last_us)}"
            if count > MANY
            else ""
        )

    def _to_replay(self, until_us: int, start_us: int | None, closed_us: int) -> tuple[int, int]:
        """Return the grid points that are closed already, and those that are to be."""
        begin = max(closed_us, self.offset_us, self.offset_us if start_us is None else start_us)
        before = self.points(begin)
        now = self.points(until_us)
        if not self.windows:
            return min(before, self.grid.horizon), min(now, self.grid.horizon)
        return before, now

    def due_us(self, window: int, trigger: int) -> int:
        """Return when a trigger is due."""
        return window + trigger * self.grid.trigger_us

    def end_us(self, time_us: int) -> int:
        """Return when the last trigger of the windows that have begun at a time is due; the time itself where there are no windows."""
        if not self.windows:
            return time_us
        return self.due_us(self.window_of(time_us), self.grid.horizon)

    def window_of(self, time_us: int) -> int:
        """Return the start of the newest window that begins at or before a time."""
        return int(self.grid.latest_window(np.array([time_us]))[0])

    def first_free_window(self, closed_us: int) -> int:
        """Return the start of the first window whose first trigger lies after a time."""
        return self.window_of(closed_us - self.grid.trigger_us) + self.grid.slide_us


def by_window(grid: Grid, windows: bool = True) -> Schedule:
    """Return the schedule of windows whose triggers are the grid's own, each window until its last one.

    Args:
        grid: windows and their triggers.
        windows: released rows belong to windows; else there is one, which nobody is told of.
    """
    eras = Eras(
        "window",
        grid.offset_us,
        grid.slide_us,
        grid.offset_us + grid.horizon * grid.trigger_us,
        grid.slide_us,
    )
    return Schedule(grid, grid.offset_us, grid.trigger_us, eras, windows)


# How often a live run looks at its source, and what its promise assumes of that.

MILLISECOND = 1_000
SECOND = 1_000_000
SHORTEST_US = SECOND
LONGEST_US = 60 * SECOND
"""The longest default interval, where the grid of triggers allows it."""

LARGEST_DIVISOR = 60_000
ASSUMPTION = (
    "live, the promise assumes that every micro-batch takes less time than the polling interval"
)


def polling_interval(schedule: Schedule, asked_us: int | None = None) -> int:
    """Return the interval at whose multiples a live run looks at its source; triggers are due at
    such multiples only. Microseconds.

    Args:
        schedule: of the query.
        asked_us: what the operator asks for. None: about a tenth of the trigger interval, 1 second to 1 minute.

    Raises:
        InputError: it does not divide the trigger interval and the windows' offset, or is not in whole milliseconds, as Spark polls.
    """
    common = math.gcd(schedule.interval_us, schedule.offset_us)
    divisors = _divisors(common)
    if not divisors:
        raise InputError(
            "a live run looks at its source at whole milliseconds, and the triggers of this query are due between them: "
            "write a trigger_interval and a window offset of whole milliseconds, or run it with --until-caught-up"
        )
    if asked_us is None:
        target_us = min(max(schedule.interval_us // 10, SHORTEST_US), LONGEST_US)
        long_enough = [divisor for divisor in divisors if divisor >= SHORTEST_US]
        fitting = [divisor for divisor in long_enough if divisor <= target_us]
        return max(fitting) if fitting else min(long_enough, default=divisors[-1])
    if asked_us not in divisors:
        raise InputError(_refusal(schedule, asked_us, divisors))
    return asked_us


def _divisors(common_us: int) -> list[int]:
    """Return the whole milliseconds that divide a time, all that are short and all that are long,
    ascending."""
    if common_us % MILLISECOND:
        return []
    common = common_us // MILLISECOND
    short = [
        number for number in range(1, min(LARGEST_DIVISOR, common) + 1) if common % number == 0
    ]
    return sorted(
        {number * MILLISECOND for divisor in short for number in (divisor, common // divisor)}
    )


def _refusal(schedule: Schedule, asked_us: int, divisors: list[int]) -> str:
    near = [
        max((d for d in divisors if d < asked_us), default=None),
        min((d for d in divisors if d > asked_us), default=None),
    ]
    accepted = " or ".join(show_duration(divisor) for divisor in near if divisor is not None)
    offset = (
        f" and the windows' offset {show_duration(schedule.offset_us)}"
        if schedule.offset_us
        else ""
    )
    return (
        f"--interval {show_duration(asked_us)} does not divide trigger_interval {show_duration(schedule.interval_us)}{offset}: triggers would be "
        f"due between two polls. Write {accepted}, or leave it away ({show_duration(polling_interval(schedule))})"
    )
