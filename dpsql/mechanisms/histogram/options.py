"""The options that a query of the histogram may write."""

from __future__ import annotations

from dpsql.mechanisms.histogram.asked import Asked, ReleaseRule
from dpsql.parsed_query import CounterName
from dpsql.sql import options
from dpsql.sql.draft import Check, Draft, Option
from dpsql.sql.options import MOST_ROWS, number_option, whole_option

_WRITE = "write keys_per_unit = 3, or leave it out"
KEYS_PER_UNIT = number_option(
    "keys_per_unit",
    "keys_per_unit = 3",
    Check("least", lambda keys: keys >= 1, "keys_per_unit must be at least 1: a unit that has a record has a key", _WRITE),
    Check("most", lambda keys: keys <= MOST_ROWS, f"keys_per_unit must be at most {MOST_ROWS:,}", _WRITE),
)
MOST_WINDOWS = 64
CARRY_WINDOWS = whole_option("carry_windows", "carry_windows = 28", MOST_WINDOWS, default=lambda draft: 1)

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
    KEYS_PER_UNIT,
    CARRY_WINDOWS,
)


def read(draft: Draft) -> Asked:
    """What an accepted query asks, every default filled in."""
    given = {name: draft.value(name) for name in Asked.__dataclass_fields__}
    return Asked(**given | {"counter": given["counter"] or CounterName.BLT, "release": ReleaseRule(given["release"])})
