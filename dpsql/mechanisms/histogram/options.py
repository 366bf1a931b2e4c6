"""The options that a query of the histogram may write."""

from __future__ import annotations

from dpsql.mechanisms.histogram.asked import Asked, ReleaseRule
from dpsql.parsed_query import CounterName
from dpsql.sql import options
from dpsql.sql.draft import Draft, Option
from dpsql.sql.event_rules import bounds_of
from dpsql.sql.options import whole_option

MOST_WINDOWS = 64
CARRY_WINDOWS = whole_option(
    "carry_windows = 28",
    "L, of windows that do not overlap: how many, the present one included, may prove a key together; a key once proven is shown in later windows "
    "from their first trigger on, until they no longer support it",
    "1: each window by itself",
    MOST_WINDOWS,
    lambda draft: 1,
)

OPTIONS: tuple[Option, ...] = (*options.USUAL, options.MIN_PRIVACY_UNITS_PER_GROUP, CARRY_WINDOWS)


def read(draft: Draft) -> Asked:
    """What an accepted query asks, every default filled in."""
    own = (options.MIN_PRIVACY_UNITS_PER_GROUP, CARRY_WINDOWS)
    return Asked(
        **bounds_of(draft),
        **{option.name: draft.value(option.name) for option in own},
        release=ReleaseRule.RESELECT
        if draft.paper and not draft.listed and not draft.keyless
        else ReleaseRule.EVERY_TRIGGER,
        counter=CounterName.HONAKER if draft.paper else CounterName.BLT,
    )
