"""What is refused has spent nothing: after exit code 2 of any command the ledger is what it was, byte for byte, and nobody sees a traceback."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake
from pyarrow.parquet import write_table

from dpsql.jobs import run_query
from dpsql.jobs.cli import main
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.secret import default_secret_path
from dpsql.streaming import spark_home
from tests.unit.test_misuse import files_of
from tests.unit.workplace import SOURCES, SQL, place, published, records

Make = Callable[[Path], object]
LAKE = "--lake lake"
INPUT = "--input visits.parquet"
OF_A_QUERY = (
    "explain views.sql",
    f"try views.sql {INPUT}",
    "tune views.sql --sample visits.parquet",
    f"run views.sql {LAKE} --name other",
)
OF_A_NAME = ("show", "compare", "view", "stop", "verify", "savepoint", "restore")
SAME_RUN = (f"verify views {LAKE}", f"restore views {LAKE} --ledger")
OF_A_RUN = (*SAME_RUN, f"restore views {LAKE} --new-run")
SPENDING = (
    f"try views.sql {INPUT}",
    f"run views.sql {LAKE} --name other",
    f"restore views {LAKE} --new-run",
)
OPTIONS = SQL[SQL.index("(") : SQL.index(")") + 1]
BOUNDS = OPTIONS.removesuffix(")")
DAY = "window(ts, '1 day')"
LISTS = f"{BOUNDS.replace('1e-7', '1e-6')}, sketch_width = 1024)"
COMPARED = (f"try views.sql {INPUT} --compare",)


def nothing(_: Path) -> None:
    """The folder is as it should be."""


def text(name: str, content: str) -> Make:
    return lambda folder: (folder / name).write_text(content)


def query(options: str, columns: str, groups: str) -> Make:
    """Another query, on a source that says when it begins."""

    def make(folder: Path) -> None:
        (folder / "conf/sources.yaml").write_text(f"{SOURCES}    start: 2026-01-01\n")
        (folder / "views.sql").write_text(
            f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS {options} {columns} FROM visits GROUP BY {groups}"
        )

    return make


def other_header(folder: Path) -> None:
    """A CSV file, compressed and not the first, whose columns are declared in another order."""
    declared = SOURCES.replace(
        "    format: parquet\n", "    format: csv\n    options: {header: true}\n"
    )
    (folder / "conf/sources.yaml").write_text(declared)
    (folder / "conf/visits/a.csv").write_text(
        "user_id,ts,page,seconds\nu,2026-01-01 00:00:00,p,1\n"
    )
    with gzip.open(folder / "conf/visits/b.csv.gz", "wt") as file:
        file.write("page,ts,user_id,seconds\np,2026-01-01 00:00:00,u,1\n")


def large_numbers(folder: Path) -> None:
    """Whole numbers that may not fit the declared type."""
    (folder / "conf/sources.yaml").write_text(SOURCES.replace("user_id STRING", "user_id BIGINT"))
    ids = pa.array([1], pa.uint64())
    table = pa.Table.from_pandas(records(), preserve_index=False)
    write_table(table.set_column(0, "user_id", ids), folder / "conf/visits/a.parquet")


def table_of_somebody(folder: Path) -> None:
    """A public table that does not say what it is."""
    shutil.rmtree(folder / "lake/public/views")
    write_deltalake(folder / "lake/public/views", pa.table({"page": ["a"], "views": [1]}))


def cut_log(folder: Path) -> None:
    """A public table that cannot be read."""
    for commit in (folder / "lake/public/views/_delta_log").glob("*.json"):
        commit.write_text("{")


def edited_line(_: Path) -> None:
    """A ledger in which somebody has changed a number."""
    (line,) = (default_secret_path(os.environ).parent / "ledger").glob("0*.json")
    line.write_text(line.read_text().replace('"kind": "run"', '"kind": "try"'))


def other_secret(_: Path) -> None:
    """The file of the secret has another one."""
    path = default_secret_path(os.environ)
    path.chmod(0o600)
    path.write_bytes(b"k" * 32)


def lost_binding(folder: Path) -> None:
    """A run whose run.json is damaged."""
    (folder / "lake/private/views/run.json").write_text("{")


def other_sources(folder: Path) -> None:
    """Declared otherwise than at the start of the run."""
    (folder / "conf/sources.yaml").write_text(
        SOURCES.replace("    format: parquet\n", "    format: parquet\n    max_users: 5\n")
    )


@dataclass(frozen=True)
class Cause:
    """Why a command is refused: the commands, as typed; what the message says; what is wrong in the folder, or nothing."""

    name: str
    commands: tuple[str, ...]
    says: str
    make: Make = nothing
    exit_code: int = 2


CAUSES = (
    Cause("a flag that it has not", tuple(f"{name} --nonsense" for name in main.commands), "No such option"),
    Cause("a typo in the query", OF_A_QUERY, "did you mean max_rows_contributed?", text("views.sql", SQL.replace("max_rows_c", "max_row_c"))),
    Cause("sources.yaml is broken", (*OF_A_QUERY, *OF_A_RUN, "budget", f"view views {LAKE}"), "not valid YAML", text("conf/sources.yaml", "a: [")),
    Cause("no such query", tuple(f"{name} none {LAKE}" for name in OF_A_NAME), "see: dpsql status --lake"),
    Cause("no lake", (f"status {LAKE}", *(f"{name} views {LAKE}" for name in ("show", "stop", "verify", "view"))), "lake", shutil.rmtree),
    Cause("no place for a lake", ("show views --lake ftp://host/x", "run views.sql --lake ftp://host/x", "status --lake ftp://host/x"), "like s3a://"),
    Cause("a damaged binding", (f"stop views {LAKE}", f"savepoint views {LAKE}", *OF_A_RUN, f"run views.sql {LAKE}"), "run.json", lost_binding),
    Cause("a table of somebody else", tuple(f"{name} views {LAKE}" for name in ("show", "view")), "any reader of Delta tables", table_of_somebody),
    Cause("a table of somebody else", (f"ask views --synthetic {LAKE}", "show lake/public/views"), "any reader of Delta tables", table_of_somebody),
    Cause("a table that cannot be read", tuple(f"{n} views {LAKE}" for n in ("show", "view", "compare")), "cannot be read", cut_log),
    Cause("a window that is not there", tuple(f"{n} views {LAKE} --window 2020-01-01" for n in ("show", "view", "compare")), "no window"),
    Cause("no secret", tuple(f"{each} --secret-file none" for each in ("budget", *OF_A_RUN)), "none"),
    Cause("a secret for all to read", ("budget", *SPENDING, *OF_A_RUN), "chmod 600", lambda _: default_secret_path(os.environ).chmod(0o644)),
    Cause("another secret", (*SAME_RUN, f"run views.sql {LAKE}"), "secret", other_secret),
    Cause("an edited ledger", ("budget", *SPENDING, f"restore views {LAKE} --ledger"), "edited after it was written", edited_line),
    Cause("a cap", SPENDING, "would exceed the cap", text("conf/sources.yaml", f"{SOURCES}    cap: {{epsilon: 1, delta: 1e-7, period: 1 day}}\n")),
    Cause("other declarations", (*SAME_RUN, f"run views.sql {LAKE}"), "another plan of the same query", other_sources),
    Cause("the name is taken", (f"run views.sql {LAKE}",), "belongs to another query", text("views.sql", SQL.replace("epsilon = 6", "epsilon = 5"))),
    Cause("no input", ("try views.sql --input none", "tune views.sql --sample none"), "no such file"),
    Cause("no input", (f"run views.sql {LAKE} --name other",), "No such file or directory", lambda folder: (folder / "conf/visits").rmdir()),
    Cause("nowhere to write", (f"try views.sql {INPUT} --output x/y.parquet", f"{OF_A_QUERY[2]} --output x/y.sql"), "there is no folder x"),
    Cause("nowhere to write", (f"view views {LAKE} --out x/y.html", f"run views.sql {LAKE} --log x/y"), "there is no folder x"),
    Cause("its own input", ("try views.sql --compare --input conf/visits", "tune views.sql --sample conf/visits"), "is the input of `visits` itself"),
    Cause("times that are none", (f"run views.sql {LAKE} --until-caught-up --until soon", f"try views.sql {INPUT} --until soon"), "write it like"),
    Cause("a live run that ends", (f"run views.sql {LAKE} --until 2026-01-31",), "--until needs --until-caught-up"),
    Cause("an interval that does not fit", (f"run views.sql {LAKE} --interval '7 seconds'",), "does not divide trigger_interval"),
    Cause("no Spark there", (f"run views.sql {LAKE} --master spark://127.0.0.1:1",), "no answer there", exit_code=1),
    Cause("flags that exclude each other", (f"show views {LAKE} --all --window 2026-01-01", f"show views {LAKE} --watch --json"), "exclude each other"),
    Cause("flags of something else", (f"restore views {LAKE} --new-run --buckets 4", f"restore views {LAKE} --ledger --to x"), "leave --buckets"),
    Cause("flags of something else", (f"ask views {LAKE} --max-error 5", f"ask views b --synthetic a {LAKE}"), "--"),
    Cause("flags of something else", (f"status {LAKE} --max-lag '1 day'",), "are of one run: name it"),
    Cause("nothing to ask", (f"ask views {LAKE} a", f"ask none {LAKE} a"), "has no published sketch"),
    Cause("nothing to ask", (f"ask views {LAKE} --synthetic", f"ask views 'SELECT COUNT(*) FROM views' {LAKE}"), "publishes no sets of keys"),
    Cause("keys that are not there", (f"compare views zz {LAKE}", f"compare views a zz {LAKE}"), "is not among the 3 published keys"),
    Cause("no error of a difference", (f"compare views a --by pages {LAKE}",), "no column 'pages' with an error"),
    Cause("the folder is taken", ("init",), "already exists"),
    Cause("rows are protected", COMPARED, "protect rows", query("(epsilon = 1, delta = 0, privacy_level = EVENT)", "COUNT(*) AS n", DAY)),
    Cause("a table that grows", COMPARED, "not supported for running totals", query(f"{BOUNDS}, trigger_interval = '1 day')", "page, COUNT(*) AS n", "page")),
    Cause("lists", COMPARED, "not supported for sketches", query(LISTS, "APPROX_TOP_COUNT(page, 3) AS top", DAY)),
    Cause("records without a column", (f"try views.sql {INPUT}",), "is missing", lambda folder: records(page=None).to_parquet(folder / "visits.parquet")),
    Cause("records of another type", (f"try views.sql {INPUT}",), "has type", lambda folder: records(ts=["x"]).to_parquet(folder / "visits.parquet")),
    Cause("another header", ("try views.sql", f"run views.sql {LAKE} --name other"), "its header says page, ts, user_id, seconds", other_header),
    Cause("large numbers", ("try views.sql", f"run views.sql {LAKE} --name other"), "declare `user_id DECIMAL(20,0)`", large_numbers),
    Cause("no Parquet", (f"try views.sql {INPUT}", "tune views.sql --sample visits.parquet"), "not a readable Parquet file", text("visits.parquet", "PAR1")),
)  # fmt: skip
CASES = [replace(cause, commands=(command,)) for cause in CAUSES for command in cause.commands]


def ledger() -> dict[str, bytes]:
    """Every file of it, and the secret."""
    folder = default_secret_path(os.environ).parent
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run that has spent, and with records."""
    folder = place(tmp_path / "work")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(spark_home, "MASTER_SECONDS", 0)
    monkeypatch.setattr(
        run_query,
        "start_session",
        lambda *_: pytest.fail("Spark is started for what could be refused before"),
    )
    published()
    records().to_parquet(folder / "visits.parquet")
    (folder / "conf/visits").mkdir()
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}: {case.commands[0]}")
def test_a_refusal_leaves_the_ledger_as_it_is(case: Cause, work: Path) -> None:
    """Catches: a line for what was never released; a command that asks for forgiveness after it has spent."""
    if case.make is shutil.rmtree:
        shutil.rmtree(work / "lake")
    else:
        case.make(work)
    before = ledger()
    files = files_of(work)
    done = CliRunner().invoke(main, shlex.split(case.commands[0]))
    assert done.exit_code == case.exit_code, done.output
    assert case.says in done.stderr and done.stdout == "", done.output
    assert "Traceback" not in done.stderr and "internal error" not in done.stderr
    assert len(done.stderr.splitlines()) in (
        (10,) if done.stderr.startswith("views.sql:") else (1, 2)
    ), done.stderr
    assert ledger() == before and {path.name for path in files_of(work) - files} <= {
        "running.json"
    }  # a lock


def test_every_command_is_there() -> None:
    assert {case.commands[0].split()[0] for case in CASES} == {*main.commands}


def test_what_is_not_refused_is_paid(work: Path) -> None:
    """Nothing is unspent because nothing would be: each of those who spend does so, once."""
    assert CliRunner().invoke(main, shlex.split(SPENDING[0])).exit_code == 0
    assert [line.kind for line in Ledger.beside(default_secret_path(os.environ)).lines()] == [
        "run",
        "try",
    ]
    assert CliRunner().invoke(main, shlex.split(f"{SPENDING[2]} --json")).exit_code == 0
    assert [line.kind for line in Ledger.beside(default_secret_path(os.environ)).lines()] == [
        "run",
        "try",
        "run",
    ]
    json.dumps(list(ledger()))
