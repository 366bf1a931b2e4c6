"""When a query releases, as its explanation has it: windows and triggers as a value, and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dpsql.text import plural
from dpsql.times import duration


@dataclass(frozen=True, kw_only=True)
class When:
    """The windows and triggers.

    Args:
        event_time: column of the records; None: none is read, and all records are released once.
        window_us, slide_us: of windows; None: the whole table is released as it is.
        trigger_us: time between triggers.
        releases: triggers of a window, or of a table; None: there is no last one.
        start, end: of a table, due times of trigger 0 and the last one.
        lateness_us: how long after its end a window takes records.
        ahead_us: how far ahead of the clock a record may be.
        panes: slides of a window that is added up from panes.
        poll_us: how often a live run polls its source; None: the query cannot run live.
    """

    event_time: str | None
    window_us: int | None
    slide_us: int | None
    trigger_us: int
    releases: int | None
    start: str | None = None
    end: str | None = None
    lateness_us: int
    ahead_us: int
    panes: int | None = None
    poll_us: int | None

    @property
    def once(self) -> bool:
        """Whether all records are released together, one time."""
        return self.event_time is None


def times_in_short(w: When) -> str:
    """Return when it releases, in a line."""
    interval = f"every {duration(w.trigger_us)}"
    if w.once:
        return "once, over all existing records."
    if w.window_us is None:
        return f"the whole table, {interval}."
    released = f"one {interval}, each released once" if w.panes else f"released {interval}"
    return f"windows of {duration(w.window_us)}, {released}."


def times(w: When) -> Iterator[str]:
    """Yield how windows and triggers follow each other, and which records are dropped for their time."""
    interval = f"every {duration(w.trigger_us)}"
    if w.once:
        yield "Once, over all records that exist when the run starts. No event time is read, so records of any time count."
        return
    if w.window_us is None:
        end = f", the last at {w.end}" if w.end else ""
        often = "without an end" if w.releases is None else f"{w.releases:,} times"
        yield f"The whole table, {interval} from {w.start} on, {often}{end}."
        return
    slide = f", one every {duration(w.slide_us or 0)}," if w.slide_us != w.window_us else ""
    late = f", with {duration(w.lateness_us)} for late records" if w.lateness_us else ""
    released = f", released {interval}{late}: {plural(w.releases or 0, 'release')} per window."
    if w.panes:
        released = f". Each is released once, at its end{late}."
    yield f"Windows of {duration(w.window_us)}{slide} by {w.event_time} (UTC){released}"
    if w.panes:
        yield (
            f"A window is {w.panes} panes of {duration(w.trigger_us)}. A record counts in its own "
            "pane while that is open. Windows add up panes, so no record is copied into several windows."
        )
        yield "The first window begins at the declared start of the stream. There is no last one."
    else:
        yield "A record counts from the first trigger after its event time."
    yield f"Dropped: records of a closed {'pane' if w.panes else 'window'}, and records more than {duration(w.ahead_us)} ahead of the clock."


def live_runs(w: When) -> Iterator[str]:
    """Yield whether the query can run live, and on which assumption."""
    if w.once:
        return
    if w.poll_us is None:
        yield "This query cannot run live: its triggers are not at whole milliseconds. Stored input: --until-caught-up."
        return
    yield (
        "Live runs, not --until-caught-up, assume that every micro-batch takes less time than the "
        f"polling interval (--interval, by default {duration(w.poll_us)}). A longer one delays the "
        "clock and may change which late records of others count; the run then says so."
    )
