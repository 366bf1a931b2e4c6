"""A table whose rows end: a Delta table that is inserted into, merged into, updated and deleted from, on both engines."""

import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dpsql.lake.event_log import EventLog
from dpsql.local.connection import connect
from dpsql.local.sources import InputReader
from dpsql.local.verification import count_differences, verify_run
from dpsql.published.cubes import open_marginals
from dpsql.published.public_rows import read_histogram
from dpsql.published.questions import answer
from dpsql.sources.change_feed import TIME, FeedForm
from dpsql.sources.config import Source
from dpsql.sources.domains import Domain
from dpsql.streaming import formats
from dpsql.streaming.progress import Progress, Tally, malformed_question
from dpsql.streaming.session import run_session
from dpsql.streaming.typed_rows import TypedRows
from tests.debezium import AS_WRITTEN, HARD, HARD_VALUES, of_changes
from tests.debezium import DECLARED as MESSAGES
from tests.debezium import SCHEMA as OF_HARD
from tests.streaming.conftest import DAY, START
from tests.sweeps import some

SQL = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 20, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 8, max_rows_per_group = 4, trigger_interval = '1 day')
  branch, COUNT(*) AS accounts, SUM(balance, contribution_bounds_per_row => (0, 100)) AS deposits, COUNT(DISTINCT user_id) AS owners
FROM visits WHERE balance >= 0 GROUP BY branch
"""
NAMES = ("account", "user_id", "branch", "balance", "note")
SCHEMA = pa.schema(
    zip(NAMES, (pa.int64(), pa.string(), pa.string(), pa.float64(), pa.string()), strict=True)
)
OF_ACCOUNTS = "account BIGINT, user_id STRING, branch STRING, balance DOUBLE, note STRING"
DECLARED = {"format": "delta", "change_feed": FeedForm.DELTA, "event_time": None, "start_us": START}
WHOLE = (("startingVersion", "0"),)
PIECES = (("maxFilesPerTrigger", "6"), *WHOLE)


@dataclass
class Accounts:
    """A Delta table with a change feed, a commit a day, and what is in it at the end of each."""

    path: Path
    rows: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    contents: list[Counter[str]] = field(default_factory=list)

    def insert(self, *rows: tuple[Any, ...]) -> None:
        write_deltalake(
            self.path,
            _table(rows),
            mode="append",
            configuration={"delta.enableChangeDataFeed": "true"},
        )
        self._committed({row[0]: row for row in rows})

    def merge(self, *rows: tuple[Any, ...]) -> None:
        merging = DeltaTable(self.path).merge(
            _table(rows), "t.account = s.account", source_alias="s", target_alias="t"
        )
        merging.when_matched_update_all().when_not_matched_insert_all().execute()
        self._committed({row[0]: row for row in rows})

    def update(
        self, column: str, sql: str, where: str, changed: dict[int, tuple[Any, ...]]
    ) -> None:
        DeltaTable(self.path).update({column: sql}, predicate=where)
        self._committed(changed)

    def delete(self, *accounts: int) -> None:
        DeltaTable(self.path).delete(f"account IN ({', '.join(map(str, accounts))})")
        self._committed({}, accounts)

    def _committed(self, changed: dict[int, tuple[Any, ...]], gone: tuple[int, ...] = ()) -> None:
        self.rows = {
            account: row for account, row in (self.rows | changed).items() if account not in gone
        }
        self.contents.append(Counter(row[2] for row in self.rows.values() if row[3] >= 0))
        when = (START + len(self.contents) * DAY - DAY // 2) / 1e6
        os.utime(self.path / "_delta_log" / f"{len(self.contents) - 1:020d}.json", (when, when))

    def feed(self) -> pa.Table:
        """As the table's own library reads it, with the times of the commits as Spark takes them."""
        changes = pa.table(DeltaTable(self.path).load_cdf(0))
        times = [
            START + (version + 1) * DAY - DAY // 2
            for version in changes["_commit_version"].to_pylist()
        ]
        return changes.set_column(
            changes.column_names.index(TIME), TIME, pa.array(times, pa.timestamp("us", "UTC"))
        )


