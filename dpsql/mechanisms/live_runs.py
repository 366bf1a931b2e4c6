"""What every explanation says of live runs."""

from __future__ import annotations

from dpsql.errors import InputError
from dpsql.schedule import ASSUMPTION, Schedule, polling_interval
from dpsql.times import duration


def live_runs(schedule: Schedule) -> str:
    """What a live run's promise assumes (docs/privacy/index.md, A2)."""
    try:
        interval = duration(polling_interval(schedule))
    except InputError:
        return "Live runs\n  This query cannot run live: its triggers are not at whole milliseconds. Stored input: --until-caught-up."
    lines = (
        "Live runs",
        f"  {ASSUMPTION.capitalize()}",
        f"  (--interval, by default {interval}). One that takes longer delays the clock, and so may change which late records of",
        "  others count; a run in which one did says so. Stored input (--until-caught-up) assumes nothing of the kind.",
    )
    return "\n".join(lines)
