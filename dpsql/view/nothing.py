"""Why a histogram has no rows, from what was promised alone: nothing here knows how close a key came."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from dpsql.times import EPOCH, duration

HELPS = "What helps: longer windows, fewer and coarser keys, more epsilon; public_groups, where the keys are no secret."


def why_nothing(document: Mapping[str, Any] | None) -> str:
    """Sentences for an empty table.

    Args:
        document: of the plan; None where it cannot be read.
    """
    query = (document or {}).get("query", {})
    if query.get("mechanism") == "sliding":
        return f"No rows: no window of {duration(query['window']['size_us'])} has closed since the source's `start`, or publish_above leaves all out."
    if "selection" not in (document or {}) or not query.get("window"):
        return "No rows: no trigger has passed, or no key had enough people."
    size = duration(query["window"]["size_us"])
    selection = document["selection"] if document else None
    if selection is None:
        return f"No rows: no trigger has passed. Rows begin with the first window of {size} after the source's `start`."
    units = max(-(-selection["thresholds"][-1] // selection["weights"][0]), query.get("min_privacy_units_per_group", 1))
    return (
        f"No rows: no trigger has passed, or no key had enough people. A key appears once about {units:,} different "
        f"{', '.join(query['privacy_unit'])} have it in one window of {size}. {HELPS}"
    )


def next_trigger(document: Mapping[str, Any], now_us: int) -> str:
    """When a live run releases next, on the grid: `2026-01-31 12:15 UTC`."""
    query = document["query"]
    interval, offset = query["trigger_interval_us"], (query["window"] or {}).get("offset_us", 0)
    due = now_us - (now_us - offset) % interval + interval
    return f"{EPOCH + timedelta(microseconds=due):%Y-%m-%d %H:%M:%S} UTC"
