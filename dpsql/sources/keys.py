"""The keys of a source in sources.yaml, with what each says; docs/reference.md has them as tables."""

from __future__ import annotations

from collections.abc import Mapping

OF_ALL: Mapping[str, str] = {
    "format": "any data source of Spark (XML for static tables only); `kafka`; `table` for one of Spark's "
    "catalog",
    "path": "where the files are, relative to sources.yaml",
    "table": "of `format: table` the name, like `shop.visits`",
    "options": "[options](#options-of-readers) of Spark's reader",
    "schema": "Spark DDL; required for CSV, JSON, Kafka and connectors. A column must be able to hold all "
    "values: declare an unsigned 64-bit one as `DECIMAL(20, 0)`. A field that does not fit makes its "
    "line malformed. See [schemas](#schemas)",
    "event_time": "column of a stream: a TIMESTAMP, a DATE (its midnight, UTC), or `{column: ms, unit: "
    "milliseconds}`: numbers in `seconds`, `milliseconds`, `microseconds` or `nanoseconds` since "
    "1970, or STRING in `text`",
    "privacy_unit": "column of a stream, or a list of them. A source whose queries all say `privacy_level = EVENT` "
    "needs none",
    "static": "true: a public table to join, or to list public groups",
    "max_users": "public bound on the units, for hash collisions; default 10 million",
    "max_keys": "public bound on the keys, for the same; default 10 million",
    "max_malformed": "malformed records of a micro-batch above which the operator is warned",
    "cap": "[budget](budget.md#caps): what all runs together may spend",
    "ledger": "a name that sources about the same people share",
    "apart_from": "ledgers of the same data that have budgets of their own on purpose",
    "policy": "[how much one query may ask for](budget.md#policy), and what holds where it says nothing",
    "public": "true: the records are no secret, so `try --compare` and `tune` may show exact values; never for "
    "private records",
    "domains": "all values that keys of these names can have, for `CUBE`, `ROLLUP` and `GROUPING SETS`: "
    "`{values: [...]}` of texts (with `other: true` for all else) or of whole numbers, or `{range: "
    "[0, 23]}`",
    "session_share": "the share of the budget that a query with `CUBE`, `ROLLUP` or `GROUPING SETS` keeps for [paid "
    "answers](howto/paid-answers.md); default 0",
    "max_ahead": "records further ahead of the clock are dropped; default: the query's `trigger_interval`",
    "start": "from when on public groups, cells and queries without a key have rows",
    "value_format": "how a [Kafka](deployment.md#kafka) value is written",
    "value_schema": "the Avro schema that values were written with",
    "schema_registry": "true: skip the five bytes of a schema registry before a Kafka value; without it such a value is "
    "malformed",
}
OF_CHANGE_FEEDS: Mapping[str, str] = {
    "change_feed": "`DELTA`: the change data feed of a Delta table. `DEBEZIUM`: messages of Debezium, as JSON in "
    "Kafka or in files (`format: json`). There is no `event_time`: a change counts from its commit on "
    "([how-to](howto/changing-table.md))",
    "primary_key": "what identifies a row among those of its privacy unit. Without it, rows of a unit with equal key "
    "and values are copies (`DELTA` only)",
    "sequence_by": "`DEBEZIUM`: the whole number in `source` that grows with each change of a row, like `source.lsn`",
    "ended_rows_kept": "with `primary_key`: how long dpsql remembers an ended row, so that a repeated message does not "
    "begin it again; default 7 days",
    "decimals": "`DEBEZIUM`: `{balance: 2}`, columns that the connector writes as base64 (`decimal.handling.mode: "
    "precise`), with their digits after the point. Declare them as DOUBLE; more than 8 bytes are "
    "malformed",
    "time_unit": "`DEBEZIUM`: `milliseconds` or `microseconds`, of the numbers in TIMESTAMP columns; default "
    "seconds",
    "unavailable_value": "`DEBEZIUM`: the word for a long text that an update has not changed; default "
    "`__debezium_unavailable_value`. The text is then that of the old row. Without an old row the new "
    "one is malformed. Omit columns that no query needs from `schema`",
}
SOURCE_KEYS = (*OF_ALL, *OF_CHANGE_FEEDS)
