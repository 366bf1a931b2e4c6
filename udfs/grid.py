"""The trigger grid: windows, their triggers, and contribution periods, as integer arithmetic on microseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Int

NO_CLOCK = -(1 << 62)
"""The closed time before any tick: nothing is closed."""


@dataclass(frozen=True)
class Grid:
    """Windows [s, s + window_us), s = offset_us + k * slide_us; triggers s + i * trigger_us, i = 1..horizon.

    All in microseconds; |event times| stay below 2^61, so nothing here can overflow int64.
    """

    window_us: int
    slide_us: int
    offset_us: int
    trigger_us: int
    horizon: int

    @property
    def windows_per_record(self) -> int:
        """Windows of a record, r = ceil(size / slide)."""
        return -(-self.window_us // self.slide_us)

    def latest_window(self, ts: Int) -> Int:
        """Return the start of the newest window that begins at or before each event time."""
        return (ts - self.offset_us) // self.slide_us * self.slide_us + self.offset_us

    def first_window_from(self, time_us: int) -> int:
        """Return the first window that begins at a time or later."""
        return -((self.offset_us - time_us) // self.slide_us) * self.slide_us + self.offset_us

    def windows_opening(self, after_us: int, until_us: int, first_us: int = NO_CLOCK) -> Int:
        """Return the windows from `first_us` on that have their first trigger after one time, and up to another."""
        times = np.array([after_us, until_us]) - self.trigger_us
        before, newest = self.latest_window(times).tolist()
        return np.arange(max(first_us, before + self.slide_us), newest + 1, self.slide_us)

    def windows_of(self, ts: Int) -> tuple[Int, Int]:
        """Return all (record, window start) pairs: the windows that hold each event time, newest first within a record."""
        r = self.windows_per_record
        record = np.repeat(np.arange(len(ts)), r)
        start = np.repeat(self.latest_window(ts), r) - np.tile(
            np.arange(r) * self.slide_us, len(ts)
        )
        is_inside = start + self.window_us > ts[record]
        return record[is_inside], start[is_inside]

    def own_trigger(self, ts: Int, start: Int) -> Int:
        """Return the first grid point strictly after the event time, as a trigger number of its window (from 1)."""
        return (ts - start) // self.trigger_us + 1

    def closed_triggers(self, start: Int, closed_us: int) -> Int:
        """Return how many triggers of each window lie at or before the closed time (0..horizon)."""
        return np.clip((closed_us - start) // self.trigger_us, 0, self.horizon)

    def period(self, ts: Int) -> Int:
        """Return the start of the tumbling contribution period, as long as the window, that holds each event time."""
        return (ts - self.offset_us) // self.window_us * self.window_us + self.offset_us

    def period_is_over(self, period: Int, closed_us: int) -> np.ndarray:
        """Tell whether every window that a record of the period can fall into has had its last trigger.

        A period's users may be forgotten then and not before: earlier would renew an allowance.
        """
        last_start = period + (
            self.window_us - self.slide_us
            if self.window_us % self.slide_us == 0
            else self.window_us
        )
        return self.closed_triggers(last_start, closed_us) == self.horizon
