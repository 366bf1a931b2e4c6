"""Catch-ups: each reads what is stored, ticks once, and releases. One that was interrupted is finished with the time it began with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dpsql import record
from dpsql.errors import InputError
from dpsql.files import Place
from dpsql.lake.remedies import repairable
from dpsql.lake.runs import LIVE_FILE
from dpsql.times import now_us, timestamp
from dpsql.udfs.grid import NO_CLOCK

FILE = "catch_up.json"
VERSION = 1
LIMIT_US = 1 << 61


@dataclass(frozen=True)
class CatchUp:
    """One catch-up of a run.

    Args:
        number: from 1; its tick is committed under this number.
        until_us: the grid is closed up to here at its end; microseconds.
        released: True when everything up to then is published.
        wall_us: the wall clock when it was first started; records far beyond it are dropped.
        static: what pins the static tables (`dpsql.streaming.sources`), the same for every attempt.
    """

    number: int
    until_us: int
    wall_us: int
    released: bool
    static: dict[str, int | str]


@dataclass(frozen=True)
class Live:
    """The facts that a run was started live with.

    Args:
        static: the pins of its static tables.
        interval_us: its polling interval.
    """

    static: dict[str, int | str] = field(default_factory=dict)
    interval_us: int = 0


def latest_us(catch_up: CatchUp, max_ahead_us: int) -> int:
    """Return the time beyond which event times are dropped: `max_ahead` after the wall clock, or after `--until` where that lies in the future."""
    return min(max(catch_up.wall_us, catch_up.until_us) + max_ahead_us, 1 << 62)


def open_catch_up(
    folder: Place, until_us: int | None, closed_us: int, ticked: int, static: dict[str, int | str]
) -> CatchUp:
    """Return the catch-up to work on: the interrupted one, or else the next.

    The ticks count, whatever the file says: it may be lost, or an older copy, and a number that has ticked would publish nothing.

    Args:
        folder: the run's private folder.
        until_us: what the user asked for; None is the wall clock (never before the last tick).
        closed_us: the last tick's time, or NO_CLOCK.
        ticked: number of the newest catch-up that has ticked; 0 if none has.
        static: what the static tables are now.

    Raises:
        InputError: `until_us` lies before the last tick, is out of range, or differs from that of the interrupted catch-up.
        LakeError: catch_up.json is damaged.
    """
    last = read_catch_up(folder)
    if until_us is not None and abs(until_us) > LIMIT_US:
        raise InputError("--until is out of range")
    if last is not None and not last.released and last.number >= ticked:
        if until_us not in (None, last.until_us):
            raise InputError(
                f"an interrupted catch-up until {timestamp(last.until_us)} has to be finished first: leave --until away, then start again"
            )
        return last
    if until_us is not None and closed_us != NO_CLOCK and until_us < closed_us:
        raise InputError(
            f"--until {timestamp(until_us)} lies before {timestamp(closed_us)}, up to which triggers are closed already; give a later time"
        )
    wall_us = now_us()
    catch_up = CatchUp(
        number=max(ticked, 0 if last is None else last.number) + 1,
        until_us=until_us if until_us is not None else max(wall_us, closed_us),
        wall_us=wall_us,
        released=False,
        static=static,
    )
    record.write(folder / FILE, catch_up, VERSION)
    return catch_up


def finish(folder: Place, catch_up: CatchUp) -> None:
    """Remember that everything up to its time is published."""
    record.write(folder / FILE, replace(catch_up, released=True), VERSION)


def read_catch_up(folder: Place) -> CatchUp | None:
    """Return the newest catch-up; None before the first.

    Raises:
        DamagedRecord: the file is damaged.
        LakeError: it is from another release.
    """
    return record.load(folder / FILE, CatchUp, VERSION, repairable(folder))


def is_released(folder: Place, name: str) -> str:
    """Say when a one-time release was made; nothing where it was not, or not whole.

    Args:
        folder: the run's private folder.
        name: the run's name in the lake.

    Raises:
        LakeError: as `read_catch_up`.
    """
    catch_up = read_catch_up(folder)
    if catch_up is None or not catch_up.released:
        return ""
    day = timestamp(catch_up.wall_us)[:10]
    return f"{name} was released on {day}; to release again, use a new NAME: that spends again"


def begin_live(folder: Place, static: dict[str, int | str], interval_us: int) -> None:
    """Keep what a run was started live with: the pins of its static tables, and its polling interval."""
    record.write(folder / LIVE_FILE, Live(static, interval_us), VERSION)


def live_pins(folder: Place) -> dict[str, int | str]:
    """Return what pins the static tables of a live run; empty if the run never was one.

    Raises:
        LakeError: the file is damaged, or from another release.
    """
    return (record.load(folder / LIVE_FILE, Live, VERSION) or Live()).static


def forget_interrupted(folder: Place, number: int, closed_us: int) -> None:
    """Make a damaged file anew, as after a catch-up that is over.

    Whatever was interrupted is finished by the next catch-up: it releases every tick that is not released yet. What the interrupted one had
    not ticked has not been published, so it may be ticked at another time.

    Args:
        folder: the run's private folder.
        number: of the newest catch-up that has ticked; 0 if none has.
        closed_us: the last tick's time, or NO_CLOCK.
    """
    record.write(folder / FILE, CatchUp(number, closed_us, closed_us, True, {}), VERSION)
