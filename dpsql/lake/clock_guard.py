"""What a run believes of the machine's clock: a window that is closed too early cannot be opened again, in no later start.

Inside a process, time that has not passed is not believed. At a start, the clock of this machine is compared with that of the lake's disk, and
with the newest tick.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

from dpsql.errors import LakeError
from dpsql.files import Place
from dpsql.lake.catch_up import read_catch_up
from dpsql.times import timestamp
from dpsql.udfs.bucket_state import filesystem
from dpsql.udfs.grid import NO_CLOCK

SECOND_US = 1_000_000
APART_US = 60 * SECOND_US
ABSENT_US = 3 * 86_400 * SECOND_US


def passed_us() -> int:
    """Return microseconds since some moment, whatever happens to the wall clock; time in which the machine sleeps counts, where the system knows it."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


class ClockGuard:
    """The time of one live start.

    Args:
        interval_us: between two polls. The wall clock may step by two of them, and by a minute, without a word.
        told: given a sentence when the clock turns wrong, and when it is right again; True says that it is wrong.
        wall: the wall clock, microseconds since 1970 UTC.
        passed: a clock that nobody sets, in microseconds.
    """

    def __init__(
        self,
        interval_us: int,
        on_step: Callable[[bool, str], None],
        wall: Callable[[], int],
        passed: Callable[[], int] = passed_us,
    ) -> None:
        self._slack_us = max(2 * interval_us, APART_US)
        self._on_step = on_step
        self._wall = wall
        self._passed = passed
        self._anchor = (wall(), passed())
        self._believed_us = self._anchor[0]
        self._step_us = 0
        self._astray = False
        self._back = False
        self._lock = threading.Lock()

    def time(self, shown_us: int) -> int:
        """Return when it was that the wall clock showed a time: that time, unless it cannot have come yet."""
        with self._lock:
            limit_us = self._now_us() + self._slack_us
            if shown_us > limit_us:
                self._astray = True
                # Of a clock that is right again nobody knows when it was that it showed this: not before the last time that was believed.
                shown_us = shown_us - self._step_us if self._step_us > 0 else self._believed_us
            self._believed_us = min(max(self._believed_us, shown_us), limit_us)
            return min(shown_us, limit_us)

    @property
    def set_back(self) -> bool:
        """The clock has gone back, or was ahead and is right again: who waits for a time that it showed before waits for too long."""
        return self._back or (self._astray and not self._step_us)

    def forgive(self) -> None:
        """Forget that the clock was set: nobody waits for such a time any more."""
        self._astray = self._back = False

    def _now_us(self) -> int:
        wall_us = self._wall()
        passed_us = self._passed()
        due_us = self._anchor[0] + passed_us - self._anchor[1]
        before_us = self._step_us
        step_us = wall_us - due_us
        self._step_us = step_us if abs(step_us) > self._slack_us else 0
        if self._step_us:
            self._astray = self._astray or step_us > 0
            if not before_us:
                self._back = step_us < 0
                self._on_step(True, _step_text(step_us))
            return due_us
        self._anchor = (wall_us, passed_us)
        if before_us:
            self._on_step(False, "the clock of this machine is right again")
        return wall_us


def _step_text(step_us: int) -> str:
    step = timedelta(seconds=round(abs(step_us) / SECOND_US))
    if step_us < 0:
        return f"the clock of this machine has gone back by {step}: no window is closed until it has caught up, or is set right"
    return (
        f"the clock of this machine has stepped ahead by {step}, which have not passed: windows are closed by the time that has. "
        "Set it right; if it was wrong before and is right now, start the run again"
    )


def check_store(folder: Place, wall: Callable[[], float] = time.time) -> None:
    """Compare this machine's clock with that of the disk or the store that the lake is on: they are the same, or that of another machine.

    Raises:
        LakeError: they are more than a minute apart.
    """
    stamp = folder / f".clock.{uuid4().hex}"
    before_seconds = wall()
    try:
        stamp.write_bytes(b"")
        system, path = filesystem(str(stamp))
        stamp_ns = system.get_file_info(path).mtime_ns
        stamp.unlink()
    except OSError:
        return  # whether the folder can be written to is told by who needs it
    # Between the two looks at the clock the store may have been slow, but not wrong.
    apart_seconds = (
        0.0
        if stamp_ns is None
        else max(before_seconds - stamp_ns / 1e9, stamp_ns / 1e9 - wall(), 0.0)
    )
    if apart_seconds * SECOND_US > APART_US:
        raise LakeError(
            f"the clock of this machine and that of the lake at {folder.parent.parent} are {timedelta(seconds=int(apart_seconds))} apart, and windows "
            "that are closed too early cannot be opened again; nothing was touched. Set both right, then start again"
        )


def check_absence(
    folder: Place, closed_us: int, now_us: int, trigger_us: int, accepted: bool
) -> None:
    """Ask before a live run goes on long after its newest tick: the clock may be ahead.

    Args:
        folder: the run's private folder.
        closed_us: the newest tick; one of a catch-up was somebody's wish.
        now_us: the wall clock.
        trigger_us: ticks of a live run lie so far apart.
        accepted: somebody has said that the clock is right.

    Raises:
        LakeError: nobody has.
    """
    last = read_catch_up(folder)
    if (
        accepted
        or closed_us == NO_CLOCK
        or (last is not None and last.until_us == closed_us)
        or now_us - closed_us <= ABSENT_US + trigger_us
    ):
        return
    raise LakeError(
        f"the newest trigger of this live run closed at {timestamp(closed_us)}, and the clock of this machine says {timestamp(now_us)}: windows "
        "that are closed too early cannot be opened again, so nothing was touched. Is the clock right, and was the run down for so long? Then "
        "start it once with --accept-clock. Else set the clock"
    )
