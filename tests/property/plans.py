"""ParsedQuery and Source values made without the parser: the tests of planning and release need no SQL."""

from typing import Any

from dpsql.mechanisms.histogram.plan import HistogramChoices, ReleaseRule
from dpsql.parsed_query import (
    Aggregate,
    AggregateFunction,
    ContributionPeriod,
    CounterName,
    Key,
    Paired,
    ParsedQuery,
    PerGroup,
    WindowSpec,
)
from dpsql.sources.config import Source

HOUR = 3_600_000_000
DAY = 24 * HOUR

COUNT = Aggregate("views", AggregateFunction.COUNT_ROWS)
VALID = Aggregate("known", AggregateFunction.COUNT, "seconds")
USERS = Aggregate("visitors", AggregateFunction.COUNT_DISTINCT_UNIT)
CAPPED = PerGroup("capped", AggregateFunction.SUM, "x", (-3.0, 2.0))
FEW = PerGroup("few", AggregateFunction.COUNT_ROWS, None, (0.0, 2.0))
"""Both with bounds per group."""
SUM = Aggregate("time_spent", AggregateFunction.SUM, "seconds", (0.0, 60.0))
BOTH = "seconds", (0.0, 60.0), "x", (-3.0, 9.0)
LINE = Paired("slope", AggregateFunction.REGR_SLOPE, *BOTH)
LINK = Paired("linked", AggregateFunction.CORR, *BOTH)
"""Of the same two values: five of six sums are shared."""


COMMON: dict[str, Any] = {
    "privacy_unit": ("user_id",),
    "event_time": "ts",
    "trigger_interval_us": HOUR,
    "allowed_lateness_us": 0,
}
COMMON |= {
    "max_ahead_us": HOUR,
    "public_groups": None,
    "from_sql": "FROM visits",
    "stream": "visits",
    "static_sources": (),
}
"""What the queries of all mechanisms have here."""


def source(**changes: Any) -> Source:
    """The stream `visits`; its users and keys cost next to nothing of delta = 1e-9."""
    return Source(
        **(
            {"name": "visits", "format": "parquet", "max_users": 1_000_000, "max_keys": 10_000}
            | changes
        )
    )


def query(**changes: Any) -> ParsedQuery[HistogramChoices]:
    """One day in hours, C = 4, COUNT(*), COUNT(DISTINCT unit) and SUM; any field can be changed."""
    rows = changes.get("max_rows_contributed", 4)
    fields: dict[str, Any] = {
        "epsilon": 6.0,
        "delta": 1e-9,
        "max_rows_contributed": rows,
        "max_rows_per_group": rows,
    }
    fields |= {
        "max_groups_contributed": rows,
        "contribution_period": ContributionPeriod.WINDOW,
        "window": WindowSpec(DAY, DAY, 0),
    }
    fields |= {
        "min_privacy_units_per_group": 1,
        "release": ReleaseRule.EVERY_TRIGGER,
        "counter": CounterName.BLT,
    }
    fields |= {"keys": (Key("page", "page"),), "aggregates": (COUNT, USERS, SUM)}
    fields |= {"columns_in_order": ("page", "views", "visitors", "time_spent")}
    return parsed(COMMON | fields | changes)


ROWS: dict[str, Any] = {
    "privacy_unit": (),
    "contribution_period": ContributionPeriod.STREAM,
    "public_groups": "SELECT page FROM pages",
    "max_rows_contributed": 1,
    "max_rows_per_group": 1,
    "max_groups_contributed": 1,
}
"""Where one row is protected."""


def parsed(
    fields: dict[str, Any], mechanism: str = "histogram", kind: Any = HistogramChoices
) -> ParsedQuery[Any]:
    """A query from all its fields, those of what is asked of its mechanism among them."""
    asked = {name: value for name, value in fields.items() if name in kind.__dataclass_fields__}
    rest = {name: value for name, value in fields.items() if name not in asked}
    return ParsedQuery(mechanism=mechanism, **rest, asked=kind(**asked))
