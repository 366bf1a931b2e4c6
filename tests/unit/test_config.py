"""sources.yaml: what is accepted, and that everything else is a message with a line and a path."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import dpsql
from dpsql.errors import ConfigError
from dpsql.sources.config import Cap, Source, Sources, load_sources
from dpsql.sources.reader_options import refused_option
from dpsql.times import parse_duration

GOOD = """\
sources:
  visits:
    format: parquet
    path: data/visits
    event_time: TS
    privacy_unit: [user_id, Device]
    max_users: 5000
    ledger: people
    cap: {epsilon: 20, delta: 1e-6, period: 30 days}
  pages:
    format: csv
    path: s3a://bucket/pages
    options: {header: true, sep: ";"}
    schema: page STRING
    static: true
  clicks:
    format: kafka
    options: {kafka.bootstrap.servers: "h:9092", subscribe: clicks}
    schema: user_id STRING, ts TIMESTAMP
    event_time: ts
    privacy_unit: user_id
    value_format: json
"""


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "sources.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_how_far_ahead_records_may_be_stands_at_the_source(tmp_path: Path) -> None:
    """In the place of the query's trigger interval; and it is part of the query's identity."""
    text = "sources:\n  v:\n    format: parquet\n    path: v\n    event_time: ts\n    privacy_unit: u\n    schema: u STRING, ts TIMESTAMP, k STRING\n"
    sql = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = u, max_rows_contributed = 4)
        k, COUNT(*) AS n FROM v GROUP BY window(ts, '1 day'), k"""
    plans = []
    for number, more in enumerate(("", "    max_ahead: 5 minutes\n", "    max_ahead: 0 minutes\n")):
        (tmp_path / f"{number}.yaml").write_text(text + more)
        plans.append(dpsql.compile(sql, load_sources(tmp_path / f"{number}.yaml")).plan)
    assert [plan.query.max_ahead_us for plan in plans] == [86_400_000_000, 300_000_000, 0]
    assert len({plan.identity for plan in plans}) == 3


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    sources = load_sources(write(tmp_path, GOOD))
    assert list(sources) == ["visits", "pages", "clicks"]
    path = str(tmp_path.resolve() / "data/visits")
    cap = Cap(20.0, 1e-6, 30 * 86_400_000_000)
    told = {
        "event_time": "ts",
        "privacy_unit": ("user_id", "device"),
        "max_users": 5000,
        "ledger": "people",
    }
    assert sources["visits"] == Source("visits", "parquet", path, cap=cap, **told)  # type: ignore[arg-type]
    assert sources["pages"].path == "s3a://bucket/pages"
    assert sources["pages"].options == (("header", "true"), ("sep", ";"))
    assert sources["clicks"].ledger == "clicks"
    assert sources["clicks"].path is None
    assert {sources: 1}  # hashable, like every value between rooms


def test_options_of_files_that_change_nothing_are_accepted(tmp_path: Path) -> None:
    options = "options: {fileNameOnly: false, cleanSource: 'OFF', maxCachedFiles: 0, maxFilesPerTrigger: 9}"
    path = write(
        tmp_path, GOOD.replace("    max_users: 5000", f"    {options}\n    max_users: 5000", 1)
    )
    assert load_sources(path)["visits"].options


LOSING = (
    (
        "delta",
        "ignoreChanges: true",
        "is not supported: rows that a commit writes again would count twice",
    ),
    (
        "delta",
        "IGNOREFILEDELETION: true",
        "is not supported: rows that a commit writes again would count twice",
    ),
    ("delta", "ignoreDeletes: true", "is not supported: deleted rows would stay"),
    (
        "delta",
        "excludeRegex: x",
        "is not supported: rows of the files that it names would be missing",
    ),
    (
        "csv",
        "multiLine: true",
        "is not supported: one record with an open quote or bracket would take the records after it",
    ),
    ("json", "multiline: TRUE", "is not supported"),
    ("text", "wholetext: true", "is not supported"),
    (
        "json",
        "MaxCachedFiles: 10000",
        "is not supported: leave it out: files are read in the order",
    ),
    ("text", "latestFirst: true", "is not supported: leave it out: files are read in the order"),
    ("orc", "maxFilesPerTrigger: 0", "must be a whole number from 1 to 999999999, not '0'"),
    ("delta", "maxFilesPerTrigger: 1e3", "must be a whole number from 1 to 999999999, not '1e3'"),
    ("avro", "maxFilesPerTrigger: -5", "must be a whole number from 1 to 999999999, not '-5'"),
)
KAFKA = "subscribe: clicks"
PATH = "path: data/visits"
JSON = "value_format: json"


