"""`dpsql.query`: records at hand in, an answer with error bars out, and a ledger line."""

import re
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpsql
from dpsql.errors import ConfigError, DataError, QueryError
from dpsql.local.frames import arrow_table
from dpsql.local.record_reader import query_words
from dpsql.privacy.ledger import Ledger
from tests.local.conftest import CLAUSE, SCHEMA, SQL, visits

KEYLESS = f"SELECT WITH DIFFERENTIAL_PRIVACY {CLAUSE} COUNT(*) AS views FROM visits GROUP BY window(ts, '1 day')"
NEXT_DAY = datetime(2024, 3, 1, tzinfo=UTC)


def test_pandas_arrow_and_duckdb_are_one(secret) -> None:
    table = visits()
    duck = duckdb.connect()
    duck.register("v", table)
    answers = [
        dpsql.query(SQL, records, unit="user_id", time="ts", secret=secret)
        for records in (table, table.to_pandas(), duck.sql("FROM v"))
    ]
    assert len({answer.query.plan.identity for answer in answers}) == 1
    for answer in answers:
        last = answer.rows[answer.rows["trigger"] == 4].set_index("page")
        assert len(last) > 5 and last.loc["/p1", "visitors"] == pytest.approx(
            296, abs=6 * last.loc["/p1", "visitors_stderr"]
        )
    assert len(Ledger.beside(secret.path).lines()) == 3
    assert len({tuple(answer.rows["views"].head(9)) for answer in answers}) == 3  # fresh noise each


def test_unsigned_ids_are_all_counted(secret) -> None:
    """Catches: ids beyond 2^63, as hashes are, that are NULL and so nobody's."""
    ids = pa.array([2**63 - 200 + i for i in range(400)], pa.uint64())
    day = pa.array([datetime(2024, 2, 29, tzinfo=UTC)] * 400, pa.timestamp("us", "UTC"))
    table = pa.table({"id": ids, "ts": day, "k": ["a"] * 400})
    clause = (
        "OPTIONS (epsilon = 20, delta = 1e-6, privacy_unit_column = id, max_rows_contributed = 1)"
    )
    sql = f"SELECT WITH DIFFERENTIAL_PRIVACY {clause} k, COUNT(*) AS n FROM t GROUP BY window(ts, '1 day'), k"
    for records in (table, table.to_pandas()):
        (count,) = dpsql.query(sql, records, unit="id", time="ts", secret=secret).rows["n"]
        assert abs(count - 400) < 20


class Polars:
    """A frame that has columns and `to_dict` as polars has, and speaks Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.columns = table.column_names

    def to_dict(self) -> dict[str, object]:
        raise AssertionError("values one by one")

    def select(self, names: list[str]) -> "Polars":
        return Polars(self.table.select(names))

    def __arrow_c_stream__(self, schema: object = None) -> object:
        return self.table.__arrow_c_stream__(schema)


class Lazy(Polars):
    """A frame that has its values when it is collected."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def collect_schema(self) -> pa.Schema:
        types = [str(kind) for kind in self.table.schema.types]
        listed = {"names": lambda _: self.table.column_names, "dtypes": lambda _: types}
        return type("Schema", (), listed)()

    def select(self, names: list[str]) -> "Lazy":
        return Lazy(self.table.select(names))

    def collect(self) -> Polars:
        return Polars(self.table)


@pytest.mark.parametrize("make", [Polars, Lazy])
def test_frames_of_other_programs_are_read(secret, make) -> None:
    """Catches: polars taken for pandas, and a column that nobody names that spoils a frame."""
    table = visits().append_column("odd", pa.array([b"\xff"] * 4000).view(pa.string()))
    answer = dpsql.query(SQL, make(table), unit="user_id", time="ts", secret=secret)
    assert len(answer) > 5
    with pytest.raises(
        DataError, match="no column `who`; they have user_id, page, ts, seconds, odd"
    ):
        dpsql.query(SQL, make(table), unit="who", time="ts", secret=secret)


def test_a_column_that_nobody_names_spoils_no_frame(secret) -> None:
    frame = visits().to_pandas()
    odd = frame.assign(note=[1, "x"] * 2000, ratio=1j)
    odd.insert(0, "note", 0, allow_duplicates=True)
    assert len(dpsql.query(SQL, odd, unit="user_id", time="ts", secret=secret)) > 5
    mixed = frame.assign(page=["/p1", 1] * 2000)
    assert len(dpsql.query(SQL, mixed, unit="user_id", time="ts", secret=secret)) == 2
    with pytest.raises(DataError, match=r"column `page` of .*, like frame\['page'\]\.astype"):
        dpsql.query(SQL, frame.assign(page=1j), unit="user_id", time="ts", secret=secret)
    empty = frame.assign(page=None)
    assert len(dpsql.query(SQL, empty, unit="user_id", time="ts", secret=secret)) > 0
    assert len(dpsql.query(SQL, frame.iloc[:0], unit="user_id", time="ts", secret=secret)) == 0