def _table(rows: tuple[tuple[Any, ...], ...]) -> pa.Table:
    return pa.table(dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True)), SCHEMA)


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Accounts:
    """Ten commits: two accounts of each of 150 owners come, some move, change their balance or a column that nobody asks for, and go."""
    chance = random.Random(5)
    made = Accounts(tmp_path_factory.mktemp("table") / "accounts")
    people = [
        (i, f"u{i // 2}", f"b{i // 2 % 3}", float(chance.randrange(100)), "new") for i in range(300)
    ]
    made.insert(*people[:200])
    made.merge(*people[190:])
    made.update(
        "note",
        "'seen'",
        "account < 150",
        {i: (*row[:4], "seen") for i, row in made.rows.items() if i < 150},
    )
    made.delete(*range(0, 300, 7))
    made.update(
        "balance",
        "-balance - 1.0",
        "account < 40",
        {i: (*row[:3], -row[3] - 1, row[4]) for i, row in made.rows.items() if i < 40},
    )
    made.merge(*((*row[:2], "b0", *row[3:]) for i, row in made.rows.items() if i % 5 == 1))
    made.insert(*((i, *row[1:]) for i, row in enumerate(people[:280:7], 1000)))
    made.update(
        "balance",
        "-balance - 1.0",
        "balance < 0.0",
        {i: (*r[:3], -r[3] - 1, r[4]) for i, r in made.rows.items() if r[3] < 0},
    )
    made.delete(*(i for i, row in made.rows.items() if row[2] == "b2" and i % 2))
    made.merge(*((*row[:3], 50.0, "last") for i, row in made.rows.items() if i % 3 == 0))
    return made


@pytest.mark.parametrize("key", some([("account",), ()], 2))
def test_the_contents_of_a_delta_table_on_both_engines(
    case: Any, accounts: Accounts, key: tuple[str, ...]
) -> None:
    """Catches: rows that stay, are counted twice, move to another key by an update and leave something behind; engines that differ."""
    sql = SQL.replace(
        "\nFROM",
        ",\n  APPROX_QUANTILES(balance, 4, contribution_bounds_per_row => (0, 100)) AS quartiles\nFROM",
    )
    one = case(
        sql, path=str(accounts.path), primary_key=key, options=PIECES if key else WHOLE, **DECLARED
    )
    assert one.go(START + 11 * DAY).triggers == 11
    assert one.go(START + 12 * DAY).triggers == 1
    published = read_histogram(one.lake, "demo")
    found = verify_run(one.lake, "demo", one.run_id, one.query, one.secret)
    assert (found.identical, found.published) == (True, published.num_rows)
    assert count_differences(published, one.locally(accounts.feed(), START + 12 * DAY)) == 0
    assert {row["trigger"] for row in published.to_pylist()} == set(range(1, 13))
    for row in published.to_pylist():
        there = accounts.contents[min(row["trigger"], 10) - 1][row["branch"]]
        assert abs(row["accounts"] - there) < 5 * row["accounts_stderr"]
        assert row["accounts_stderr"] < 25 < there
        assert row["quartiles"] is None or (
            row["quartiles"] == sorted(row["quartiles"]) and row["quartiles"][::4] == [0, 100]
        )
    assert any(row["quartiles"] for row in published.to_pylist())


def test_allowances_that_renew_on_both_engines(case: Any, accounts: Accounts) -> None:
    """Few rows of a user count in three days, and more of them as periods pass. Catches: an engine that does not know of periods, and a ledger that does
    not."""
    sql = SQL.replace(
        "max_rows_contributed = 8, max_rows_per_group = 4", "max_rows_contributed = 1"
    )
    sql = sql.replace(", COUNT(DISTINCT user_id) AS owners", "")
    counted = {}
    for name, period in (("renews", "'3 days'"), ("once", "STREAM")):
        one = case(
            sql.replace("trigger_interval", f"contribution_period = {period}, trigger_interval"),
            path=str(accounts.path),
            primary_key=("account",),
            options=PIECES,
            **DECLARED,
        )
        assert one.go(START + 11 * DAY).triggers == 11
        published = read_histogram(one.lake, "demo")
        found = verify_run(one.lake, "demo", one.run_id, one.query, one.secret)
        assert (found.identical, found.published) == (True, published.num_rows)
        assert count_differences(published, one.locally(accounts.feed(), START + 11 * DAY)) == 0
        last = [row for row in published.to_pylist() if row["trigger"] == 11]
        counted[name] = sum(row["accounts"] for row in last)
    assert counted["renews"] > counted["once"] + 50


