"""Words of several explanations."""

from __future__ import annotations

from collections.abc import Iterable

from dpsql.parsed_query import Aggregate, AggregateFunction

RANKS = 4
"""Of a unit's keys, how many have their weight told."""


def written(aggregate: Aggregate) -> str:
    """An aggregate as it is called in a table."""
    function = aggregate.function
    return {AggregateFunction.COUNT_DISTINCT_UNIT: "COUNT(DISTINCT)", AggregateFunction.COUNT_ROWS: "COUNT(*)"}.get(
        function, f"{function}(x)"
    )


def clamps(aggregates: Iterable[Aggregate]) -> list[str]:
    """What is done to values, a line for each aggregate of values."""
    return [
        f"  {each.alias}: each value is clamped to [{each.bounds[0]:g}, {each.bounds[1]:g}]; NULL and NaN add nothing."
        for each in aggregates
        if each.bounds
    ]
