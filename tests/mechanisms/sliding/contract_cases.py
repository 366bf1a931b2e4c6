"""Plans of sliding windows that the contract is held against: one for each kind of state and of release."""

import numpy as np

from dpsql.mechanisms.protocol import RunFacts
from dpsql.mechanisms.sliding.plan import PaneGrouping
from dpsql.mechanisms.sliding.planner import make_plan
from dpsql.parsed_query import ContributionPeriod, changed
from dpsql.udfs.keys import PublicGroups, encode
from tests.contract import HOUR, KEYS, START, UNITS
from tests.mechanisms.sliding.queries import (
    AVG,
    COUNT,
    EVENT,
    SOURCE,
    SQRT,
    SUM,
    USER,
    bounds,
    query_of_hours,
)

_IDS = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, UNITS + KEYS)[UNITS:]
FACTS = RunFacts(
    PublicGroups(
        tuple(_IDS.tolist()), tuple(encode([b"key %d" % number]) for number in range(KEYS)), START
    )
)
"""The keys of the contract's records are listed."""

_HOURS = {
    "events": changed(EVENT, epsilon=2.0, aggregates=(COUNT, SUM, AVG)),
    "units": changed(USER, epsilon=2.0, **bounds(3, 2, 2)),
    "units for ever": changed(
        USER, epsilon=2.0, contribution_period=ContributionPeriod.STREAM, **bounds(6, 3, 3)
    ),
    "retroactive": changed(EVENT, epsilon=2.0, grouping=PaneGrouping.RETROACTIVE),
    "correlated": changed(SQRT, epsilon=2.0, allowed_lateness_us=HOUR),
}
PLANS = {name: make_plan(query_of_hours(query), SOURCE) for name, query in _HOURS.items()}
