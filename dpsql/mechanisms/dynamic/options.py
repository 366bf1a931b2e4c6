"""The options that a query over a table without windows may write."""

from __future__ import annotations

from dpsql.mechanisms.dynamic.asked import Asked, AskedOfChanges, AskedOfTree
from dpsql.sources.change_feed import Feed
from dpsql.sql import options
from dpsql.sql.draft import Draft, Option
from dpsql.sql.event_rules import bounds_of
from dpsql.sql.options import MOST_ROWS, whole_option

OPTIONS: tuple[Option, ...] = (
    *options.USUAL,
    options.MIN_PRIVACY_UNITS_PER_GROUP,
    options.MAX_TRIGGERS,
    whole_option(
        "max_spells_contributed = 4",
        "S, of a change feed: how often one unit is counted as coming to a key",
        "C",
        MOST_ROWS,
        lambda draft: draft.value("max_rows_contributed"),
    ),
)


def read(draft: Draft) -> Asked:
    """What an accepted query asks, every default filled in."""
    own = (options.MIN_PRIVACY_UNITS_PER_GROUP, options.MAX_TRIGGERS)
    given = bounds_of(draft) | {option.name: draft.value(option.name) for option in own}
    stream = draft.stream
    if stream is None or stream.change_feed is None:
        return Asked(**given)
    spells = draft.value("max_spells_contributed")
    kind = AskedOfTree if draft.paper else AskedOfChanges
    return kind(
        **given, max_spells_contributed=spells, feed=Feed(stream.change_feed, stream.primary_key)
    )
