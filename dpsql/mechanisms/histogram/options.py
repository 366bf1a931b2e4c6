"""The options that a query of the histogram may write."""

from __future__ import annotations

from dpsql.mechanisms.histogram.asked import Asked, ReleaseRule
from dpsql.parsed_query import CounterName
from dpsql.sql import options
from dpsql.sql.draft import Check, Draft, Option
from dpsql.sql.options import MOST_ROWS, number_option, whole_option, word_option

_SHARE = Check(
    "inside", lambda s: 0 < s < 1, "group_selection_share must be above 0 and below 1", "write group_selection_share = 0.5, or leave it out"
)
_DECAY = Check(
    "inside", lambda a: 0 <= a <= 1, "selection_weight_decay must be from 0 to 1", "write selection_weight_decay = 0.5, or leave it out"
)

OPTIONS: tuple[Option, ...] = (
    options.EPSILON,
    options.DELTA,
    options.PRIVACY_LEVEL,
    options.PRIVACY_UNIT_COLUMN,
    options.MAX_ROWS_CONTRIBUTED,
    options.MAX_ROWS_PER_GROUP,
    options.MAX_GROUPS_CONTRIBUTED,
    options.CONTRIBUTION_PERIOD,
    options.TRIGGER_INTERVAL,
    options.ALLOWED_LATENESS,
    options.MAX_AHEAD,
    whole_option("min_privacy_units_per_group", "min_privacy_units_per_group = 10", MOST_ROWS, lambda draft: 1),
    options.GROUP_SELECTION_STRATEGY,
    options.PUBLIC_GROUPS,
    number_option("group_selection_share", "group_selection_share = 0.5", _SHARE),
    word_option("release", "release = EVERY_TRIGGER", ReleaseRule, default=lambda draft: ReleaseRule.EVERY_TRIGGER),
    options.COUNTER,
    number_option("selection_weight_decay", "selection_weight_decay = 0.5", _DECAY, default=lambda draft: 0.5),
)


def read(draft: Draft) -> Asked:
    """What an accepted query asks, every default filled in."""
    given = {name: draft.value(name) for name in Asked.__dataclass_fields__}
    return Asked(**given | {"counter": given["counter"] or CounterName.BLT})
