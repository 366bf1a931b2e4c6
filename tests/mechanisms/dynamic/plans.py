"""Queries over tables without windows, made without the parser."""

from typing import Any

from dpsql.mechanisms.dynamic.plan import ChangeChoices, TableChoices, TreeChoices
from dpsql.parsed_query import AggregateFunction, ContributionPeriod, Key, ParsedQuery, Quantiles
from dpsql.sources.change_feed import Feed, FeedForm
from dpsql.sources.config import Source
from tests.property import plans
from tests.property.plans import COUNT, SUM, USERS

HOUR = plans.HOUR
START = 1_767_225_600_000_000
DECILES = Quantiles("deciles", AggregateFunction.APPROX_QUANTILES, "seconds", (0.0, 60.0), 10)
FEED = Feed(FeedForm.DELTA, ("account",))
COPIES = Feed(FeedForm.DELTA, ())


def source(**changes: Any) -> Source:
    return plans.source(**({"start_us": START} | changes))


def query(**changes: Any) -> ParsedQuery[TableChoices]:
    """The table per page, every hour, C = 4; any field can be changed. With a `feed` its rows end, and with `period_us` a unit's allowance renews; with
    `tree`, too, by an interval tree."""
    rows = changes.get("max_rows_contributed", 4)
    fields: dict[str, Any] = {
        "max_rows_contributed": rows,
        "max_rows_per_group": rows,
        "max_groups_contributed": rows,
    }
    fields |= {
        "min_privacy_units_per_group": 1,
        "max_triggers": None,
        "epsilon": 6.0,
        "delta": 1e-9,
    }
    fields |= {
        "contribution_period": ContributionPeriod.STREAM,
        "window": None,
        "keys": (Key("page", "page"),),
    }
    fields |= {
        "aggregates": (COUNT, USERS, SUM),
        "columns_in_order": ("page", "views", "visitors", "time_spent"),
    }
    feed = changes.pop("feed", None)
    tree = changes.pop("tree", False)
    spells = changes.pop("max_spells_contributed", rows)
    period_us = changes.pop("period_us", None)
    if period_us:
        changes = {"contribution_period": ContributionPeriod.DURATION} | changes
    ends = {"feed": feed, "max_spells_contributed": spells, "period_us": period_us} if feed else {}
    kind = TableChoices if feed is None else TreeChoices if tree else ChangeChoices
    return plans.parsed(plans.COMMON | fields | ends | changes, "dynamic", kind)
