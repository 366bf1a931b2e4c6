"""Which columns are a record's own: engines give others beside them, which say where a record is stored or how many came before it.

Such a value depends on the records of everybody: with one unit's records left out it is another one for all that come after.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpsql.change_feed import BESIDE

DESCRIBED = ("parquet", "orc", "avro", "xml", "text", "delta", "table")
"""Formats of streams that say themselves which columns records have; for every other one `schema` has to."""

NOT_OF_RECORDS = frozenset(
    (
        *BESIDE,
        "_metadata",
        "_file",
        "_pos",
        "_partition",
        "_spec_id",
        "_deleted",
        "_row_id",
        "_last_updated_sequence_number",
    )
)
"""Names that Spark, Delta and Iceberg give to columns beside the records', whatever a schema says."""


def may_be_beside(name: str, declared: bool) -> bool:
    """Whether a column of this name (lower case) may be none of the records'. Engines begin such names with an underscore."""
    return name in NOT_OF_RECORDS or (name.startswith("_") and not declared)


def column_rules(source: Any) -> Iterator[tuple[bool, str, str]]:
    """Settings of a `dpsql.config.Source`: whether one is broken, by which key, and what is wrong."""
    if source.static:
        return
    yield (
        source.format not in DESCRIBED and not source.schema,
        "",
        f"format {source.format} needs `schema`, like `schema: user_id STRING, ts TIMESTAMP`",
    )
    for key in ("event_time", "privacy_unit", "primary_key"):
        named = getattr(source, key) or ()
        for name in (named,) if isinstance(named, str) else named:
            fed = source.change_feed is not None and key == "event_time"
            said = f"`{name}` may be no column of the records: declare it in `schema`, or give it another name"
            yield may_be_beside(name, bool(source.schema)) and not fed, key, said
