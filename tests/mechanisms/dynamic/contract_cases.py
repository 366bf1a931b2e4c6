"""Plans of tables without windows that the contract is held against: with and without a last trigger, with rows that end."""

from dpsql.mechanisms.dynamic.planner import make_plan
from tests import contract
from tests.mechanisms.dynamic.plans import COPIES, DECILES, FEED, HOUR, query, source
from tests.property.plans import COUNT, ROWS, SUM

LOUD = {
    "epsilon": 60.0,
    "max_rows_contributed": 6,
    "max_rows_per_group": 2,
    "max_groups_contributed": 3,
}
LISTED = {"public_groups": "SELECT page FROM pages", "aggregates": (COUNT, SUM)}
SOURCE = source(start_us=contract.START)
TREES = {"aggregates": (COUNT, DECILES, SUM), "trigger_interval_us": 3 * HOUR}
"""Of thousands of nodes, whose noise takes long."""
PLANS = {
    "for ever": make_plan(query(**LOUD), SOURCE),
    "rows end": make_plan(query(**LOUD, feed=FEED), SOURCE),
    "copies end": make_plan(
        query(**LOUD | {"max_rows_per_group": 6}, feed=COPIES, max_spells_contributed=3), SOURCE
    ),
    "an interval tree": make_plan(query(**LOUD | LISTED, feed=FEED, tree=True), SOURCE),
    "quantiles of rows that end": make_plan(query(**LOUD | TREES, feed=FEED), SOURCE),
    "quantiles of rows": make_plan(query(**ROWS | TREES, epsilon=60.0), SOURCE),
    "to trigger 40": make_plan(query(**LOUD, max_triggers=40), SOURCE),
}
