"""What is refused of data and sources is refused before it costs anything, through every door: `try`, frames, and
`run` before it starts Spark."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

import dpsql
from dpsql.errors import InputError
from dpsql.jobs import run_query
from dpsql.jobs.cli import main
from dpsql.lake.manifest import Manifest
from dpsql.lake.opening import run_of
from dpsql.lake.runs import Lake
from dpsql.privacy.secret import Secret, default_secret_path
from dpsql.sources import reachable
from dpsql.udfs.stage import OPERATORS
from tests.local.conftest import DAY, HOUR, visits
from tests.local.conftest import RUN as LOCAL_RUN
from tests.local.other_delta import refuse_readers
from tests.local.published import publish
from tests.raising import PACKAGE, Made, places_in

TRY = "try query.sql"
RUN = "run query.sql --lake lake --until-caught-up"
COMPARE = f"{TRY} --compare --input visits=conf/copy.parquet"
FRAME = "dpsql.query"
LOCAL = "dpsql.run_local"
VALUES = ("zqvalue", "98765")
"""What only records have."""

SCHEMA = "user_id STRING, ts TIMESTAMP, page STRING, seconds DOUBLE"
SQL = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1) page, COUNT(*) AS n FROM visits GROUP BY page"
ONE_DAY = SQL.replace("1)", "1, max_rows_contributed = 8)") + ", window(ts, '1 day')"
FOR_EVER = SQL.replace("1)", "1, max_rows_contributed = 8, trigger_interval = '1 day')")
WINDOWS = SQL.replace("GROUP BY page", "GROUP BY page, window(ts, '1 day')")
SUMS = SQL.replace("COUNT(*)", "SUM(seconds, contribution_bounds_per_group => (0, 1))")
QUANTILES = WINDOWS.replace(
    "COUNT(*)", "APPROX_QUANTILES(seconds, 2, contribution_bounds_per_row => (0, 9))"
)
ROWS = WINDOWS.replace("1)", "1, privacy_level = EVENT)").replace("page, ", "")
LISTS = ROWS.replace("privacy_level = EVENT", "delta = 1e-6, sketch_width = 1024").replace(
    "COUNT(*)", "APPROX_TOP_COUNT(page, 3)"
)
COLUMNS: Mapping[str, Any] = {
    "user_id": ["zqvalue"],
    "ts": pa.array([0], pa.timestamp("us", "UTC")),
    "page": ["zqvalue"],
    "seconds": [98765.0],
}
Make = Callable[[Path], object]


def table(**columns: Any) -> pa.Table:
    """Return one record; a column that is None is left out."""
    given = {**COLUMNS, **columns}
    return pa.table({name: values for name, values in given.items() if values is not None})


def parquet(name: str = "visits/a.parquet", **columns: Any) -> Make:
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(**columns), folder / name)

    return make


def text(name: str, content: str | bytes) -> Make:
    def make(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return make


def empty(folder: Path) -> None:
    (folder / "pages.csv").mkdir()


def both(*makes: Make) -> Make:
    return lambda folder: [make(folder) for make in makes]


def delta(name: str, rows: pa.Table, feature: str = "") -> Make:
    def make(folder: Path) -> None:
        write_deltalake(folder / name, rows)
        if feature:
            refuse_readers(folder / name, feature)

    return make


ONE_FILE = parquet()


@dataclass(frozen=True)
class Case:
    """A refusal.

    Args:
        place: where it is made, as `tests.raising` names it.
        says: what the message has to say.
        doors: through which it is met.
        make: the files.
        source: what is declared otherwise of `visits`; what is None is left out.
        tables: public tables as they are declared.
        sql: the query.
        records: of a frame.
        arguments: of `dpsql.query`.
    """

    place: str
    says: str
    doors: tuple[str, ...]
    make: Make = ONE_FILE
    source: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, Any] = field(default_factory=dict)
    sql: str = SQL
    records: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def declared(self) -> dict[str, Any]:
        """The sources."""
        visits = {"format": "parquet", "path": "visits", "schema": SCHEMA, "event_time": "ts"}
        given = {**visits, "privacy_unit": "user_id", **self.source}
        return {"visits": {key: value for key, value in given.items() if value}, **self.tables}


CSV = {"format": "csv", "options": {"header": "true"}}
LINE = "zqvalue,1970-01-01,zqvalue,98765\n"
HEADER = "user_id,ts,page,seconds\n"
PAGES = {
    "pages": {
        "format": "csv",
        "path": "pages.csv",
        "schema": "page STRING, rank DOUBLE",
        "static": True,
    }
}
LISTED = SQL.replace("1)", "1, public_groups = (SELECT page FROM pages))")
TOPIC = {
    "format": "kafka",
    "path": None,
    "value_format": "json",
    "options": {"subscribe": "visits", "kafka.bootstrap.servers": "127.0.0.1:1"},
}
FEED = {
    "start": "1970-01-01",
    "change_feed": "DELTA",
    "event_time": None,
    "format": "delta",
    "options": {"startingVersion": 0},
}
FEED_SQL = SQL.replace(
    "epsilon = 1", "epsilon = 1, trigger_interval = '1 day', max_rows_contributed = 1"
)
DELTA = {"format": "delta", "schema": None}
DEBEZIUM = {
    **TOPIC,
    "change_feed": "DEBEZIUM",
    "event_time": None,
    "primary_key": "user_id",
    "sequence_by": "source.lsn",
    "start": "1970-01-01",
}
BEGUN = {"start": "1970-01-01"}
UNKNOWN = {"schema": None}
"""Columns are known from files alone."""


STAMPS = {"event_time": {"column": "ts", "unit": "seconds"}}
FRAME_OF = pd.DataFrame({"user": ["zqvalue"], "page": ["zqvalue"], "seconds": [98765.0]})
ODD = pd.DataFrame({"user": ["zqvalue"], "page": [pd.Timedelta(1)], "ts": [pd.Timestamp(0)]})


CASES = (
    # Places and folders.
    Case("sources/file_list.py match_pattern", "matches this pattern", (TRY,), source={"path": "visits/*.avro"}),
    Case("sources/file_list.py match_pattern #2", "no such file or folder", (TRY,), source={"path": "other"}),
    Case("sources/reachable.py check_reachable #2", "No such file or directory", (RUN,), source={"path": "other"}),
    Case("sources/reachable.py check_reachable", "no Kafka broker answers", (RUN,), source=TOPIC),
    Case("sources/file_list.py files_in", "all files are in sub-folders", (TRY,), parquet("visits/more/a.parquet")),
    Case("sources/folders.py check_alike", "its files are in", (TRY,), both(parquet(), parquet("visits/day=1/a.parquet"))),
    Case("sources/folders.py folder_values", "like day=2024-02-29", (TRY,), parquet("visits/day=/a.parquet")),
    Case("sources/folders.py check_form", "cannot be BINARY", (TRY,), parquet("visits/day=1/a.parquet"), {"schema": f"{SCHEMA}, day BINARY"}),
    Case("sources/folders.py check_form #2", "has no INT", (TRY,), parquet("visits/day=x/a.parquet"), {"schema": f"{SCHEMA}, day INT"}),
    Case("local/sources.py _data_file", "has no DATE", (TRY,), parquet("visits/day=2024-02-30/a.parquet"), {"schema": f"{SCHEMA}, day DATE"}),
    Case("local/sources.py _expanded", "below a pattern", (TRY,), parquet("visits/day=1/a.parquet"), {"path": "vis*"}),
    Case("local/sources.py local_path", "is at s3a://", (TRY,), source={"path": "s3a://bucket/visits"}),
    Case("local/sources.py _listed_files", "is a change feed", (TRY,), source=FEED, sql=FEED_SQL),
    Case("local/sources.py _listed_files #2", "of Spark's catalog", (TRY,), source={"format": "table", "path": None, "table": "visits", "schema": None}),
    Case("local/sources.py _listed_files #3", "no input is given", (TRY,), source=TOPIC),
    Case("local/sources.py _listed_files #4", "of delta runs on Spark", (TRY,), source={**DELTA, "options": {"startingVersion": "0"}}),
    Case("local/sources.py all_files", "there are no files", (TRY,), both(ONE_FILE, empty), tables=PAGES, sql=LISTED),
    # Files.
    Case("local/sources.py _format", "is read on Spark only", (TRY,), text("visits/a.avro", "zqvalue"), {"format": "avro"}),
    Case("local/sources.py _columns", "needs `schema`", ("try query.sql --input visits=conf/visits/a.csv",), text("visits/a.csv", LINE), UNKNOWN),
    Case("local/sources.py _columns #2", "`dateFormat` of csv runs on Spark", (TRY,),
        text("visits/a.csv", LINE), {"format": "csv", "options": {"dateFormat": "y"}}),
    Case("local/sources.py _fields", "several columns are named `page`", (TRY,), parquet(PAGE=["zqvalue"])),
    Case("local/sources.py _fields #3", "has type STRING", (TRY,), parquet(seconds=["zqvalue"]), sql=SUMS),
    Case("local/first_look.py _check_types #2", "has type STRING", (RUN,), parquet(seconds=["zqvalue"])),
    Case("local/first_look.py _check_types", "numbers of 16 bits", (RUN,), parquet(seconds=pa.array(np.array([98765 % 9], np.float16)))),
    Case("local/first_look.py check_files", "column `user_id` of source `visits` is missing", (RUN,), parquet(user_id=None)),
    Case("local/sources.py _check_names #2", "column `page` of source `visits` is missing", (TRY,), parquet(page=None)),
    Case("local/sources.py _check_names", "in a column `value`", ("try query.sql --input visits=conf/visits",), parquet(), DEBEZIUM, sql=FEED_SQL),
    Case("local/delta_files.py open_file", "not a readable Parquet file", (TRY,), text("visits/a.parquet", "zqvalue")),
    Case("local/delta_files.py _open_table", "the Delta table cannot be read", (TRY,), text("visits/_delta_log/00000000000000000000.json", "zqvalue"), DELTA),
    Case("local/delta_files.py _check_understood", "the Delta table uses", (TRY,), delta("visits", table(), "variantType"), DELTA),
    Case("local/lines.py check_text", "says UTF-16LE", (TRY, RUN), text("visits/a.csv", LINE.encode("utf-16")), {**CSV, "options": {}}),
    Case("local/lines.py check_header", "is no header", (TRY, RUN), text("visits/a.csv", LINE), CSV),
    Case("local/lines.py check_header #2", "a name of its own", (TRY, RUN), text("visits/a.csv", HEADER.replace("\n", ",page\n") + LINE), CSV),
    Case("local/lines.py check_header #3", "write `schema: page STRING", (TRY, RUN), text("visits/a.csv", "page,ts,user_id,seconds\n" + LINE), CSV),
    Case("local/lines.py _open_file", "cannot be read", (TRY, RUN), text("visits/a.csv.gz", "zqvalue" * 9), CSV),
    # Types that are known from files alone.
    Case("local/event_times.py event_time", "seconds", (TRY,), source={**UNKNOWN, **STAMPS}, sql=WINDOWS),
    Case("local/record_reader.py _event_time", "ts", (TRY,), parquet(ts=["zqvalue"]), UNKNOWN, sql=WINDOWS),
    Case("local/record_reader.py _value_bytes", "cannot be a key", (TRY,), source=UNKNOWN, sql=SQL.replace("page", "seconds")),
    Case("local/record_reader.py _argument", "cannot be added up", (TRY,), source=UNKNOWN, sql=SUMS.replace("seconds", "ts")),
    Case("local/from_clause.py resolve #2", "has no column `other`", (TRY,), source=UNKNOWN, sql=SQL.replace("page", "other")),
    Case("local/spark_types.py spark_only", "runs on Spark only", (TRY, LOCAL), sql=SQL.replace("GROUP", "WHERE parse_url(page, 'HOST') = 'a' GROUP")),
    Case("local/spark_types.py parse_ddl", "is not readable", (TRY,), source={"schema": "user_id STRING, ((", "event_time": None}),
    Case("local/spark_types.py parse_ddl #2", "is not readable", (TRY,),
        source={"schema": "user_id STRING, page STRING, CHECK (page = 'x')", "event_time": None}),
    # Frames.
    Case("local/frames.py at_hand", "name of a file", (FRAME,), records="visits.parquet"),
    Case("local/frames.py at_hand #2", "a stream has no end", (FRAME,), records=SimpleNamespace(isStreaming=True)),
    Case("local/frames.py without_values", "no table", (FRAME,), records=98765),
    Case("local/frames.py arrow_table", "several columns", (FRAME,), records=pd.DataFrame([["zqvalue"] * 3], columns=["user", "page", "page"])),
    Case("local/frames.py _check_exports", "keeps no values", (FRAME,), records=duckdb.sql("SELECT 'zqvalue' AS user, '101'::BIT AS page")),
    Case("local/frames.py _typed", "no type that is supported", (FRAME,), records=FRAME_OF.assign(page=98765j)),
    Case("local/frames.py with_advice", "columns of objects are read as STRING", (FRAME,), records=FRAME_OF.assign(seconds="zqvalue"), sql=SUMS),
    Case("local/record_reader.py declared_columns", "schema=: several columns", (FRAME,), records=FRAME_OF, arguments={"schema": "page STRING, PAGE INT"}),
    Case("local/record_reader.py row_columns", "name them, like schema=", (FRAME,),
        records=FRAME_OF.to_dict("records"), sql=SQL.replace("visits", "(SELECT * FROM visits) AS v")),
    Case("local/frames.py check_columns", "several columns of the records", (FRAME,), records=pd.DataFrame([["zqvalue"] * 2], columns=["user", "USER"])),
    Case("local/frames.py check_columns #2", "have no column `user`", (FRAME,), records=FRAME_OF[["page"]]),
    Case("local/sources.py _fields #4", "values of one length", (TRY,), parquet(page=pa.array([b"zqvalue"], pa.binary(7)))),
    Case("local/sources.py _fields #2", "of the records has type", (LOCAL,), records=FRAME_OF.assign(user_id="zqvalue", page=98765)),
    Case("frame_query.py release_time", "say until when", (FRAME,),
        records=ODD, sql=WINDOWS.replace("page, ", ""), arguments={"time": "ts", "start": "2026-01-01"}),
    Case("frame_query.py schema_of", "write one of", (FRAME,), records=FRAME_OF, arguments={"time_unit": "hours"}),
    Case("frame_query.py schema_of #2", "seconds", (FRAME,), records=ODD, arguments={"time": "ts", "time_unit": "seconds"}),
    Case("frame_query.py schema_of #3", "time_unit=", (FRAME,), records=FRAME_OF.assign(ts=98765), arguments={"time": "ts"}),
    Case("frame_query.py _of_odd_column", "page", (FRAME,), records=ODD),
    Case("frame_query.py moment", "write a date or a time", (FRAME,), records=FRAME_OF, arguments={"until": "soon"}),
    Case("frame_session.py _numbers", "arguments are", ("Session.plan",), records=FRAME_OF, arguments={"mechanism": 1}),
    Case("frame_session.py _numbers #2", "is no number", (FRAME,), records=FRAME_OF, arguments={"epsilon": "1"}),
    # Exact values beside released ones.
    Case("local/comparison.py check_comparable", "not supported for sketches", (COMPARE,), parquet("copy.parquet"), BEGUN, sql=LISTS),
    Case("local/comparison.py check_comparable #2", "protect rows", (COMPARE,), parquet("copy.parquet"), BEGUN, sql=ROWS),
    Case("local/comparison.py check_comparable #3", "APPROX_QUANTILES", (COMPARE,), parquet("copy.parquet"), sql=QUANTILES),
    Case("local/comparison.py check_comparable #4", "running totals", (COMPARE,),
        parquet("copy.parquet"), BEGUN, sql=SQL.replace("1)", "1, trigger_interval = '1 day')")),
)  # fmt: skip
OTHERS = {
    "local/expressions.py _like": "compile refuses the same pattern",
    "local/from_clause.py resolve": "compile refuses a column that two tables may have",
    "local/from_clause.py _item": "compile knows all tables of FROM, and each of them has files",
    "local/sources.py __init__": "declarations are checked when they are loaded, and by compile",
    "local/delta_files.py delta_files": "a log that was whole when it was opened is damaged a moment later",
    "local/delta_files.py delta_files #2": "the log of a table names a deletion vector of a file that it has not: no program writes that",
    "local/sources.py _file": "a file that was looked at is gone a moment later",
}
"""Places that no input reaches, and why."""

WHILE_READ = {
    "local/sources.py _parquet": "pages of a file whose footer is whole are damaged",
    "local/sources.py _execute": "DuckDB fails at a statement over records",
    "local/record_reader.py _rows": "DuckDB fails at a query over records",
}
"""Places that are met when records are read: what they tell is paid for, as their text alone would tell of a record."""

VERIFIED = "local/feed_commits.py"
"""The commits of a feed that a run has read, which `verify` reads again: it spends nothing, and tests/local/test_feed_commits.py has them."""

Edit = Callable[[Path, list[Path]], object]
TWO_BATCHES = (0, [0]), (1, [1])


def other_record(lake: Path, files: list[Path]) -> None:
    pq.write_table(visits(10), files[0])
    os.utime(files[0], (1, 1))


def no_files(lake: Path, files: list[Path]) -> None:
    for file in files:
        file.unlink()


def messages(lake: Path, files: list[Path]) -> None:
    listing = Manifest(lake / "private/visits/files", LOCAL_RUN, OPERATORS[0], 1)
    listing.commit(2, [], {"clock": {"closed_us": 0, "latest_us": 0}})


RECOMPUTED: Mapping[str, tuple[str, str, Any, Edit]] = {
    "local/verification.py _comparable": ("files that the run has read are gone", ONE_DAY, TWO_BATCHES, no_files),
    "local/verification.py _missing_files": ("every later row depends", FOR_EVER, TWO_BATCHES, no_files),
    "local/verification.py _refuse_twice": ("was read twice", ONE_DAY, ((0, [0]), (1, [0])), lambda *_: None),
    "local/verification.py _refuse_changed": ("was changed after the run had read it", ONE_DAY, TWO_BATCHES, other_record),
    "local/verification.py _batches": ("only runs over files can be verified", ONE_DAY, TWO_BATCHES, messages),
}  # fmt: skip
"""Refusals of `dpsql verify`: what is said, of which query and micro-batches, what happened since."""

MODULES = (
    *(f"local/{file.name}" for file in sorted((PACKAGE / "local").glob("*.py"))),
    *(f"sources/{name}.py" for name in ("file_list", "folders", "reachable")),
    "frame_query.py",
    "frame_session.py",
)


def ledger() -> dict[str, bytes]:
    """Return every file of the ledger, and the secret."""
    folder = default_secret_path(os.environ).parent
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def ask(case: Case, door: str) -> tuple[int, str]:
    """Go through a door; return the exit code and what was said."""
    settings: dict[str, Any] = {"unit": "user", **case.arguments}
    options = {
        name: settings.pop(name) for name in ("until", "epsilon", "mechanism") if name in settings
    }
    try:
        if door == FRAME:
            dpsql.query(case.sql, case.records, **settings, **options)
        elif door == "Session.plan":
            dpsql.session(case.records, **settings).plan(case.sql, **options)
        elif door == LOCAL:
            records = table() if case.records is None else case.records
            query = dpsql.compile(case.sql, dpsql.load_sources("conf/sources.yaml"))
            dpsql.run_local(query, records, Secret.load(default_secret_path(os.environ)))
        else:
            done = CliRunner().invoke(main, shlex.split(door))
            assert not done.stdout, done.stdout
            return done.exit_code, done.stderr
    except InputError as problem:
        return problem.exit_code, str(problem)
    return 0, ""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a secret whose ledger has a line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reachable, "PATIENCE", 0)
    monkeypatch.setattr(run_query, "start_session", lambda *_: pytest.fail("Spark is started"))
    (tmp_path / "conf").mkdir()
    Secret.load(default_secret_path(os.environ))
    return tmp_path


@pytest.mark.parametrize(
    ("case", "door"),
    [(case, door) for case in CASES for door in case.doors],
    ids=lambda value: getattr(value, "place", None),
)
def test_refusals_cost_nothing(
    case: Case, door: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a line for what is refused, a traceback, a value of a record in a message."""
    case.make(work / "conf")
    (work / "conf/sources.yaml").write_text(json.dumps({"sources": case.declared}))
    (work / "query.sql").write_text(case.sql)
    before = ledger()
    made = Made(monkeypatch)
    exit_code, said = ask(case, door)
    assert made.place_of(said) == case.place and case.says in said, said
    assert exit_code == (1 if "Kafka" in case.says else 2)
    assert "Traceback" not in said and not any(value in said for value in VALUES), said
    assert ledger() == before


