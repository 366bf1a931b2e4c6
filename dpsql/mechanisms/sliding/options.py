"""The options that a query of sliding windows for ever may write."""

from __future__ import annotations

from typing import Any

from dpsql.mechanisms.sliding.asked import Asked, PaneGrouping
from dpsql.parsed_query import PrivacyLevel
from dpsql.sql import options
from dpsql.sql.draft import Draft, Option

OPTIONS: tuple[Option, ...] = options.USUAL


def read(draft: Draft) -> Asked:
    """What an accepted query asks, every default filled in."""
    event = draft.value("privacy_level") is PrivacyLevel.EVENT
    bounds: dict[str, Any] = {
        option.name: None if event else draft.value(option.name) for option in options.BOUNDS
    }
    if not event and draft.keyless and not draft.given(options.MAX_GROUPS_CONTRIBUTED.name):
        bounds[options.MAX_GROUPS_CONTRIBUTED.name] = (
            1  # rows are copied into no window: the one key needs one place
        )
    return Asked(
        privacy_level=draft.value("privacy_level"),
        grouping=PaneGrouping.RETROACTIVE if draft.paper else PaneGrouping.NONE,
        **bounds,
    )
