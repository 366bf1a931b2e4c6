"""What the two operators of every run have in common: their names, the tables of a bucket's state, and the report of a bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ADMISSION, RELEASE = "admission", "release"
OPERATORS = (ADMISSION, RELEASE)
"""Of query 1 and query 2; in the paths of state and checkpoints, and in transaction marks."""

ROW, TICK, FILE = 0, 1, 2
"""Kinds of rows: results and contributions; ticks between the queries; the report of a bucket."""


@dataclass(frozen=True)
class Table:
    """One table of a bucket's state.

    Args:
        sorted_by: the columns that its rows are sorted by: the steps search them.
        bucket_by: the id that decides in which bucket a row is: modulo the number of buckets, never negative.
    """

    sorted_by: tuple[str, ...]
    bucket_by: str


@dataclass(frozen=True)
class StateFile:
    """What a stage reports about one bucket in one micro-batch; `bytes` is 0 when nothing changed and nothing was written."""

    bucket: int
    sequence: int
    bytes: int
    counted: dict[str, Any]