def test_cells_on_both_engines(case: Any, accounts: Accounts) -> None:
    """Rows come into the domains and leave them. Catches: one that stays in a cell of one table; state that a restart forgets; engines that differ."""
    sql = SQL.replace("branch, COUNT(*)", "branch, rich, COUNT(*)")
    sql = sql.replace(", COUNT(DISTINCT user_id) AS owners", "")
    sql = sql.replace("max_rows_per_group = 4", "max_rows_per_group = 8")
    sql = sql.replace("FROM visits", "FROM (SELECT *, balance >= 50 AS rich FROM visits)")
    domains = (("branch", Domain(("b0", "b1"), False)), ("rich", Domain(("false", "true"), False)))
    one = case(
        sql.replace("BY branch", "BY CUBE(branch, rich)"),
        path=str(accounts.path),
        primary_key=("account",),
        options=PIECES,
        domains=domains,
        **DECLARED,
    )
    assert (one.go(START + 11 * DAY).triggers, one.go(START + 12 * DAY).triggers) == (11, 1)
    published = read_histogram(one.lake, "demo")
    found = verify_run(one.lake, "demo", one.run_id, one.query, one.secret)
    assert (found.identical, found.published) == (True, published.num_rows)
    assert count_differences(published, one.locally(accounts.feed(), START + 12 * DAY)) == 0
    assert published.num_rows == 12 * (2 + 2 + 4)
    for row in published.to_pylist():
        there = accounts.contents[min(row["trigger"], 10) - 1]
        if row["branch"] and row["rich"] is None:
            assert abs(row["accounts"] - there[row["branch"]]) < 5 * row["accounts_stderr"]
    last = open_marginals(one.lake, "demo")
    (told,) = answer(last, "SELECT COUNT(*) FROM demo WHERE branch = 'b0'").rows
    exact = accounts.contents[-1]["b0"]
    assert abs(told["accounts"] - exact) < 5 * told["stderr"] < 0.9 * exact


def test_an_interval_tree_on_both_engines(case: Any, accounts: Accounts) -> None:
    """Catches: a column of contributions or state that one engine loses; a level that a restart forgets."""
    sql = (
        SQL.replace("  branch, COUNT", "  COUNT")
        .replace(" GROUP BY branch", "")
        .replace(", COUNT(DISTINCT user_id) AS owners", "")
    )
    sql = sql.replace("'1 day')", "'1 day', mechanism = PAPER)")
    one = case(sql, path=str(accounts.path), primary_key=("account",), options=PIECES, **DECLARED)
    assert (one.go(START + 5 * DAY).triggers, one.go(START + 12 * DAY).triggers) == (5, 7)
    published = read_histogram(one.lake, "demo")
    found = verify_run(
        one.lake, "demo", one.run_id, one.query, one.secret
    )  # recomputed by the local engine
    assert (found.identical, found.published, published.num_rows) == (True, 12, 12)


def test_hard_messages_are_read_as_without_spark(spark: Any) -> None:
    """Catches: a message that engines read otherwise."""
    session = run_session(spark, 2)
    check_images(session, HARD, MESSAGES)
    check_images(session, HARD_VALUES, AS_WRITTEN)


