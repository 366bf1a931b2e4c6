"""Change feeds: streams of images, each of which says that a row of a table begins or ends.

However a feed is written, engines read it as Delta writes it: the columns of the row, and three beside them that are named here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from udfs.stage import BEGIN, END

CHANGE, POSITION, TIME = "_change_type", "_commit_version", "_commit_timestamp"
BESIDE = (CHANGE, POSITION, TIME)
"""What an image is, its place in the feed, and when it was committed."""

BEGINS = ("insert", "update_postimage")
ENDS = ("delete", "update_preimage")
"""Of the column CHANGE."""


class FeedForm(StrEnum):
    """How a change feed is written."""

    DELTA = "DELTA"


@dataclass(frozen=True)
class Feed:
    """What a query knows of the feed that it reads; without a primary key equal rows of one unit are copies of each other."""

    form: FeedForm
    primary_key: tuple[str, ...]


def kind_sql(change: str) -> str:
    """SQL of Spark and of DuckDB: 1 for a begin, -1 for an end, NULL for what is no image."""
    begins, ends = (", ".join(f"'{word}'" for word in words) for words in (BEGINS, ENDS))
    return f"CASE WHEN {change} IN ({begins}) THEN {BEGIN} WHEN {change} IN ({ends}) THEN {END} END"
