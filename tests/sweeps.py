"""How many cases a sweep tries: a few in `make test`, the whole of them in `make test-long`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

WHOLE = os.environ.get("DPSQL_SWEEPS") == "whole"

Case = TypeVar("Case")


def sweep(few: int, whole: int) -> int:
    """Return how often to try, or how many."""
    return whole if WHOLE else few


def some(cases: Sequence[Case], every: int, *always: Case) -> list[Case]:
    """Return every nth case and those that are tried always, or all of them in a whole sweep."""
    return [
        case for place, case in enumerate(cases) if WHOLE or place % every == 0 or case in always
    ]
