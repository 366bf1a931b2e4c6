"""The options that a query of sliding windows for ever may write."""

from __future__ import annotations

import math
from typing import Any

from dpsql.mechanisms.sliding.asked import Asked, PaneGrouping, Smoothing
from dpsql.parsed_query import CounterName, PrivacyLevel
from dpsql.sql import options
from dpsql.sql.draft import Check, Draft, Option
from dpsql.sql.options import number_option, word_option

MONITOR_SHARE = 0.1

_SHARE = Check("inside", lambda s: 0 < s < 1, "monitor_share must be above 0 and below 1", "write monitor_share = 0.1, or leave it out")
_FINITE = Check("finite", math.isfinite, "publish_above must be a number", "write publish_above = 100")

GROUPING = word_option("grouping", "grouping = PLANNED", PaneGrouping, default=lambda draft: PaneGrouping.NONE)
SHARE = number_option("monitor_share", "monitor_share = 0.1", _SHARE)
SMOOTHING = word_option("smoothing", "smoothing = LIMITED_TRANSLATION", Smoothing)
PUBLISH_ABOVE = number_option("publish_above", "publish_above = 100", _FINITE)
OWN = (GROUPING, SHARE, SMOOTHING, PUBLISH_ABOVE)
"""Of this mechanism alone: a query that writes one is its own."""

OPTIONS: tuple[Option, ...] = (*options.OF_EITHER_LEVEL, *OWN)


def counter(draft: Draft) -> CounterName | None:
    """As written, or the default of a level and a delta; None where neither says so, or it is another mechanism's."""
    written: CounterName | None = draft.value("counter")
    if draft.given("counter"):
        return written if written in (CounterName.PANES, CounterName.WINDOW_SQRT) else None
    if draft.value("delta") == 0:
        return CounterName.PANES
    return CounterName.WINDOW_SQRT if draft.value("privacy_level") is PrivacyLevel.EVENT else None


def read(draft: Draft) -> Asked:
    """What an accepted query asks, every default filled in."""
    chosen, grouping, event = counter(draft), draft.value("grouping"), draft.value("privacy_level") is PrivacyLevel.EVENT
    if chosen is None:
        raise AssertionError("a rule let a query without counter pass")
    smooth = chosen is CounterName.PANES and grouping is not PaneGrouping.RETROACTIVE
    bounds: dict[str, Any] = {option.name: None if event else draft.value(option.name) for option in options.BOUNDS}
    if not event and draft.keyless and not draft.given(options.MAX_GROUPS_CONTRIBUTED.name):
        bounds[options.MAX_GROUPS_CONTRIBUTED.name] = 1  # rows are copied into no window: the one key needs one place
    return Asked(
        privacy_level=draft.value("privacy_level"),
        counter=chosen,
        grouping=grouping,
        monitor_share=draft.value("monitor_share") or MONITOR_SHARE,
        smoothing=draft.value("smoothing") or (Smoothing.LIMITED_TRANSLATION if smooth else Smoothing.NONE),
        publish_above=draft.value("publish_above"),
        **bounds,
    )