def test_a_frame_needs_the_columns_that_a_query_names(compile_on, secret) -> None:
    query = compile_on(schema=f"{SCHEMA}, note INT")
    assert len(dpsql.run_local(query, visits(), secret)) > 5
    with pytest.raises(
        DataError, match="the records have no column `seconds`; they have user_id, page, ts"
    ):
        dpsql.run_local(query, visits().drop_columns(["seconds"]), secret)


class Spark:
    """A batch frame of Spark, of which whole columns cannot be had."""

    isStreaming = False

    def __init__(self, table: pa.Table, is_chosen: bool = False) -> None:
        self.table = table
        self.is_chosen = is_chosen
        self.columns = table.column_names

    def select(self, *names: str) -> "Spark":
        plain = [name.strip("`").replace("``", "`") for name in names]
        return Spark(self.table.select(plain), True)

    def toArrow(self) -> pa.Table:
        assert self.is_chosen, "every column came to the driver"
        return self.table


def test_only_named_columns_of_spark_are_read(secret) -> None:
    """Catches: a table of which every column comes to the driver."""
    table = visits().append_column("o`dd", pa.array([b"\xff"] * 4000))
    assert len(dpsql.query(SQL, Spark(table), unit="user_id", time="ts", secret=secret)) > 5
    chosen = arrow_table(Spark(table), {"page", "o`dd"})
    assert chosen.column_names == ["page", "o`dd"]


DROPPED = 1_987
"""A number that no rounded value and no digits of noise have."""


def test_dropped_records_are_told_to_the_holder(secret) -> None:
    """Catches: half of the units NA, and no word; exact counts that go along with the rows."""
    users = [None if i % 2 and i < 2 * DROPPED else f"u{i}" for i in range(4000)]
    table = visits().set_column(0, "user_id", pa.array(users))
    answer = dpsql.query(SQL, table, unit="user_id", time="ts", secret=secret)
    assert answer.dropped["null_privacy_unit"] == DROPPED
    shown = repr(answer) + answer._repr_html_() + str(answer.rows.attrs) + str(list(answer.rows))
    assert "null_privacy_unit" not in shown
    assert not re.search(rf"(?<![\d.]){DROPPED}(?![\d.])|{DROPPED:,}", shown)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pd.Period("2024-02", "M"), r"period.*, not STRING: make it one, like frame\['page'\]"),
        (pd.Timedelta("1h"), r"column `page` of the records has type duration\[.s\], not STRING"),
        (None, None),
    ],
)
def test_columns_without_a_type_are_named(column, words, secret) -> None:
    """Catches: `FROM has no column page`, of a column that is there."""
    frame = visits().to_pandas().assign(page=column)
    if words is None:
        indexed = frame.set_index("ts")
        with pytest.raises(DataError, match=r"no column `ts`; .* index: frame.reset_index\(\)"):
            dpsql.query(SQL, indexed, unit="user_id", time="ts", secret=secret)
        return
    with pytest.raises(DataError, match=words) as told:
        dpsql.query(SQL, frame, unit="user_id", time="ts", secret=secret)
    assert "source" not in str(told.value)
    frame["page"] = frame["page"].astype("string")
    assert len(dpsql.query(SQL, frame, unit="user_id", time="ts", secret=secret)) > 0


def test_messages_of_a_feed_may_be_a_frame(compile_on) -> None:
    """Catches: the column of messages left out, since no query names it."""
    messages = pa.table({"value": ["{}"], "topic": ["a"]})
    assert arrow_table(messages, query_words(compile_on().plan)).column_names == ["value"]


def test_what_is_seen_has_errors_caps_and_words(secret) -> None:
    answer = dpsql.query(SQL, visits(), unit="user_id", time="ts", secret=secret)
    shown = repr(answer)
    assert (
        "±" in shown
        and "views (at most 8 each)" in shown
        and "A key that is missing is not zero." in shown
    )
    assert "<table" in answer._repr_html_() and "epsilon" in answer.explain()
    few = dpsql.query(SQL, visits().slice(0, 3), unit="user_id", time="ts", secret=secret)
    assert len(few) == 0 and "A key appears once about" in repr(few)


def test_keys_are_escaped(secret) -> None:
    table = visits().set_column(1, "page", pa.array(["<b>&\x1b"] * 4000))
    answer = dpsql.query(SQL, table, unit="user_id", time="ts", secret=secret)
    assert "&lt;b&gt;&amp;\\x1b" in answer._repr_html_() and "\x1b" not in repr(answer)


