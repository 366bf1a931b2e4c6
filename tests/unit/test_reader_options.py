"""Options of readers, and types of columns: what is kept, and the words for what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dpsql
from dpsql.errors import ConfigError
from dpsql.local.lines import option_of_spark
from dpsql.sources.change_feed import FeedForm
from dpsql.sources.config import Source, load_sources, refused_schema
from dpsql.sources.reader_options import refused_option

SOURCES = """\
sources:
  v:
    format: {format}
    path: v
    options: {{{options}}}
    schema: u STRING, ts TIMESTAMP
    event_time: ts
    privacy_unit: u
    max_users: 1000
"""
SQL = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, max_rows_contributed = 1, privacy_unit_column = u) "
    "COUNT(*) AS n FROM v GROUP BY window(ts, '1 day')"
)


def source(form: str, name: str = "", value: str = "true", **more: Any) -> Source:
    options = ((name, value),) if name else ()
    return Source("v", form, "v", options=options, schema="u STRING, ts TIMESTAMP", **more)


KEPT = [
    *(("csv", name, value) for name, value in {
        "header": "TRUE", "SEP": "||", "quote": "", "escape": "\\", "comment": "#", "nullValue": "NA", "encoding": "ISO-8859-1", "mode": "PERMISSIVE",
        "dateFormat": "dd.MM.yyyy", "ignoreLeadingWhiteSpace": "false", "multiLine": "false", "inferSchema": "false", "enforceSchema": "false",
    }.items()),
    ("json", "allowComments", "true"), ("json", "timestampFormat", "yyyy"), ("json", "pathGlobFilter", "*.json"), ("parquet", "mergeSchema", "true"),
    ("orc", "recursiveFileLookup", "true"), ("avro", "maxFilesPerTrigger", "7"), ("text", "fs.s3a.endpoint", "x"), ("delta", "startingVersion", "3"),
    ("delta", "skipChangeCommits", "true"), ("iceberg", "whatever", "x"), ("kafka", "kafka.security.protocol", "SSL"),
    ("kafka", "fetchOffset.numRetries", "9"), ("kafka", "allowSingleQuotes", "false"),
]  # fmt: skip
REFUSED = [
    ("csv", "nonsense", "x", "is no option of format csv: leave it out; there are maxFilesPerTrigger, "),
    ("csv", "headers", "true", "is no option of format csv: did you mean `header`?"),
    ("json", "timestampformats", "x", "did you mean `timestampFormat`?"),
    ("json", "header", "true", "is no option of format json: "),
    ("json", "encoding", "UTF-16", "is no option of format json: "),
    ("parquet", "sep", ";", "is no option of format parquet: "),
    ("csv", "encoding", "UTF-16", "must be UTF-8 or ISO-8859-1"),
    ("csv", "header", "yes", "must be true or false, not 'yes'"),
    ("csv", "quote", "''", "must be one character, not \"''\""),
    ("json", "allowComments", "1", "must be true or false"),
    ("csv", "multiLine", "true", "is not supported: one record with an open quote"),
    ("json", "lineSep", "\n", "is not supported: one record with an open quote"),
    ("text", "wholetext", "true", "is not supported"),
    ("csv", "inferSchema", "true", "is not supported: records would decide which types columns have. Leave it out, and write `schema`"),
    ("csv", "mode", "DROPMALFORMED", "is not supported: dpsql sets it itself"),
    ("csv", "enforceSchema", "true", "is not supported: dpsql sets it itself"),
    ("json", "columnNameOfCorruptRecord", "u", "is not supported: dpsql sets it itself"),
    ("delta", "ignoreChanges", "true", "is not supported: rows that a commit writes again would count twice"),
    ("delta", "withEventTimeOrder", "true", "is not supported: one unit's records would decide"),
    ("delta", "maxBytesPerTrigger", "1g", "cut files by `maxFilesPerTrigger`"),
    ("delta", "readChangeFeed", "true", "write `change_feed: DELTA`, which reads every change, once"),
    ("iceberg", "stream-max-rows-per-micro-batch", "9", "is not supported: one unit's records would decide"),
    ("kafka", "maxTriggerDelay", "1h", "start the run with more --buckets"),
    ("kafka", "failOnDataLoss", "false", "it stays true: records that were lost"),
    ("kafka", "header", "true", "is no option of format kafka"),
    ("table", "nonsense", "x", "is no option of format table"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "name", "value"), KEPT)
def test_options_that_lose_nothing_are_kept(form: str, name: str, value: str) -> None:
    assert refused_option(source(form, name, value)) is None


@pytest.mark.parametrize(("form", "name", "value", "says"), REFUSED)
def test_other_options_are_refused_by_name(form: str, name: str, value: str, says: str) -> None:
    """Catches: an option that nobody reads, and one that loses records in silence."""
    for is_static in (False, True):
        problem = str(refused_option(source(form, name, value, static=is_static)))
        assert problem.startswith(f"`{name}` ") and says in problem


def test_options_of_feeds_and_avro_are_fewer() -> None:
    """Catches: an option of the parser that messages of a feed are not parsed by."""
    feed = source("kafka", "allowComments", change_feed=FeedForm.DEBEZIUM)
    avro = source("kafka", "allowComments", value_format="avro")
    skipping = source("delta", "skipChangeCommits", change_feed=FeedForm.DELTA)
    assert all("is no option" in str(refused_option(each)) for each in (feed, avro, skipping))
    assert refused_option(source("json", "dateFormat", change_feed=FeedForm.DEBEZIUM))
    assert "is no option" in str(refused_option(source("delta", "startingVersion", static=True)))


@pytest.mark.parametrize("option", ["nonsense: x", "multiLine: true", "lineSep: x"])
def test_sources_yaml_names_the_option(tmp_path: Path, option: str) -> None:
    path = tmp_path / "sources.yaml"
    path.write_text(SOURCES.format(format="json", options=option))
    with pytest.raises(ConfigError) as caught:
        load_sources(path)
    assert f"`{option.split(':', maxsplit=1)[0]}` is n" in str(caught.value)
    assert str(caught.value).endswith(" at sources.v.options")
    with pytest.raises(ConfigError, match="`nonsense` is no option"):
        dpsql.compile(SQL, {"v": {"format": "csv", "path": "v", "options": {"nonsense": 1}}})


def test_without_spark_options_are_fewer() -> None:
    """Catches: an option of Spark that the local engine passes over without a word."""
    topic = source("kafka", "timestampFormat", "yyyy", value_format="json")
    assert option_of_spark("json", topic) == "timestampFormat"
    assert option_of_spark("csv", source("csv", "nanValue", "x")) == "nanValue"
    assert option_of_spark("csv", source("csv", "sep", "||")) == "sep"
    for kept in (source("csv", "encoding", "utf-8"), source("json", "mode", "permissive")):
        assert option_of_spark(kept.format, kept) is None


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("k CHAR(3)", "type CHAR is not supported: declare STRING"),
        ("k STRUCT<a: varchar (9)>", "type VARCHAR is not supported: declare STRING"),
        ("a INT, v VARIANT NOT NULL", "type VARIANT is not supported"),
        ("t TIME(6)", "type TIME is not supported"),
        ("a INT, b STRUCT<a: INT>, A STRING", "several columns are named `a`, case aside"),
        ("`a``b` INT, `A``B` INT", "several columns are named `a`b`"),
    ],
)
def test_types_that_no_reader_takes_are_refused(schema: str, says: str) -> None:
    """Catches: Spark's own error after the ledger line."""
    for form in ("csv", "parquet"):
        assert says in str(refused_schema(Source("v", form, schema=schema)))


@pytest.mark.parametrize(
    "schema",
    [
        "time TIMESTAMP, variant STRING, char INT, `varchar(3)` INT",
        "`a,b` INT, b STRUCT<a: INT, b: INT>, a DECIMAL(10, 2) COMMENT 'a, b TIME'",
        "s STRUCT<time: STRING, char: INT>, t TIMESTAMP_NTZ",
    ],
)
def test_names_of_columns_are_no_types(schema: str) -> None:
    assert refused_schema(Source("v", "parquet", schema=schema)) is None
