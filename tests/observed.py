"""The log that an operator's tools read of a run, read strictly: each line by the schema of its kind."""

from datetime import datetime
from typing import Any

from dpsql.lake.event_log import COMMON, SCHEMA, VERSION


def check_line(event: dict[str, Any]) -> None:
    """An event has the fields of its kind, each of its type, and no others; numbers count, and times are of the form that is documented."""
    fields = {**COMMON, **SCHEMA[event["kind"]]}
    assert {name: type(value) for name, value in event.items()} == fields, event
    assert event["version"] == VERSION and event["time"].endswith("Z")
    datetime.fromisoformat(event["time"])
    assert all(
        event[name] >= 0 for name, kind in fields.items() if kind is int and name != "closed_us"
    ), event
    assert all(type(count) is int and count >= 0 for count in event.get("dropped", {}).values()), (
        event
    )
    assert all(
        type(seconds) in (int, float) and seconds >= 0
        for seconds in event.get("seconds", {}).values()
    ), event