def test_dollars_of_keys_are_not_typeset(secret) -> None:
    """Catches: `$5 to $10` that Jupyter shows as a formula."""
    table = visits().set_column(1, "page", pa.array(["$5 to $10"] * 4000))
    shown = dpsql.query(SQL, table, unit="user_id", time="ts", secret=secret)._repr_html_()
    assert "$5 to $10" in shown
    # the classes of MathJax 2 and 3, as pandas sets them with `display.html.use_mathjax` off
    assert shown.startswith('<div class="tex2jax_ignore mathjax_ignore">')


def test_windows_that_come_without_records_need_start_and_until(secret) -> None:
    with pytest.raises(QueryError, match="declares no start"):
        dpsql.query(KEYLESS, visits(), unit="user_id", time="ts", secret=secret)
    with pytest.raises(ConfigError, match="until="):
        dpsql.query(KEYLESS, visits(), unit="user_id", time="ts", start="2024-02-28", secret=secret)
    answer = dpsql.query(
        KEYLESS,
        visits(),
        unit="user_id",
        time="ts",
        start="2024-02-28",
        until=NEXT_DAY,
        secret=secret,
    )
    assert sorted(set(answer.rows["window_start"].dt.day)) == [28, 29]


def test_public_groups_and_joined_tables_are_files(secret, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"page": ["/p1", "/nobody"], "topic": ["one", "none"]}), tmp_path / "pages.parquet"
    )
    clause = CLAUSE.replace(")", ", public_groups = (SELECT page FROM pages))")
    sql = f"SELECT WITH DIFFERENTIAL_PRIVACY {clause} page, COUNT(*) AS views FROM visits GROUP BY window(ts, '1 day'), page"
    tables = {"pages": tmp_path / "pages.parquet"}
    answer = dpsql.query(
        sql,
        visits(),
        unit="user_id",
        time="ts",
        tables=tables,
        start="2024-02-29",
        until=NEXT_DAY,
        secret=secret,
    )
    assert set(answer.rows["page"]) == {"/p1", "/nobody"}


@pytest.mark.parametrize(
    ("records", "unit", "expected"),
    [
        (1, "user_id", "no table"),
        (visits(), "userid", "no column `userid`"),
        (
            visits().to_pandas().assign(ts="today"),
            "user_id",
            "not TIMESTAMP.*schema='ts TIMESTAMP'",
        ),
    ],
)
def test_mistakes(records, unit: str, expected: str, secret) -> None:
    with pytest.raises((DataError, QueryError), match=expected):
        dpsql.query(SQL, records, unit=unit, time="ts", secret=secret)
    assert Ledger.beside(secret.path).lines() == ()


def test_without_a_unit_only_rows_can_be_protected(secret) -> None:
    with pytest.raises(QueryError, match="declares no privacy unit"):
        dpsql.query(SQL, visits(), time="ts", secret=secret)


def test_sources_may_be_a_dict(tmp_path: Path) -> None:
    declared = {
        "visits": {
            "format": "parquet",
            "path": str(tmp_path),
            "event_time": "ts",
            "privacy_unit": "user_id",
        }
    }
    assert dpsql.compile(SQL.replace("1e-9", "1e-8"), declared).source.privacy_unit == ("user_id",)
    with pytest.raises(
        ConfigError,
        match=r"^unknown setting `privacy_units`: did you mean `privacy_unit`\? at sources.visits.privacy_units$",
    ):
        dpsql.load_sources({"visits": {**declared["visits"], "privacy_units": "x"}})
    with pytest.raises(ConfigError, match=r"dpsql\.query"):
        dpsql.compile(SQL, {"visits": visits()})
    with pytest.raises(ConfigError, match="by name"):
        dpsql.compile(SQL, [visits()])
    assert dpsql.Source("v", "parquet", privacy_unit="user_id").privacy_unit == ("user_id",)


def test_lists_of_a_sketch_are_shown_value_by_value(secret) -> None:
    sql = SQL[: SQL.index("page, COUNT")].replace(
        "delta = 1e-9", "delta = 1e-6, sketch_width = 256"
    )
    sql += "APPROX_TOP_COUNT(page, 3) AS top FROM visits GROUP BY window(ts, '1 day')"
    asked = {
        "unit": "user_id",
        "time": "ts",
        "start": "2024-02-29",
        "until": NEXT_DAY,
        "secret": secret,
    }
    lines = repr(dpsql.query(sql, visits(), **asked)).splitlines()
    assert lines[0].split() == ["window", "value", "top", "(at", "most", "8", "each)"]
    pages = [line.split()[2] for line in lines[1:4]]
    assert pages[:2] == ["/p1", "/p2"] and pages[2].startswith("/p")
    assert all("±" in line for line in lines[1:4])
