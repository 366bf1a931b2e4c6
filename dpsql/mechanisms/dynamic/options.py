"""The options that a query over a table without windows may write."""

from __future__ import annotations

from dpsql.change_feed import Feed
from dpsql.mechanisms.dynamic.asked import Asked, AskedOfChanges, AskedOfTree
from dpsql.parsed_query import CounterName, Release
from dpsql.sql import options
from dpsql.sql.draft import Check, Draft, Option
from dpsql.sql.options import MOST_ROWS, number_option, whole_option

_SHARE = Check("inside", lambda s: 0 <= s <= 1, "hide_below must be from 0 to 1", "write hide_below = 0.5, or leave it out")

OPTIONS: tuple[Option, ...] = (
    options.PRIVACY_LEVEL,
    options.EPSILON,
    options.DELTA,
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
    options.COUNTER,
    options.SELECTION_WEIGHT_DECAY,
    options.MAX_TRIGGERS,
    whole_option(
        "max_spells_contributed", "max_spells_contributed = 4", MOST_ROWS, default=lambda draft: draft.value("max_rows_contributed")
    ),
    options.RELEASE,
    number_option("hide_below", "hide_below = 0.5", _SHARE, default=lambda draft: 0.5),
)


def read(draft: Draft) -> Asked:
    """What an accepted query asks, every default filled in."""
    given = {name: draft.value(name) for name in Asked.__dataclass_fields__}
    given["counter"] = given["counter"] or CounterName.BLT
    stream = draft.stream
    if stream is None or stream.change_feed is None:
        return Asked(**given)
    spells = draft.value("max_spells_contributed")
    kind = AskedOfTree if draft.value("release") is Release.INTERVAL_TREE else AskedOfChanges
    return kind(**given, max_spells_contributed=spells, feed=Feed(stream.change_feed, stream.primary_key))
