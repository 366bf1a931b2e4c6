"""Words of several explanations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dpsql.parsed_query import Aggregate, AggregateFunction
from dpsql.text import percent

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


def shares(plan: Any, several: str) -> str:
    """What mu^2 goes to; `several`: which columns have more than one noisy number."""
    chosen = plan.selection.share if plan.selection else 0.0
    each = f"{percent((1 - chosen) / len(plan.perturbations))}{'' if plan.selection else ' of mu^2'} goes to each noisy number"
    numbers = f", of which there are {len(plan.perturbations)}: {several}" if several else ""
    return f"  {f'{percent(chosen)} of mu^2 chooses keys, ' if plan.selection else 'No key is chosen: '}{each}{numbers}."


def budget(plan: Any, *spent: str, passing: str = "keys that only one unit has") -> str:
    """How the budget is spent: on what, and what delta is for; `passing` keys may be released by mistake."""
    threshold = f" + {plan.delta_threshold:.3g} for {passing}" if plan.selection else ""
    return "\n".join(
        [
            "How the budget is spent",
            f"  All noise is Gaussian and accounted for together: mu = {plan.mu:.4f}, the most noise-saving way to ({plan.epsilon:g}, {plan.delta_noise:.3g}).",
            *spent,
            f"  delta = {plan.delta_noise:.3g} for the noise{threshold} + {plan.delta_hash:.2g} for id collisions.",
        ]
    )