@pytest.mark.parametrize(("place", "case"), RECOMPUTED.items(), ids=RECOMPUTED)
def test_verify_refuses_by_name(
    place: str, case: tuple[str, str, Any, Edit], work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches: a traceback, or another exit code, where the input of a run is not what it was."""
    says, sql, batches, edit = case
    source = {**Case("", "", ()).declared["visits"], "start": "2024-02-29"}
    (work / "conf/sources.yaml").write_text(json.dumps({"sources": {"visits": source}}))
    files = [work / f"conf/visits/{number}.parquet" for number in range(2)]
    files[0].parent.mkdir()
    for number, file in enumerate(files):
        pq.write_table(visits(2000).slice(number * 1000, 1000), file)
    secret = Secret.load(default_secret_path(os.environ))
    query = dpsql.compile(sql, dpsql.load_sources("conf/sources.yaml"))
    run = run_of("visits", LOCAL_RUN, query, secret, "")
    publish(Lake("lake"), run, query, secret, files, [(batches, DAY + 24 * HOUR)])
    edit(work / "lake", files)
    before = ledger()
    made = Made(monkeypatch)
    done = CliRunner().invoke(main, ["verify", "visits", "--lake", "lake"])
    assert done.exit_code == 2 and says in done.stderr, done.output
    assert made.place_of(done.stderr) == place and "Traceback" not in done.stderr
    assert ledger() == before


def test_damage_inside_of_a_file_is_paid_for(work: Path) -> None:
    """Catches: a failure at a record that says more than the name of its file."""
    parquet(
        "visits/a.parquet",
        user_id=["zqvalue"] * 99,
        ts=pa.array([0] * 99, COLUMNS["ts"].type),
        page=["zqvalue"] * 99,
        seconds=[98765.0] * 99,
    )(work / "conf")
    file = work / "conf/visits/a.parquet"
    content = file.read_bytes()
    file.write_bytes(content[:4] + b"zqvalue" * 20 + content[144:])
    (work / "conf/sources.yaml").write_text(json.dumps({"sources": Case("", "", ()).declared}))
    (work / "query.sql").write_text(SQL)
    before = ledger()
    done = CliRunner().invoke(main, shlex.split(TRY))
    assert done.exit_code == 2 and "a.parquet: not a readable Parquet file" in done.stderr
    assert not any(value in done.output for value in VALUES) and len(ledger()) > len(before)


def test_every_refusal_has_a_case() -> None:
    """Catches: a refusal of data that nobody has met."""
    known = {*(case.place for case in CASES), *RECOMPUTED, *OTHERS, *WHILE_READ}
    made = {place for module in MODULES if module != VERIFIED for place in places_in(module)}
    assert made == known
