"""Plans of the histogram that the contract is held against: one for each kind of state and of release."""

import math

from dpsql.mechanisms.histogram.plan import ReleaseRule
from dpsql.mechanisms.histogram.planner import make_plan
from dpsql.parsed_query import (
    ONE_TIME,
    Aggregate,
    AggregateFunction,
    ContributionPeriod,
    Quantiles,
    WindowSpec,
)
from tests.property.plans import (
    CAPPED,
    COUNT,
    DAY,
    FEW,
    HOUR,
    LINE,
    LINK,
    ROWS,
    USERS,
    query,
    source,
)

SPREAD = Aggregate("spread", AggregateFunction.STDDEV_SAMP, "seconds", (0.0, 60.0))
QUARTILES = Quantiles("quartiles", AggregateFunction.APPROX_QUANTILES, "seconds", (0.0, 60.0), 4)
LOUD = {
    "epsilon": 60.0,
    "max_rows_contributed": 3,
    "max_rows_per_group": 2,
    "max_groups_contributed": 2,
}
ONE_KEY = {"max_rows_contributed": 1, "max_rows_per_group": 1, "max_groups_contributed": 1}
"""Counts of these are the sums that choose keys: they have no noise, and no path, of their own."""
ONCE = {
    "event_time": ONE_TIME,
    "window": None,
    "trigger_interval_us": DAY,
    "contribution_period": ContributionPeriod.STREAM,
}
UNCOUNTED = {"max_rows_contributed": math.inf, "max_rows_per_group": math.inf}
PLANS = {
    "every trigger": make_plan(query(**LOUD), source()),
    "rounds": make_plan(query(**LOUD, release=ReleaseRule.RESELECT), source()),
    "sliding": make_plan(query(**LOUD, window=WindowSpec(DAY, 8 * HOUR, 0)), source()),
    "for ever": make_plan(
        query(**LOUD | {"max_rows_contributed": 6}, contribution_period=ContributionPeriod.STREAM),
        source(),
    ),
    "spread": make_plan(query(**LOUD, aggregates=(COUNT, SPREAD)), source()),
    "two values": make_plan(query(**LOUD, aggregates=(COUNT, LINE, LINK)), source()),
    "bounds per group": make_plan(
        query(**LOUD, window=WindowSpec(DAY, 8 * HOUR, 0), aggregates=(CAPPED, FEW)), source()
    ),
    "rows not counted": make_plan(query(**LOUD | UNCOUNTED, aggregates=(CAPPED, FEW)), source()),
    "rows": make_plan(
        query(
            **ROWS, epsilon=60.0, window=WindowSpec(DAY, 8 * HOUR, 0), aggregates=(COUNT, SPREAD)
        ),
        source(),
    ),
    "quantiles": make_plan(query(**LOUD, aggregates=(COUNT, QUARTILES, SPREAD)), source()),
    "quantiles of rows": make_plan(
        query(**ROWS, epsilon=60.0, window=WindowSpec(DAY, 8 * HOUR, 0), aggregates=(QUARTILES,)),
        source(),
    ),
    "carried quantiles": make_plan(
        query(**LOUD, carry_windows=3, aggregates=(QUARTILES, COUNT)), source()
    ),
    "carried": make_plan(query(**LOUD, carry_windows=3), source()),
    "once": make_plan(query(**LOUD, **ONCE, aggregates=(COUNT, SPREAD)), source()),
    "one key": make_plan(query(**LOUD | ONE_KEY, aggregates=(USERS, COUNT)), source()),
    "one key once": make_plan(query(**LOUD | ONE_KEY, **ONCE, aggregates=(USERS,)), source()),
}
