"""All mechanisms: a closed list, because nobody may plug in one that is not proved."""

from __future__ import annotations

from typing import Any

from dpsql.errors import AccountingError
from dpsql.mechanisms.dynamic.mechanism import DYNAMIC
from dpsql.mechanisms.histogram.mechanism import HISTOGRAM
from dpsql.mechanisms.marginals.mechanism import MARGINALS
from dpsql.mechanisms.protocol import Mechanism, Plan, Shape
from dpsql.mechanisms.sketch.mechanism import SKETCH
from dpsql.mechanisms.sliding.mechanism import SLIDING

MECHANISMS: tuple[Mechanism[Any, Any], ...] = (HISTOGRAM, SLIDING, DYNAMIC, MARGINALS, SKETCH)


def mechanism_named(name: str) -> Mechanism[Any, Any]:
    """Return the mechanism of a plan.

    Raises:
        AccountingError: there is none of that name.
    """
    for mechanism in MECHANISMS:
        if mechanism.name == name:
            return mechanism
    raise AccountingError(f"no mechanism is called {name!r}")


def shape(plan: Plan) -> Shape:
    """Return what engines know of a plan."""
    return mechanism_named(plan.mechanism).shape(plan)
