"""The grid of a table without windows: one window that begins with the run's start and does not end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpsql.udfs.columns import Int
from dpsql.udfs.grid import Grid

LAST_STEP = 2**32 - 1
"""Numbers of steps have 32 bits in a noise cell (dpsql.udfs.noise.randomness)."""
ENDLESS_US = 1 << 62
LATEST_US = 1 << 61
"""Bound that event times stay below."""


@dataclass(frozen=True)
class Periods:
    """Contribution periods of a table whose rows end; a version is in that of the trigger that it begins at by itself.

    Args:
        length: triggers of each; as it is one period is for ever.
        offset: triggers of the first one that lie before the run's start.
    """

    length: int = 1 << 62
    offset: int = 0

    def numbers(self, trigger: Int) -> Int:
        """Return the number of the period that each trigger is in."""
        return (trigger - 1 + self.offset) // self.length


FOR_EVER = Periods()
"""The one period of units whose limits never renew."""


@dataclass(frozen=True)
class TableGrid(Grid):
    """Triggers start + i * trigger_us, i = 1, 2, ...: one window, whose start is `offset_us`.

    What happened before the start is part of the table at its first trigger. Nothing is too late; after the last trigger, if there is
    one, nothing is taken any more.
    """

    @classmethod
    def from_start(cls, start_us: int, trigger_us: int, last: int | None = None) -> TableGrid:
        """Return the grid of a table.

        Args:
            start_us: where trigger 0 would be.
            trigger_us: between two triggers.
            last: number of the last trigger; None: there is none.
        """
        return cls(
            ENDLESS_US, ENDLESS_US, start_us, trigger_us, LAST_STEP if last is None else last
        )

    def latest_window(self, ts: Int) -> Int:
        """Return the one window of all records."""
        return np.full(len(ts), self.offset_us, np.int64)

    def windows_of(self, ts: Int) -> tuple[Int, Int]:
        """Return every record with the one window."""
        return np.arange(len(ts)), self.latest_window(ts)

    def own_trigger(self, ts: Int, start: Int) -> Int:
        """Return the first grid point strictly after the event time, at least 1."""
        return np.maximum(super().own_trigger(ts, start), 1)

    def closed(self, closed_us: int) -> int:
        """Return how many triggers lie at or before the closed time."""
        return int(self.closed_triggers(np.array([self.offset_us], np.int64), closed_us)[0])
