"""The options that a query of sliding windows for ever may write."""

from __future__ import annotations

from typing import Any

from dpsql.mechanisms.sliding.asked import Asked, PaneGrouping, Smoothing
from dpsql.parsed_query import CounterName, PrivacyLevel
from dpsql.sql import options
from dpsql.sql.draft import Draft, Option

OPTIONS: tuple[Option, ...] = options.OF_EITHER_LEVEL


def read(draft: Draft) -> Asked:
    """What an accepted query asks, every default filled in."""
    event = draft.value("privacy_level") is PrivacyLevel.EVENT
    bounds: dict[str, Any] = {option.name: None if event else draft.value(option.name) for option in options.BOUNDS}
    if not event and draft.keyless and not draft.given(options.MAX_GROUPS_CONTRIBUTED.name):
        bounds[options.MAX_GROUPS_CONTRIBUTED.name] = 1  # rows are copied into no window: the one key needs one place
    panes = draft.value("delta") == 0
    return Asked(
        privacy_level=draft.value("privacy_level"),
        counter=CounterName.PANES if panes else CounterName.WINDOW_SQRT,
        grouping=PaneGrouping.RETROACTIVE if draft.paper else PaneGrouping.NONE,
        smoothing=Smoothing.LIMITED_TRANSLATION if panes and not draft.paper else Smoothing.NONE,
        **bounds,
    )
