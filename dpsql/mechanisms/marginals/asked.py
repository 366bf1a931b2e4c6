"""What a query asks of marginals besides what every query says."""

from __future__ import annotations

from dataclasses import dataclass

from dpsql.sources.domains import Domain
from dpsql.udfs.marginals.cells import Keys


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Bounds, domains and tables; every default filled in.

    Args:
        max_rows_contributed, max_rows_per_group, max_groups_contributed: C, c, G, of cells that have all keys.
        domains: of the keys, in their order.
        grouping_sets: the tables that may be measured; the planner gives each its share, or none.
        max_triggers: number of the last trigger; None: there is none.
    """

    max_rows_contributed: int
    max_rows_per_group: int
    max_groups_contributed: int
    domains: tuple[Domain, ...]
    grouping_sets: tuple[Keys, ...]
    max_triggers: int | None