def check_images(session: Any, listed: Sequence[Any], settings: dict[str, Any]) -> None:
    """Compare what Spark reads of messages with what they say."""
    given = session.createDataFrame(
        [(number, line) for number, (line, *_) in enumerate(listed)], "n INT, value STRING"
    )
    hard = formats.parsed_changes(given, Source("hard", path="x", schema=OF_HARD, **settings))
    told = [tuple(row) for row in hard.collect()]
    times = {4, 7}  # opened, and of the commit
    read = [
        tuple(
            x if i not in times or x is None else round(x.timestamp() * 1e6)
            for i, x in enumerate(row[:8])
        )
        for row in told
        if row[8] is None
    ]
    assert read == [image for _, images, _ in listed for image in images]
    assert sum(row[8] is not None for row in told) == sum(malformed for *_, malformed in listed)
    # What is wrong with the others is what the owner of a `try` is told.
    reader = InputReader(connect(), Source("hard", path="x", schema=OF_HARD, **settings))
    reader.frame(pa.table({"value": [line for line, *_ in listed]}))
    kinds = Counter[str]()
    for name, count in reader.misfits.items():
        kinds[name if name in ("", "before", "after") or "." in name else "schema"] += count
    assert Counter(row[8] for row in told if row[8] is not None) == +kinds


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({"malformed": 10, "no_message": 2, "no_place": 6}, "no whole number where `sequence_by`"),
        ({"malformed": 10, "no_message": 6, "no_place": 4}, "no messages of Debezium"),
        ({"malformed": 10, "no_message": 3, "no_place": 3}, "fit `schema`"),
        ({"malformed": 10}, "fit `schema`"),
    ],
)
def test_the_alarm_says_what_most_malformed_messages_are(
    counts: dict[str, int], says: str, tmp_path: Path
) -> None:
    """Catches: advice to look at `schema` where the position is wrong; kinds that are counted as reasons of their own."""
    report = SimpleNamespace(
        observedMetrics={"m": SimpleNamespace(asDict=lambda: counts)},
        numInputRows=10,
        batchId=0,
        processedRowsPerSecond=1.0,
        durationMs={},
    )
    assert says in malformed_question(report)
    tally = Tally(None, EventLog(tmp_path, "5a" * 16, "views"))
    tally.was_read(report)
    assert tally.dropped == {"malformed": 10}


def test_messages_of_debezium_on_both_engines(
    case: Any, accounts: Accounts, tmp_path: Path, spark: Any
) -> None:
    """Catches: images of another order than that of changes; replays that count again."""
    lines = of_changes(accounts.feed())
    (tmp_path / "visits").mkdir()
    for number in range(
        5
    ):  # each file begins with what the one before has said last; some break off, some say nothing
        part = lines[max(number * len(lines) // 5 - 40, 0) : (number + 1) * len(lines) // 5]
        part = [*lines[: 200 * (number == 4)], *part]  # most of these rows have ended meanwhile
        file = tmp_path / "visits" / f"{number}.json"
        file.write_text("\n".join([*part, "", part[0][:-1]]))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))
    one = case(
        SQL,
        start_us=START,
        schema=OF_ACCOUNTS,
        options=(("maxFilesPerTrigger", "1"),),
        ended_rows_kept_us=30 * DAY,
        max_malformed=0,
        **MESSAGES,
    )
    told: list[Progress] = []
    summary = one.go(START + 12 * DAY, told=told)
    # What is cut off is no message: the first of them is told, then twice as many.
    alarms = [report.warning for report in told if "malformed" in (report.warning or "")]
    assert len(alarms) == 3 and all("no messages of Debezium" in str(alarm) for alarm in alarms)
    assert (summary.triggers, summary.dropped["malformed"]) == (12, 5)
    assert summary.dropped["replayed"] >= 200
    published = read_histogram(one.lake, "demo")
    found = verify_run(
        one.lake, "demo", one.run_id, one.query, one.secret, as_parquet=TypedRows(spark)
    )
    assert (found.identical, found.published) == (True, published.num_rows)
    for row in published.to_pylist():
        there = accounts.contents[min(row["trigger"], 10) - 1][row["branch"]]
        assert abs(row["accounts"] - there) < 5 * row["accounts_stderr"]
        assert row["accounts_stderr"] < 25 < there
