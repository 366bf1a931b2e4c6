"""Words of several explanations."""

from __future__ import annotations

from dpsql.parsed_query import Aggregate, AggregateFunction

RANKS = 4
"""Of a unit's keys, how many have their weight told."""


def written(aggregate: Aggregate) -> str:
    """An aggregate as it is called in a table."""
    function = aggregate.function
    return {AggregateFunction.COUNT_DISTINCT_UNIT: "COUNT(DISTINCT)", AggregateFunction.COUNT_ROWS: "COUNT(*)"}.get(
        function, f"{function}(x)"
    )
