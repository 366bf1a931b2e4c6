"""What FROM may use beyond the columns of the records: of a change feed three columns, to pass on, and nothing else of any source."""

import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpsql.compiled import Query, compile_query
from dpsql.errors import ConfigError, QueryError
from dpsql.local.feeder import try_query
from dpsql.privacy.secret import Secret
from dpsql.sources.change_feed import BESIDE, FeedForm
from dpsql.sources.config import Source, Sources, load_sources
from tests.local.conftest import DAY, RUN

FEED_CLAUSE = "OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = owner, max_rows_contributed = 1, trigger_interval = '1 day')"
CLAUSE = (
    "OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)"
)
OF_ROWS = "owner STRING, branch STRING, value DOUBLE"
COUNTS = "branch, COUNT(*) AS n"
READS = (
    "branch, COUNT(*) AS n, COUNT(DISTINCT owner) AS owners, SUM(value, contribution_bounds_per_row => (0, 10)) AS s FROM feed GROUP BY branch",
    f"{COUNTS} FROM (SELECT * FROM feed WHERE value < 5) AS f GROUP BY branch",
    f"{COUNTS} FROM (SELECT {', '.join(BESIDE)}, owner, value, upper(branch) AS branch FROM feed) AS f GROUP BY branch",
)
LEAKS = (
    f"{COUNTS} FROM feed WHERE _commit_version % 2 = 0 GROUP BY branch",
    "branch, SUM(_commit_version, contribution_bounds_per_row => (0, 10)) AS s FROM feed GROUP BY branch",
    "branch, COUNT(DISTINCT CASE WHEN _commit_version > 1 THEN owner END) AS s FROM feed GROUP BY branch",
    "_commit_version, COUNT(*) AS n FROM feed GROUP BY _commit_version",
    "place, COUNT(*) AS n FROM (SELECT *, _commit_version AS place FROM feed) AS f GROUP BY place",
    "place, COUNT(*) AS n FROM (SELECT *, _commit_version + 1 AS place FROM feed) AS f GROUP BY place",
    "topic, COUNT(*) AS n FROM feed JOIN pages ON _commit_version = rank GROUP BY topic",
    "topic, COUNT(*) AS n FROM feed JOIN pages USING (_commit_version) GROUP BY topic",
)
BESIDE_RECORDS = (
    *BESIDE, "_metadata", "_METADATA", "`_metadata`", "_metadata.file_path", "_metadata.row_index", "_metadata.file_block_start",
    "_metadata.row_id", "_metadata.row_commit_version", "_file", "_pos", "_partition", "_spec_id", "_deleted", "_row_id", "_rowid",
    "_last_updated_sequence_number", "_hoodie_commit_seqno", "__metadata", "__paimon_row_index",
)  # fmt: skip
COMPUTED = (
    "monotonically_increasing_id()", "spark_partition_id()", "input_file_name()", "input_file_block_start()", "input_file_block_length()",
    "row_number() OVER (ORDER BY page)", "uuid()", "rand()",
)  # fmt: skip
OF_MESSAGES = (
    "key",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
    "value",
)
FORMATS = ("parquet", "orc", "avro", "text", "delta", "table", "json", "csv", "kafka")


def of_feed(sql: str, schema: str | None = OF_ROWS, form: FeedForm = FeedForm.DELTA) -> Query:
    """Over the change feed of a table without a primary key."""
    feed = Source(
        "feed", "delta", "feed", schema=schema, event_time=BESIDE[2], privacy_unit=("owner",), change_feed=form, start_us=DAY,
        max_users=100_000, max_keys=100_000,
    )  # fmt: skip
    pages = Source(
        "pages",
        "parquet",
        "pages",
        schema="topic STRING, rank BIGINT, _commit_version BIGINT",
        static=True,
    )
    return compile_query(
        f"SELECT WITH DIFFERENTIAL_PRIVACY {FEED_CLAUSE}\n{sql}", Sources((feed, pages))
    )


def commits(path: Path, with_u: bool, kind: str = "int64") -> Path:
    """5,000 rows of others in one commit; with u there is one more before it, with one row of u. Times are alike."""
    rows = [("u", "of u", 1.0, 0)] if with_u else []
    rows += [(f"o{i}", f"b{i % 3}", float(i % 10), int(with_u)) for i in range(5000)]
    owner, branch, value, place = zip(*rows, strict=True)
    beside = (
        ["insert"] * len(rows),
        pa.array(place, getattr(pa, kind)()),
        pa.array([DAY + 1] * len(rows), pa.timestamp("us", "UTC")),
    )
    names = ("owner", "branch", "value", *BESIDE)
    pq.write_table(pa.table(dict(zip(names, (owner, branch, value, *beside), strict=True))), path)
    return path


def others(query: Query, path: Path, secret: Secret) -> pd.DataFrame:
    """What `dpsql try` releases of a file, but the key of u, with one noise."""
    rows = try_query(
        query, {"feed": [path]}, run_id=RUN, secret=secret, until_us=DAY + 2 * 86_400_000_000
    ).histogram
    return rows[rows.iloc[:, 2].astype(str).str.lower() != "of u"].reset_index(drop=True)


@pytest.mark.parametrize("schema", [OF_ROWS, None])
@pytest.mark.parametrize("sql", [*READS, *LEAKS])
def test_a_commit_of_one_unit_moves_no_row_of_others(
    sql: str, schema: str | None, tmp_path: Path, secret: Secret
) -> None:
    """Catches: a count of commits, those of one unit too, in a condition, a sum or a key of everybody's rows."""
    try:
        query = of_feed(sql, schema)
    except QueryError:
        assert sql not in READS
        return
    without, with_u = (
        others(query, commits(tmp_path / f"{one}.parquet", one), secret) for one in (False, True)
    )
    assert len(without) >= 3
    pd.testing.assert_frame_equal(without, with_u)


