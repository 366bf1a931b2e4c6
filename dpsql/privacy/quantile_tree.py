"""What a row moves in the tree of counts that quantiles are read off, from the plan's numbers alone."""

from __future__ import annotations

from typing import Any

from dpsql.errors import AccountingError
from dpsql.udfs.measure import quantiles


def levels(p: Any) -> int:
    """Nodes of a tree that one record counts in: of one level after the other, until a node is a leaf. Levels share no node, so squares add up.

    Raises:
        AccountingError: the tree is another than the one that is released.
    """
    count = 0
    leaves = 1
    while leaves < p.upper:
        count = count + 1
        leaves = leaves * p.fan_out
    counted = (
        count == p.levels == quantiles.LEVELS
        and leaves == p.upper == quantiles.LEAVES
        and p.lower == 1
    )
    if p.rule != "leaf" or not counted:
        raise AccountingError(
            f"a tree of {p.upper} leaves and fan-out {p.fan_out} is unknown to the accountant"
        )
    return count