@pytest.mark.parametrize(
    ("old", "new", "line", "says", "at"),
    [
        (
            "privacy_unit: [",
            "privacy_unt: [",
            6,
            "did you mean `privacy_unit`?",
            "sources.visits.privacy_unt",
        ),
        (
            "max_users: 5000",
            "max_ahead: soon",
            7,
            "a duration like '5 minutes'",
            "sources.visits.max_ahead",
        ),
        (
            "max_users: 5000",
            "max_users: many",
            7,
            "whole number from 1 on, not 'many'",
            "sources.visits.max_users",
        ),
        ("max_users: 5000", "max_users: true", 7, "not True", "sources.visits.max_users"),
        ("max_users: 5000", "max_users: -1", 7, "not -1", "sources.visits.max_users"),
        ("30 days", "1 month", 9, "months have no fixed length", "sources.visits.cap.period"),
        ("delta: 1e-6", "delta: .inf", 9, "above 0", "sources.visits.cap.delta"),
        ("epsilon: 20, ", "", 9, "`epsilon` is missing", "sources.visits.cap"),
        (", period: 30 days", "", 9, "`period` is missing", "sources.visits.cap"),
        ("static: true", "static: yes please", 15, "true or false", "sources.pages.static"),
        (
            "static: true",
            "static: true\n    privacy_unit: page",
            16,
            "static source is public",
            "sources.pages.privacy_unit",
        ),
        ("    schema: page STRING\n", "", 10, "needs `schema`", "sources.pages"),
        ("    value_format: json\n", "", 16, "needs `value_format`", "sources.clicks"),
        (
            KAFKA,
            f"{KAFKA}, maxOffsetsPerTrigger: 9",
            18,
            "more --buckets",
            "sources.clicks.options",
        ),
        (
            KAFKA,
            f"{KAFKA}, MINOFFSETSPERTRIGGER: 9",
            18,
            "`MINOFFSETSPERTRIGGER` is not supported",
            "sources.clicks.options",
        ),
        (
            PATH,
            "path: v\n    options: {maxbytesPerTrigger: 1g}",
            5,
            "cut files by `maxFilesPerTrigger`",
            "sources.visits.options",
        ),
        (
            PATH,
            "path: v\n    options: {stream-max-rows-per-micro-batch: 9}",
            5,
            "those of others are",
            "sources.visits.options",
        ),
        (JSON, "value_format: avro", 16, "needs `value_schema`", "sources.clicks"),
        (
            JSON,
            f"{JSON}\n    value_schema: sources.yaml",
            23,
            "not an Avro schema",
            "sources.clicks.value_schema",
        ),
        (
            JSON,
            "value_format: avro\n    value_schema: none.avsc",
            23,
            "No such file",
            "sources.clicks.value_schema",
        ),
        (KAFKA, f"{KAFKA}, failOnDataLoss: false", 18, "stays true", "sources.clicks.options"),
        *(
            (
                "    max_users",
                f"    options: {{{option}}}\n    max_users",
                7,
                "every file is read, once",
                "sources.visits.options",
            )
            for option in (
                "maxFileAge: 30d",
                "FileNameOnly: true",
                "cleanSource: delete",
                "modifiedBefore: '2026-01-01'",
            )
        ),
        *(
            (
                "format: parquet",
                f"format: {form}\n    options: {{{option}}}",
                4,
                f"`{option.split(':')[0]}` {says}",
                "sources.visits.options",
            )
            for form, option, says in LOSING
        ),
        ("[user_id, Device]", "[user_id, USER_ID]", 6, "once", "sources.visits.privacy_unit"),
        ("  visits:", "  Visits:", 2, "lower-case", "sources.Visits"),
        ("  clicks:\n", "  pages:\n", 16, "written twice", "sources.pages"),
        (
            "    format: csv\n",
            "    format: csv\n    format: csv\n",
            12,
            "written twice",
            "sources.pages.format",
        ),
        (
            "format: parquet",
            "format: xml",
            3,
            "a stream of XML is not supported: a tag that a record leaves open",
            "sources.visits.format",
        ),
        ("ledger: people", "ledger: ../people", 8, "ledger name", "sources.visits.ledger"),
        (
            "header: true",
            "header: [1]",
            13,
            "must be text, a number",
            "sources.pages.options.header",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line_and_path(
    tmp_path: Path, old: str, new: str, line: int, says: str, at: str
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_sources(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: ")
    assert says in message
    assert message.endswith(f" at {at}")


@pytest.mark.parametrize(
    "content",
    [
        "", "# nothing\n", "- a list\n",
        "sources:\n", "sources: {}\n", "sources: {a: 1}\n", "source: {}\n", "a: [", "\t", "a: 1\n---\nb: 2\n", "a: \x00\n",
        "sources: &a\n  b: *a\n",
        "&a [*a]\n", "a: 2020-13-45\n", "sources: {<<: 3}\n", "sources: {? [1]: 2}\n", "sources: {1: 2}\n", "%YAML 3\n", "[" * 4000,
        "sources: !!python/object/apply:os.system [exit]\n", b"sources: \xff\xfe\n", b"#" * (2 << 20),
    ],
)  # fmt: skip
def test_no_content_ever_ends_in_a_traceback(tmp_path: Path, content: str | bytes) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError, match=r"sources\.yaml"):
        load_sources(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_sources(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_sources(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7 days", 604_800_000_000),
        ("1 Hour", 3_600_000_000),
        ("1 day 12 hours", 129_600_000_000),
        ("250milliseconds", 250_000),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "days",
        "0 days",
        "-1 day",
        "1.5 days",
        "1 year",
        "1 day,",
        "9" * 99 + " days",
        "1 ss",
    ],
)
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_sources_of_one_ledger_share_its_cap(tmp_path: Path) -> None:
    """Catches: people of a capped source whose records are read through another source without a cap."""
    text = """
sources:
  a: {format: parquet, path: a, event_time: ts, privacy_unit: u, ledger: people}
  b: {format: parquet, path: b, event_time: ts, privacy_unit: u, ledger: people, cap: {epsilon: 8, delta: 1e-6, period: 7 days}}
  c: {format: parquet, path: c, event_time: ts, privacy_unit: u, ledger: people, cap: {epsilon: 8, delta: 1e-6, period: 1 week}}
  d: {format: parquet, path: d, event_time: ts, privacy_unit: u}
  people: {format: parquet, path: p, static: true}
"""
    path = tmp_path / "sources.yaml"
    path.write_text(text)
    sources = load_sources(path)
    cap = Cap(8.0, 1e-6, 7 * 86_400_000_000)
    assert [sources[name].cap for name in ("a", "b", "c", "d", "people")] == [
        cap,
        cap,
        cap,
        None,
        None,
    ]
    path.write_text(text.replace("1 week", "8 days"))
    with pytest.raises(
        ConfigError, match=r"'b' declares another cap for ledger 'people'.*at sources\.c\.cap"
    ):
        load_sources(path)


def test_an_avro_schema_is_read_from_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "clicks.avsc").write_text('{"type": "record", "name": "c", "fields": []}')
    given = GOOD.replace("value_format: json", "value_format: avro\n    value_schema: clicks.avsc")
    assert '"record"' in str(load_sources(write(tmp_path, given))["clicks"].value_schema)
    given = GOOD.replace("value_format: json", "value_format: json\n    value_schema: clicks.avsc")
    with pytest.raises(ConfigError, match="is for `value_format: avro` only"):
        load_sources(write(tmp_path, given))


def test_cuts_that_count_no_records_stay(tmp_path: Path) -> None:
    harmless = GOOD.replace(
        "subscribe: clicks", "subscribe: clicks, minPartitions: 3, maxRecordsPerPartition: 9"
    )
    harmless = harmless.replace(
        "path: data/visits", "path: data/visits\n    options: {maxFilesPerTrigger: 1}"
    )
    sources = load_sources(write(tmp_path, harmless))
    assert [refused_option(source) for source in sources.values()] == [None] * 3


PAGES = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1, "
    "trigger_interval = '1 hour') page, COUNT(*) AS n FROM visits GROUP BY window(ts, '1 hour'), page"
)


def delta_source(**options: str) -> Source:
    return Source(
        name="visits",
        format="delta",
        path="v",
        options=tuple(options.items()),
        event_time="ts",
        privacy_unit=("user_id",),
        max_users=1000,
    )


def test_a_table_of_the_catalog_may_be_one_of_delta() -> None:
    """Spark alone knows, after the ledger line is written."""
    named = replace(delta_source(ignoreChanges="true"), format="table", path=None, table="visits")
    assert "count twice" in str(refused_option(named))


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("maxBytesPerTrigger", "is not supported"),
        ("ignoreChanges", "is not supported"),
        ("failOnDataLoss", "is not supported: it stays true"),
    ],
)
def test_a_source_that_was_made_in_code_is_refused_by_compile(option: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"source 'visits': `?{option}`? {says}"):
        dpsql.compile(PAGES, Sources((delta_source(**{option: "1"}),)))


def test_explain_names_the_commits_that_a_source_passes_over() -> None:
    """Catches: a source that leaves rows out, and an explanation that does not say so."""
    plain, skipping = (
        dpsql.compile(PAGES, Sources((source,)))
        for source in (delta_source(), delta_source(skipChangeCommits="true"))
    )
    assert "passed over" not in plain.explain()
    assert (
        "Commits that change or delete rows of `visits` are passed over whole (skipChangeCommits)"
        in skipping.explain()
    )
    assert plain.plan.identity == skipping.plan.identity


def test_options_that_lose_nothing_stay(tmp_path: Path) -> None:
    harmless = "ignoreChanges: false, ignoreDeletes: false, failOnDataLoss: true, skipChangeCommits: true, startingVersion: 3"
    text = GOOD.replace("format: parquet", f"format: delta\n    options: {{{harmless}}}", 1)
    assert len(load_sources(write(tmp_path, text))["visits"].options) == 5


FEED = """
sources:
  accounts:
    format: delta
    path: accounts
    change_feed: delta
    primary_key: [Account_ID, line]
    privacy_unit: owner
"""


MESSAGES = """
sources:
  accounts:
    format: kafka
    options: {kafka.bootstrap.servers: "a:1", subscribe: accounts}
    value_format: json
    schema: account_id BIGINT, owner STRING
    change_feed: debezium
    primary_key: account_id
    sequence_by: source.lsn
    privacy_unit: owner
"""
FORM_AND_KEY = "change_feed: debezium\n    primary_key: account_id"
FILES = MESSAGES.replace("format: kafka", "format: json", 1).replace("    value_format: json\n", "")
FILES = FILES.replace('options: {kafka.bootstrap.servers: "a:1", subscribe: accounts}', "path: a")


def test_a_change_feed_has_the_times_of_its_commits(tmp_path: Path) -> None:
    for text, form, keys, sequence in (
        (FEED, "DELTA", ("account_id", "line"), None),
        (MESSAGES, "DEBEZIUM", ("account_id",), "source.lsn"),
        (FILES, "DEBEZIUM", ("account_id",), "source.lsn"),
    ):
        source = load_sources(write(tmp_path, text))["accounts"]
        assert (source.change_feed, source.primary_key, source.sequence_by) == (
            form,
            keys,
            sequence,
        )
        assert source.event_time == "_commit_timestamp"


@pytest.mark.parametrize(
    ("text", "old", "new", "says"),
    [
        (
            FEED,
            "change_feed: delta",
            "change_feed: cdc",
            "`change_feed` must be DELTA or DEBEZIUM, not 'cdc'",
        ),
        (
            FEED,
            "change_feed: delta",
            "event_time: ts",
            "`primary_key` is for sources with `change_feed`",
        ),
        (FEED, "format: delta", "format: parquet", "is for `format: delta`"),
        (
            FEED,
            "privacy_unit: owner",
            "privacy_unit: owner\n    event_time: opened",
            "a change counts from its commit on",
        ),
        (FEED, "privacy_unit: owner", "static: true", "whose changes are read cannot be static"),
        (
            FEED,
            "privacy_unit: owner",
            "privacy_unit: owner\n    options: {skipChangeCommits: true}",
            "`skipChangeCommits` is no option of format delta: ",
        ),
        (
            FEED,
            "privacy_unit: owner",
            "privacy_unit: owner\n    options: {maxBytesPerTrigger: 1g}",
            "is not supported",
        ),
        (FEED, "[Account_ID, line]", "[a, a]", "names each column once"),
        (MESSAGES, "    primary_key: account_id\n", "", "needs `primary_key`"),
        (MESSAGES, "    sequence_by: source.lsn\n", "", "needs `sequence_by`"),
        (
            MESSAGES,
            "sequence_by: source.lsn",
            "sequence_by: lsn",
            "`sequence_by` must be a whole number in `source`",
        ),
        (
            FILES,
            FORM_AND_KEY,
            "event_time: ts",
            "`sequence_by` is for sources with `change_feed: DEBEZIUM`",
        ),
        (
            FILES,
            "format: json",
            "format: csv",
            "is for messages: `format: kafka`, or `format: json`",
        ),
        (
            FILES,
            "path: a",
            "path: a\n    options: {multiLine: true}",
            "would take the records after it",
        ),
        (FILES, "path: a", "path: a\n    options: {lineSep: x}", "write one record per line"),
        (FILES, "path: a", "path: a\n    event_time: ts", "a change counts from its commit on"),
        (FILES, "owner STRING", "owner DECIMAL(9, 2)", "DECIMAL cannot be read safely from text"),
    ],
)
def test_what_is_wrong_with_a_change_feed(
    tmp_path: Path, text: str, old: str, new: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_sources(write(tmp_path, text.replace(old, new)))


def test_messages_of_changes_are_json(tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_text('{"type": "record"}')
    text = MESSAGES.replace("value_format: json", "value_format: avro\n    value_schema: a.avsc")
    with pytest.raises(ConfigError, match="`change_feed: DEBEZIUM` reads `value_format: json`"):
        load_sources(write(tmp_path, text))
