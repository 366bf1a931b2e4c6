"""Change feeds and the columns of records: what engines give beside a record's own columns, and which of it a query may use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dpsql.udfs.stage import BEGIN, END, ORDERED

# Change feeds: streams of images, each of which says that a row of a table begins or ends.

# However a feed is written, engines read it as Delta writes it: the columns of the row, and
# three beside them that are named here.

CHANGE = "_change_type"
POSITION = "_commit_version"
TIME = "_commit_timestamp"
BESIDE = (CHANGE, POSITION, TIME)
"""What an image is, its place in the feed, and when it was committed."""

KINDS: Mapping[str, int] = {
    "insert": BEGIN,
    "delete": END,
    "update_postimage": ORDERED * BEGIN,
    "update_preimage": ORDERED * END,
}
"""The kind of an image by the value of its column CHANGE."""


class FeedForm(StrEnum):
    """How a change feed is written."""

    DELTA = "DELTA"
    DEBEZIUM = "DEBEZIUM"


IMAGES: Mapping[str, str] = {
    "c": "insert",
    "r": "insert",
    "u": "update_preimage update_postimage",
    "d": "delete",
}
"""The images that a message of Debezium is, by its `op`: values of CHANGE with blanks between."""

OLD_ROW = "('update_preimage', 'delete')"
NEW_ROW = "('update_postimage', 'insert')"
"""SQL of the images whose row is in `before`, and in `after`."""

MESSAGE = ("before", "after", "op", "source", "payload")
"""The fields of a message that are read. With a schema beside it the message is in `payload`."""

SNAPSHOT = "r"
"""The `op` of a message of a snapshot, which may be without a place in the feed: it comes before all others of its row."""

NO_MESSAGE = r"^[ \t\r\n]*(null[ \t\r\n]*)?$"
"""The pattern of a line that is no message: blank, or a message without a value as tools write it."""

UNAVAILABLE = "__debezium_unavailable_value"
"""Instead of a long text that an update has not changed, where a source names no other word."""

TIME_UNITS = {"milliseconds": 1_000, "microseconds": 1}
"""Units of times that connectors write as numbers, in microseconds."""

DECIMAL = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?"
"""The pattern of a decimal as connectors write it: base64 of the bytes of its unscaled number."""

MOST_DIGITS = 18
"""Digits of such a decimal that are read."""

SOURCE_TIME = "ts_ms"
"""The field of a message's `source` that says when it was committed, in milliseconds."""


ENDED_ROWS_KEPT_US = 7 * 86_400_000_000
"""How long the places of rows that have ended are kept, where a source does not say it."""


@dataclass(frozen=True)
class Feed:
    """The facts that a query knows of its feed; without a primary key equal rows of one unit are
    copies of each other.

    `ended_rows_kept_us`: how long the places of rows that have ended are kept."""

    form: FeedForm
    primary_key: tuple[str, ...]
    ended_rows_kept_us: int = ENDED_ROWS_KEPT_US


def feed_of(source: Any) -> Feed | None:
    """Return the feed of a source whose rows end; None: they stay."""
    if source is None or source.change_feed is None:
        return None
    kept_us = source.ended_rows_kept_us
    kept_us = ENDED_ROWS_KEPT_US if kept_us is None else kept_us
    return Feed(source.change_feed, source.primary_key, kept_us)


def _message_rules(source: Any) -> Iterator[tuple[bool, str, str]]:
    """Yield settings that say how connectors write values."""
    for key in ("decimals", "time_unit", "unavailable_value"):
        is_set = bool(getattr(source, key)) and source.change_feed is not FeedForm.DEBEZIUM
        yield is_set, key, f"`{key}` is for sources with `change_feed: DEBEZIUM`"
    units = " or ".join(TIME_UNITS)
    is_unit = source.time_unit in (None, *TIME_UNITS)
    yield not is_unit, "time_unit", f"`time_unit` must be {units}"
    for name, _ in source.decimals:
        is_double = re.search(rf"(?i)(^|,)\s*`?{re.escape(name)}`?\s+double\b", source.schema or "")
        message = f"declare `{name}` as DOUBLE in `schema`: it is what the decimal is read as"
        yield is_double is None, "decimals", message


