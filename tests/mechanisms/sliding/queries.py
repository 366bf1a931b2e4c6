"""Parsed queries of sliding windows for ever, and the source that they read."""

from typing import Any

from dpsql.mechanisms.sliding.plan import PaneChoices, PaneGrouping
from dpsql.parsed_query import (
    Aggregate,
    AggregateFunction,
    ContributionPeriod,
    Key,
    ParsedQuery,
    PrivacyLevel,
    WindowSpec,
    changed,
)
from dpsql.sources.config import Source
from tests.property.plans import COMMON, parsed

MINUTE = 60_000_000
HOUR = 60 * MINUTE
COUNT = Aggregate("edits", AggregateFunction.COUNT_ROWS)
SUM = Aggregate("total", AggregateFunction.SUM, "bytes", (0.0, 100.0))
AVG = Aggregate("mean", AggregateFunction.AVG, "bytes", (-3.0, 9.0))
SPREAD = Aggregate("spread", AggregateFunction.STDDEV_POP, "bytes", (-3.0, 9.0))
SOURCE = Source(
    name="wiki",
    format="parquet",
    path="x",
    event_time="ts",
    privacy_unit=("user_id",),
    max_users=10**6,
    start_us=0,
)

GIVEN: dict[str, Any] = {
    "epsilon": 0.1,
    "delta": 0.0,
    "privacy_unit": (),
    "contribution_period": ContributionPeriod.STREAM,
}
GIVEN |= {
    "window": WindowSpec(15 * MINUTE, MINUTE, 0),
    "trigger_interval_us": MINUTE,
    "max_ahead_us": MINUTE,
}
GIVEN |= {
    "public_groups": "SELECT channel FROM channels",
    "keys": (Key("channel", "channel"),),
    "aggregates": (COUNT,),
}
GIVEN |= {
    "from_sql": "FROM wiki",
    "stream": "wiki",
    "static_sources": ("channels",),
    "columns_in_order": ("channel", "edits"),
}
GIVEN |= {"privacy_level": PrivacyLevel.EVENT, "grouping": PaneGrouping.NONE}
GIVEN |= dict.fromkeys(("max_rows_contributed", "max_rows_per_group", "max_groups_contributed"))
EVENT: ParsedQuery[PaneChoices] = parsed(COMMON | GIVEN, "sliding", PaneChoices)


def bounds(rows: int, per_group: int, groups: int, **more: Any) -> dict[str, Any]:
    return {
        "max_rows_contributed": rows,
        "max_rows_per_group": per_group,
        "max_groups_contributed": groups,
    } | more


def windows(query: ParsedQuery[PaneChoices], panes: int) -> ParsedQuery[PaneChoices]:
    return changed(query, window=WindowSpec(panes * MINUTE, MINUTE, 0))


USER = changed(
    EVENT,
    privacy_level=PrivacyLevel.USER,
    privacy_unit=("user_id",),
    contribution_period=ContributionPeriod.WINDOW,
    **bounds(20, 4, 3),
)
SQRT = changed(EVENT, delta=1e-6)
QUERIES = {
    "event": EVENT,
    "event, three aggregates": changed(EVENT, epsilon=2.0, aggregates=(COUNT, SUM, AVG)),
    "user": USER,
    "user, STREAM": changed(
        USER,
        epsilon=4.0,
        contribution_period=ContributionPeriod.STREAM,
        aggregates=(COUNT, SUM),
        **bounds(3, 1, 2),
    ),
    "retroactive": changed(EVENT, grouping=PaneGrouping.RETROACTIVE),
    "sqrt": SQRT,
    "sqrt, three aggregates": changed(SQRT, aggregates=(COUNT, SUM, AVG)),
    "sqrt, user": changed(USER, delta=1e-6),
}


def query_of_hours(query: ParsedQuery[PaneChoices], panes: int = 3) -> ParsedQuery[PaneChoices]:
    return changed(
        query, window=WindowSpec(panes * HOUR, HOUR, 0), trigger_interval_us=HOUR, max_ahead_us=HOUR
    )
