"""Why a histogram has no rows, from what was promised alone: nothing here knows how close a key came."""

from __future__ import annotations

from datetime import timedelta

from dpsql.description import Published
from dpsql.published.words import appears
from dpsql.times import EPOCH, duration

HELPS = "What helps: longer windows, fewer and coarser keys, more epsilon; public_groups, where the keys are no secret."


def why_nothing(published: Published) -> str:
    """Sentences for an empty table."""
    run = published.protects[-1]
    span = f"window of {duration(published.windows.size_us)}" if published.windows else "table"
    if run.units_needed is None:
        begins = (
            f" Rows begin with the first {span} after the source's `start`."
            if published.windows and not published.lists
            else ""
        )
        return f"No rows: no trigger has passed.{begins}"
    return f"No rows: no trigger has passed, or no key had enough people. {appears(run, published)} {HELPS}"


def next_trigger(published: Published, now_us: int) -> str:
    """When a live run releases next, on the grid: `2026-01-31 12:15 UTC`."""
    interval = published.trigger_us
    offset = published.windows.offset_us if published.windows else 0
    due = now_us - (now_us - offset) % interval + interval
    return f"{EPOCH + timedelta(microseconds=due):%Y-%m-%d %H:%M:%S} UTC"
