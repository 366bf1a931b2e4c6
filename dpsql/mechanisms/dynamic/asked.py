"""What a query asks of a table without windows besides what every query says."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.sources.change_feed import Feed


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Bounds and key selection; the options of the same names, every default filled in.

    `max_triggers`: number of the last trigger; None: there is none. C and c are infinite where rows are not counted.
    """

    max_rows_contributed: float
    max_rows_per_group: float
    max_groups_contributed: int
    min_privacy_units_per_group: int
    max_triggers: int | None


@dataclass(frozen=True, kw_only=True)
class AskedOfChanges(Asked):
    """Of a table whose rows end; `max_spells_contributed`: times of presence of one unit that count, over all keys."""

    max_spells_contributed: int
    feed: Feed


@dataclass(frozen=True, kw_only=True)
class AskedOfTree(AskedOfChanges):
    """Likewise, by the mechanism of Qiu and Yi: a baseline."""

    release: str = "INTERVAL_TREE"
