"""What the contribution bounds of a run leave out, in words: an error bar knows nothing of it.

From the document of a plan (`run.json`), so that whoever may read it needs no query. A document that says no bounds gets the general words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpsql.times import duration

NOISE_ONLY = "± is 95% of the noise. It does not cover what the contribution bounds leave out."
PREDICTED = "Where fewer slides are measured than a window has, the others are predicted, and ± does not cover what is predicted."
NOT_ONE_PERSON = "What is protected is one row, not one person."
NOISE_OF_ROWS = f"± is 95% of the noise. {NOT_ONE_PERSON}"
LISTED = (
    "± is 95% of values named before looking, noise and collisions with other values included; a value that made the list by luck is too high. "
    "Any value can be asked for: dpsql ask."
)
LEFT_OUT = "What is beyond is left out of these numbers: true ones can be much larger, above all where few units do much."


def heads(document: Mapping[str, Any] | None) -> dict[str, str]:
    """Per aggregate what its column's head says of the bounds: `at most 4 each`; nothing where each unit counts once."""
    query = asked(document)
    if not query.get("max_rows_contributed"):
        return {}
    found = {}
    for aggregate in query["aggregates"]:
        if aggregate["function"] == "COUNT(DISTINCT)":
            continue
        values = "{:g} to {:g}, ".format(*aggregate["bounds"]) if aggregate["bounds"] else ""
        found[aggregate["alias"]] = f"{values}at most {_per_key(query):,} each"
    return found


def left_out(document: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The sentences below a table of noisy numbers."""
    query = asked(document)
    predicted = (PREDICTED,) if query.get("grouping", "NONE") != "NONE" else ()
    if query and not query["privacy_unit"]:
        return (NOISE_OF_ROWS, *predicted)
    if not query.get("max_rows_contributed"):
        return (NOISE_ONLY, LEFT_OUT, *predicted)
    return (NOISE_ONLY, f"{_allowance(query)} {LEFT_OUT}", *predicted)


def of_lists(document: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The sentences below the values that a sketch lists."""
    query = asked(document)
    return (LISTED, NOT_ONE_PERSON) if query and not query["privacy_unit"] else (LISTED, LEFT_OUT)


def asked(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """What every query says, and what is asked of its mechanism."""
    query = (document or {}).get("query", {})
    return {**query, **query.get("asked", {})}


def _per_key(query: Mapping[str, Any]) -> int:
    return int(min(query.get("max_rows_per_group", math.inf), query["max_rows_contributed"]))  # where keys have domains no key has a bound


def _allowance(query: Mapping[str, Any]) -> str:
    """`One user_id counts with at most 8 records in a window, 4 per channel, in at most 2 values of channel.`"""
    most, each = query["max_rows_contributed"], _per_key(query)
    groups = query.get("max_groups_contributed", most)
    period = "in the whole stream"
    if query["contribution_period"] == "WINDOW" and query["window"]:
        sliding = query["window"]["slide_us"] != query["window"]["size_us"]
        period = f"in {duration(query['window']['size_us'])}" if sliding else "in a window"
    key = ", ".join(key["name"] for key in query["keys"])
    what, at_once = ("row version", " at the same time") if query.get("feed") else ("record", "")
    parts = [f"One {', '.join(query['privacy_unit'])} counts with at most {most:,} {what}{'' if most == 1 else 's'} {period}"]
    parts += [f"{each:,} per {key}{at_once}"] if key and each < most else []
    parts += [f"in at most {groups:,} value{'' if groups == 1 else 's'} of {key}"] if key and groups < most else []
    return ", ".join(parts) + "."
