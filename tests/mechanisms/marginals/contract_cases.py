"""Plans of marginals that the contract is held against: for ever, to a last trigger, with a last value for all else."""

from __future__ import annotations

from dpsql.mechanisms.marginals.planner import make_plan
from dpsql.sources.domains import Domain
from tests import contract
from tests.mechanisms.dynamic.plans import COPIES, FEED
from tests.mechanisms.marginals.plans import query, source
from tests.property.plans import COUNT, SUM

KNOWN = tuple(f"key {number}" for number in range(8))
LOUD = {"epsilon": 60.0, "max_rows_contributed": 6, "trigger_interval_us": contract.HOUR}
SOURCE = source(start_us=contract.START)
PLANS = {
    "for ever": make_plan(
        query(**LOUD, domains=(Domain(KNOWN, False),), max_triggers=None), SOURCE
    ),
    "to trigger 40, others too": make_plan(
        query(
            **LOUD,
            domains=(Domain((*KNOWN, "other"), False, other=True),),
            max_triggers=40,
            aggregates=(COUNT, SUM),
        ),
        SOURCE,
    ),
    "with the total": make_plan(
        query(**LOUD, domains=(Domain(KNOWN, False),), grouping_sets=((0,), ())), SOURCE
    ),
    "paid answers": make_plan(
        query(**LOUD, session_share=0.25, domains=(Domain(KNOWN, False),), max_triggers=None),
        SOURCE,
    ),
    "rows end": make_plan(
        query(
            **LOUD,
            max_rows_per_group=2,
            feed=FEED,
            domains=(Domain(KNOWN, False),),
            max_triggers=None,
        ),
        SOURCE,
    ),
    "copies end, others too": make_plan(
        query(
            **LOUD,
            feed=COPIES,
            period_us=10 * contract.HOUR,
            domains=(Domain((*KNOWN, "other"), False, other=True),),
            aggregates=(COUNT, SUM),
        ),
        SOURCE,
    ),
    "rows": make_plan(
        query(
            epsilon=60.0,
            privacy_unit=(),
            max_triggers=None,
            trigger_interval_us=contract.HOUR,
            domains=(Domain(KNOWN, False),),
        ),
        SOURCE,
    ),
}
"""Of these the second has a released key for records of strange values: they must not move those of others, and `other` is none of them."""
