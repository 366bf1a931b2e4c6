"""How a table of a bucket's state is kept: `run.json` says it of each, so that state is read and cut anew without the mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class StateTable:
    """One table of a bucket's state.

    Args:
        sorted_by: the columns that its rows are sorted by.
        bucket_by: the id that decides in which bucket a row is: modulo the number of buckets, never negative.
        order: the step searches it, and finds each row once (`distinct`) or a run of them (`repeated`); or does not search it (`any`).
    """

    sorted_by: tuple[str, ...]
    bucket_by: str
    order: Literal["distinct", "repeated", "any"] = "distinct"