def feed_rules(source: Any) -> Iterator[tuple[bool, str, str]]:
    """Yield settings of a `dpsql.sources.config.Source` that depend on one another: whether one is broken, by which key, and what is wrong."""
    yield from _message_rules(source)
    feed = source.change_feed is not None
    debezium = source.change_feed is FeedForm.DEBEZIUM
    message = "`ended_rows_kept` is for sources with `change_feed` and `primary_key`"
    is_kept = source.ended_rows_kept_us is not None
    yield is_kept and not (feed and source.primary_key), "ended_rows_kept", message
    if not feed:
        yield (
            source.primary_key != (),
            "primary_key",
            "`primary_key` is for sources with `change_feed`",
        )
    if not debezium:
        yield (
            source.sequence_by is not None,
            "sequence_by",
            "`sequence_by` is for sources with `change_feed: DEBEZIUM`",
        )
    if not feed:
        return
    yield (
        source.change_feed is FeedForm.DELTA and source.format != "delta",
        "change_feed",
        "`change_feed: DELTA` is for `format: delta`",
    )
    yield source.static, "static", "a table whose changes are read cannot be static"
    yield (
        source.event_time != TIME,
        "event_time",
        f"leave it out: a change counts from its commit on, `{TIME}`",
    )
    if debezium:
        message = "`change_feed: DEBEZIUM` is for messages: `format: kafka`, or `format: json` for files with one in a line"
        yield source.format not in ("kafka", "json"), "change_feed", message
        yield (
            source.value_format == "avro",
            "value_format",
            "`change_feed: DEBEZIUM` reads `value_format: json`",
        )
        message = "`change_feed: DEBEZIUM` needs `primary_key`: the columns of the row that name it, like `primary_key: account_id`"
        yield not source.primary_key, "", message
        message = "needs `sequence_by`: the number in `source` of a message that grows with each change of a row, like `sequence_by: source.lsn`"
        yield source.sequence_by is None, "", f"`change_feed: DEBEZIUM` {message}"
        message = "`sequence_by` must be a whole number in `source` of a message, like `source.lsn` or `source.ts_ms`"
        yield (
            re.fullmatch(r"source\.[A-Za-z_][A-Za-z0-9_]*", source.sequence_by or "source.lsn")
            is None,
            "sequence_by",
            message,
        )


# SQL of Spark and of DuckDB over messages that are columns: `before`, `after`, `op` as texts, NULL where
# they are none; `has_source`; the whole numbers `place` and `moment` of `source`, and `is_odd_place` and
# `is_odd_moment` where something else is there.


def changes_sql(sequence_by: str) -> str:
    """Write SQL of the images of a message, with blanks between; of none the field that is wrong, "" where it is no message."""
    images = " ".join(f"WHEN '{op}' THEN '{changes}'" for op, changes in IMAGES.items())
    has_place = f"place IS NOT NULL OR (op = '{SNAPSHOT}' AND has_source AND NOT is_odd_place)"
    operations = ", ".join(f"'{op}'" for op in IMAGES)
    return (
        f"CASE WHEN coalesce(op, '') NOT IN ({operations}) THEN '' WHEN NOT ({has_place}) THEN '{sequence_by}' "
        f"WHEN is_odd_moment THEN 'source.{SOURCE_TIME}' ELSE CASE op {images} END END"
    )


def image_sql(unavailable: str) -> tuple[str, str]:
    """Write SQL of the row of an image, and of the old one beside a new one that lacks a value.

    Args:
        unavailable: SQL of the word that stands for such a value.
    """
    return (
        f"CASE WHEN {CHANGE} IN {OLD_ROW} THEN before WHEN {CHANGE} IN {NEW_ROW} THEN after END AS line",
        f"CASE WHEN {CHANGE} = 'update_postimage' AND contains(after, {unavailable}) THEN before END AS old",
    )


WRONG_FIELD = f"CASE WHEN {CHANGE} IN {OLD_ROW} THEN 'before' WHEN {CHANGE} IN {NEW_ROW} THEN 'after' ELSE {CHANGE} END"
"""SQL of the field that is wrong where an image has no row."""


def kind_sql(change: str, form: FeedForm) -> str:
    """Write SQL of Spark and of DuckDB: the kind of an image, NULL for what is none."""
    factor = ORDERED if form is FeedForm.DELTA else 1
    branches = (
        f"WHEN '{name}' THEN {kind if abs(kind) == ORDERED else factor * kind}"
        for name, kind in KINDS.items()
    )
    return f"CASE {change} {' '.join(branches)} END"


# Which columns are a record's own: engines give others beside them, which say where a record is
# stored or how many came before it.

# Such a value depends on the records of everybody: with one unit's records left out it is
# another one for all that come after.

DESCRIBED = ("parquet", "orc", "avro", "text", "delta", "table")
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
    """Tell whether a column of this name (lower case) may be none of the records'. Engines begin such names with an underscore."""
    return name in NOT_OF_RECORDS or (name.startswith("_") and not declared)


def column_rules(source: Any) -> Iterator[tuple[bool, str, str]]:
    """Yield settings of a `dpsql.sources.config.Source`: whether one is broken, by which key, and what is wrong."""
    if source.static:
        return
    yield (
        source.format not in DESCRIBED and not source.schema,
        "",
        f"format {source.format} needs `schema`, like `schema: user_id STRING, ts TIMESTAMP`",
    )
    for key in ("event_time", "privacy_unit", "primary_key"):
        names = getattr(source, key) or ()
        for name in (names,) if isinstance(names, str) else names:
            fed = source.change_feed is not None and key == "event_time"
            message = f"`{name}` may be no column of the records: declare it in `schema`, or give it another name"
            yield may_be_beside(name, bool(source.schema)) and not fed, key, message