@pytest.mark.parametrize("name", BESIDE)
def test_no_row_is_keyed_by_a_column_of_the_feed(name: str) -> None:
    """Its end has another key than its begin, and it would stay for ever."""
    for key in (name, f"date({name})", f"feed.{name}"):
        with pytest.raises(
            QueryError,
            match=re.escape(f"`{name}` is the feed's, not the row's: it cannot be a key"),
        ):
            of_feed(f"{key} AS k, COUNT(*) AS n FROM feed GROUP BY {key}")


@pytest.mark.parametrize("schema", [OF_ROWS, None])
def test_places_of_64_bits_without_a_sign(
    tmp_path: Path, secret: Secret, schema: str | None
) -> None:
    """As `deltalake` exports them. Catches: a refusal; a place beyond BIGINT that ends the run, or wraps to a negative one."""
    query = of_feed(READS[0], schema)
    signed, unsigned = (
        others(query, commits(tmp_path / f"{kind}.parquet", True, kind), secret)
        for kind in ("int64", "uint64")
    )
    pd.testing.assert_frame_equal(signed, unsigned)
    large = tmp_path / "large.parquet"
    beyond = pa.array([2**63 + i for i in range(5000)], pa.uint64())
    pq.write_table(
        pq.read_table(commits(large, False, "uint64")).set_column(4, BESIDE[1], beyond), large
    )
    pd.testing.assert_frame_equal(others(query, large, secret), signed)  # an image without a place


def refused(name: str, source: Source, sql: str) -> None:
    pages = Source("pages", "parquet", "pages", schema="page STRING, topic STRING", static=True)
    with pytest.raises(QueryError) as failure:
        compile_query(f"SELECT WITH DIFFERENTIAL_PRIVACY {CLAUSE}\n{sql}", Sources((source, pages)))
    word = "OVER" if "OVER" in name else re.findall(r"\w+", name)[0]
    assert word.lower() in str(failure.value.problems).lower(), failure.value


@pytest.mark.parametrize("format_", FORMATS)
def test_nothing_else_is_read_of_any_source(format_: str) -> None:
    """Catches: where a record is stored, or how many came before it, read through an alias, a sub-query or a schema that is not declared."""
    kafka = {"value_format": "json"} if format_ == "kafka" else {}
    group = "GROUP BY window(ts, '1 day'), page"
    for schema in ("user_id STRING, page STRING, ts TIMESTAMP", None):
        if schema is None and format_ in ("json", "csv", "kafka"):
            continue  # these have no columns without one
        source = Source(
            "visits",
            format_,
            "visits",
            schema=schema,
            event_time="ts",
            privacy_unit=("user_id",),
            **kafka,
        )
        compile_query(
            f"SELECT WITH DIFFERENTIAL_PRIVACY {CLAUSE}\npage, COUNT(*) AS n FROM visits {group}",
            Sources((source,)),
        )
        for name in (*BESIDE_RECORDS, *COMPUTED, *(OF_MESSAGES if format_ == "kafka" else ())):
            refused(
                name, source, f"page, COUNT(*) AS n FROM visits WHERE {name} IS NOT NULL {group}"
            )
            refused(
                name,
                source,
                f"page, COUNT(*) AS n FROM (SELECT *, {name} AS x FROM visits) AS v WHERE x > 0 {group}",
            )
            if "(" not in name:
                refused(
                    name,
                    source,
                    f"page, COUNT(*) AS n FROM visits AS v WHERE v.{name} IS NOT NULL {group}",
                )
                refused(
                    name,
                    source,
                    f"page, COUNT(*) AS n FROM (SELECT * FROM visits) AS v WHERE v.{name} IS NOT NULL {group}",
                )
                refused(
                    name,
                    source,
                    f"page, SUM({name}, contribution_bounds_per_row => (0, 9)) AS n FROM visits {group}",
                )


def test_a_schema_does_not_make_them_a_records_own() -> None:
    """Catches: readers that ignore a schema (Delta, catalogs), for which a declared `_file` is still the engine's."""
    for name in ("_metadata", "_file", *BESIDE):
        schema = f"user_id STRING, page STRING, ts TIMESTAMP, {name} STRING"
        source = Source(
            "visits", "delta", "visits", schema=schema, event_time="ts", privacy_unit=("user_id",)
        )
        refused(
            name,
            source,
            f"page, COUNT(*) AS n FROM visits WHERE {name} = '1' GROUP BY window(ts, '1 day'), page",
        )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ("format: kinesis", "format kinesis needs `schema`"),
        ("format: delta\n    options: {readChangeFeed: true}", "write `change_feed: DELTA`"),
        ("format: delta\n    privacy_unit: _row_id", "`_row_id` may be no column of the records"),
        ("format: delta\n    privacy_unit: [_writer]", "`_writer` may be no column of the records"),
        (
            "format: parquet\n    event_time: _metadata",
            "`_metadata` may be no column of the records",
        ),
        (
            "format: delta\n    change_feed: DELTA\n    event_time:\n    primary_key: _commit_version",
            "`_commit_version` may be no column",
        ),
    ],
)
def test_sources_do_not_declare_them(tmp_path: Path, changed: str, says: str) -> None:
    given = {"path": "visits", "event_time": "ts", "privacy_unit": "user_id"}
    written = dict(
        line.strip().split(": ", 1) if ": " in line else (line.strip().rstrip(":"), "")
        for line in changed.split("\n")
    )
    lines = [f"    {key}: {value}" for key, value in {**given, **written}.items() if value]
    (tmp_path / "sources.yaml").write_text("\n".join(["sources:", "  visits:", *lines]) + "\n")
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_sources(tmp_path / "sources.yaml")
