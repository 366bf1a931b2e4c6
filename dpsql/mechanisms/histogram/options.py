"""The options that a query of the histogram may write."""

from __future__ import annotations

from dpsql.mechanisms.histogram.asked import Asked, ReleaseRule
from dpsql.parsed_query import CounterName
from dpsql.sql import options
from dpsql.sql.draft import Draft, Option

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
    options.MIN_PRIVACY_UNITS_PER_GROUP,
    options.GROUP_SELECTION_STRATEGY,
    options.PUBLIC_GROUPS,
    options.GROUP_SELECTION_SHARE,
    options.RELEASE,
    options.COUNTER,
    options.SELECTION_WEIGHT_DECAY,
)


def read(draft: Draft) -> Asked:
    """What an accepted query asks, every default filled in."""
    given = {name: draft.value(name) for name in Asked.__dataclass_fields__}
    return Asked(**given | {"counter": given["counter"] or CounterName.BLT, "release": ReleaseRule(given["release"])})
