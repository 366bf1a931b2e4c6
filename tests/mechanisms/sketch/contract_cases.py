"""Plans that the contract of the stages is checked with: both intakes, unknown, listed and only asked values, several sketches."""

from typing import Any

from dpsql.mechanisms.protocol import RunFacts
from dpsql.mechanisms.sketch.plan import SketchLimits, SketchPlan, Wanted, WantedPerGroup
from dpsql.mechanisms.sketch.planner import make_plan
from dpsql.parsed_query import ContributionPeriod, ParsedQuery, WindowSpec
from dpsql.udfs.keys import PublicGroups, encode
from tests.contract import HOUR, KEYS, START
from tests.mechanisms.sketch.sketch_runs import ONLY_ASKED, event, public, query
from tests.property.plans import source

FACTS = RunFacts(
    PublicGroups(
        tuple(range(KEYS)), tuple(encode([b"key %d" % number]) for number in range(KEYS)), START
    )
)
HOURS: dict[str, Any] = {
    "window": WindowSpec(8 * HOUR, 8 * HOUR, 0),
    "trigger_interval_us": 2 * HOUR,
    "depth": 3,
}
SLIDING: dict[str, Any] = HOURS | {"window": WindowSpec(8 * HOUR, 4 * HOUR, 0)}
BOUNDED = WantedPerGroup("in_all", 3, "value", (-30.0, 90.0))
BOTH = (Wanted("top", 5), Wanted("spent", 3, "value", (-3.0, 9.0)))


def _plan(asked: ParsedQuery[Any]) -> SketchPlan:
    return make_plan(asked, source())


PLANS = {
    "units, unknown": _plan(query(**HOURS, bounds=SketchLimits(4, 2, 3))),
    "units for ever, unknown": _plan(
        query(**HOURS, bounds=SketchLimits(6, 2, 3), contribution_period=ContributionPeriod.STREAM)
    ),
    "units, listed, sliding": _plan(public(**SLIDING, bounds=SketchLimits(4, 1, 4), wanted=BOTH)),
    "units, listed, bounds per group": _plan(
        public(**SLIDING, bounds=SketchLimits(6, 4, 3), wanted=(Wanted("top", 5), BOUNDED))
    ),
    "events, unknown": _plan(event(**HOURS)),
    "events, only asked": _plan(event(**HOURS, wanted=(ONLY_ASKED,))),
}
